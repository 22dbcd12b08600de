//! LevelDB's environment on the files of a Terrace pool: every call of LevelDB on a file is a call of the pool.
//!
//! A database lies in a directory of the pool's root and is named below [`ROOT`]. A flush of LevelDB, which it asks for
//! at the end of a table, after each change of its manifest and after a synchronous write, is an fsync.
//!
//! LevelDB in Rust hides some errors: a read that fails finds nothing, and a failed compaction loses its inputs. So
//! [`Account`] keeps the first error of a call, and whoever measures asks for it.

use rusty_leveldb::env::{Env, FileLock, Logger, RandomAccess};
use rusty_leveldb::{Result, Status, StatusCode};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use terrace_bench::workload::target::{FileTarget, OpenedFile};
use terrace_runtime::Clock;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The name of the pool's root. LevelDB in Rust asks the machine's file system for the canonical form of a database's
/// name. Below /dev/null the machine has no files, so it gives an error and LevelDB keeps the name.
pub(crate) const ROOT: &str = "/dev/null";

/// Calls of a database on its files.
pub(crate) struct Account {
    target: Arc<dyn FileTarget>,
    clock: Arc<dyn Clock>,
    busy_ns: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Account {
    pub(crate) fn new(target: Arc<dyn FileTarget>, clock: Arc<dyn Clock>) -> Arc<Account> {
        Arc::new(Account { target, clock, busy_ns: AtomicU64::new(0), failure: Mutex::new(None) })
    }

    /// Time in calls so far.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.busy_ns.load(Ordering::Relaxed)
    }

    /// The first error of a call, other than a missing file.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Does a call: takes its time, and keeps its error.
    fn call<T>(&self, name: &str, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let begin = self.clock.monotonic_ns();
        let done = work();
        self.busy_ns.fetch_add(self.clock.monotonic_ns() - begin, Ordering::Relaxed);
        if let Err(error) = &done
            && error.kind() != ErrorKind::NotFound
        {
            self.failure.lock().get_or_insert_with(|| format!("{name}: {error}"));
        }
        done
    }

    fn open(self: &Arc<Self>, path: &Path, create: bool) -> Result<PoolFile> {
        let name = within(path)?;
        let file = self.call(&name, || self.target.open(&name, create)).map_err(|e| told(&name, e))?;
        Ok(PoolFile { account: self.clone(), name, file, at: 0 })
    }

    /// Does a call on a path, and gives its error as LevelDB's.
    fn on<T>(&self, path: &Path, work: impl FnOnce(&str) -> io::Result<T>) -> Result<T> {
        let name = within(path)?;
        self.call(&name, || work(&name)).map_err(|error| told(&name, error))
    }
}

/// The path within the pool of a path of LevelDB.
fn within(path: &Path) -> Result<String> {
    let rest = path.strip_prefix(ROOT).ok().and_then(Path::to_str);
    let outside = || Status::new(StatusCode::InvalidArgument, &format!("{}: not in a pool", path.display()));
    rest.map(str::to_string).ok_or_else(outside)
}

fn told(name: &str, error: io::Error) -> Status {
    Status::from(error).annotate(name)
}

/// Locks of the databases of a pool: LOCK files that are open.
pub(crate) type Locks = Arc<Mutex<BTreeSet<String>>>;

/// The environment of a database.
pub(crate) struct TerraceEnv {
    account: Arc<Account>,
    locks: Locks,
}

impl TerraceEnv {
    pub(crate) fn new(account: Arc<Account>, locks: Locks) -> TerraceEnv {
        TerraceEnv { account, locks }
    }
}

/// An open file, read or written from a place that moves on.
struct PoolFile {
    account: Arc<Account>,
    name: String,
    file: Box<dyn OpenedFile>,
    at: u64,
}

impl Read for PoolFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.account.call(&self.name, || self.file.read_at(into, self.at))?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Write for PoolFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.account.call(&self.name, || self.file.write_at(bytes, self.at, false))?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.account.call(&self.name, || self.file.sync())
    }
}

/// An open file that is read at any place.
struct AnyPlace(RefCell<PoolFile>);

impl RandomAccess for AnyPlace {
    fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<usize> {
        let PoolFile { account, name, file, .. } = &mut *self.0.borrow_mut();
        account.call(name, || file.read_at(into, offset as u64)).map_err(|error| told(name, error))
    }
}

