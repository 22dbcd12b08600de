//! The file operations of three databases, without the databases: for rows in process, where no program runs.
//! Single-threaded, and the same in every run of a seed.

use super::numbers::{Picks, Zipf};
use super::target::{FileTarget, OpenedFile};
use std::collections::BTreeSet;
use std::io;

const PAGE_BYTES: u64 = 4096;
const PIECE_BYTES: u64 = 1 << 20;
/// The θ of fio's locality 80/20 in [TPFS table 3].
const THETA: f64 = 0.88;

fn write_by_pieces(file: &mut dyn OpenedFile, bytes: u64) -> io::Result<()> {
    let piece = vec![0x4c; PIECE_BYTES as usize];
    let mut at = 0;
    while at < bytes {
        let length = PIECE_BYTES.min(bytes - at);
        file.write_at(&piece[..length as usize], at, false)?;
        at += length;
    }
    Ok(())
}

/// SQLite with a rollback journal that is deleted at each commit: pages are read, their old content goes into
/// the journal, fsync, the pages are written, fsync, and the journal is removed.
#[derive(Debug, Clone, Copy)]
pub struct Sqlite {
    /// Size of the database file.
    pub file_bytes: u64,
}

impl Sqlite {
    /// Makes the database file.
    pub fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        target.make_directory("sqlite")?;
        let mut file = target.open("sqlite/db", true)?;
        write_by_pieces(&mut *file, self.file_bytes)?;
        file.sync()
    }

    /// Runs `transactions` transactions, each with eight selected and four changed pages.
    pub fn run(&self, target: &dyn FileTarget, transactions: u64, seed: u64) -> io::Result<()> {
        let picks = &mut Picks::new(seed);
        let pages = Zipf::new(self.file_bytes / PAGE_BYTES, THETA)?;
        let mut file = target.open("sqlite/db", false)?;
        let mut page = vec![0; PAGE_BYTES as usize];
        for _ in 0..transactions {
            for _ in 0..8 {
                file.read_at(&mut page, pages.block(picks) * PAGE_BYTES)?;
            }
            let changed: Vec<u64> = (0..4).map(|_| pages.block(picks) * PAGE_BYTES).collect();
            let mut journal = target.open("sqlite/db-journal", true)?;
            journal.write_at(&page[..512], 0, false)?;
            for (number, at) in (0..).zip(&changed) {
                file.read_at(&mut page, *at)?;
                journal.write_at(&page, 512 + number * (PAGE_BYTES + 8), false)?;
            }
            journal.sync()?;
            for at in &changed {
                file.write_at(&page, *at, false)?;
            }
            file.sync()?;
            drop(journal);
            target.unlink("sqlite/db-journal")?;
        }
        Ok(())
    }
}

/// RocksDB with leveled compaction, two levels. A log is fsynced with every group of writes. A full memtable
/// is written as a table of the first level, and the log is removed. Four tables of the first level are
/// merged with four of the second, in a circle. Point reads of table blocks come between the writes.
#[derive(Debug, Clone, Copy)]
pub struct RocksDb {
    /// Size of a table.
    pub table_bytes: u64,
    /// Tables of the second level.
    pub tables: u64,
}

/// Tables of the first level that are merged.
const MERGED: u64 = 4;
/// Bytes of a group of writes in the log.
const GROUP_BYTES: u64 = 16 << 10;

impl RocksDb {
    fn make_table(&self, target: &dyn FileTarget, number: u64) -> io::Result<()> {
        let mut table = target.open(&format!("rocksdb/{number:06}.sst"), true)?;
        write_by_pieces(&mut *table, self.table_bytes)?;
        table.sync()
    }

