//! How much is read around a missing cold block: twice as much each time a file is read on where the last read of a
//! lower tier ended, as much as the mount says where it is not.
//!
//! Volatile and approximate: one stream per slot of a small table by inode; two files that share a slot cost a short
//! window, nothing else. Innermost lock.

use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::Mutex;

/// Longest window: 2 MiB.
const LONGEST: u64 = 512;
const STREAMS: usize = 256;

#[derive(Clone, Copy, Default)]
struct Stream {
    ino: Ino,
    first: FileBlock,
    end: FileBlock,
    window: u64,
}

/// The streams under way.
pub(crate) struct ReadAhead {
    streams: Vec<Mutex<Stream>>,
    shortest: u64,
    longest: u64,
}

impl ReadAhead {
    /// Windows from `shortest` blocks up (0: what was asked for only), so that a few fit into `cache_blocks`.
    pub fn new(shortest: u64, cache_blocks: u64) -> ReadAhead {
        let longest = LONGEST.min(cache_blocks / 8).max(shortest);
        ReadAhead { streams: (0..STREAMS).map(|_| Mutex::default()).collect(), shortest, longest }
    }

    /// How many blocks to read from `first` on.
    pub fn window(&self, ino: Ino, first: FileBlock) -> u64 {
        if self.shortest == 0 {
            return 0;
        }
        let mut stream = self.streams[ino.0 as usize % STREAMS].lock();
        let goes_on = stream.ino == ino && stream.first < first && first <= stream.end;
        let window = if goes_on { (stream.window * 2).min(self.longest) } else { self.shortest };
        *stream = Stream { ino, first, end: first.plus(window), window };
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_while_a_file_is_read_on() {
        let ahead = ReadAhead::new(32, 1 << 20);
        let mut at = FileBlock(0);
        let mut windows = Vec::new();
        for _ in 0..6 {
            windows.push(ahead.window(Ino(5), at));
            at = at.plus(windows[windows.len() - 1]);
        }
        assert_eq!(windows, [32, 64, 128, 256, 512, 512]);
        assert_eq!(ahead.window(Ino(5), FileBlock(7)), 32);
        assert_eq!(ReadAhead::new(0, 1 << 20).window(Ino(5), FileBlock(0)), 0);
    }
}
