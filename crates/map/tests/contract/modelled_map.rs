//! A pool with a few inodes, the caller's half of the protocol, and the model of what must be mapped.

use crate::Row;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrace_blocks::{BlockPool, Claim, Purpose, Target};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::InodeSlot;
use terrace_format::map_kind::MapKind;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{FileBlock, Geometry, Ino, PmBlock};
use terrace_map::file_map::{Freed, MapChange, MapGuard};
use terrace_map::{Cursor, FileMap, MapInode, Mapping};
use terrace_media::PmMedium;
use terrace_runtime::sync::Mutex;
use terrace_wal::{Error, MapRoom, NoSpace, Tx, Wal};
use zerocopy::{FromZeros, IntoBytes};

pub const UUID: [u8; 16] = [7; 16];
pub const INODES: u64 = 3;
/// Words that look like block numbers, so that a node that was not zeroed is noticed.
const GARBAGE: u64 = 100;

/// Bytes of a new page of a map in a record, at most.
pub const PAGE_RECORD_BYTES: usize = 24 + 2 * 16;
/// Bytes of a freed page of a map in a record, at most.
const FREED_RECORD_BYTES: usize = 24 + 16 + 8 + 240;
/// Bytes of a step that makes room, at most.
const STEP_RECORD_BYTES: usize = 1024;

/// The changes of an operation as callers make them: new mappings as a whole, removals run by run.
fn changes(inode: &MapInode, first: u64, old: &[Option<Mapping>], new: &[Option<Mapping>]) -> Vec<MapChange> {
    let change = |at: usize, mappings: &[Option<Mapping>]| MapChange {
        inode: *inode,
        first: FileBlock(first + at as u64),
        mappings: mappings.into(),
    };
    if new.iter().zip(old).any(|(new, old)| new.is_some() && new != old) {
        return vec![change(0, new)];
    }
    let mut at = 0;
    let mut runs = Vec::new();
    for run in new.chunk_by(|a, b| a.is_some() == b.is_some()) {
        if run[0].is_none() {
            runs.push(change(at, run));
        }
        at += run.len();
    }
    runs
}

/// Sets mappings without freeing a page.
pub fn set(
    map: &dyn FileMap,
    tx: &mut Tx,
    inode: &MapInode,
    first: u64,
    mappings: &[Option<Mapping>],
) -> terrace_wal::Result<()> {
    let change = MapChange { inode: *inode, first: FileBlock(first), mappings: mappings.into() };
    let mut freed = Freed::new();
    map.change(tx, &[change], 0, &mut freed)?.committed();
    assert!(freed.is_empty(), "pages are freed in a record without room");
    Ok(())
}

/// The result of an exchange.
pub struct Exchanged<'a> {
    /// The earlier mapping.
    pub old: Option<Mapping>,
    /// To be held until the commit.
    pub guard: MapGuard<'a>,
}

/// Exchanges a block without a cursor.
pub fn exchange<'a>(
    map: &'a dyn FileMap,
    tx: &mut Tx,
    inode: &MapInode,
    block: FileBlock,
    new: Mapping,
) -> terrace_wal::Result<Option<Exchanged<'a>>> {
    let mut guard = MapGuard::default();
    let old = map.exchange(None, tx, inode, (block, new), &mut guard)?;
    Ok(old.map(|old| Exchanged { old, guard }))
}

/// The first mapped block of a range.
pub fn next_mapped(
    map: &dyn FileMap,
    inode: &MapInode,
    from: u64,
    to: u64,
) -> terrace_wal::Result<Option<(FileBlock, Mapping)>> {
    let (mut found, mut next) = (Vec::new(), Some(FileBlock(from)));
    while let Some(at) = next
        && found.is_empty()
    {
        next = map.mapped(inode, at, FileBlock(to), 1, &mut found)?;
    }
    Ok(found.pop())
}

pub type Model = BTreeMap<(u64, u64), Mapping>;

