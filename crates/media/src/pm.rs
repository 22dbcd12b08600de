//! Persistent memory (design 3).

/// The methods of a medium over another one, `below`, that pass through.
macro_rules! forward_to_below {
    () => {
        fn order_persists(&self) -> bool {
            self.below.order_persists()
        }
        fn point(&self) -> crate::pm::Point {
            self.below.point()
        }
        fn try_persist_at(
            &self,
            point: crate::pm::Point,
            at: &'static std::panic::Location<'static>,
        ) -> Result<bool, crate::MediaError> {
            self.below.try_persist_at(point, at)
        }
        fn persist_then_at(
            &self,
            point: crate::pm::Point,
            done: crate::pm::Done,
            at: &'static std::panic::Location<'static>,
        ) -> bool {
            self.below.persist_then_at(point, done, at)
        }
        fn persist_waiting(&self) {
            self.below.persist_waiting();
        }
        fn backlog(&self) -> crate::pm::Backlog {
            self.below.backlog()
        }
        fn counters(&self) -> crate::pm::PmCounters {
            self.below.counters()
        }
        fn error_count(&self) -> u64 {
            self.below.error_count()
        }
        fn condemn(&self, offset: terrace_format::PmOffset, length: u64) {
            self.below.condemn(offset, length);
        }
        fn prepare(&self, offset: terrace_format::PmOffset, length: u64) {
            self.below.prepare(offset, length);
        }
        fn forget(&self, offset: terrace_format::PmOffset, length: u64) {
            self.below.forget(offset, length);
        }
        fn step(&self, now_ns: u64) -> terrace_runtime::Next {
            self.below.step(now_ns)
        }
        fn waker(&self) -> terrace_runtime::thread::Waker {
            self.below.waker()
        }
        fn close(&self) -> Result<(), crate::MediaError> {
            self.below.close()
        }
        fn journal_status(&self) -> Option<crate::pm::JournalStatus> {
            self.below.journal_status()
        }
    };
}

mod checked;
mod condemned;
mod counted;
mod crash_image;
mod emulated;
pub(crate) mod fault;
mod image;
mod journal_status;
pub mod journaled;
pub(crate) mod kernels;
pub mod mapped;
pub(crate) mod mapping;
mod poison;
pub mod recorded;
mod stores;

pub use counted::{CountedPm, LineCounts};
pub use crash_image::{CrashSnapshot, PendingLine};
pub use emulated::{Delayed, EmulatedPm, PmFloor, PmModel, PmSpeed};
pub use image::PmImage;
pub use journal_status::JournalStatus;
pub use journaled::{DurableWay, JournalError, JournalOptions, JournaledPm, OpenedJournal};
pub use mapped::RamPm;
pub use poison::Access;
pub use recorded::RecordedPm;

use crate::MediaError;
use std::panic::Location;
use terrace_format::PmOffset;
use terrace_runtime::Next;
use terrace_runtime::thread::Waker;

/// The crashes that stores or writes survive once `persist` or `flush` has covered them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Survives loss of power.
    PowerFail,
    /// Survives the end of the daemon, not of the machine.
    ProcessCrash,
    /// Survives nothing.
    None,
}

impl Promise {
    /// The name used in status and documentation.
    pub fn name(self) -> &'static str {
        match self {
            Promise::PowerFail => "power-fail",
            Promise::ProcessCrash => "process-crash",
            Promise::None => "none",
        }
    }
}

/// A moment in the order of all stores of a medium; later moments are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point(pub(crate) u64);

/// Tells whether a `persist` succeeded.
pub type Done = Box<dyn FnOnce(Result<(), MediaError>) + Send>;

/// Stores that are not in the log of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Their bytes.
    pub waiting_bytes: u64,
    /// At so many, a store waits.
    pub limit_bytes: u64,
    /// As many as somebody who syncs should find before: large requests that nobody syncs are to leave no more.
    pub sync_bytes: u64,
}

impl Point {
    /// The place of the next store in the order of all stores; a position of the log, on `journaled`.
    pub fn place(self) -> u64 {
        self.0
    }
}

