//! A pool with a file map and no file system: files are slots in pages of the pool, and blocks have no content.
//!
//! The pool is made by mkfs, so every map finds its fixed area as it does in a mount. Its memory is sparse: table, log and
//! pages of maps are touched, blocks of files are not.

use super::contestant::Contestant;
use super::page_cache::PageCachedPm;
use std::path::Path;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_blocks::{BlockPool, Claim, Purpose, Target};
use terrace_engine::{FormatOptions, PolicyKind, PoolMedia, format};
use terrace_format::address::LINE_SIZE;
use terrace_format::inode::SLOT_SIZE;
use terrace_format::superblock::Superblock;
use terrace_format::table::{Entry, Owner, PageKind};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, LineMask, PmBlock, PmOffset};
use terrace_map::file_map::{Freed, MapChange, MapInode};
use terrace_map::{FileMap, Mapping};
use terrace_media::PmMedium;
use terrace_media::pm::{CountedPm, RamPm};
use terrace_wal::{Error, MapRoom, NoSpace, Result, Tx, Wal};

/// Pages that a step of making room claims at most.
const PAGES_AT_ONCE: usize = 16;
/// Bytes of the entry of a block in a record, with the head of its write.
const ENTRY_BYTES: usize = 48;
/// Bytes of a record beside its writes.
const RECORD_HEAD_BYTES: usize = 128;
/// The first inode number of files: the root has number 1.
const FIRST_INO: u64 = 100;

/// How a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// For times.
    Bare,
    /// With a medium that counts.
    Counted,
    /// With a medium that counts, before the scan of the block table has begun.
    CountedUnscanned,
}

/// A pool of PM with a file map.
pub(crate) struct BarePool {
    memory: Arc<RamPm>,
    counted: Option<Arc<CountedPm>>,
    wal: Arc<Wal>,
    blocks: Arc<BlockPool>,
    map: Box<dyn FileMap>,
}

impl BarePool {
    /// Makes a pool of `bytes` in a new file. The keys of its hashes follow from `seed`.
    ///
    /// # Errors
    /// When the file exists or is too small for a pool.
    pub(crate) fn create(
        path: &Path,
        bytes: u64,
        map: &Contestant,
        seed: u64,
        opening: Opening,
    ) -> Outcome<BarePool> {
        let memory = Arc::new(RamPm::create_sparse(path, bytes.next_multiple_of(2 << 20))?);
        let mut hash_key = [7; 16];
        hash_key[..8].copy_from_slice(&seed.to_le_bytes());
        let options = FormatOptions {
            map: map.kind,
            label: "map".into(),
            uuid: [1; 16],
            hash_key,
            seal_secret: Some([3; 16]),
            policy: PolicyKind::STATIC,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 4096,
            created_ns: 1,
            root: Default::default(),
            devices: Vec::new(),
        };
        let superblock = format(&PoolMedia { pm: memory.clone(), block: Vec::new() }, &options)?;
        BarePool::open(memory, &superblock, map, opening)
    }

    fn open(
        memory: Arc<RamPm>,
        superblock: &Superblock,
        map: &Contestant,
        opening: Opening,
    ) -> Outcome<BarePool> {
        let geometry = superblock.geometry();
        let log = geometry.lane_offset(0)..geometry.lane_offset(geometry.lane_count);
        let counted = (opening != Opening::Bare).then(|| Arc::new(CountedPm::new(memory.clone() as _, log)));
        let pm: Arc<dyn PmMedium> = match &counted {
            Some(counted) => counted.clone(),
            None => memory.clone(),
        };
        let pm = match map.is_page_cached {
            true => Arc::new(PageCachedPm::new(pm, geometry)),
            false => pm,
        };
        let wal = Arc::new(Wal::open(pm, superblock.uuid, geometry)?.0);
        let blocks = Arc::new(BlockPool::of_map(wal.clone(), superblock.hash_key));
        let of_pool = (map.make)(&blocks)?;
        while opening != Opening::CountedUnscanned && blocks.scan_step()? {}
        Ok(BarePool { memory, counted, wal, blocks, map: of_pool })
    }

