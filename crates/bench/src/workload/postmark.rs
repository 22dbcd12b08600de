//! PostMark [Katcher 1997], the load of a mail server: many short-lived files. With its defaults: 500 to 10,000 bytes in a file, a
//! transaction is a read or an append, and a creation or a deletion, each with the same probability. Nothing is synced.
//! Requests have 4 KiB, the buffer of stdio.

use super::numbers::Picks;
use super::target::FileTarget;
use std::io;

/// A run of PostMark.
#[derive(Debug, Clone, Copy)]
pub struct Postmark {
    /// Files that exist during the transactions.
    pub files: u64,
    /// Transactions.
    pub transactions: u64,
}

/// Mean bytes of a new file.
pub const MEAN_BYTES: u64 = (LEAST_BYTES + MOST_BYTES) / 2;

const LEAST_BYTES: u64 = 500;
const MOST_BYTES: u64 = 10_000;
const REQUEST_BYTES: u64 = 4096;

/// The files, by number and size.
struct Pool<'a> {
    target: &'a dyn FileTarget,
    picks: Picks,
    files: Vec<(u64, u64)>,
    next: u64,
    buffer: Vec<u8>,
}

fn path(number: u64) -> String {
    format!("postmark/{number}")
}

impl Postmark {
    /// Makes the directory.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        target.make_directory("postmark")
    }

    /// Creates the files, does the transactions, and removes all files.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn run(&self, target: &dyn FileTarget, seed: u64) -> io::Result<()> {
        let buffer = vec![0x70; REQUEST_BYTES as usize];
        let mut pool = Pool { target, picks: Picks::new(seed), files: Vec::new(), next: 0, buffer };
        for _ in 0..self.files {
            pool.create()?;
        }
        for _ in 0..self.transactions {
            if pool.picks.below(2) == 0 { pool.read() } else { pool.append() }?;
            if pool.picks.below(2) == 0 { pool.create() } else { pool.delete() }?;
        }
        while !pool.files.is_empty() {
            pool.delete()?;
        }
        Ok(())
    }
}

impl Pool<'_> {
    fn pick(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.picks.below(self.files.len() as u64) as usize)
    }

    fn create(&mut self) -> io::Result<()> {
        let size = LEAST_BYTES + self.picks.below(MOST_BYTES - LEAST_BYTES + 1);
        self.write(self.next, 0, size)?;
        self.files.push((self.next, size));
        self.next += 1;
        Ok(())
    }

    fn write(&mut self, number: u64, from: u64, to: u64) -> io::Result<()> {
        let mut file = self.target.open(&path(number), true)?;
        let mut at = from;
        while at < to {
            let bytes = (to - at).min(REQUEST_BYTES - at % REQUEST_BYTES);
            file.write_at(&self.buffer[..bytes as usize], at, false)?;
            at += bytes;
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(index) = self.pick() else { return Ok(()) };
        let (number, size) = self.files[index];
        let mut file = self.target.open_to_read(&path(number))?;
        for at in (0..size).step_by(REQUEST_BYTES as usize) {
            file.read_at(&mut self.buffer, at)?;
        }
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let Some(index) = self.pick() else { return Ok(()) };
        let (number, size) = self.files[index];
        let to = size + self.picks.below(MOST_BYTES - size.min(MOST_BYTES) + 1);
        self.write(number, size, to)?;
        self.files[index].1 = to;
        Ok(())
    }

    fn delete(&mut self) -> io::Result<()> {
        let Some(index) = self.pick() else { return Ok(()) };
        let (number, _) = self.files.swap_remove(index);
        self.target.unlink(&path(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::directory::Directory;

    #[test]
    fn it_removes_all_its_files() {
        let scratch = tempfile::tempdir().unwrap();
        let target = Directory::new(scratch.path());
        let load = Postmark { files: 50, transactions: 400 };
        load.populate(&target).unwrap();
        load.run(&target, 3).unwrap();
        assert!(target.list("postmark").unwrap().is_empty());
    }
}
