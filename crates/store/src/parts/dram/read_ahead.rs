//! Reading ahead of a stream: how much is read around a missing cold block, and what is fetched in the background
//! before it is asked for, so that a lower tier works while its last answer is consumed.
//!
//! Scattered reads get no window: each would wait for 128 KiB instead of 4. At the beginning of a file, and
//! near the last missing block, a window of the mount's size is read. The window doubles each time the reader
//! goes on where the last window ended, and is never smaller than the read itself. Such a stream has two
//! windows ahead of its reader, in pieces that are queued here and fetched by [`AheadStep`]s, two at a time
//! beside the reader's own fetch, so that the latency of a fetch is hidden behind the transfer of another. A
//! reader that misses a block of a queued piece fetches the piece itself. A reader that misses a block under
//! way waits for it for a few seconds at most, then fetches the requested blocks alone, and later readers do
//! not wait for that window: another part of the window may lie on a device that hangs.
//!
//! The table is volatile and approximate: a set holds a few streams, by inode. A stream that another file
//! displaced costs its file a read without a window. Read-ahead is a hint: its errors are left to the reader
//! of the block. Lock order: innermost; a stream's lock before the queue's.

use crate::types::BlockRange;
use std::collections::VecDeque;
use std::time::Duration;
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::{Condvar, Mutex, MutexGuard};
use terrace_runtime::thread::Waker;

/// Longest window: 2 MiB.
const LONGEST: u64 = 512;

/// Most of a window that is fetched at once: 1 MiB. Larger ones would be waited for longer and gain nothing.
const PIECE: u64 = 256;

/// Sets of streams, by inode.
const SETS: usize = 256;

/// Streams of a set.
const WAYS: usize = 4;

/// Windows fetched at once.
pub const WORKERS: usize = 2;

/// Windows ahead of a reader.
const AHEAD: u64 = 2;

/// Windows queued at most: beyond that many streams read at once, and each has to see for itself.
const QUEUED: usize = 64;

/// How often, and how long each time, a reader waits for a window that is being fetched.
const MOST_WAITS: u32 = 100;

const WAIT: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Default)]
struct Stream {
    ino: Ino,
    /// Where the last window began that its reader fetched.
    first: FileBlock,
    /// The end of the reads so far.
    seen: FileBlock,
    /// The end of the fetched and queued blocks.
    ahead: FileBlock,
    /// Blocks of the last window; as short as can be until the file is read on.
    window: u64,
    read_on: bool,
}

/// Streams that share a lock.
#[derive(Default)]
struct Set {
    ways: [Stream; WAYS],
    /// The stream that a new stream replaces next.
    next: usize,
}

impl Set {
    fn get(&mut self, ino: Ino) -> Option<&mut Stream> {
        self.ways.iter_mut().find(|stream| stream.ino == ino)
    }

    /// The stream of a file, or the stream to replace.
    fn enter(&mut self, ino: Ino) -> &mut Stream {
        let at = self.ways.iter().position(|stream| stream.ino == ino).unwrap_or_else(|| {
            self.next = (self.next + 1) % WAYS;
            self.ways[self.next] = Stream::default();
            self.next
        });
        &mut self.ways[at]
    }
}

impl Stream {
    /// Blocks that are fetched or queued ahead of the reader.
    fn left(&self) -> u64 {
        self.ahead.0.saturating_sub(self.seen.0)
    }
}

/// The end of a file for a caller that does not know the size: blocks behind the end cost no fetch.
const NO_END: FileBlock = FileBlock(u64::MAX);

/// A piece of a window of a file.
pub type Window = (Ino, BlockRange);

#[derive(Default)]
struct Queue {
    wanted: VecDeque<Window>,
    under_way: Vec<Window>,
}

/// The thread that fetches the window of a missing block.
#[derive(Debug, PartialEq, Eq)]
pub enum Holder {
    /// No thread: the window is neither queued nor under way.
    Nobody,
    /// The caller, from now on: the window was queued.
    Caller(BlockRange),
    /// A worker.
    Worker,
}