/// The file maps of a small pool, and the model of them.
pub struct ModelledMap {
    pub name: &'static str,
    pub pm: Arc<dyn PmMedium>,
    pub wal: Arc<Wal>,
    pub blocks: Arc<BlockPool>,
    pub map: Arc<dyn FileMap>,
    pub model: Model,
    /// States a crash may leave: the committed one and that of the transaction in flight.
    pub allowed: Arc<Mutex<Vec<Model>>>,
    /// With the mode in which `order` is not durable, every earlier state since the start is allowed.
    pub keep_history: bool,
    pub rng: SmallRng,
    /// Of a lock that all inodes share.
    pub cursor: Cursor,
}

/// Where the slots of the inodes lie.
pub fn slot_page(geometry: &Geometry) -> PmBlock {
    geometry.first_pool_block()
}

pub fn inode(geometry: &Geometry, ino: u64) -> MapInode {
    MapInode {
        ino: Ino(ino),
        slot: slot_page(geometry).offset().plus(ino % 32 * 128),
        has_cold: ino.is_multiple_of(2),
    }
}

/// An image of `size` bytes with `free` blocks, all of garbage, and zeroed slots, for a kind of map.
pub fn image(kind: MapKind, size: u64, free: u64) -> (Vec<u8>, Geometry) {
    let geometry = Geometry::choose(size, 16).unwrap().with_map(kind).unwrap();
    let pm = Arc::new(terrace_media::pm::RecordedPm::new(size));
    Wal::format(pm.clone(), UUID, geometry).unwrap();
    let mut image = pm.visible_image().to_vec();
    let first = geometry.first_pool_block();
    image[geometry.map_reach().0 as usize] = 16;
    for word in image[first.offset().0 as usize + 4096..].chunks_exact_mut(8) {
        word.copy_from_slice(&GARBAGE.to_le_bytes());
    }
    let used = |kind| Owner::Page { kind, datum: 0 }.encode().to_le_bytes();
    for block in first.0..geometry.block_count() {
        let at = geometry.table_entry(PmBlock(block)).0 as usize;
        if block == first.0 {
            image[at..at + 8].copy_from_slice(&used(PageKind::InodePage));
        } else if block > first.0 + free {
            image[at..at + 8].copy_from_slice(&used(PageKind::CatalogPage));
        }
    }
    (image, geometry)
}

impl ModelledMap {
    pub fn open(pm: Arc<dyn PmMedium>, geometry: Geometry, row: &Row, seed: u64) -> ModelledMap {
        let geometry = geometry.with_map(row.kind).unwrap();
        let (wal, _) = Wal::open(Arc::clone(&pm), UUID, geometry).unwrap();
        let wal = Arc::new(wal);
        let blocks = Arc::new(BlockPool::of_map(Arc::clone(&wal), UUID));
        let map = Arc::from((row.make)(&blocks).unwrap());
        // Half of the maps are used before the scan of the block table has ended.
        while seed.is_multiple_of(2) && blocks.scan_step().unwrap() {}
        ModelledMap {
            name: row.name,
            pm,
            wal,
            blocks,
            map,
            model: Model::new(),
            allowed: Arc::new(Mutex::new(vec![Model::new()])),
            keep_history: false,
            rng: SmallRng::seed_from_u64(seed),
            cursor: Cursor::default(),
        }
    }

    pub fn slot(&self, ino: u64) -> InodeSlot {
        let mut slot = InodeSlot::new_zeroed();
        self.pm.read(self.inode(ino).slot, slot.as_mut_bytes()).unwrap();
        slot
    }

    pub fn inode(&self, ino: u64) -> MapInode {
        inode(self.wal.geometry(), ino)
    }

    fn freeing<T>(&self, mut take: impl FnMut() -> terrace_wal::Result<T>) -> terrace_wal::Result<T> {
        match take() {
            Err(Error::NoSpace(NoSpace::Pm)) => {
                self.wal.checkpoint()?;
                take()
            }
            other => other,
        }
    }

