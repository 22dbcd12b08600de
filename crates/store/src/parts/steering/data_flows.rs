//! Bytes read and written lately, by second, for the thresholds (design 7), and the times of a file that
//! `where` shows. The times themselves are in the block descriptors.

use terrace_format::Ino;
use terrace_placement::threshold::{Flow, Window};
use terrace_placement::{Idle, Parameters};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Shards of the counters, by inode.
const SHARDS: usize = 16;

/// Seconds without a look that are made up for; more have decayed everything anyway.
const MOST_SECONDS: u64 = 64;

const SECOND_NS: u64 = 1_000_000_000;

/// A shard of the counters, on a cache line of its own. All accesses are relaxed, so two readers of a shard
/// may lose each other's counts.
#[derive(Default)]
#[repr(align(64))]
struct Shard {
    pm_read: AtomicU64,
    pm_written: AtomicU64,
    dram_read: AtomicU64,
    predictions: AtomicU64,
    block_bytes: AtomicU64,
}

#[inline]
fn add(word: &AtomicU64, bytes: u64) {
    if bytes > 0 {
        word.store(word.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }
}

/// Counters and the window over them.
pub struct Flows {
    shards: [Shard; SHARDS],
    window: Mutex<Seconds>,
    /// [`Idle`] when the last second was closed, to be read without the lock.
    idle: AtomicU8,
}

struct Seconds {
    window: Window,
    before: Flow,
    /// When the last second was closed.
    at_ns: Option<u64>,
}

impl Flows {
    /// No bytes so far.
    pub fn new(parameters: &Parameters) -> Flows {
        let window = Window::new(&parameters.utilisation, &parameters.dataflow);
        let seconds = Seconds { window, before: Flow::default(), at_ns: None };
        Flows { shards: Default::default(), window: Mutex::new(seconds), idle: AtomicU8::new(0) }
    }

    #[inline]
    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Counts bytes read from PM and from copies in DRAM.
    #[inline]
    pub fn note_read(&self, ino: Ino, pm_bytes: u64, dram_bytes: u64) {
        let shard = self.shard(ino);
        add(&shard.pm_read, pm_bytes);
        add(&shard.dram_read, dram_bytes);
    }

    /// Counts a write: bytes that are in PM, and bytes whose home is a block tier.
    #[inline]
    pub fn note_write(&self, ino: Ino, pm_bytes: u64, block_bytes: u64) {
        let shard = self.shard(ino);
        add(&shard.pm_written, pm_bytes);
        add(&shard.block_bytes, block_bytes);
        add(&shard.predictions, 1);
    }

    /// Counts bytes of earlier writes that came into PM.
    #[inline]
    pub fn note_written_back(&self, ino: Ino, pm_bytes: u64) {
        add(&self.shard(ino).pm_written, pm_bytes);
    }

    fn sum(&self, of: fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| of(shard).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Bytes since mount.
    pub fn total(&self) -> Flow {
        Flow {
            pm_read: self.sum(|shard| &shard.pm_read),
            pm_written: self.sum(|shard| &shard.pm_written),
            dram_read: self.sum(|shard| &shard.dram_read),
        }
    }

    /// Writes of which the predictors took notice, and bytes whose home was a block tier.
    pub fn steered(&self) -> (u64, u64) {
        (self.sum(|shard| &shard.predictions), self.sum(|shard| &shard.block_bytes))
    }

    /// Closes the seconds that have passed.
    pub fn tell_time(&self, now_ns: u64) {
        let mut seconds = self.window.lock();
        let begin = *seconds.at_ns.get_or_insert(now_ns);
        let passed = now_ns.saturating_sub(begin) / SECOND_NS;
        if passed == 0 {
            return;
        }
        let total = self.total();
        let flow = total.since(&seconds.before);
        seconds.before = total;
        seconds.at_ns = Some(begin + passed * SECOND_NS);
        seconds.window.second(flow);
        (1..passed.min(MOST_SECONDS)).for_each(|_| seconds.window.second(Flow::default()));
        self.idle.store(seconds.window.idle() as u8, Ordering::Relaxed);
    }

    /// The side that idles by equation (2).
    pub fn idle(&self) -> Idle {
        match self.idle.load(Ordering::Relaxed) {
            0 => Idle::Neither,
            1 => Idle::Dram,
            _ => Idle::Pm,
        }
    }

    /// The window as it stands.
    pub fn window(&self) -> Window {
        self.window.lock().window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_flows_close_a_second_by_the_given_clock() {
        let flows = Flows::new(&Parameters::PUBLISHED);
        flows.tell_time(5);
        flows.note_write(Ino(3), 4 << 20, 0);
        flows.note_read(Ino(19), 1 << 20, 2 << 20);
        flows.tell_time(5 + SECOND_NS - 1);
        assert_eq!(flows.window().decayed(), Flow::default(), "not yet");
        flows.tell_time(5 + SECOND_NS);
        let one = Flow { pm_read: 1 << 20, pm_written: 4 << 20, dram_read: 2 << 20 };
        assert_eq!(flows.window().decayed(), one);
        flows.tell_time(5 + 100 * SECOND_NS);
        assert!(flows.window().decayed().pm_written < 1 << 10, "long ago");
        assert_eq!(flows.total(), one);
        assert_eq!(flows.steered(), (1, 0));
    }
}