impl Env for TerraceEnv {
    fn open_sequential_file(&self, path: &Path) -> Result<Box<dyn Read>> {
        Ok(Box::new(self.account.open(path, false)?))
    }
    fn open_random_access_file(&self, path: &Path) -> Result<Box<dyn RandomAccess>> {
        Ok(Box::new(AnyPlace(RefCell::new(self.account.open(path, false)?))))
    }
    fn open_writable_file(&self, path: &Path) -> Result<Box<dyn Write>> {
        let mut made = self.account.open(path, true)?;
        self.account.on(path, |_| made.file.set_size(0))?;
        Ok(Box::new(made))
    }
    fn open_appendable_file(&self, path: &Path) -> Result<Box<dyn Write>> {
        let mut made = self.account.open(path, true)?;
        made.at = self.account.on(path, |_| made.file.size())?;
        Ok(Box::new(made))
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        match self.size_of(path) {
            Ok(_) => Ok(true),
            Err(status) if status.code == StatusCode::NotFound => Ok(false),
            Err(status) => Err(status),
        }
    }
    fn children(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let names = self.account.on(path, |name| self.account.target.list(name))?;
        Ok(names.into_iter().map(PathBuf::from).collect())
    }
    fn size_of(&self, path: &Path) -> Result<usize> {
        Ok(self.account.on(path, |name| self.account.target.size(name))? as usize)
    }
    fn delete(&self, path: &Path) -> Result<()> {
        self.account.on(path, |name| self.account.target.unlink(name))
    }
    fn mkdir(&self, path: &Path) -> Result<()> {
        self.account.on(path, |name| self.account.target.make_directory(name))
    }
    fn rmdir(&self, path: &Path) -> Result<()> {
        for child in self.children(path)? {
            self.delete(&path.join(child))?;
        }
        self.account.on(path, |name| self.account.target.remove_directory(name))
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let to = within(to)?;
        self.account.on(from, |name| self.account.target.rename(name, &to))
    }
    fn lock(&self, path: &Path) -> Result<FileLock> {
        let held = self.account.open(path, true)?;
        match self.locks.lock().insert(held.name.clone()) {
            true => Ok(FileLock { id: held.name.clone() }),
            false => Err(Status::new(StatusCode::LockError, &format!("{}: in use", held.name))),
        }
    }
    fn unlock(&self, lock: FileLock) -> Result<()> {
        match self.locks.lock().remove(&lock.id) {
            true => Ok(()),
            false => Err(Status::new(StatusCode::LockError, &format!("{}: not locked", lock.id))),
        }
    }
    fn new_logger(&self, path: &Path) -> Result<Logger> {
        Ok(Logger::new(self.open_appendable_file(path)?))
    }
    fn micros(&self) -> u64 {
        self.account.clock.monotonic_ns() / 1000
    }
    fn sleep_for(&self, micros: u32) {
        self.account.clock.sleep(Duration::from_micros(micros.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::pool::tests::pool;
    use rusty_leveldb::DB;
    use std::rc::Rc;
    use terrace_map::MAPS;

    fn env(target: Arc<dyn FileTarget>, locks: &Locks) -> (TerraceEnv, Arc<Account>) {
        let account = Account::new(target, Arc::new(terrace_runtime::SystemClock::default()));
        (TerraceEnv::new(account.clone(), locks.clone()), account)
    }

    fn options(env: TerraceEnv) -> rusty_leveldb::Options {
        rusty_leveldb::Options {
            env: Rc::new(Box::new(env)),
            write_buffer_size: 64 << 10,
            max_file_size: 128 << 10,
            ..rusty_leveldb::in_memory()
        }
    }

    fn path(name: &str) -> PathBuf {
        Path::new(ROOT).join(name)
    }

    /// Each function of the environment, and its errors.
    #[test]
    fn files_of_an_environment_are_files_of_the_pool() {
        let scratch = pool(&MAPS[0], 64 << 20);
        let pool = &scratch.pool;
        let (env, account) = env(pool.target(), &Locks::default());
        env.mkdir(&path("db")).unwrap();
        let (file, other) = (path("db/a"), path("db/b"));
        assert!(!env.exists(&file).unwrap());
        let missing = [
            env.open_sequential_file(&file).err(),
            env.open_random_access_file(&file).err(),
            env.size_of(&file).err(),
            env.delete(&file).err(),
            env.rename(&file, &other).err(),
            env.children(&path("none")).err(),
        ];
        assert!(missing.iter().all(|error| error.as_ref().unwrap().code == StatusCode::NotFound));
        env.open_writable_file(&file).unwrap().write_all(b"first, longer").unwrap();
        let mut written = env.open_writable_file(&file).unwrap();
        written.write_all(b"one ").unwrap();
        written.flush().unwrap();
        env.open_appendable_file(&file).unwrap().write_all(b"two").unwrap();
        assert_eq!(pool.target().size("db/a").unwrap(), 7);
        env.rename(&file, &other).unwrap();
        let mut text = String::new();
        env.open_sequential_file(&other).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two");
        let mut three = [0; 16];
        assert_eq!(env.open_random_access_file(&other).unwrap().read_at(4, &mut three).unwrap(), 3);
        assert_eq!(env.children(&path("db")).unwrap(), [PathBuf::from("b")]);
        assert!(account.failure().is_none() && account.busy_ns() > 0);
        let outside = env.open_writable_file(Path::new("/tmp/a")).err().unwrap();
        assert_eq!(outside.code, StatusCode::InvalidArgument);
        // A directory with an entry cannot be removed by its name alone.
        assert!(pool.target().remove_directory("db").is_err());
        env.rmdir(&path("db")).unwrap();
        assert!(!env.exists(&path("db")).unwrap());
        scratch.pool.finish().unwrap();
    }

    #[test]
    fn a_database_is_locked_once() {
        let scratch = pool(&MAPS[0], 64 << 20);
        let pool = &scratch.pool;
        let locks = Locks::default();
        let (first, _) = env(pool.target(), &locks);
        let (second, _) = env(pool.target(), &locks);
        first.mkdir(&path("db")).unwrap();
        let held = first.lock(&path("db/LOCK")).unwrap();
        assert_eq!(second.lock(&path("db/LOCK")).err().unwrap().code, StatusCode::LockError);
        first.unlock(held).unwrap();
        second.unlock(second.lock(&path("db/LOCK")).unwrap()).unwrap();
        scratch.pool.finish().unwrap();
    }

    /// LevelDB reports a full pool to nobody: the account does.
    #[test]
    fn errors_hidden_by_leveldb_are_kept() {
        let scratch = pool(&MAPS[0], 32 << 20);
        let pool = &scratch.pool;
        let (env, account) = env(pool.target(), &Locks::default());
        let mut db = DB::open(path("db"), options(env)).unwrap();
        for number in 0..40_000u32 {
            if db.put(&number.to_be_bytes(), &[7; 1000]).is_err() || account.failure().is_some() {
                break;
            }
        }
        drop(db);
        let failure = account.failure().unwrap();
        assert!(failure.starts_with("db/") && failure.contains("No space left"), "{failure}");
        scratch.pool.finish().unwrap();
    }

    /// Every key survives an unmount, whichever map the pool has.
    #[test]
    fn a_synced_database_is_whole_after_a_new_mount() {
        const KEYS: u32 = 2000;
        let value = |number: u32| vec![number as u8; 1 + number as usize % 700];
        for row in MAPS {
            let scratch = pool(row, 64 << 20);
            let (first, account) = env(scratch.pool.target(), &Locks::default());
            let mut db = DB::open(path("db"), options(first)).unwrap();
            for number in 0..KEYS {
                db.put(&number.to_be_bytes(), &value(number)).unwrap();
            }
            for number in (0..KEYS).step_by(7) {
                db.delete(&number.to_be_bytes()).unwrap();
            }
            db.flush().unwrap();
            drop(db);
            assert_eq!(account.failure(), None, "{}", row.name);
            let names = scratch.pool.target().list("db").unwrap();
            assert!(names.iter().filter(|name| name.ends_with(".ldb")).count() > 3, "{names:?}");
            drop(account);
            let scratch = scratch.mounted_again();
            let (second, account) = env(scratch.pool.target(), &Locks::default());
            let mut db = DB::open(path("db"), options(second)).unwrap();
            for number in 0..KEYS {
                let wanted = (number % 7 != 0).then(|| value(number));
                let found = db.get(&number.to_be_bytes()).map(|bytes| bytes.to_vec());
                assert_eq!(found, wanted, "{}: {number}", row.name);
            }
            drop(db);
            assert_eq!(account.failure(), None, "{}", row.name);
            scratch.pool.finish().unwrap();
        }
    }
}