    fn claim_nodes(&self, count: usize) -> terrace_wal::Result<Claim<'_>> {
        self.freeing(|| self.blocks.claim(count, Purpose::Reclaim))
    }

    /// New mappings of a range, each with a PM block that is no neighbour of the last.
    pub fn wanted(&self, ino: u64, first: u64, count: usize) -> MapChange {
        let mappings = (0..count as u64).map(|index| Some(Mapping::written(PmBlock(60 + 2 * (index % 40)))));
        MapChange { inode: self.inode(ino), first: FileBlock(first), mappings: mappings.collect() }
    }

    /// Pages that a range lacks.
    pub fn missing(&self, ino: u64, first: u64, count: usize) -> usize {
        let room = self.map.missing_room(&[], &self.wanted(ino, first, count)).unwrap();
        room.map_or(0, |room| room.pages)
    }

    /// Makes the room a range needs, few pages at a time.
    pub fn ensure_room(&mut self, ino: u64, first: u64, count: usize) -> terrace_wal::Result<()> {
        let wanted = self.wanted(ino, first, count);
        while let Some(room) = self.map.missing_room(&[], &wanted)? {
            self.make_room(ino, &room)?;
            let left = self.map.missing_room(&[], &wanted)?.map_or(0, |room| room.pages);
            assert!(self.name != "radix" || left == 0, "{left} pages of {room:?} are missing still");
        }
        Ok(())
    }

    /// Makes room, few pages at a time; sometimes a transaction is given up.
    pub fn make_room(&mut self, ino: u64, room: &MapRoom) -> terrace_wal::Result<()> {
        let inode = self.inode(ino);
        let mut left = room.pages;
        loop {
            let most = left.clamp(1, (self.wal.max_record() - 64) / PAGE_RECORD_BYTES);
            let held = self.rng.random_range(1..=most);
            let bytes = (32 + PAGE_RECORD_BYTES * held).max(STEP_RECORD_BYTES);
            let give_up = self.rng.random_bool(0.1);
            let reservation = self.wal.reserve(bytes)?;
            let mut claim = self.claim_nodes(held)?;
            let mut tx = Tx::new();
            let made = match self.map.make_room(&mut tx, &inode, room, &mut claim) {
                Ok(made) => made,
                Err(error) => {
                    claim.give_back_all();
                    return Err(error);
                }
            };
            assert!(tx.record_size() <= bytes, "{} > {bytes}", tx.record_size());
            if tx.is_empty() {
                return Ok(());
            }
            let now = held - claim.left();
            assert!(now != 0 || room.pages == 0, "no page of {held} was used");
            if give_up {
                claim.give_back_all(); // the transaction is given up
                continue;
            }
            self.wal.commit(reservation, &tx)?;
            made.committed();
            left -= now.min(left);
        }
    }

    /// As [`Self::change`]; makes room when it is lacking, and tries again.
    fn change_with_room<'m>(
        &mut self,
        map: &'m dyn FileMap,
        tx: &mut Tx,
        ino: u64,
        first: u64,
        new: &[Option<Mapping>],
    ) -> terrace_wal::Result<(Freed, MapGuard<'m>)> {
        loop {
            match self.change(map, tx, ino, first, new) {
                Err(Error::MapRoom(room)) => {
                    tx.clear();
                    self.make_room(ino, &room)?;
                }
                done => return done,
            }
        }
    }

    /// Maps new blocks to a range.
    pub fn put(&mut self, ino: u64, first: u64, count: usize, unwritten: bool) -> terrace_wal::Result<()> {
        self.ensure_room(ino, first, count)?;
        let reservation = self.wal.reserve(self.wal.max_record())?;
        let mut claim = self.claim_nodes(count)?;
        let blocks = (first..first + count as u64).map(FileBlock);
        let new: Vec<_> = blocks
            .map(|block| claim.take(Target::File { ino: Ino(ino), block }))
            .map(|taken| taken.map(|block| Mapping { block, unwritten }))
            .collect();
        let mut tx = Tx::new();
        let map = Arc::clone(&self.map);
        let (freed, guard) = match self.change(&*map, &mut tx, ino, first, &new) {
            Ok(changed) => changed,
            Err(error) => {
                claim.give_back_all();
                return Err(error);
            }
        };
        let post = self.after(ino, first, &new);
        self.allow(&post);
        let lsn = self.wal.commit(reservation, &tx)?;
        guard.committed();
        self.blocks.freed(lsn, &freed);
        drop(claim);
        self.committed(post);
        Ok(())
    }

    /// Clears some blocks of a range, and frees nodes.
    pub fn clear(&mut self, ino: u64, first: u64, count: usize, share: f64) -> terrace_wal::Result<()> {
        let inode = self.inode(ino);
        let mut new = vec![None; count];
        self.map.lookup_run(&inode, FileBlock(first), &mut new)?;
        for mapping in &mut new {
            *mapping = mapping.filter(|_| !self.rng.random_bool(share));
        }
        let mut tx = Tx::new();
        let map = Arc::clone(&self.map);
        let (freed, guard) = self.change_with_room(&*map, &mut tx, ino, first, &new)?;
        let reservation = self.wal.reserve(self.wal.max_record())?;
        let post = self.after(ino, first, &new);
        self.allow(&post);
        let lsn = self.wal.commit(reservation, &tx)?;
        guard.committed();
        self.blocks.freed(lsn, &freed);
        self.committed(post);
        Ok(())
    }

    /// Turns unwritten blocks of a range into written ones, in place, and back.
    pub fn flip(&mut self, ino: u64, first: u64, count: usize) -> terrace_wal::Result<()> {
        let inode = self.inode(ino);
        let mut new = vec![None; count];
        self.map.lookup_run(&inode, FileBlock(first), &mut new)?;
        for mapping in new.iter_mut().flatten() {
            mapping.unwritten ^= self.rng.random_bool(0.5);
        }
        let mut tx = Tx::new();
        let map = Arc::clone(&self.map);
        let (freed, guard) = self.change_with_room(&*map, &mut tx, ino, first, &new)?;
        let reservation = self.wal.reserve(self.wal.max_record())?;
        let post = self.after(ino, first, &new);
        self.allow(&post);
        let lsn = self.wal.commit(reservation, &tx)?;
        guard.committed();
        self.blocks.freed(lsn, &freed);
        self.committed(post);
        Ok(())
    }

    /// Frees empty nodes of a whole file, in as many transactions as it takes.
    pub fn prune_all(&mut self, ino: u64) -> terrace_wal::Result<()> {
        let inode = self.inode(ino);
        let mut at = Some(FileBlock(0));
        while let Some(first) = at {
            let limit = self.rng.random_range(600..=self.wal.max_record());
            let reservation = self.wal.reserve(limit)?;
            let (mut tx, mut freed) = (Tx::new(), Default::default());
            let rest = (MAX_FILE_BLOCK.0 + 1 - first.0) as usize;
            at = self.map.prune(&mut tx, &inode, (first, rest), limit, &mut freed)?;
            assert!(tx.record_size() <= limit, "{} > {limit}", tx.record_size());
            assert!(at.is_none_or(|next| next > first || !freed.is_empty()), "prune does not get on");
            let lsn = self.wal.commit(reservation, &tx)?;
            self.blocks.freed(lsn, &freed);
        }
        Ok(())
    }

    /// Logs new mappings, owners and frees; what leaves the map comes back.
    fn change<'m>(
        &self,
        map: &'m dyn FileMap,
        tx: &mut Tx,
        ino: u64,
        first: u64,
        new: &[Option<Mapping>],
    ) -> terrace_wal::Result<(Freed, MapGuard<'m>)> {
        let inode = self.inode(ino);
        let mut old = vec![None; new.len()];
        self.map.lookup_run(&inode, FileBlock(first), &mut old)?;
        let before = tx.record_size();
        let mut freed = Freed::new();
        let changes = changes(&inode, first, &old, new);
        let stored = (self.name == "cuckoo").then(|| crate::cuckoo::lines(self));
        let limit = self.wal.max_record().saturating_sub(48 * new.len());
        let changed = map.change(tx, &changes, limit, &mut freed);
        let guard = changed.inspect_err(|_| freed.iter().for_each(|block| self.blocks.keep(*block)))?;
        assert!(
            stored.is_none_or(|stored| stored == crate::cuckoo::lines(self)),
            "a line changed before the commit"
        );
        let cost = tx.record_size() - before;
        let most = self.map.record().bytes(changes.len(), new.len()) + FREED_RECORD_BYTES * freed.len();
        assert!(cost <= most, "change of {} blocks took {cost} bytes of {most}", new.len());
        assert!(old != new || cost <= FREED_RECORD_BYTES * freed.len(), "unchanged words were logged");
        let mut seen = vec![None; new.len()];
        // Presence of new blocks is entered before their entries are stored. Readers of the cuckoo map wait for the guard.
        if !self.wal.geometry().map.is_shared() {
            self.map.lookup_run(&inode, FileBlock(first), &mut seen)?;
            assert_eq!(seen, old, "a change is visible before its commit");
        }
        for (block, (old, new)) in (first..).zip(old.iter().zip(new)) {
            if let Some(new) = new
                && Some(new) != old.as_ref()
            {
                let owner = Owner::File { ino: Ino(ino), block: FileBlock(block), unwritten: new.unwritten };
                self.blocks.set_owner(tx, new.block, owner);
            }
            if let Some(old) = old
                && new.is_none_or(|new| new.block != old.block)
            {
                self.blocks.release(tx, old.block);
                freed.push(old.block);
            }
        }
        Ok((freed, guard))
    }

    fn after(&self, ino: u64, first: u64, new: &[Option<Mapping>]) -> Model {
        let mut post = self.model.clone();
        for (block, mapping) in (first..).zip(new) {
            match mapping {
                Some(mapping) => post.insert((ino, block), *mapping),
                None => post.remove(&(ino, block)),
            };
        }
        post
    }

    fn allow(&self, post: &Model) {
        self.allowed.lock().push(post.clone());
    }

    fn committed(&mut self, post: Model) {
        if !self.keep_history {
            *self.allowed.lock() = vec![post.clone()];
        }
        self.model = post;
    }

    /// The whole content of the maps.
    pub fn content(&self) -> terrace_wal::Result<Model> {
        let mut content = Model::new();
        for ino in 1..=INODES {
            let before = content.len();
            let (inode, mut next) = (self.inode(ino), Some(FileBlock(0)));
            let end = FileBlock(MAX_FILE_BLOCK.0 + 1);
            let mut most = 1;
            while let Some(at) = next {
                let mut found = Vec::new();
                next = match self.map.mapped(&inode, at, end, most, &mut found) {
                    Err(Error::TableUnread) => {
                        while self.blocks.scan_step()? {}
                        continue;
                    }
                    listed => listed?,
                };
                assert!(found.len() <= most && next.is_none_or(|next| next > at && next < end));
                for (block, mapping) in found {
                    assert!(block >= at && next.is_none_or(|next| block < next), "{block} after {at}");
                    content.insert((ino, block.0), mapping);
                }
                most = most * 2 % 97 + 1;
            }
            let is_empty = self.map.is_empty(inode.ino, &self.slot(ino));
            assert!(!is_empty || content.len() == before, "inode {ino} has blocks");
        }
        Ok(content)
    }

    /// Nodes of all inodes. Asserts that each node has a single parent and the owner that the block table
    /// demands.
    pub fn nodes(&self) -> BTreeSet<PmBlock> {
        let mut nodes = BTreeSet::new();
        for ino in 1..=INODES {
            let mut visit = |block, _level| {
                assert!(nodes.insert(block), "node {block} twice");
                let kind = PageKind::MapNode;
                let datum = ino as u32;
                assert_eq!(self.blocks.owner(block).unwrap(), Owner::Page { kind, datum });
            };
            self.map.visit_pages(&self.inode(ino), &mut visit).unwrap();
        }
        nodes
    }

    /// The block table says exactly what the maps say (I6).
    pub fn check_table(&self, content: &Model) {
        let nodes = self.nodes();
        let mut files = Model::new();
        for block in self.blocks.first_block().0..self.blocks.end_block().0 {
            let block = PmBlock(block);
            match self.blocks.owner(block).unwrap() {
                Owner::Free => assert!(!nodes.contains(&block), "node {block} is free"),
                Owner::File { ino, block: at, unwritten } => {
                    let twice = files.insert((ino.0, at.0), Mapping { block, unwritten });
                    assert_eq!(twice, None, "two blocks for {at} of {ino}");
                }
                Owner::Page { kind: PageKind::MapNode, .. } => {
                    assert!(nodes.contains(&block), "node {block} leaked")
                }
                Owner::Page { .. } => {}
            }
        }
        assert_eq!(&files, content, "block table and map differ");
        if self.name == "cuckoo" {
            crate::cuckoo::check(self, content);
        }
        if self.name == "clustered" {
            crate::clustered::check(self, content);
        }
    }
}
