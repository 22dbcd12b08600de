//! Volatile state of a PM block: 16 bytes each.

use terrace_runtime::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Where a block stands (design 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Not yet scanned since mount.
    Unknown = 0,
    /// Owned, or claimed by an operation.
    Used = 1,
    /// Freed by a record that the checkpoint has not passed (T6).
    Quarantined = 2,
    /// May be claimed.
    Free = 3,
}

const CLEAN: u8 = 1;
const PARTIAL: u8 = 2;

/// One block's volatile state.
#[derive(Debug, Default)]
pub struct Descriptor {
    version: AtomicU64,
    touched: AtomicU32,
    pins: AtomicU16,
    state: AtomicU8,
    flags: AtomicU8,
}

impl Descriptor {
    /// The block's state.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Unknown,
            1 => State::Used,
            2 => State::Quarantined,
            _ => State::Free,
        }
    }
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }
    /// Moves an unknown block only.
    pub(crate) fn learn(&self, state: State) -> bool {
        let unknown = State::Unknown as u8;
        self.state.compare_exchange(unknown, state as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Version of the content and ownership (design S6).
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
    pub(crate) fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    /// When the block was last used, in the caller's ticks.
    pub fn touched(&self) -> u32 {
        self.touched.load(Ordering::Relaxed)
    }
    /// Notes a use. No store when the tick has not changed, so that readers share the line.
    pub fn touch(&self, tick: u32) {
        if self.touched.load(Ordering::Relaxed) != tick {
            self.touched.store(tick, Ordering::Relaxed);
        }
    }

    /// Keeps the block from being reused after it is freed. Take it under the inode lock (S7).
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }
    /// Drops a pin.
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "unpin without pin");
    }
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// True when the cold copy is known to hold the same content (design S2). Volatile, false after mount.
    pub fn is_clean(&self) -> bool {
        self.flags.load(Ordering::Acquire) & CLEAN != 0
    }
    /// Set under the inode lock, in the promotion that made the copy; cleared before the first store.
    pub fn set_clean(&self, clean: bool) {
        if clean {
            self.flags.fetch_or(CLEAN, Ordering::AcqRel);
        } else if self.is_clean() {
            self.flags.fetch_and(!CLEAN, Ordering::AcqRel);
        }
    }

    /// False when the block table is known to give the block all lines. Volatile; says nothing of a block that is
    /// [`State::Unknown`].
    pub(crate) fn may_be_partial(&self) -> bool {
        self.flags.load(Ordering::Acquire) & PARTIAL != 0
    }
    pub(crate) fn set_partial(&self, partial: bool) {
        if partial {
            self.flags.fetch_or(PARTIAL, Ordering::AcqRel);
        } else if self.may_be_partial() {
            self.flags.fetch_and(!PARTIAL, Ordering::AcqRel);
        }
    }
}

// The scheduler's atomics (terrace_runtime::sync) are larger.
const _: () = assert!(size_of::<Descriptor>() == 16 || size_of::<AtomicU64>() != 8);