/// The streams under way.
pub struct ReadAhead {
    sets: Vec<Mutex<Set>>,
    /// Blocks read at once where no window is longer.
    pub shortest: u64,
    longest: u64,
    queue: Mutex<Queue>,
    /// Notified whenever a window has come.
    came: Condvar,
    wakers: Vec<Waker>,
}

impl ReadAhead {
    /// Windows from `shortest` blocks up (0: what was asked for only), so that those of a few streams fit into a quarter of
    /// `cache_blocks`: more of it is not given to what was read ahead, and what it does not keep is read again.
    pub fn new(shortest: u64, cache_blocks: u64) -> ReadAhead {
        let longest = LONGEST.min(cache_blocks / 32);
        ReadAhead {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            shortest: shortest.min(longest),
            longest,
            queue: Mutex::default(),
            came: Condvar::new(),
            wakers: (0..WORKERS).map(|_| Waker::new()).collect(),
        }
    }

    /// The waker of a worker.
    pub fn waker(&self, worker: usize) -> Waker {
        self.wakers.get(worker).cloned().unwrap_or_default()
    }

    /// Up to where to read from missing blocks on. Queues the window after it where the file is read on.
    pub fn missed(&self, ino: Ino, range: BlockRange) -> FileBlock {
        if self.shortest == 0 {
            return range.end;
        }
        let first = range.first;
        let mut set = self.set(ino);
        let stream = set.enter(ino);
        let known = stream.ino == ino;
        let follows = known && stream.first < first && first <= stream.ahead;
        // Two blocks side by side are no stream yet.
        let read_on = follows && stream.window >= self.shortest;
        // Near the last window, before or behind it.
        let near = first.0 + self.shortest >= stream.first.0 && first.0 <= stream.ahead.0 + self.shortest;
        let window = match (read_on, first.0 == 0 || known && near) {
            (true, _) => stream.window * 2,
            (false, true) => self.shortest,
            (false, false) => range.count(),
        };
        let window = window.max(range.count()).min(self.longest);
        // All that was asked for, and of a stream no more than others could fetch meanwhile.
        let until = range.end.max(first.plus(window.min(PIECE)));
        *stream = Stream { ino, first, seen: range.end, ahead: until, window, read_on };
        if read_on {
            self.want(stream, NO_END);
        }
        until
    }

