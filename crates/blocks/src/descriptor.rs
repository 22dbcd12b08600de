//! Volatile state of a PM block: 24 bytes each, 8 of them its temperature.

use terrace_runtime::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

/// Where a block stands (design 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The scan has not reached the block since the mount.
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
const KEPT: u8 = 4;
const IN_USE: u8 = 8;
const CONFIRMED: u8 = 16;
const EAGER: u8 = 32;
/// Times of use from here on are no times but marks of the caller's.
pub const MARKS: u32 = u32::MAX - 1;

/// The volatile state of a PM block.
#[derive(Debug, Default)]
pub struct Descriptor {
    version: AtomicU64,
    /// Temperature (design 7): tick of the last write, then of the last read or the caller's mark.
    times: AtomicU64,
    pins: AtomicU16,
    state: AtomicU8,
    flags: AtomicU8,
}

impl Descriptor {
    /// The block's state.
    #[inline]
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
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
    pub(crate) fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    /// When the block was last used, in the caller's ticks; or the mark it has.
    #[inline]
    pub fn touched(&self) -> u32 {
        let times = self.times.load(Ordering::Relaxed);
        ((times >> 32) as u32).max(times as u32)
    }
    /// When it was last written, or came into PM.
    #[inline]
    pub fn written(&self) -> u32 {
        (self.times.load(Ordering::Relaxed) >> 32) as u32
    }
    /// When it was last read; 0 when it was not since it came into PM, or is marked.
    #[inline]
    pub fn read(&self) -> u32 {
        let read = self.times.load(Ordering::Relaxed) as u32;
        if read >= MARKS { 0 } else { read }
    }
    /// Notes a read, or a mark. An unchanged tick is not stored, so readers share the line. Of a read and a
    /// mark at the same moment one may be lost: the block then counts as read only, or as marked only.
    #[inline]
    pub fn touch_read(&self, tick: u32) {
        let times = self.times.load(Ordering::Relaxed);
        if times as u32 != tick {
            self.times.store(times & !u64::from(u32::MAX) | u64::from(tick), Ordering::Relaxed);
        }
    }
    /// Notes a write; whatever was read or marked before is over.
    #[inline]
    pub fn touch_written(&self, tick: u32) {
        self.times.store(u64::from(tick) << 32, Ordering::Relaxed);
    }