    /// Makes the tables of the second level.
    pub fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        target.make_directory("rocksdb")?;
        (0..self.tables).try_for_each(|number| self.make_table(target, number))
    }

    /// Fills `memtables` memtables, with `reads` point reads during each.
    pub fn run(&self, target: &dyn FileTarget, memtables: u64, reads: u64, seed: u64) -> io::Result<()> {
        let picks = &mut Picks::new(seed);
        let mut second: Vec<u64> = (0..self.tables).collect();
        let (mut first, mut next) = (Vec::new(), self.tables);
        let blocks = Zipf::new(self.tables * self.table_bytes / PAGE_BYTES, THETA)?;
        let (mut page, group) = (vec![0; PAGE_BYTES as usize], vec![0x3e; GROUP_BYTES as usize]);
        for memtable in 0..memtables {
            let log = format!("rocksdb/{next:06}.log");
            let mut file = target.open(&log, true)?;
            let groups = self.table_bytes / GROUP_BYTES;
            for number in 0..groups {
                file.write_at(&group, number * GROUP_BYTES, false)?;
                file.sync()?;
                for _ in 0..reads / groups {
                    let block = blocks.block(picks);
                    let (table, at) =
                        (block * PAGE_BYTES / self.table_bytes, block * PAGE_BYTES % self.table_bytes);
                    let table = format!("rocksdb/{:06}.sst", second[table as usize]);
                    target.open(&table, false)?.read_at(&mut page, at)?;
                }
            }
            drop(file);
            self.make_table(target, next)?;
            first.push(next);
            next += 1;
            target.unlink(&log)?;
            if first.len() as u64 == MERGED {
                let from = memtable / MERGED * MERGED % self.tables;
                let old: Vec<u64> =
                    (from..from + MERGED).map(|at| second[(at % self.tables) as usize]).collect();
                next = self.merge(target, &first, &old, next)?;
                for number in 0..MERGED {
                    second[((from + number) % self.tables) as usize] = next - MERGED + number;
                }
                first.clear();
            }
        }
        Ok(())
    }

    /// Reads the older and the newer tables, and writes as many new tables as there were older tables; gives
    /// the next free number.
    fn merge(&self, target: &dyn FileTarget, newer: &[u64], older: &[u64], mut next: u64) -> io::Result<u64> {
        let mut piece = vec![0; PIECE_BYTES as usize];
        for (one, other) in newer.iter().zip(older) {
            let open = |number: &u64| target.open(&format!("rocksdb/{number:06}.sst"), false);
            let mut inputs = [open(one)?, open(other)?];
            let mut output = target.open(&format!("rocksdb/{next:06}.sst"), true)?;
            for at in (0..self.table_bytes).step_by(PIECE_BYTES as usize) {
                inputs.iter_mut().try_for_each(|input| input.read_at(&mut piece, at).map(|_| ()))?;
                output.write_at(&piece, at, false)?;
            }
            output.sync()?;
            next += 1;
        }
        for number in newer.iter().chain(older) {
            target.unlink(&format!("rocksdb/{number:06}.sst"))?;
        }
        Ok(next)
    }
}

/// PostgreSQL under pgbench with one client. A transaction changes a row in each of three pages. Its records go into the log, whose
/// last page is written again from its beginning, and fsync follows; the first change of a page since a checkpoint
/// puts the whole page into the log. A checkpoint writes the changed pages and syncs them.
#[derive(Debug, Clone, Copy)]
pub struct Postgres {
    /// Size of the tables.
    pub table_bytes: u64,
}

/// A page of tables and log.
const POSTGRES_PAGE: u64 = 8192;
/// Size of the log, which is used again from its beginning.
const POSTGRES_LOG: u64 = 16 << 20;
/// Records of a transaction: three changed rows, an inserted one, and the commit.
const RECORD_BYTES: u64 = 600;
/// Transactions between checkpoints.
const CHECKPOINT: u64 = 500;

impl Postgres {
    /// Makes the tables and the log.
    pub fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        target.make_directory("postgres")?;
        for (name, bytes) in [("postgres/tables", self.table_bytes), ("postgres/log", POSTGRES_LOG)] {
            let mut file = target.open(name, true)?;
            write_by_pieces(&mut *file, bytes)?;
            file.sync()?;
        }
        Ok(())
    }

    /// Runs `transactions` transactions.
    pub fn run(&self, target: &dyn FileTarget, transactions: u64, seed: u64) -> io::Result<()> {
        let picks = &mut Picks::new(seed);
        let mut tables = target.open("postgres/tables", false)?;
        let mut log = target.open("postgres/log", false)?;
        let mut page = vec![0; POSTGRES_PAGE as usize];
        let records = vec![0x57; 5 * POSTGRES_PAGE as usize];
        let (mut end, mut changed) = (0u64, BTreeSet::new());
        for number in 1..=transactions {
            let from = end - end % POSTGRES_PAGE;
            end += RECORD_BYTES;
            for _ in 0..3 {
                let at = picks.below(self.table_bytes / POSTGRES_PAGE) * POSTGRES_PAGE;
                tables.read_at(&mut page, at)?;
                end += if changed.insert(at) { POSTGRES_PAGE } else { 0 };
            }
            let bytes = end.next_multiple_of(POSTGRES_PAGE) - from;
            log.write_at(&records[..bytes as usize], from % POSTGRES_LOG, false)?;
            log.sync()?;
            if number % CHECKPOINT == 0 {
                for at in std::mem::take(&mut changed) {
                    tables.write_at(&page, at, false)?;
                }
                tables.sync()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::directory::Directory;

    #[test]
    fn a_checkpoint_writes_pages_of_the_tables_and_the_log_is_used_again() {
        // In memory: each of the transactions is synced.
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let target = Directory::new(scratch.path());
        let database = Postgres { table_bytes: 64 * POSTGRES_PAGE };
        database.populate(&target).unwrap();
        // Without checkpoints between, each page is in the log once; 28 MiB in all.
        database.run(&target, 48_000, 1).unwrap();
        let log = std::fs::read(scratch.path().join("postgres/log")).unwrap();
        assert!(log.iter().all(|byte| *byte == 0x57));
        assert!((POSTGRES_LOG..POSTGRES_LOG + 5 * POSTGRES_PAGE).contains(&(log.len() as u64)));
        assert_eq!(target.size("postgres/tables").unwrap(), 64 * POSTGRES_PAGE);
    }
}
