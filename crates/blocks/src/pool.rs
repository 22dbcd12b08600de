//! The blocks of a pool: states, versions, and the counts for status and back-pressure.
//!
//! Invariants:
//! 1. A block is in the set of free blocks when its state is free, and in no other state. Both change under the
//!    allocator's lock.
//! 2. A block moves from unknown to a known state once, and is then counted off.
//!
//! Lock order: the allocator's lock comes after every lock but the lanes'. `unreadable` is the last lock.

use crate::bitmap::Bitmap;
use crate::descriptor::{Descriptor, State};
use crate::hidden::Hidden;
use crate::presence::Presence;
use std::collections::VecDeque;
use std::sync::Arc;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::homes::Homes;
use terrace_format::inode::{DIRECT_BLOCKS, InodeSlot};
use terrace_format::{Corrupt, FileBlock, Ino, Lsn, PmBlock};
use terrace_runtime::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use terrace_runtime::sync::{LockKind, Mutex, RankedMutex};
use terrace_wal::{Error, Result, Wal};

mod accounts;
mod choose;
mod claim;
mod promises;
mod quarantine;
mod scan;
mod table;
pub use accounts::BlockAccounts;
pub use claim::{Claim, Purpose, Target};
pub use promises::Promises;

/// Numbers for status and back-pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Blocks that can be handed out at all.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Freed, waiting for the checkpoint or for I/O pins.
    pub quarantined: u64,
    /// Not reached by the scan of the block table.
    pub unknown: u64,
    /// The reserve: kept back for removal and demotion.
    pub reserve: u64,
}

/// The allocator's state, under one lock.
struct Space {
    free: Bitmap,
    /// Freed blocks, each with the LSN of the freeing record.
    quarantine: VecDeque<(Lsn, PmBlock)>,
    /// The first block that the scan has not reached.
    next_region: u64,
    /// Blocks that became free since the mount, each time counted.
    freed: u64,
    /// Blocks that left quarantine since the mount, each time counted.
    left_quarantine: u64,
    /// Blocks that are promised, to claims and to pages in DRAM, and not chosen yet.
    promised: u64,
    /// Blocks among them that are promised to pages in DRAM ([`Promises`]).
    of_pages: u64,
    /// Promises that ended without a block since the mount.
    promises_ended: u64,
    /// The group from which pages get blocks, where a placement has homes: the next block, and the block behind.
    page_group: (u64, u64),
    /// Groups begun for pages.
    page_groups: u64,
    /// Choices that went far, where a placement has homes.
    far_choices: u32,
}

/// The state of a pool whose files share a table as map.
pub struct Hashed {
    /// The superblock's hash key.
    pub key: [u8; 16],
    /// Whether the block table is the map: blocks are then chosen by their homes.
    pub(crate) is_placing: bool,
    /// The first file block of presence: those before it lie in slots.
    pub(crate) first_present: FileBlock,
    /// Where searches begin.
    pub homes: Homes,
    /// The blocks of files, from `first_present` on.
    pub presence: Presence,
    /// Blocks of files in entries that the scan could not read.
    pub hidden: Hidden,
    /// See [`Known`].
    known: AtomicU8,
    /// Choices of a slot or line since the mount that passed [`FAR_SLOTS`].
    far: AtomicU64,
    /// The largest distance of these choices.
    longest: AtomicU64,
    /// Entries of a cuckoo table that were moved since the mount.
    moves: AtomicU64,
}

/// Slots beyond which a search is far.
const FAR_SLOTS: u64 = 64;

/// How much presence knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Known {
    /// The scan after the mount has not ended: a block may be there although no bit says so.
    Part = 0,
    /// All blocks of files.
    All = 1,
    /// The scan has ended and met entries that it could not read: see [`Hidden`].
    Doubtful = 2,
}

impl Hashed {
    fn know(&self, known: Known) {
        self.known.store(known as u8, Ordering::Release);
    }

    /// A map that is no block table has told all its blocks: presence knows them although the scan did not.
    pub fn learned_from_map(&self) {
        assert!(!self.is_placing, "the block table is the map");
        self.know(Known::All);
    }