    fn set(&self, ino: Ino) -> MutexGuard<'_, Set> {
        self.sets[ino.0 as usize % SETS].lock()
    }

    /// A read of a range found copies in DRAM: queues what comes next of a file that is read on and ends at `end`.
    pub fn found(&self, ino: Ino, range: BlockRange, end: FileBlock) {
        let mut set = self.set(ino);
        let Some(stream) = set.get(ino) else { return };
        let near = range.first.0 <= stream.seen.0 + stream.window && stream.seen <= range.end;
        if !stream.read_on || !near {
            return;
        }
        stream.seen = range.end;
        // The reader may have passed the queued blocks: no block behind it is wanted.
        stream.ahead = stream.ahead.max(stream.seen);
        if stream.ahead < end && stream.left() < AHEAD * stream.window {
            stream.window = (stream.window * 2).max(range.count()).min(self.longest);
            self.want(stream, end);
        }
    }

    /// Queues pieces until a stream has its windows ahead, or the file ends.
    fn want(&self, stream: &mut Stream, end: FileBlock) {
        let (seen, before) = (stream.seen, stream.ahead);
        debug_assert!(seen <= before, "inode {}: read up to {seen}, ahead only up to {before}", stream.ino);
        while stream.ahead < end && stream.left() < AHEAD * stream.window {
            let range = BlockRange::new(stream.ahead, stream.ahead.plus(stream.window.min(PIECE)));
            let mut queue = self.queue.lock();
            if queue.wanted.len() >= QUEUED {
                break;
            }
            queue.wanted.push_back((stream.ino, range));
            stream.ahead = range.end;
        }
        if stream.ahead > before {
            self.wakers.iter().for_each(Waker::wake);
        }
    }

    /// The thread that fetches the window of a missing block. A queued window becomes the caller's.
    pub fn holder(&self, ino: Ino, block: FileBlock) -> Holder {
        let mut queue = self.queue.lock();
        let holds = |window: &Window| window.0 == ino && window.1.first <= block && block < window.1.end;
        if queue.under_way.iter().any(holds) {
            return Holder::Worker;
        }
        let found = queue.wanted.iter().position(holds).and_then(|at| queue.wanted.remove(at));
        found.map_or(Holder::Nobody, |(_, range)| Holder::Caller(range))
    }

    /// Waits until the fetch of a block has ended; false if that takes too long, as on a device that hangs.
    /// Later readers then do not wait for the window either, or each request of a reader would wait as long.
    pub(crate) fn wait_for(&self, ino: Ino, block: FileBlock) -> bool {
        let holds = |window: &Window| window.0 == ino && window.1.first <= block && block < window.1.end;
        let mut queue = self.queue.lock();
        for _ in 0..MOST_WAITS {
            if !queue.under_way.iter().any(holds) {
                return true;
            }
            self.came.wait_for(&mut queue, WAIT);
        }
        queue.under_way.retain(|window| !holds(window));
        drop(queue);
        self.came.notify_all();
        false
    }

    /// Takes the next window to fetch.
    pub fn take(&self) -> Option<Window> {
        let mut queue = self.queue.lock();
        let window = queue.wanted.pop_front()?;
        queue.under_way.push(window);
        Some(window)
    }

    /// Ends a window that was taken.
    pub fn done(&self, window: Window) {
        let mut queue = self.queue.lock();
        if let Some(at) = queue.under_way.iter().position(|other| *other == window) {
            queue.under_way.swap_remove(at);
        }
        drop(queue);
        self.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(5);
    const END: FileBlock = FileBlock(1 << 20);

    fn range(first: u64, end: u64) -> BlockRange {
        BlockRange::new(FileBlock(first), FileBlock(end))
    }

    fn queued(ahead: &ReadAhead) -> Vec<BlockRange> {
        std::iter::from_fn(|| ahead.take()).map(|(_, range)| range).collect()
    }

    #[test]
    fn windows_double_while_a_file_is_read_on() {
        let ahead = ReadAhead::new(32, 1 << 20);
        assert_eq!(ahead.missed(FILE, range(0, 1)), FileBlock(32));
        assert_eq!(ahead.take(), None, "nobody knows yet that it is read on");
        assert_eq!(ahead.missed(FILE, range(32, 33)), FileBlock(96));
        assert_eq!(queued(&ahead), [range(96, 160), range(160, 224)], "two windows");
        let mut lengths = Vec::new();
        for at in (32..4096).step_by(32) {
            ahead.found(FILE, range(at, at + 32), END);
            lengths.extend(queued(&ahead).iter().map(BlockRange::count));
        }
        assert_eq!(lengths[..3], [128, 128, 256]);
        assert!(lengths[3..].iter().all(|length| *length == 256), "{lengths:?}");
        assert_eq!(ahead.missed(FILE, range(7, 8)), FileBlock(39), "it went back");
        assert_eq!(ahead.missed(FILE, range(39, 139)), FileBlock(139), "as much as was asked for");
        assert_eq!(ReadAhead::new(0, 1 << 20).missed(FILE, range(0, 1)), FileBlock(1));
    }

    /// With a cache of 1 MiB each request of 16 KiB of a stream read 128 KiB and more, of which the cache kept 16.
    #[test]
    fn a_small_cache_has_short_windows() {
        let ahead = ReadAhead::new(32, 256);
        assert_eq!(ahead.missed(FILE, range(0, 4)), FileBlock(8));
        assert_eq!(ahead.missed(FILE, range(8, 12)), FileBlock(16));
        assert_eq!(queued(&ahead), [range(16, 24), range(24, 32)]);
        assert_eq!(ahead.missed(FILE, range(200, 240)), FileBlock(240), "all that was asked for");
        assert_eq!(ReadAhead::new(32, 0).missed(FILE, range(0, 4)), FileBlock(4));
    }

    #[test]
    fn scattered_reads_fetch_no_window() {
        let ahead = ReadAhead::new(32, 1 << 20);
        for (first, until) in [(500, 501), (9000, 9001), (100, 101), (7000, 7001)] {
            assert_eq!(ahead.missed(FILE, range(first, first + 1)), FileBlock(until));
        }
        // Other files, of the same set, leave a stream alone as long as they are few.
        for other in 1..WAYS as u64 {
            assert_eq!(ahead.missed(Ino(FILE.0 + other * SETS as u64), range(50, 51)), FileBlock(51));
        }
        assert_eq!(ahead.missed(FILE, range(7001, 7002)), FileBlock(7033), "near the last one");
        assert_eq!(queued(&ahead), [], "no stream yet");
        assert_eq!(ahead.missed(FILE, range(7033, 7034)), FileBlock(7097));
        assert_eq!(queued(&ahead), [range(7097, 7161), range(7161, 7225)]);
        assert_eq!(ahead.missed(FILE, range(20_000, 20_001)), FileBlock(20_001), "it jumped");
        assert_eq!(ahead.missed(FILE, range(19_990, 19_991)), FileBlock(20_022), "backwards");
        // When its set is full, the oldest stream is forgotten.
        for other in 1..=WAYS as u64 {
            let _ = ahead.missed(Ino(FILE.0 + other * SETS as u64), range(50, 51));
        }
        assert_eq!(ahead.missed(FILE, range(20_022, 20_023)), FileBlock(20_023));
        assert_eq!(ahead.missed(FILE, range(0, 1)), FileBlock(32), "the beginning of a file");
    }

    /// A reader overtook its queue: windows behind it were queued and fetched a second time.
    #[test]
    fn large_requests_fetch_each_block_once() {
        let ahead = ReadAhead::new(32, 1 << 20);
        let mut fetched = vec![range(0, ahead.missed(FILE, range(0, 256)).0)];
        for at in (256..65536).step_by(256) {
            match ahead.holder(FILE, FileBlock(at)) {
                Holder::Nobody => fetched.push(range(at, ahead.missed(FILE, range(at, at + 256)).0)),
                Holder::Caller(queued) => fetched.push(range(at, queued.end.0)),
                Holder::Worker => unreachable!("nobody works"),
            }
            ahead.found(FILE, range(at, at + 256), FileBlock(65536));
            let waits = ahead.queue.lock().wanted.len() as u64;
            assert!(at < 512 || waits >= 3 || at + 1024 > 65536, "{waits} wait at {at}");
        }
        fetched.extend(queued(&ahead));
        fetched.sort_by_key(|range| range.first);
        for (range, next) in fetched.iter().zip(&fetched[1..]) {
            assert_eq!(range.end, next.first);
        }
    }

    #[test]
    fn a_stream_queues_two_windows_and_stops_at_the_end_of_the_file() {
        let ahead = ReadAhead::new(32, 1 << 20);
        let _ = (ahead.missed(FILE, range(0, 1)), ahead.missed(FILE, range(32, 33)));
        for _ in 0..100 {
            ahead.found(FILE, range(32, 64), END);
            ahead.found(FILE, range(9000, 9001), END);
        }
        assert_eq!(queued(&ahead).iter().map(BlockRange::count).sum::<u64>(), 2 * 64);
        ahead.found(FILE, range(64, 96), FileBlock(100));
        assert_eq!(ahead.take(), None);
    }

    #[test]
    fn a_queued_window_goes_to_the_first_reader_of_its_blocks() {
        let ahead = ReadAhead::new(32, 1 << 20);
        let _ = (ahead.missed(FILE, range(0, 1)), ahead.missed(FILE, range(32, 33)));
        assert_eq!(ahead.holder(FILE, FileBlock(95)), Holder::Nobody);
        assert_eq!(ahead.holder(FILE, FileBlock(96)), Holder::Caller(range(96, 160)));
        assert_eq!(ahead.holder(FILE, FileBlock(96)), Holder::Nobody);
        ahead.found(FILE, range(64, 96), END);
        let taken = ahead.take().unwrap_or((FILE, range(0, 0)));
        assert_eq!(ahead.holder(FILE, taken.1.first), Holder::Worker);
        ahead.done(taken);
        assert_eq!(ahead.holder(FILE, taken.1.first), Holder::Nobody);
    }
}