/// A persistent-memory medium: reads, explicit writes, ordering.
///
/// Aligned 8-byte words are read and stored atomically by all methods. Stores become durable only through
/// write-back (`write`, `write_streaming` and `write_back` issue it) *and* a later `order` or `persist` by a
/// thread that happens after. `order`: no store after it is durable before the stores in front of it are.
/// `persist`: the stores in front of it are durable now.
pub trait PmMedium: Send + Sync {
    /// Bytes.
    fn size(&self) -> u64;
    /// The crashes that persisted stores survive.
    fn promise(&self) -> Promise;
    /// Kind and page size, for status ("ram, 2 MiB pages").
    fn describe(&self) -> String;
    /// Copies bytes out.
    ///
    /// # Errors
    /// [`MediaError::Pm`] when the range is out of bounds or a page of it is poisoned or missing.
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError>;
    /// Reads one aligned word.
    ///
    /// # Errors
    /// As `read`; also when not aligned.
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError>;
    /// Stores bytes and writes them back. Volatile until `order` or `persist`. Other bytes of their lines that `store` has
    /// left in the cache may stay there.
    ///
    /// # Errors
    /// As `read`.
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError>;
    /// Stores and leaves the lines in the cache: undecided until [`Self::write_back`] of the range and a fence.
    /// For in-place stores of a record, which are written back by the checkpoint (decision 0005).
    ///
    /// # Errors
    /// As `read`.
    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.write(offset, bytes)
    }
    /// Stores past the cache, for data and records. Volatile until `order` or `persist`. Fastest when
    /// offset and length are multiples of 64.
    ///
    /// # Errors
    /// As `read`.
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError>;
    /// As [`Self::write_streaming`]; gives the CRC32C of the bytes, which costs less on the way than on its own.
    ///
    /// # Errors
    /// As `read`.
    fn write_streaming_checked(&self, offset: PmOffset, bytes: &[u8]) -> Result<u32, MediaError> {
        self.write_streaming(offset, bytes)?;
        Ok(terrace_format::checksum::crc32c(bytes))
    }
    /// Announces a store to the line of an offset, so that the processor fetches it meanwhile. No effect but speed.
    fn expect_store(&self, _offset: PmOffset) {}
    /// Announces a read of the line of an offset, as [`Self::expect_store`] does a store: lines that are announced one after
    /// the other are fetched together. No effect but speed.
    fn expect_load(&self, _offset: PmOffset) {}
    /// Writes back cache lines that any thread stored earlier. Volatile until `order` or `persist`.
    fn write_back(&self, offset: PmOffset, length: u64);
    /// Whether [`Self::order_at`] makes durable, too, so that `persist` has nothing left to do. False in doubt.
    fn order_persists(&self) -> bool {
        false
    }
    /// No store after it survives a crash without the lines written back before it. For the source line `at`: called as
    /// `order()`, which knows its caller.
    fn order_at(&self, at: &'static Location<'static>);
    /// All lines written back before are durable after a return without an error. For the source line `at`: called as
    /// `persist()`, which knows its caller.
    ///
    /// # Errors
    /// [`MediaError::Device`] of a journal device. A crash may then leave any state that `order` allows.
    fn persist_at(&self, at: &'static Location<'static>) -> Result<(), MediaError>;
    /// The present moment in the order of all stores.
    fn point(&self) -> Point {
        Point(0)
    }
    /// Whether all lines ordered before a point are durable, without a wait for a device. A medium whose `persist` never waits
    /// makes them so. For the source line `at`: called as `try_persist()`, which knows its caller.
    ///
    /// # Errors
    /// As [`Self::persist_at`].
    fn try_persist_at(&self, _point: Point, at: &'static Location<'static>) -> Result<bool, MediaError> {
        if self.order_persists() { Ok(true) } else { self.persist_at(at).map(|()| true) }
    }
    /// As [`Self::persist_at`] of all lines ordered before a point, without a wait: calls `done` once, now or later, from any
    /// thread. That thread may hold locks, as a store may do a commit: `done` neither stores nor waits. True if the caller has to
    /// bring a thread that may wait to [`Self::persist_waiting`]. For the source line `at`: called as `persist_then()`, which knows
    /// its caller.
    fn persist_then_at(&self, _point: Point, done: Done, at: &'static Location<'static>) -> bool {
        done(self.persist_at(at));
        false
    }
    /// Does the persists that [`Self::persist_then_at`] left to a thread that may wait.
    fn persist_waiting(&self) {}
    /// Stores that are not in the log yet.
    fn backlog(&self) -> Backlog {
        Backlog { waiting_bytes: 0, limit_bytes: u64::MAX, sync_bytes: u64::MAX }
    }
    /// Fences issued and cache lines written back or streamed so far, for benches. A medium that does
    /// not count returns zeros.
    fn counters(&self) -> PmCounters {
        PmCounters::default()
    }
    /// Errors met so far: accesses that failed, or places known to be bad. Status shows PM with errors as degraded.
    fn error_count(&self) -> u64 {
        0
    }
    /// Makes reads of a range fail from now on, until the medium is opened anew: what it holds is half of a change
    /// that could not be finished. A medium may take more than the range, not less.
    fn condemn(&self, _offset: PmOffset, _length: u64) {}
    /// The content of a range means nothing from now on: a medium may lose it, or bring older content back, until the next
    /// store. A hint.
    fn forget(&self, _offset: PmOffset, _length: u64) {}
    /// Makes a range quick to access (populates page tables). Bounded work, called in the background.
    fn prepare(&self, _offset: PmOffset, _length: u64) {}
    /// Does a bounded piece of the medium's own work, such as a commit without a `persist`; says when to come back. `now_ns`: the
    /// monotonic clock.
    fn step(&self, _now_ns: u64) -> Next {
        Next::Done
    }
    /// Wakes the thread that drives [`Self::step`].
    fn waker(&self) -> Waker {
        Waker::new()
    }
    /// The end of an orderly use, after the last `persist`: no store follows.
    ///
    /// # Errors
    /// [`MediaError::Device`]; the content is as durable as `persist` made it.
    fn close(&self) -> Result<(), MediaError> {
        Ok(())
    }
    /// The state of the medium's journal, if it has one.
    fn journal_status(&self) -> Option<JournalStatus> {
        None
    }
}