    /// Whether presence has a bit for a file block: the first ones may lie in the slot.
    pub(crate) fn has_bit_of(&self, block: FileBlock) -> bool {
        (self.first_present..=MAX_FILE_BLOCK).contains(&block)
    }

    /// Judges a file by its slot and its cold blocks ([`Hidden::judge`]). The caller holds its lock, at least shared.
    pub fn judge(&self, ino: Ino, slot: &InodeSlot, cold: &[(FileBlock, u32)]) {
        let pointers = (0..self.first_present.0).map(FileBlock).zip(&slot.direct);
        let in_slot: Vec<_> =
            pointers.filter(|(_, pointer)| pointer.get() != 0).map(|(block, _)| block).collect();
        self.hidden.judge(&self.homes, &self.presence, ino, (slot.blocks.get(), &in_slot), cold);
    }

    /// Counts a search for a free slot or line that passed so many.
    #[inline]
    pub fn note_distance(&self, distance: u64) {
        if distance > FAR_SLOTS {
            self.far.fetch_add(1, Ordering::Relaxed);
        }
        if distance > self.longest_distance() {
            self.longest.fetch_max(distance, Ordering::Relaxed);
        }
    }

    /// The largest distance of a new slot or line from its home since the mount.
    #[inline]
    pub fn longest_distance(&self) -> u64 {
        self.longest.load(Ordering::Relaxed)
    }

    /// How often since the mount the first free slot or line was more than 64 of them from its home.
    pub fn far_searches(&self) -> u64 {
        self.far.load(Ordering::Relaxed)
    }

    /// Counts moved entries of a cuckoo table.
    pub fn note_moves(&self, moves: u64) {
        self.moves.fetch_add(moves, Ordering::Relaxed);
    }

    /// How many entries of a cuckoo table were moved since the mount.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// How much presence knows.
    #[inline]
    pub fn known(&self) -> Known {
        match self.known.load(Ordering::Acquire) {
            0 => Known::Part,
            1 => Known::All,
            _ => Known::Doubtful,
        }
    }
}

/// All PM blocks of a pool.
pub struct BlockPool {
    wal: Arc<Wal>,
    first: PmBlock,
    count: u64,
    descriptors: Vec<Descriptor>,
    space: RankedMutex<Space>,
    /// The first entry of the table that could not be read by the scan.
    unreadable: Mutex<Option<Error>>,
    reserve: u64,
    next_version: AtomicU64,
    unknown: AtomicU64,
    free: AtomicU64,
    hashed: Option<Hashed>,
}

impl BlockPool {
    /// The pool of a just opened log; nothing is known until the table is scanned.
    pub fn new(wal: Arc<Wal>) -> BlockPool {
        BlockPool::with(wal, None, false)
    }

    /// As [`Self::new`], with presence and homes as the file map of the pool needs them; `key` is the superblock's hash key.
    pub fn of_map(wal: Arc<Wal>, key: [u8; 16]) -> BlockPool {
        let map = wal.geometry().map;
        BlockPool::with(wal, map.is_shared().then_some(key), map.is_table())
    }

    fn with(wal: Arc<Wal>, key: Option<[u8; 16]>, is_placing: bool) -> BlockPool {
        let geometry = *wal.geometry();
        let first = geometry.first_pool_block();
        let count = geometry.block_count();
        let descriptors: Vec<Descriptor> = (0..count).map(|_| Descriptor::default()).collect();
        descriptors.iter().take(first.0 as usize).for_each(|d| d.set_state(State::Used));
        assert!(first.0 < count, "a pool of {count} blocks whose first is {first}");
        let total = count - first.0;
        let space = Space {
            free: Bitmap::new(count),
            quarantine: VecDeque::new(),
            next_region: first.0,
            freed: 0,
            left_quarantine: 0,
            promised: 0,
            of_pages: 0,
            promises_ended: 0,
            page_group: (0, 0),
            page_groups: 0,
            far_choices: 0,
        };
        let hashed = key.map(|key| Hashed {
            key,
            is_placing,
            first_present: FileBlock(if geometry.map.has_direct_blocks() { DIRECT_BLOCKS } else { 0 }),
            homes: Homes::of(&geometry, key),
            presence: Presence::default(),
            hidden: Hidden::default(),
            known: AtomicU8::new(Known::Part as u8),
            far: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            moves: AtomicU64::new(0),
        });
        let rank = wal.locks().rank(LockKind::Allocator, 0);
        BlockPool {
            wal,
            first,
            count,
            descriptors,
            space: RankedMutex::new(rank, space),
            unreadable: Mutex::new(None),
            reserve: (total / 64).clamp(24, 4096),
            next_version: AtomicU64::new(1),
            unknown: AtomicU64::new(total),
            free: AtomicU64::new(0),
            hashed,
        }
    }

