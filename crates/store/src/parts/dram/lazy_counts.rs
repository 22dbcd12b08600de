//! Counts of lazy writes and of their pages, for `terrace status`.

use terrace_cache::{Lines, SyncVerdicts};
use terrace_format::Ino;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Shards of the counters, by inode.
const SHARDS: usize = 16;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// A shard on cache lines of its own. All accesses are relaxed. Two writers of a shard may lose each
/// other's counts, but of choices.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    hits: AtomicU64,
    misses: AtomicU64,
    merged: AtomicU64,
    dead: AtomicU64,
    /// The words of [`SyncVerdicts`], in its order.
    verdicts: [AtomicU64; 6],
}

#[inline]
fn add(word: &AtomicU64, more: u64) {
    if more > 0 {
        word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}

/// Lazy writes of blocks since the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Writes into a page that was there.
    pub hits: u64,
    /// Writes that made a page.
    pub misses: u64,
    /// Lines written over dirty lines: PM is spared a write of each.
    pub merged_lines: u64,
}

impl PageCounts {
    /// Counts a write of the lines `written` of a block; `dirty`: the dirty lines before, of a page that was there.
    #[inline]
    pub fn count(&mut self, dirty: Option<Lines>, written: Lines) {
        match dirty {
            Some(dirty) => {
                self.hits += 1;
                self.merged_lines += u64::from(dirty.intersection(written).0.count_ones());
            }
            None => self.misses += 1,
        }
    }
}

/// The counters of a mount.
#[derive(Debug, Default)]
pub struct LazyCounts {
    shards: [Shard; SHARDS],
}

impl LazyCounts {
    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Adds writes to a file.
    #[inline]
    pub fn add_writes(&self, ino: Ino, counts: PageCounts) {
        let shard = self.shard(ino);
        add(&shard.hits, counts.hits);
        add(&shard.misses, counts.misses);
        add(&shard.merged, counts.merged_lines);
    }

    /// Adds dirty lines that a truncation, a punched hole or a removal dropped.
    pub fn add_dead(&self, ino: Ino, lines: u64) {
        add(&self.shard(ino).dead, lines);
    }

    /// Adds the choices of a sync of a file.
    #[inline]
    pub fn add_choices(&self, ino: Ino, choices: &SyncVerdicts) {
        let SyncVerdicts { lazy, eager, again, agreed, lines, copied_twice } = *choices;
        for (word, more) in
            self.shard(ino).verdicts.iter().zip([lazy, eager, again, agreed, lines, copied_twice])
        {
            // Syncs of all files of a shard count here: no count may be lost, or shares of them would exceed one.
            if more > 0 {
                word.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    fn sum(&self, of: fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| of(shard).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// All writes.
    pub fn writes(&self) -> PageCounts {
        PageCounts {
            hits: self.sum(|shard| &shard.hits),
            misses: self.sum(|shard| &shard.misses),
            merged_lines: self.sum(|shard| &shard.merged),
        }
    }

    /// The choices of all syncs.
    pub fn choices(&self) -> SyncVerdicts {
        let sum = |at: usize| {
            let words = self.shards.iter().map(|shard| shard.verdicts[at].load(Ordering::Relaxed));
            words.fold(0, u64::wrapping_add)
        };
        let [lazy, eager, again, agreed, lines, copied_twice] = [0, 1, 2, 3, 4, 5].map(sum);
        SyncVerdicts { lazy, eager, again, agreed, lines, copied_twice }
    }

    /// Bytes that were dropped before they were written to PM.
    pub fn dead_bytes(&self) -> u64 {
        self.sum(|shard| &shard.dead) * LINE
    }
}
