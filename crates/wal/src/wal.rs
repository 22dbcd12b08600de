//! The write-ahead log of a pool: its state, and room reserved in a lane.

use crate::checkpoint_state::CheckpointState;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::page_checksums::PageChecksums;
use std::panic::Location;
use std::sync::Arc;
use terrace_format::record::RECORD_ALIGN;
use terrace_format::{Geometry, Lsn};
use terrace_media::{MediaError, PmMedium, Point};
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex, PoolLocks};

/// The write-ahead log of a pool.
pub struct Wal {
    pub(crate) pm: Arc<dyn PmMedium>,
    pub(crate) pool_uuid: [u8; 16],
    pub(crate) checksums: Arc<PageChecksums>,
    pub(crate) geometry: Geometry,
    pub(crate) epoch: u64,
    pub(crate) locks: PoolLocks,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) next_lsn: AtomicU64,
    /// The record that became durable last, as an encoded [`Witness`]: the next one, in whichever lane, tells of it.
    pub(crate) last_durable: AtomicU64,
    pub(crate) checkpoint_lsn: AtomicU64,
    pub(crate) checkpoint: Mutex<CheckpointState>,
    /// Waiters for ring space (only when reservations of others fill all lanes).
    pub(crate) space_freed: (Mutex<()>, Condvar),
    pub(crate) stopped: AtomicBool,
    /// A lane that holds more bytes than this wants the checkpoint moved (T5).
    pub(crate) due_above: AtomicU64,
}

/// Room for one record in a lane, taken before any lock (design T7). Dropping it gives the room back.
#[must_use]
pub struct Reservation<'a> {
    pub(crate) wal: &'a Wal,
    pub(crate) lane: usize,
    pub(crate) need: u64,
}

impl Reservation<'_> {
    /// Bytes that the record may have.
    pub fn bytes(&self) -> usize {
        self.need.saturating_sub(RECORD_ALIGN) as usize
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.need > 0 {
            self.wal.lanes[self.lane].state.lock().reserved -= self.need;
            self.wal.space_freed.1.notify_all();
        }
    }
}

impl Wal {
    /// Bytes of all lanes that are reserved for records: none while no transaction is under way.
    pub fn reserved_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.state.lock().reserved).sum()
    }

    /// The medium.
    pub fn pm(&self) -> &Arc<dyn PmMedium> {
        &self.pm
    }
    /// The checksums of metadata pages.
    pub fn checksums(&self) -> &Arc<PageChecksums> {
        &self.checksums
    }
    /// The ranks of the pool's locks.
    pub fn locks(&self) -> PoolLocks {
        self.locks
    }
    /// The pool's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// The pool's identity.
    pub fn pool_uuid(&self) -> &[u8; 16] {
        &self.pool_uuid
    }
    /// Largest record in bytes.
    pub fn max_record(&self) -> usize {
        self.geometry.max_record() as usize
    }
    /// Epoch of this mount: larger than that of every mount before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    /// The next LSN to be drawn: every later transaction has this one or a larger.
    pub fn next_lsn(&self) -> Lsn {
        Lsn(self.next_lsn.load(Ordering::SeqCst))
    }
    /// Records below this are applied, durable and never replayed: what they freed may be reused (T6).
    pub fn checkpoint_lsn(&self) -> Lsn {
        Lsn(self.checkpoint_lsn.load(Ordering::Acquire))
    }
    /// Leaves the checkpoint where it is until a lane or PM is short of space: every lane fills, and a mount after a
    /// crash has as much to replay as there can be. For measuring that.
    pub fn checkpoint_only_when_full(&self) {
        self.due_above.store(u64::MAX, Ordering::Relaxed);
    }
    /// Bytes of records above the checkpoint, in all lanes.
    pub fn used_bytes(&self) -> u64 {
        let used = |lane: &Lane| {
            let state = lane.state.lock();
            state.head - state.tail
        };
        self.lanes.iter().map(used).sum()
    }
    /// Makes all commits so far durable. A failure stops all changes: a later call could not promise more.
    ///
    /// # Errors
    /// The medium's.
    #[track_caller]
    pub fn persist(&self) -> Result<()> {
        self.pm.persist_at(Location::caller()).map_err(|error| self.stop(error))
    }
    /// Whether all commits before a point are durable, without a wait for a device. A failure stops all changes.
    ///
    /// # Errors
    /// The medium's.
    #[track_caller]
    pub fn try_persist(&self, point: Point) -> Result<bool> {
        assert!(point <= self.pm.point(), "a point that no store has reached");
        self.pm.try_persist_at(point, Location::caller()).map_err(|error| self.stop(error))
    }
    /// As [`Self::persist`], without a wait ([`PmMedium::persist_then_at`]): calls `done` now or later. True if the caller has to
    /// bring a thread that may wait to the medium's `persist_waiting`.
    #[track_caller]
    pub fn persist_then(self: &Arc<Self>, done: Box<dyn FnOnce(Result<()>) + Send>) -> bool {
        let wal = Arc::clone(self);
        let then = Box::new(move |result: std::result::Result<(), MediaError>| {
            done(result.map_err(|error| wal.stop(error)));
        });
        self.pm.persist_then_at(self.pm.point(), then, Location::caller())
    }
    #[cold]
    fn stop(&self, error: MediaError) -> Error {
        tracing::error!(%error, "persistent memory failed to make commits durable: the pool takes no more changes");
        self.stopped.store(true, Ordering::SeqCst);
        error.into()
    }
    /// True after a failure of PM: nothing can be committed.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