    /// Homes and presence, where files share a table as map. The homes place blocks where it is the block table.
    #[inline]
    pub fn hashed(&self) -> Option<&Hashed> {
        self.hashed.as_ref()
    }

    /// Tells the number of free blocks that are promised to nobody.
    fn tell_free(&self, space: &Space) {
        self.free.store(space.free.count().saturating_sub(space.promised), Ordering::Relaxed);
    }

    /// The log.
    pub fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }
    /// First block that can be handed out.
    pub fn first_block(&self) -> PmBlock {
        self.first
    }
    /// The block behind the last block.
    pub fn end_block(&self) -> PmBlock {
        PmBlock(self.count)
    }
    /// A block's volatile state. A number from a damaged map gives the superblock's, which is always
    /// used; readers verify ownership elsewhere.
    pub fn descriptor(&self, block: PmBlock) -> &Descriptor {
        &self.descriptors[if block.0 < self.count { block.0 as usize } else { 0 }]
    }
    /// Checks a block number read from a map or page.
    ///
    /// # Errors
    /// A number outside the pool.
    pub fn verify(&self, block: PmBlock, site: &str) -> Result<PmBlock> {
        if block < self.first || block.0 >= self.count {
            let expected = format!("a block from {} to {}", self.first, self.count - 1);
            return Err(Corrupt::new(site, expected, block.to_string()).into());
        }
        Ok(block)
    }

    /// A version never given before (design S6).
    pub fn new_version(&self) -> u64 {
        self.next_version.fetch_add(1, Ordering::Relaxed)
    }
    /// Bumps a block's version; call under the inode lock before the first store in place.
    pub fn bump(&self, block: PmBlock) {
        self.descriptor(block).set_version(self.new_version());
    }

    /// Moves a block that the scan has not reached to a state. False when its state is known: of several that meet an
    /// unknown block at the same moment, a single one moves and counts it.
    fn learn(&self, block: PmBlock, state: State) -> bool {
        let is_learned = self.descriptor(block).learn(state);
        if is_learned {
            self.unknown.fetch_sub(1, Ordering::Relaxed);
        }
        is_learned
    }

    /// Free blocks, without the lock.
    pub fn free_hint(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Blocks of which the scan after the mount has not said yet what they are.
    pub fn unknown_hint(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Makes a block free.
    fn put_free(&self, space: &mut Space, block: PmBlock) {
        self.descriptor(block).set_state(State::Free);
        assert!(block >= self.first && block.0 < self.count, "PM block {block} is none of the pool's");
        space.free.insert(block.0);
        space.freed += 1;
        self.tell_free(space);
    }

    /// Free blocks that are promised to operations and not chosen yet.
    pub fn promised(&self) -> u64 {
        let space = self.space.lock();
        space.promised - space.of_pages
    }

    /// How often a block became free since the mount. An operation that found no free block sees by it whether other
    /// operations were quicker.
    pub fn freed_so_far(&self) -> u64 {
        self.space.lock().freed
    }

    /// As [`Self::freed_so_far`], without blocks of claims that were given back: an operation gives its own claims back
    /// when it fails.
    pub fn left_quarantine_so_far(&self) -> u64 {
        self.space.lock().left_quarantine
    }

    /// Present numbers.
    pub fn usage(&self) -> Usage {
        let space = self.space.lock();
        let (total, free) = (self.count - self.first.0, space.free.count().saturating_sub(space.promised));
        assert!(free <= total, "{free} of {total} PM blocks are free");
        Usage {
            total,
            free,
            quarantined: space.quarantine.len() as u64,
            unknown: self.unknown.load(Ordering::Relaxed),
            reserve: self.reserve,
        }
    }
}
