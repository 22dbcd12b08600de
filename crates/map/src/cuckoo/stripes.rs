//! Locks of the lines of a cuckoo map, and sequences by which readers see that a line changed.
//!
//! Invariants: the sequence of a stripe is odd exactly while its lock is held by a change whose stores may be under way. A
//! thread takes stripes in ascending order; the stash, with the highest number, comes last.
//!
//! Lock order: after the catalog's shards, before the allocator and the lanes (L1).

use smallvec::SmallVec;
use terrace_blocks::pool::Hashed;
use terrace_format::cuckoo_map::Buckets;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering, fence};
use terrace_runtime::sync::{LockKind, PoolLocks, RankedGuard, RankedMutex};

/// Most stripes of buckets.
const MAX_STRIPES: u64 = 1024;

/// The stripes of a map: of buckets, and behind them that of the stash.
pub(super) struct Stripes {
    locks: Vec<RankedMutex<()>>,
    /// Beside the locks: readers use sequences alone, and have more of them in a line of the cache.
    sequences: Vec<AtomicU64>,
    buckets: u64,
}

impl Stripes {
    pub fn new(locks: PoolLocks, buckets: &Buckets) -> Stripes {
        // A power of two: a look-up divides by it several times.
        let count = 1 << buckets.count().min(MAX_STRIPES).ilog2();
        let lock = |number| RankedMutex::new(locks.rank(LockKind::MapStripe, number), ());
        Stripes {
            locks: (0..=count).map(lock).collect(),
            sequences: (0..=count).map(|_| AtomicU64::new(0)).collect(),
            buckets: buckets.count(),
        }
    }

    /// The stripe of a line.
    #[inline]
    fn of(&self, line: u64) -> u32 {
        let count = self.locks.len() as u64 - 1;
        if line < self.buckets { (line & (count - 1)) as u32 } else { count as u32 }
    }

    #[inline]
    fn sequence(&self, number: u32) -> Option<&AtomicU64> {
        self.sequences.get(number as usize)
    }

    /// The sequence of a line's stripe; `None` while it changes.
    #[inline]
    pub fn quiet(&self, line: u64) -> Option<u64> {
        let sequence = self.sequence(self.of(line))?.load(Ordering::Acquire);
        sequence.is_multiple_of(2).then_some(sequence)
    }

    /// Whether what was read of a line since [`Self::quiet`] is of one moment.
    #[inline]
    pub fn is_same(&self, line: u64, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        self.sequence(self.of(line)).is_some_and(|now| now.load(Ordering::Relaxed) == sequence)
    }

    /// Locks the stripes of two lines.
    #[inline]
    pub fn lock_pair(&self, pair: [u64; 2]) -> Held<'_> {
        let [first, second] = pair.map(|line| self.of(line));
        let mut held = self.held();
        held.take(first.min(second));
        if first != second {
            held.take(first.max(second));
        }
        held
    }

    #[inline]
    fn held(&self) -> Held<'_> {
        Held { storing: SmallVec::new(), guards: SmallVec::new(), stripes: self, moved: None }
    }

    /// Locks the stripes of lines.
    pub fn lock(&self, lines: impl IntoIterator<Item = u64>) -> Held<'_> {
        let mut wanted: SmallVec<[u32; 8]> = lines.into_iter().map(|line| self.of(line)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut held = self.held();
        wanted.into_iter().for_each(|number| held.take(number));
        held
    }
}

/// Stripes that a change holds. Dropped when its stores are issued, or when it was given up.
#[must_use]
pub(crate) struct Held<'a> {
    /// Stripes with odd sequences.
    storing: SmallVec<[u32; 4]>,
    /// By number, ascending.
    guards: SmallVec<[(u32, RankedGuard<'a, ()>); 4]>,
    stripes: &'a Stripes,
    /// Where the moves of the change are counted, and their number.
    moved: Option<(&'a Hashed, u64)>,
}

impl<'a> Held<'a> {
    fn take(&mut self, number: u32) {
        if let Some(lock) = self.stripes.locks.get(number as usize) {
            self.guards.push((number, lock.lock()));
        }
    }

    /// Whether the stripe of a line is held.
    pub fn holds(&self, line: u64) -> bool {
        let number = self.stripes.of(line);
        self.guards.binary_search_by_key(&number, |(held, _)| *held).is_ok()
    }

    /// Locks the stripe of the stash, unless it is held.
    pub fn add_stash(&mut self, line: u64) {
        if !self.holds(line) {
            self.take(self.stripes.of(line));
        }
    }

    /// Tells readers that stores to lines follow, which are held.
    pub fn begin_stores(&mut self, lines: impl Iterator<Item = u64>) {
        for line in lines {
            assert!(self.holds(line), "line {line} of the map is changed unlocked (T2)");
            let number = self.stripes.of(line);
            if !self.storing.contains(&number) {
                self.storing.push(number);
                self.step(number);
            }
        }
        fence(Ordering::Release);
    }

    /// The change moves entries: they are counted when its record is committed.
    pub fn note_moves(&mut self, hashed: &'a Hashed, moves: u64) {
        self.moved = Some((hashed, moves));
    }

    /// The stores are issued.
    pub fn committed(mut self) {
        if let Some((hashed, moves)) = self.moved.take() {
            hashed.note_moves(moves);
        }
    }

    fn step(&self, number: u32) {
        if let Some(sequence) = self.stripes.sequence(number) {
            sequence.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The locks go afterwards, with the fields.
        self.storing.iter().for_each(|number| self.step(*number));
    }
}
