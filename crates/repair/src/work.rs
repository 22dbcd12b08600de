//! The data of one round of repair: the state found, the new state, and the free blocks for new pages.
//!
//! Invariants: no function here writes a medium, all changes go to the overlay. `new` has the new owner of
//! each block; a block gets one owner only. A new page goes to a block that neither the old state nor a later
//! repair reads, so a crash after it was written changes nothing.

use super::below::LeafBelow;
use std::collections::{BTreeMap, BTreeSet};
use terrace_check::Devices;
use terrace_check::bitmap::Dense;
use terrace_check::checker::Node;
use terrace_check::overlay::Overlay;
use terrace_format::inode::{InodeSlot, SLOTS_PER_PAGE};
use terrace_format::superblock::Superblock;
use terrace_format::table::{Entry, MASK_FULL, Owner, PageKind};
use terrace_format::{BLOCK_SIZE, Geometry, LineMask, Lsn, PmBlock, PmOffset};

/// Owner word of a table entry that cannot be read or decoded.
const UNKNOWN: u64 = u64::MAX;
/// Actions that are listed one by one; the rest is counted.
const LISTED: usize = 1000;

/// A block of PM.
pub(crate) type Bytes = Box<[u8; BLOCK_SIZE as usize]>;

/// Key and value of a catalog cell.
pub(crate) type Cell = (Vec<u8>, Vec<u8>);

/// The reason why a repair cannot go on.
#[derive(Debug)]
pub(crate) struct Stuck(pub String);

/// The changes that the repair made, in sentences.
#[derive(Default)]
pub(crate) struct Actions {
    listed: Vec<String>,
    more: u64,
    lost: BTreeSet<(Option<u32>, String)>,
}

impl Actions {
    pub fn add(&mut self, text: String) {
        if self.listed.len() < LISTED {
            self.listed.push(text);
        } else {
            self.more += 1;
        }
    }
    /// As [`Self::add`], for an inode whose content, name or attributes are changed or may be changed.
    pub fn lose(&mut self, ino: u32, text: String) {
        self.add(format!("inode {ino}: {text}"));
        self.note_lost(Some(ino), text);
    }
    /// As [`Self::lose`] where no inode is known.
    pub fn lose_some(&mut self, text: String) {
        self.add(text.clone());
        self.note_lost(None, text);
    }
    fn note_lost(&mut self, ino: Option<u32>, text: String) {
        if self.lost.len() < LISTED {
            self.lost.insert((ino, text));
        }
    }
    pub fn take_lost(&mut self) -> BTreeSet<(Option<u32>, String)> {
        std::mem::take(&mut self.lost)
    }
    pub fn into_list(mut self) -> Vec<String> {
        if self.more > 0 {
            self.listed.push(format!("{} more", self.more));
        }
        self.listed
    }
}

/// Where new pages and the journal may go; shared by all rounds.
#[derive(Default)]
pub(crate) struct Fresh {
    /// Candidates, not looked at yet, in descending order.
    blocks: Vec<u64>,
    /// Blocks handed out.
    pub taken: BTreeSet<u64>,
}

/// A pointer or a table entry: this block holds that block of that inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub block: u64,
    pub unwritten: bool,
}

/// The map of a file.
#[derive(Default)]
pub(crate) struct FileMap {
    /// As the walk found it; where two entries name one file block the first.
    pub found: BTreeMap<u64, Mapped>,
    /// After the repair.
    pub entries: BTreeMap<u64, Mapped>,
    /// Radix nodes of the walk.
    pub nodes: Vec<u64>,
    /// The tree has to be built anew.
    pub broken: bool,
}

/// The tree of a shard, as the walk found it.
#[derive(Default)]
pub(crate) struct Shard {
    pub pages: Vec<u64>,
    /// Cells in the order of the walk.
    pub found: Vec<Cell>,
    pub broken: bool,
    /// The block table says of a page that it is free, or does not say its owner.
    pub doubtful: bool,
    /// Whether the walk follows pointers to such pages.
    pub trusting: bool,
}

/// State of one round.
pub(crate) struct Work<'a> {
    pub devices: &'a Devices,
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub overlay: Overlay,
    pub actions: &'a mut Actions,
    pub fresh: &'a mut Fresh,
    /// Owner words as found, `UNKNOWN` where unreadable or not decodable.
    pub table: Vec<u64>,
    /// Blocks whose table entry has a full line mask or a checksum, as a whole owned block has.
    masked: Dense,
    /// Line masks of possible partial shadows, as found. A block whose mask is lost counts as whole.
    pub partial: BTreeMap<u64, LineMask>,
    /// Metadata pages by owner word, as found.
    pub pages_of: BTreeMap<u64, Vec<u64>>,
    /// Owner words after the repair.
    pub new: Vec<u64>,
    /// Blocks to which a found structure points.
    pub seen: Dense,
    /// Pages of the inode file: found by its tree; after the repair; lost.
    pub pages_found: BTreeMap<u64, u64>,
    pub pages: BTreeMap<u64, u64>,
    pub lost_pages: BTreeSet<u64>,
    pub inode_nodes: Vec<(u64, u64)>,
    pub inode_tree_broken: bool,
    /// Slots of inodes in use, and slots of mode 0 with other bytes in them.
    pub slots: BTreeMap<u32, InodeSlot>,
    pub residues: BTreeMap<u32, InodeSlot>,
    pub maps: BTreeMap<u32, FileMap>,
    pub shards: Vec<Shard>,
    pub cells: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Cells or pages of the catalog are gone.
    pub cells_lost: bool,
    /// Locations of intact metadata pages below: device and block.
    pub places_below: BTreeSet<(u8, u64)>,
    /// Intact pages of the inode file below, by location.
    pub inodes_below: BTreeMap<u64, Bytes>,
    /// Leaves of each shard, by their first key.
    pub leaves_below: BTreeMap<u32, BTreeMap<Vec<u8>, LeafBelow>>,
    /// A device that holds metadata and does not answer.
    pub absent: Option<u8>,
    /// Past the LSN of every record.
    pub log_end: Lsn,
    /// Bytes of the overlay changed in this round.
    pub changed: bool,
}

