//! A client with a database of its own: LevelDB in Rust serves one thread at a time.

use super::env::{Account, Locks, ROOT, TerraceEnv};
use super::generator::{Operation, key};
use rusty_leveldb::{DB, DBIterator, LdbIterator, Options, in_memory};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use terrace_bench::workload::numbers::Picks;

/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 1024;
/// Random bytes that values are cut out of.
const NOISE_BYTES: usize = 1 << 16;
/// Largest table that a compaction writes, as in [HashFS section 4.8].
const TABLE_BYTES: usize = 128 << 20;
/// DRAM for blocks of tables: the default of LevelDB in C++.
const BLOCK_CACHE_BYTES: usize = 8 << 20;

/// A database, and the thread that works on it.
///
/// A client may move to another thread as a whole: nothing outside shares the reference-counted parts of its database.
pub(crate) struct Client {
    db: DB,
    account: Arc<Account>,
    /// Records in the database: their numbers are those below.
    pub(crate) records: u64,
    noise: Vec<u8>,
    picks: Picks,
}

impl Client {
    /// Opens a database in the directory `name` of the pool's root; a missing database is made.
    ///
    /// # Errors
    /// LevelDB's, as a sentence.
    pub(crate) fn open(name: &str, account: Arc<Account>, locks: Locks, seed: u64) -> Result<Client, String> {
        let env = TerraceEnv::new(account.clone(), locks);
        // `in_memory` is the constructor that needs no environment on the disk.
        let options = Options {
            env: Rc::new(Box::new(env)),
            max_file_size: TABLE_BYTES,
            block_cache_capacity_bytes: BLOCK_CACHE_BYTES,
            ..in_memory()
        };
        let db = DB::open(Path::new(ROOT).join(name), options).map_err(|error| error.to_string())?;
        let mut picks = Picks::new(seed);
        let noise = (0..NOISE_BYTES).map(|_| picks.draw() as u8).collect();
        Ok(Client { db, account, records: 0, noise, picks })
    }

    /// Inserts records up to `records`.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn load(&mut self, records: u64) -> Result<(), String> {
        while self.records < records {
            self.once(Operation::Insert(self.records))?;
        }
        self.checked()
    }

    /// Does the operations.
    ///
    /// # Errors
    /// LevelDB's, an error of a file that LevelDB hides, and a record that is missing or wrong, as a sentence.
    pub(crate) fn run(&mut self, operations: &[Operation]) -> Result<(), String> {
        operations.iter().try_for_each(|operation| self.once(*operation))?;
        self.checked()
    }

    /// The error of a file that LevelDB has hidden.
    fn checked(&self) -> Result<(), String> {
        self.account.failure().map_or(Ok(()), Err)
    }

    /// Time in the file system so far.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.account.busy_ns()
    }

    fn once(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Read(record) => self.read(record),
            Operation::Update(record) => self.write(record),
            Operation::Insert(record) => {
                self.write(record)?;
                self.records = record + 1;
                Ok(())
            }
            Operation::Scan { first, records } => self.scan(first, records),
            Operation::ReadModifyWrite(record) => {
                self.read(record)?;
                self.write(record)
            }
        }
    }

    fn read(&mut self, record: u64) -> Result<(), String> {
        let value =
            self.db.get(key(record).as_bytes()).ok_or_else(|| format!("record {record} is missing"))?;
        match value.len() == VALUE_BYTES && value[..8] == record.to_le_bytes() {
            true => Ok(()),
            false => Err(format!("record {record} has another value")),
        }
    }

    /// Writes a record and waits until its log is durable. LevelDB in C++ hands each record to the file system also
    /// without waiting; this one would keep it in a buffer of the process.
    fn write(&mut self, record: u64) -> Result<(), String> {
        let from = self.picks.below((NOISE_BYTES - VALUE_BYTES) as u64) as usize;
        let mut value = [0; VALUE_BYTES];
        value.copy_from_slice(&self.noise[from..from + VALUE_BYTES]);
        value[..8].copy_from_slice(&record.to_le_bytes());
        let done = self.db.put(key(record).as_bytes(), &value).and_then(|()| self.db.flush());
        done.map_err(|error| error.to_string())
    }

    /// Reads up to `records` records from the key of `first` on, fewer at the end of the keys.
    fn scan(&mut self, first: u64, records: u64) -> Result<(), String> {
        let mut found: DBIterator = self.db.new_iter().map_err(|error| error.to_string())?;
        let begin = key(first);
        found.seek(begin.as_bytes());
        for number in 0..records {
            let Some((key, value)) = found.current() else {
                return if number > 0 { Ok(()) } else { Err(format!("record {first} is missing")) };
            };
            if value.len() != VALUE_BYTES || (number == 0 && *key != *begin.as_bytes()) {
                return Err(format!("a scan from record {first} finds a wrong record"));
            }
            found.advance();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::generator::WORKLOADS;
    use crate::ycsb::pool::tests::pool;
    use terrace_runtime::SystemClock;

    /// All workloads on one database; every read is compared.
    #[test]
    fn workloads_find_every_record() {
        for row in terrace_map::MAPS {
            let scratch = pool(row, 64 << 20);
            let pool = &scratch.pool;
            let open = || {
                let account = Account::new(pool.target(), Arc::new(SystemClock::default()));
                Client::open("db", account, Locks::default(), 1)
            };
            let mut client = open().unwrap();
            client.load(6000).unwrap();
            for workload in &WORKLOADS {
                let operations = workload.draw(client.records, 400, 9);
                client.run(&operations).unwrap_or_else(|error| panic!("{}: {error}", workload.name));
            }
            assert!(client.records > 6000 && client.busy_ns() > 0);
            let missing = format!("record {} is missing", client.records);
            assert_eq!(client.run(&[Operation::Read(client.records)]), Err(missing));
            drop(client);
            scratch.pool.finish().unwrap();
        }
    }

    /// A row must not go on when LevelDB finds less than there is.
    #[test]
    fn a_wrong_record_is_an_error() {
        let scratch = pool(&terrace_map::MAPS[0], 64 << 20);
        let pool = &scratch.pool;
        let account = Account::new(pool.target(), Arc::new(SystemClock::default()));
        let mut client = Client::open("db", account, Locks::default(), 1).unwrap();
        client.load(10).unwrap();
        client.db.put(key(3).as_bytes(), &[0; 5]).unwrap();
        let scan = Operation::Scan { first: 3, records: 1 };
        assert!(client.run(&[Operation::Read(3)]).is_err() && client.run(&[scan]).is_err());
        client.db.delete(key(3).as_bytes()).unwrap();
        assert!(client.run(&[scan]).is_err());
        drop(client);
        scratch.pool.finish().unwrap();
    }
}
