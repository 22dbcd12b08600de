//! The write size predictor ([TPFS] section 4): are writes here large, and do they stay large?
//!
//! A write entry describes the run that a write produced: its length and a counter. A write that covers at
//! least half of the entry it replaces takes its counter + 1, else 0. A write that replaces no entry and
//! continues a run takes the run's counter: + 1 when both are large (docs/decisions/0009), unchanged
//! otherwise.

use crate::Parameters;
use terrace_format::BLOCK_SIZE;

/// The write entry that a write left: the granularity of the prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// Length of the run in bytes.
    pub bytes: u64,
    /// The number of writes in a row that were large compared with the previous entry.
    pub counter: u8,
}

/// The write history at the position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// It replaces this entry.
    Replaces(Entry),
    /// The write replaces no entry and begins at the end of this run.
    Continues(Entry),
    /// No entry is known.
    Nothing,
}

impl Before {
    /// The history before a write that begins in block `first`. It ends past the end of the file (`appends`),
    /// and begins past it if not `inside`. The file's last run was `run` and ended before block `run_end`;
    /// `replaced` looks up the entry at the first block.
    pub fn of(
        (first, appends, inside): (u64, bool, bool),
        (run, run_end): (Entry, u64),
        replaced: impl FnOnce() -> Option<Entry>,
    ) -> Before {
        let continues = run.is_followed_by(run_end, first);
        match if appends && continues { None } else { replaced() } {
            Some(entry) if inside => Before::Replaces(entry),
            _ if continues => Before::Continues(run),
            _ => Before::Nothing,
        }
    }
}

impl Entry {
    /// The entry that a write of `bytes` leaves.
    pub fn after(before: Before, bytes: u64, parameters: &Parameters) -> Entry {
        let counter = match before {
            Before::Replaces(old) if bytes.saturating_mul(2) >= old.bytes => old.counter.saturating_add(1),
            Before::Continues(run) if bytes.min(run.bytes) >= parameters.large_min => {
                run.counter.saturating_add(1)
            }
            Before::Continues(run) => run.counter,
            Before::Replaces(_) | Before::Nothing => 0,
        };
        Entry { bytes, counter }
    }

    /// The entry of a write shorter than `large_min`. It is never a large write, so the replaced entry is not
    /// looked up. The write begins in block `first` and is `bytes` long; the file's last run was `run` and
    /// ended before block `run_end`, and a write that continues the run inherits its counter. A write inside the run's last
    /// block leaves the run as it was: the kernel cuts a large write whose memory begins inside a page, and sends the last bytes
    /// apart.
    #[inline]
    pub fn after_short((run, run_end): (Entry, u64), (first, bytes): (u64, u64)) -> Entry {
        if run.bytes > 0 && first + 1 == run_end && bytes <= BLOCK_SIZE {
            return run;
        }
        Entry { bytes, counter: if run.is_followed_by(run_end, first) { run.counter } else { 0 } }
    }

    /// Whether a write that begins in block `first` goes on where this run ended, before block `run_end`.
    #[inline]
    fn is_followed_by(&self, run_end: u64, first: u64) -> bool {
        // The last block of a run may have been written in part.
        self.bytes > 0 && (first == run_end || first + 1 == run_end)
    }

    /// Whether the write that left it was large: long enough, and stable.
    pub fn is_large(&self, parameters: &Parameters) -> bool {
        self.counter > parameters.large_after && self.bytes >= parameters.large_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Parameters = Parameters::PUBLISHED;

    #[test]
    fn rewrites_of_at_least_half_count_up_and_smaller_ones_begin_again() {
        let mut entry = Entry { bytes: 128 << 10, counter: 0 };
        for expected in 1..=5 {
            entry = Entry::after(Before::Replaces(entry), 64 << 10, &P);
            assert_eq!(entry, Entry { bytes: 64 << 10, counter: expected });
        }
        assert!(entry.is_large(&P));
        let small = Entry::after(Before::Replaces(entry), 4096, &P);
        assert_eq!(small, Entry { bytes: 4096, counter: 0 });
        let last = Entry { bytes: 4096, counter: u8::MAX };
        assert_eq!(Entry::after(Before::Replaces(last), 4096, &P).counter, u8::MAX);
        assert!(!last.is_large(&P), "a stable 4 KiB write is not large");
    }

    #[test]
    fn a_stream_of_large_writes_counts_up_and_small_appends_do_not() {
        let mut stream = Entry::after(Before::Nothing, 1 << 20, &P);
        let mut large = 0;
        for _ in 0..6 {
            stream = Entry::after(Before::Continues(stream), 1 << 20, &P);
            large += u32::from(stream.is_large(&P));
        }
        assert_eq!(large, 2, "from the sixth on");
        let small = Entry::after(Before::Continues(stream), 512, &P);
        assert_eq!(small.counter, stream.counter, "inherited");
        assert!(!small.is_large(&P));
        assert_eq!(Entry::after_short((stream, 9), (9, 512)), small);
        assert_eq!(Entry::after_short((stream, 9), (8, 512)), stream, "into the last block");
        assert_eq!(Entry::after_short((stream, 9), (3, 512)).counter, 0);
        let cut = Entry::after(Before::Continues(Entry::after_short((stream, 9), (8, 4096))), 1 << 20, &P);
        assert_eq!(cut.counter, stream.counter + 1, "behind the last bytes of a write that the kernel cut");
        let log = Entry::after(Before::Continues(Entry { bytes: 512, counter: 0 }), 512, &P);
        assert_eq!(log.counter, 0);
    }
}