    /// The same pool as after a mount whose scan of the block table has not begun, with a medium that counts.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn unscanned(self, map: &Contestant) -> Outcome<BarePool> {
        self.wal.checkpoint()?;
        let memory = self.memory.clone();
        drop(self);
        let (superblock, _) = terrace_engine::read_superblock(&*memory, true)?;
        BarePool::open(memory, &superblock, map, Opening::CountedUnscanned)
    }

    /// The map.
    pub(crate) fn map(&self) -> &dyn FileMap {
        &*self.map
    }

    /// The medium that counts.
    pub(crate) fn counted(&self) -> Option<&CountedPm> {
        self.counted.as_deref()
    }

    /// The part of all blocks that is not free.
    pub(crate) fn load(&self) -> f64 {
        let usage = self.blocks.usage();
        1.0 - usage.free as f64 / usage.total as f64
    }

    /// Blocks that can be handed out at all.
    pub(crate) fn total(&self) -> u64 {
        self.blocks.usage().total
    }

    /// Blocks that are free.
    pub(crate) fn free(&self) -> u64 {
        self.blocks.usage().free
    }

    /// Takes a line out of the processor's caches.
    pub(crate) fn drop_from_caches(&self, line: PmOffset) {
        self.memory.drop_from_caches(line, LINE_SIZE);
    }

    fn claim(&self, count: usize) -> Result<Claim<'_>> {
        match self.blocks.claim(count, Purpose::Reclaim) {
            Err(Error::NoSpace(NoSpace::Pm)) => {
                self.wal.checkpoint()?;
                self.blocks.drain_quarantine();
                self.blocks.claim(count, Purpose::Reclaim)
            }
            other => other,
        }
    }

    /// Inodes without blocks.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn inodes(&self, count: u64) -> Result<Vec<MapInode>> {
        let in_page = BLOCK_SIZE / SLOT_SIZE;
        let mut inodes = Vec::new();
        for page in 0..count.div_ceil(in_page) {
            let reservation = self.wal.reserve(RECORD_HEAD_BYTES + ENTRY_BYTES)?;
            let mut claim = self.claim(1)?;
            let block = claim.take(Target::Page).ok_or(Error::NoSpace(NoSpace::Pm))?;
            let mut tx = Tx::new();
            self.blocks.set_owner(
                &mut tx,
                block,
                Owner::Page { kind: PageKind::InodePage, datum: page as u32 },
            );
            self.wal.commit(reservation, &tx)?;
            for slot in (0..in_page).take((count - page * in_page) as usize) {
                let ino = Ino(FIRST_INO + page * in_page + slot);
                inodes.push(MapInode { ino, slot: block.offset().plus(slot * SLOT_SIZE), has_cold: false });
            }
        }
        Ok(inodes)
    }

    /// Maps `count` consecutive blocks from `first` on, none of which is mapped, to new blocks of the pool.
    ///
    /// # Errors
    /// The pool's; `NoSpace` when it has no free block.
    pub(crate) fn insert(&self, inode: &MapInode, first: FileBlock, count: usize) -> Result<()> {
        let record = self.map.record().bytes(count, count) + ENTRY_BYTES * count + RECORD_HEAD_BYTES;
        let record = record.min(self.wal.max_record());
        loop {
            let reservation = self.wal.reserve(record)?;
            let mut claim = self.claim(count)?;
            let blocks = (first.0..first.0 + count as u64).map(FileBlock);
            let mappings = blocks
                .map(|block| Some(Mapping::written(claim.take(Target::File { ino: inode.ino, block })?)));
            let change = MapChange { inode: *inode, first, mappings: mappings.collect() };
            if let Some(room) = self.map.missing_room(&[], &change)? {
                claim.give_back_all();
                drop(reservation);
                self.make_room(inode, &room)?;
                continue;
            }
            let (mut tx, mut freed) = (Tx::new(), Freed::new());
            let changes = [change];
            let guard = self.map.change(&mut tx, &changes, record, &mut freed)?;
            let [change] = changes;
            self.log_entries(&mut tx, &change);
            let lsn = self.wal.commit(reservation, &tx)?;
            guard.committed();
            if !freed.is_empty() {
                self.blocks.freed(lsn, &freed);
            }
            return Ok(());
        }
    }

    /// Logs the owners of new blocks, of neighbours as one write.
    fn log_entries(&self, tx: &mut Tx, change: &MapChange) {
        let ino = change.inode.ino;
        let entry = |block| Entry::new(Owner::File { ino, block, unwritten: false }, LineMask::FULL);
        if let [Some(mapping)] = *change.mappings {
            return self.blocks.set_entries(tx, mapping.block, &[entry(change.first)]);
        }
        let mut run: Vec<Entry> = Vec::with_capacity(change.mappings.len());
        let mut begin = PmBlock(0);
        for (block, mapping) in (change.first.0..).map(FileBlock).zip(change.mappings.iter().flatten()) {
            if mapping.block.0 != begin.0 + run.len() as u64 {
                if !run.is_empty() {
                    self.blocks.set_entries(tx, begin, &run);
                }
                run.clear();
                begin = mapping.block;
            }
            run.push(entry(block));
        }
        self.blocks.set_entries(tx, begin, &run);
    }

    fn make_room(&self, inode: &MapInode, room: &MapRoom) -> Result<()> {
        loop {
            let reservation = self.wal.reserve(self.wal.max_record())?;
            let mut claim = self.claim(room.pages.min(PAGES_AT_ONCE))?;
            let mut tx = Tx::new();
            let made = match self.map.make_room(&mut tx, inode, room, &mut claim) {
                Ok(made) => made,
                Err(error) => {
                    claim.give_back_all();
                    return Err(error);
                }
            };
            if tx.is_empty() {
                return Ok(());
            }
            self.wal.commit(reservation, &tx)?;
            made.committed();
        }
    }
}
