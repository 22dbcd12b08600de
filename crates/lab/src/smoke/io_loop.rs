//! The loop of small reads and writes that rows c and d time, from the client's side.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use terrace_bench::failure::Outcome;
use terrace_bench::null_server::FILE_BYTES;
use terrace_bench::scratch::Scratch;

const BLOCK_BYTES: u64 = 4096;

/// A turn of the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Write,
    WriteSync,
    Read,
}

impl Turn {
    pub const ALL: [Turn; 3] = [Turn::Write, Turn::WriteSync, Turn::Read];

    pub fn name(self) -> &'static str {
        match self {
            Turn::Write => "4 KiB pwrite",
            Turn::WriteSync => "4 KiB pwrite + fsync",
            Turn::Read => "4 KiB pread",
        }
    }
}

/// A file under test.
pub(crate) struct Subject {
    file: File,
    buffer: Vec<u8>,
    at: u64,
}

impl Subject {
    /// Opens an existing file.
    pub fn open(path: &Path) -> Outcome<Subject> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Subject { file, buffer: vec![7; BLOCK_BYTES as usize], at: 0 })
    }

    /// Makes a file with content and opens it.
    pub fn make(path: &Path) -> Outcome<Subject> {
        std::fs::write(path, vec![1; FILE_BYTES as usize])?;
        let subject = Subject::open(path)?;
        subject.file.sync_all()?;
        Ok(subject)
    }

    /// Mean nanoseconds of a batch of turns; ends early after `limit` (a disk may be slow).
    pub fn batch(&mut self, scratch: &Scratch, turn: Turn, count: u64, limit: Duration) -> Outcome<f64> {
        let begin = scratch.now_ns();
        let mut done = 0;
        while done < count {
            // A stride prime to the number of blocks visits all of them.
            self.at = (self.at + 173 * BLOCK_BYTES) % FILE_BYTES;
            match turn {
                Turn::Read => self.file.read_exact_at(&mut self.buffer, self.at)?,
                _ => self.file.write_all_at(&self.buffer, self.at)?,
            }
            if turn == Turn::WriteSync {
                self.file.sync_all()?;
            }
            done += 1;
            if done % 64 == 0 && scratch.now_ns() - begin > limit.as_nanos() as u64 {
                break;
            }
        }
        Ok((scratch.now_ns() - begin) as f64 / done as f64)
    }
}
