//! The calls of part `calls` from a program's side, timed call by call.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, open, statx, unlink};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use terrace_bench::failure::Outcome;
use terrace_bench::null_server::FILE_BYTES;
use terrace_runtime::Clock;

const BLOCK_BYTES: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Write,
    Read,
    SyncedWrite,
    WriteFsync,
    AppendFsync,
    OpenClose,
    CreateClose,
    Stat,
    Unlink,
}

impl Call {
    /// In the order of a turn: [`Call::Stat`] and [`Call::Unlink`] use the files of [`Call::CreateClose`].
    pub const ALL: [Call; 9] = [
        Call::Write,
        Call::Read,
        Call::SyncedWrite,
        Call::WriteFsync,
        Call::AppendFsync,
        Call::OpenClose,
        Call::CreateClose,
        Call::Stat,
        Call::Unlink,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Call::Write => "4 KiB pwrite",
            Call::Read => "4 KiB pread",
            Call::SyncedWrite => "4 KiB pwrite, O_DSYNC",
            Call::WriteFsync => "4 KiB pwrite + fsync",
            Call::AppendFsync => "4 KiB append + fsync",
            Call::OpenClose => "open + close",
            Call::CreateClose => "create + close",
            Call::Stat => "stat",
            Call::Unlink => "unlink",
        }
    }

    /// Whether a server with a single file of a fixed size takes the call.
    pub fn suits_one_file(self) -> bool {
        !matches!(self, Call::AppendFsync | Call::CreateClose | Call::Unlink)
    }
}

/// The number of calls in a turn.
#[derive(Clone, Copy)]
pub(super) struct Count {
    /// Calls before the measured ones, without samples.
    pub warm: usize,
    pub measured: usize,
    /// A turn ends early after this time: a disk may be slow.
    pub limit_ns: u64,
}

/// Files under test of a contestant.
pub(super) struct Client<'a> {
    clock: &'a dyn Clock,
    file: File,
    synced: File,
    path: CString,
    /// The directory of new files and a file to append to; a server of a single file has neither.
    more: Option<(PathBuf, File)>,
    made: Vec<CString>,
    buffer: Vec<u8>,
    at: u64,
}

fn words(path: &Path) -> Outcome<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

impl<'a> Client<'a> {
    /// Makes files below `root`; with `one_file` the server has its only file already.
    pub fn new(clock: &'a dyn Clock, root: &Path, one_file: bool) -> Outcome<Client<'a>> {
        let path = root.join("file");
        let mut more = None;
        if !one_file {
            fs::write(&path, vec![1; FILE_BYTES as usize])?;
            let directory = root.join("directory");
            fs::create_dir(&directory)?;
            more = Some((directory, File::options().create(true).append(true).open(root.join("log"))?));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.open(&path)?;
        file.sync_all()?;
        let synced = options.custom_flags(OFlags::DSYNC.bits() as i32).open(&path)?;
        let (path, buffer) = (words(&path)?, vec![7; BLOCK_BYTES as usize]);
        Ok(Client { clock, file, synced, path, more, made: Vec::new(), buffer, at: 0 })
    }

    /// Microseconds of the calls of a turn; `None` when the server does not take the call.
    pub fn turn(&mut self, call: Call, count: Count) -> Outcome<Option<Vec<f64>>> {
        if self.more.is_none() && !call.suits_one_file() {
            return Ok(None);
        }
        let mut times = Vec::with_capacity(count.warm + count.measured);
        let begin = self.clock.monotonic_ns();
        for number in 0..count.warm + count.measured {
            let path = self.path_for(call, number)?;
            let before = self.clock.monotonic_ns();
            self.once(call, &path)?;
            let after = self.clock.monotonic_ns();
            times.push((after - before) as f64 / 1000.0);
            match call {
                Call::CreateClose => self.made.push(path),
                Call::Unlink if self.made.is_empty() => break,
                _ => {}
            }
            if after - begin > count.limit_ns && number > count.warm {
                break;
            }
        }
        if let (Call::AppendFsync, Some((_, log))) = (call, &self.more) {
            log.set_len(0)?;
        }
        times.drain(..count.warm.min(times.len() - 1));
        Ok(Some(times))
    }

    /// The path for a call, made before the clock starts.
    fn path_for(&mut self, call: Call, number: usize) -> Outcome<CString> {
        Ok(match (call, &self.more) {
            (Call::CreateClose, Some((directory, _))) => words(&directory.join(format!("new-{number}")))?,
            (Call::Unlink, _) => self.made.pop().ok_or("no file is left")?,
            (Call::Stat, _) if !self.made.is_empty() => self.made[number % self.made.len()].clone(),
            _ => self.path.clone(),
        })
    }

    fn once(&mut self, call: Call, path: &CString) -> Outcome<()> {
        // A stride prime to the number of blocks visits all of them.
        self.at = (self.at + 173 * BLOCK_BYTES) % FILE_BYTES;
        match call {
            Call::Write => self.file.write_all_at(&self.buffer, self.at)?,
            Call::Read => self.file.read_exact_at(&mut self.buffer, self.at)?,
            Call::SyncedWrite => self.synced.write_all_at(&self.buffer, self.at)?,
            Call::WriteFsync => {
                self.file.write_all_at(&self.buffer, self.at)?;
                self.file.sync_all()?;
            }
            Call::AppendFsync => {
                let (_, log) = self.more.as_mut().ok_or("no file to append to")?;
                log.write_all(&self.buffer)?;
                log.sync_all()?;
            }
            Call::OpenClose => drop(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?),
            Call::CreateClose => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                drop(open(path, flags, Mode::RUSR | Mode::WUSR)?);
            }
            Call::Stat => {
                black_box(statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)?);
            }
            Call::Unlink => unlink(path)?,
        }
        Ok(())
    }
}