    /// Keeps the block from being reused after it is freed. Take it under the inode lock (S7).
    #[inline]
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }
    /// Drops an I/O pin.
    #[inline]
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "unpin without pin");
    }
    /// Whether an I/O pin is held.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// The number of I/O pins held.
    pub(crate) fn pins(&self) -> u16 {
        self.pins.load(Ordering::Acquire)
    }

    /// Notes a use of a metadata page: the page is not demoted before the clock hand has come by twice.
    #[inline]
    pub fn set_in_use(&self) {
        if self.flags.load(Ordering::Relaxed) & IN_USE == 0 {
            self.flags.fetch_or(IN_USE, Ordering::Relaxed);
        }
    }
    /// Forgets the uses of a metadata page; true when there was a use.
    #[inline]
    pub fn clear_in_use(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & IN_USE != 0
            && self.flags.fetch_and(!IN_USE, Ordering::Relaxed) & IN_USE != 0
    }

    /// True once the block table was found to give the block to the file block that maps it. Volatile, gone with the
    /// next claim.
    #[inline]
    pub(crate) fn is_confirmed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & CONFIRMED != 0
    }
    #[inline]
    pub(crate) fn set_confirmed(&self) {
        self.flags.fetch_or(CONFIRMED, Ordering::AcqRel);
    }

    /// True when the cold copy is known to hold the same content (design S2). Volatile, false after mount.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.flags.load(Ordering::Acquire) & CLEAN != 0
    }
    /// True when the block belongs to a file that is pinned to PM, and was not demoted for that. Volatile.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.flags.load(Ordering::Acquire) & KEPT != 0
    }
    /// Marks the block as kept, or no more.
    pub fn set_kept(&self, kept: bool) {
        if kept {
            self.flags.fetch_or(KEPT, Ordering::AcqRel);
        } else if self.is_kept() {
            self.flags.fetch_and(!KEPT, Ordering::AcqRel);
        }
    }
    /// True when a sync found that writes to the block are to go to PM at once ([HiNFS] section 3.2). Volatile, false after
    /// mount.
    #[inline]
    pub fn is_eager(&self) -> bool {
        self.flags.load(Ordering::Acquire) & EAGER != 0
    }
    /// Sets [`Self::is_eager`].
    pub fn set_eager(&self, eager: bool) {
        if eager {
            self.flags.fetch_or(EAGER, Ordering::AcqRel);
        } else if self.is_eager() {
            self.flags.fetch_and(!EAGER, Ordering::AcqRel);
        }
    }
    /// Clears the flags of a block that gets new content.
    pub(crate) fn clear_flags(&self) {
        if self.flags.load(Ordering::Acquire) != 0 {
            self.flags.store(0, Ordering::Release);
        }
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
    #[inline]
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
const _: () = assert!(size_of::<Descriptor>() == 24 || size_of::<AtomicU64>() != 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_or_write_sets_the_times_of_use() {
        let block = Descriptor::default();
        block.touch_written(7);
        assert_eq!((block.touched(), block.written(), block.read()), (7, 7, 0));
        block.touch_read(9);
        assert_eq!((block.touched(), block.written(), block.read()), (9, 7, 9));
        block.touch_read(MARKS);
        assert_eq!((block.touched(), block.written(), block.read()), (MARKS, 7, 0));
        block.touch_read(11);
        assert_eq!(block.touched(), 11, "a read takes the mark away");
        block.touch_read(MARKS);
        block.touch_written(12);
        assert_eq!((block.touched(), block.read()), (12, 0), "so does a write");
    }

    #[test]
    fn both_highest_times_are_marks() {
        for mark in [u32::MAX - 1, u32::MAX] {
            let block = Descriptor::default();
            block.touch_read(mark);
            assert_eq!((block.touched(), block.read()), (mark, 0));
        }
        let block = Descriptor::default();
        block.touch_read(u32::MAX - 2);
        assert_eq!(block.read(), u32::MAX - 2);
    }

    #[test]
    fn states_are_kept_and_only_an_unknown_block_is_learned() {
        let all = [State::Unknown, State::Used, State::Quarantined, State::Free];
        for (from, to) in all.into_iter().flat_map(|from| all.map(|to| (from, to))) {
            let block = Descriptor::default();
            assert_eq!(block.state(), State::Unknown);
            block.set_state(from);
            assert_eq!(block.state(), from);
            assert_eq!(block.learn(to), from == State::Unknown);
            assert_eq!(block.state(), if from == State::Unknown { to } else { from });
        }
    }

    #[test]
    fn a_block_is_pinned_until_every_pin_is_dropped() {
        let block = Descriptor::default();
        assert!(!block.is_pinned());
        block.pin();
        block.pin();
        block.unpin();
        assert!(block.is_pinned());
        block.unpin();
        assert!(!block.is_pinned());
    }

    #[test]
    #[should_panic(expected = "unpin without pin")]
    fn an_unpin_without_a_pin_panics() {
        Descriptor::default().unpin();
    }

    /// Each flag is changed from every combination of flags; the other flags stay.
    #[test]
    fn a_flag_changes_without_the_other_flags() {
        let with = |flags: u8| {
            let block = Descriptor::default();
            block.set_clean(flags & CLEAN != 0);
            block.set_partial(flags & PARTIAL != 0);
            block.set_kept(flags & KEPT != 0);
            if flags & IN_USE != 0 {
                block.set_in_use();
            }
            if flags & CONFIRMED != 0 {
                block.set_confirmed();
            }
            block.set_eager(flags & EAGER != 0);
            block
        };
        let shown = |block: &Descriptor| {
            let bit = |on, flag| if on { flag } else { 0 };
            let told = bit(block.is_clean(), CLEAN)
                | bit(block.may_be_partial(), PARTIAL)
                | bit(block.is_kept(), KEPT)
                | bit(block.is_confirmed(), CONFIRMED)
                | bit(block.is_eager(), EAGER);
            // Asking whether it is in use takes that away: last.
            told | bit(block.clear_in_use(), IN_USE)
        };
        type Change = fn(&Descriptor);
        let changes: [(Change, u8, u8); 11] = [
            (|block| block.set_clean(true), CLEAN, 0),
            (|block| block.set_clean(false), 0, CLEAN),
            (|block| block.set_partial(true), PARTIAL, 0),
            (|block| block.set_partial(false), 0, PARTIAL),
            (|block| block.set_kept(true), KEPT, 0),
            (|block| block.set_kept(false), 0, KEPT),
            (|block| block.set_in_use(), IN_USE, 0),
            (|block| block.set_confirmed(), CONFIRMED, 0),
            (|block| block.set_eager(true), EAGER, 0),
            (|block| block.set_eager(false), 0, EAGER),
            (|block| block.clear_flags(), 0, 63),
        ];
        for flags in 0..64 {
            assert_eq!(shown(&with(flags)), flags);
            for (number, (change, on, off)) in changes.iter().enumerate() {
                let block = with(flags);
                change(&block);
                assert_eq!(shown(&block), flags & !off | on, "change {number} of {flags:06b}");
            }
            let block = with(flags);
            assert_eq!(block.clear_in_use(), flags & IN_USE != 0);
            assert!(!block.clear_in_use(), "told once");
            assert_eq!(shown(&block), flags & !IN_USE);
        }
    }
}
