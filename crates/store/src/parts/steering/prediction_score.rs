//! The score of the synchronicity predictor: bytes by prediction and by outcome.
//!
//! The outcome is that of the publication ([TPFS] section 6.6): whether an fsync came before `sync_blocks`
//! more blocks of the file were written, and before write-back would have written the bytes anyway. Writes
//! with O_SYNC need no prediction and are not counted.

use serde::Serialize;
use terrace_format::Ino;
use terrace_placement::synchronicity::Judgement;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The outcome of written bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// An fsync came in time.
    Synced,
    /// No fsync came in time.
    NotSynced,
}

/// Shards of the counts, by inode.
const SHARDS: usize = 16;

/// A shard of the counts, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard([[AtomicU64; 2]; Judgement::COUNT]);

/// Bytes by prediction and outcome. Not locked: two threads that count for the same shard at the same instant
/// may lose each other's bytes.
#[derive(Default)]
pub struct PredictionScore {
    shards: [Shard; SHARDS],
}

/// A row of the confusion matrix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TallyRow {
    /// Bytes that were fsynced before `sync_blocks` more blocks were written.
    pub synced_bytes: u64,
    /// Bytes that were not.
    pub unsynced_bytes: u64,
    /// Bytes whose outcome is still open.
    pub open_bytes: u64,
}

/// The confusion matrix of the synchronicity predictor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TallyReport {
    /// Of files that had been synced at short intervals.
    pub synchronous: TallyRow,
    /// Of files that had been written at length without.
    pub asynchronous: TallyRow,
    /// The first bytes of files without a history of their own or of their directory: they count as
    /// synchronous.
    pub unjudged: TallyRow,
    /// The first bytes of files whose directory history says synced.
    pub expected_synchronous: TallyRow,
    /// The first bytes of files whose directory history says not synced: they count as asynchronous.
    pub expected_asynchronous: TallyRow,
}

impl TallyReport {
    /// The row of a judgement.
    pub fn row_mut(&mut self, judgement: Judgement) -> &mut TallyRow {
        match judgement {
            Judgement::Unjudged => &mut self.unjudged,
            Judgement::ExpectedSynchronous => &mut self.expected_synchronous,
            Judgement::ExpectedAsynchronous => &mut self.expected_asynchronous,
            Judgement::Synchronous => &mut self.synchronous,
            Judgement::Asynchronous => &mut self.asynchronous,
        }
    }
}

impl PredictionScore {
    /// `bytes` of a file.
    #[inline]
    pub fn add(&self, ino: Ino, judgement: Judgement, outcome: Outcome, bytes: u64) {
        let cell = &self.shards[ino.0 as usize % SHARDS].0[judgement as usize][outcome as usize];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }

    /// The bytes whose outcome is known.
    pub fn report(&self) -> TallyReport {
        let row = |judgement: Judgement| {
            let sum = |outcome: Outcome| {
                let cell =
                    |shard: &Shard| shard.0[judgement as usize][outcome as usize].load(Ordering::Relaxed);
                self.shards.iter().map(cell).fold(0, u64::wrapping_add)
            };
            TallyRow {
                synced_bytes: sum(Outcome::Synced),
                unsynced_bytes: sum(Outcome::NotSynced),
                open_bytes: 0,
            }
        };
        TallyReport {
            synchronous: row(Judgement::Synchronous),
            asynchronous: row(Judgement::Asynchronous),
            unjudged: row(Judgement::Unjudged),
            expected_synchronous: row(Judgement::ExpectedSynchronous),
            expected_asynchronous: row(Judgement::ExpectedAsynchronous),
        }
    }
}