/// Gives a medium its fences by name. Not methods of the trait: the source line of a call does not pass
/// through a table of methods.
macro_rules! fences {
    ($($medium:ty),*) => {$(
        impl $medium {
            /// No store after it survives a crash without the lines written back before it.
            #[inline]
            #[track_caller]
            pub fn order(&self) {
                self.order_at(Location::caller());
            }
            /// All lines written back before are durable when this returns.
            ///
            /// # Errors
            /// As [`PmMedium::persist_at`].
            #[inline]
            #[track_caller]
            pub fn persist(&self) -> Result<(), MediaError> {
                self.persist_at(Location::caller())
            }
            /// Whether all lines ordered before a point are durable, without a wait for a device.
            ///
            /// # Errors
            /// As [`PmMedium::persist_at`].
            #[inline]
            #[track_caller]
            pub fn try_persist(&self, point: Point) -> Result<bool, MediaError> {
                self.try_persist_at(point, Location::caller())
            }
            /// Calls `done` when all lines ordered before a point are durable ([`PmMedium::persist_then_at`]).
            #[inline]
            #[track_caller]
            pub fn persist_then(&self, point: Point, done: Done) -> bool {
                self.persist_then_at(point, done, Location::caller())
            }
        }
    )*};
}
fences!(dyn PmMedium + '_, CountedPm, EmulatedPm, JournaledPm, RamPm, RecordedPm);

/// Event counts of a PM medium.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PmCounters {
    /// `order` and `persist` calls.
    pub fences: u64,
    /// Cache lines written back or streamed.
    pub lines: u64,
}