impl<'a> Work<'a> {
    pub fn new(
        devices: &'a Devices,
        superblock: Superblock,
        (overlay, log_end): (Overlay, Lsn),
        actions: &'a mut Actions,
        fresh: &'a mut Fresh,
    ) -> Work<'a> {
        let geometry = superblock.geometry();
        let count = geometry.block_count();
        let mut work = Work {
            devices,
            superblock,
            geometry,
            overlay,
            actions,
            fresh,
            table: vec![UNKNOWN; count as usize],
            masked: Dense::new(count),
            partial: BTreeMap::new(),
            pages_of: BTreeMap::new(),
            new: vec![0; count as usize],
            seen: Dense::new(count),
            pages_found: BTreeMap::new(),
            pages: BTreeMap::new(),
            lost_pages: BTreeSet::new(),
            inode_nodes: Vec::new(),
            inode_tree_broken: false,
            slots: BTreeMap::new(),
            residues: BTreeMap::new(),
            maps: BTreeMap::new(),
            shards: Vec::new(),
            cells: BTreeMap::new(),
            cells_lost: false,
            places_below: BTreeSet::new(),
            inodes_below: BTreeMap::new(),
            leaves_below: BTreeMap::new(),
            absent: None,
            log_end,
            changed: false,
        };
        work.read_table();
        work
    }

    /// The owner of a block whose entry has the checksum of its data instead of a mask.
    pub fn checksummed(&self, entry: &[u8; 16]) -> Option<Owner> {
        let entry = Entry::decode(Entry::words(entry)).filter(|_| self.superblock.has_data_checksums())?;
        entry.checksum.map(|_| entry.owner)
    }

    fn read_table(&mut self) {
        let start = self.geometry.table_offset();
        let pages = self.word(self.geometry.inode_pages()).unwrap_or(0);
        let most = self.geometry.block_count();
        let inodes = if (1..=most).contains(&pages) { pages } else { most } * SLOTS_PER_PAGE;
        let entries_per_line = 4;
        let mut block = 0;
        let mut table = std::mem::take(&mut self.table);
        // Reads a line at a time: an unreadable line must not hide the entries of its neighbours.
        for line in table.chunks_mut(entries_per_line) {
            let mut bytes = [0; 64];
            let (into, _) = bytes.split_at_mut(line.len() * 16);
            if self.overlay.read(&*self.devices.pm, start.plus(block * 16), into).is_ok() {
                for ((at, place), entry) in (block..).zip(line.iter_mut()).zip(bytes.as_chunks::<16>().0) {
                    if entry.ends_with(&MASK_FULL.to_le_bytes()) {
                        self.masked.insert(at);
                    } else if self.superblock.has_partial_shadows() && !entry.ends_with(&[0; 8]) {
                        let mask = entry.last_chunk().map_or(0, |mask| u64::from_le_bytes(*mask));
                        self.partial.insert(at, LineMask(mask));
                    }
                    let mut word = entry.first_chunk().map_or(UNKNOWN, |word| u64::from_le_bytes(*word));
                    if let Some(owner) = self.checksummed(entry) {
                        (word, _) = (owner.encode(), self.masked.insert(at));
                        self.partial.remove(&at);
                    }
                    let possible = Owner::decode(word).is_some_and(|owner| self.is_possible(owner, inodes));
                    *place = if possible { word } else { UNKNOWN };
                }
            }
            block += entries_per_line as u64;
        }
        self.table = table;
        for (block, owner) in self.owned() {
            if matches!(owner, Owner::Page { .. }) {
                self.pages_of.entry(owner.encode()).or_default().push(block);
            }
        }
    }

    /// Whether this pool can have such an owner: a damaged word mostly decodes to a far too high inode
    /// number.
    fn is_possible(&self, owner: Owner, inodes: u64) -> bool {
        match owner {
            Owner::Free => true,
            Owner::File { ino, .. } => ino.0 < inodes,
            Owner::Page { kind, datum } => match kind {
                PageKind::Fixed => datum == 0,
                PageKind::InodePage => u64::from(datum) < self.geometry.block_count(),
                PageKind::InodeNode => datum < u32::from(super::inode_file::MAX_HEIGHT),
                PageKind::CatalogPage => datum < self.geometry.catalog_shards,
                PageKind::MapNode => u64::from(datum) < inodes,
            },
        }
    }

    pub fn in_pool(&self, block: u64) -> bool {
        block >= self.geometry.first_pool_block().0 && block < self.geometry.block_count()
    }

    /// The owner of a block, as found; `None` when the table does not say it.
    pub fn owner(&self, block: u64) -> Option<Owner> {
        self.table.get(block as usize).copied().filter(|word| *word != UNKNOWN).and_then(Owner::decode)
    }

    /// Owned pool blocks as found, in order: only blocks whose line mask confirms it, since little damage
    /// makes a free entry look owned.
    pub fn owned(&self) -> Vec<(u64, Owner)> {
        let first = self.geometry.first_pool_block().0;
        let pool = (0u64..).zip(&self.table).skip(first as usize);
        let known =
            pool.filter(|(block, word)| **word != 0 && **word != UNKNOWN && self.masked.contains(*block));
        known.filter_map(|(block, word)| Some((block, Owner::decode(*word)?))).collect()
    }

    /// True while the block has no new owner.
    pub fn is_open(&self, block: u64) -> bool {
        self.in_pool(block) && self.new.get(block as usize) == Some(&0)
    }

    /// Gives a block an owner; false when it has one or is none of the pool.
    pub fn own(&mut self, block: u64, owner: Owner) -> bool {
        if !self.is_open(block) {
            return false;
        }
        if let Some(place) = self.new.get_mut(block as usize) {
            *place = owner.encode();
        }
        true
    }

    /// Notes that a found structure points to the block. False when it is no block of the pool.
    pub fn see(&mut self, block: u64) -> bool {
        self.seen.insert(block);
        self.in_pool(block)
    }

    pub fn word(&self, offset: PmOffset) -> Option<u64> {
        let mut word = [0; 8];
        let read = self.overlay.read(&*self.devices.pm, offset, &mut word);
        read.is_ok().then(|| u64::from_le_bytes(word))
    }

    pub fn block(&self, block: u64) -> Option<Bytes> {
        let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
        if !self.in_pool(block) {
            return None;
        }
        let read = self.overlay.read(&*self.devices.pm, PmBlock(block).offset(), bytes.as_mut_slice());
        read.is_ok().then_some(bytes)
    }

    pub fn node(&self, block: u64) -> Option<Node> {
        let bytes = self.block(block)?;
        Some(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Puts bytes into the overlay, a line at a time, and only lines that change.
    pub fn put(&mut self, offset: PmOffset, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = (64 - at.0 % 64).min(rest.len() as u64) as usize;
            let (piece, tail) = rest.split_at(take);
            let mut there = [0; 64];
            let (there, _) = there.split_at_mut(take);
            let read = self.overlay.read(&*self.devices.pm, at, there);
            if read.is_err() || there != piece {
                self.overlay.write(at, piece);
                terrace_check::checksums::open(&mut self.overlay, &self.geometry, at, piece.len());
                self.changed = true;
            }
            (at, rest) = (at.plus(take as u64), tail);
        }
    }

    /// A block for a new page.
    pub fn allocate(&mut self, owner: Owner) -> Result<u64, Stuck> {
        while let Some(block) = self.fresh.blocks.pop() {
            if self.is_open(block) && self.block(block).is_some() {
                self.own(block, owner);
                self.fresh.taken.insert(block);
                terrace_check::checksums::open(&mut self.overlay, &self.geometry, PmBlock(block).offset(), 1);
                return Ok(block);
            }
        }
        Err(Stuck("persistent memory has too few free blocks for the repair".into()))
    }

    /// A block for the journal: taken as for a page, but without an owner.
    pub fn allocate_unowned(&mut self) -> Result<u64, Stuck> {
        let block = self.allocate(Owner::Page { kind: PageKind::Fixed, datum: 0 })?;
        if let Some(place) = self.new.get_mut(block as usize) {
            *place = 0;
        }
        Ok(block)
    }

    /// Finds the blocks whose content neither this repair nor a repeated one reads. Called once, after all
    /// found structures were walked. `named`: data that decides whether a record counts.
    pub fn find_fresh(&mut self, named: &[(PmOffset, u64)]) {
        let named = |block: u64| {
            let (start, end) = (block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
            named.iter().any(|(at, length)| at.0 < end && start < at.0.saturating_add(*length))
        };
        let first = self.geometry.first_pool_block().0;
        let unused = |block: &u64| match self.owner(*block) {
            Some(Owner::Page { kind: PageKind::CatalogPage | PageKind::InodePage, .. }) => false,
            _ => !self.seen.contains(*block) && self.is_open(*block) && !named(*block),
        };
        self.fresh.blocks = (first..self.geometry.block_count()).rev().filter(unused).collect();
    }

    /// The slot's inode page and place.
    pub fn page_of(ino: u32) -> u64 {
        u64::from(ino) / SLOTS_PER_PAGE
    }
}
