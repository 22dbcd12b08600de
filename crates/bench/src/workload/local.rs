//! A workload's files in a file system of this process: `Engine` without the kernel. Each call sends the requests
//! that the kernel would send for the system call with empty name caches: lookups, open, operations, release,
//! forget.
//!
//! Lock order: the table of directories, then the recorder. No lock is held during a call of the file system.

use super::target::{FileTarget, OpenedFile, split};
use crate::trace::{Event, Kind, Recorder};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use terrace_engine::{Caller, Engine, FsError, SetAttributes, Wait, WriteFlags};
use terrace_format::Ino;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

const ROOT: Ino = Ino(1);
const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// Files of a mounted file system, with a recorder of the operations.
pub struct LocalTarget {
    fs: Arc<Engine>,
    /// Directories already looked up; each holds one lookup.
    directories: Mutex<HashMap<String, Ino>>,
    recorder: Option<Arc<Recorder>>,
    requests: Arc<AtomicU64>,
}

fn told(error: FsError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

impl LocalTarget {
    /// A target in a mounted file system; `recorder` gets the operations.
    pub fn new(fs: Arc<Engine>, recorder: Option<Arc<Recorder>>) -> LocalTarget {
        LocalTarget { fs, directories: Mutex::new(HashMap::new()), recorder, requests: Arc::default() }
    }

    /// Calls of the file system so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The file system, after counting `requests` requests.
    fn ask(&self, requests: u64) -> &Engine {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        &self.fs
    }

    fn directory(&self, path: &str) -> io::Result<Ino> {
        if path.is_empty() {
            return Ok(ROOT);
        }
        if let Some(ino) = self.directories.lock().get(path) {
            return Ok(*ino);
        }
        let (above, name) = split(path);
        let parent = self.directory(above)?;
        let ino = self.fs.lookup(parent, name.as_bytes()).map_err(told)?.ino;
        if self.directories.lock().insert(path.to_string(), ino).is_some() {
            self.fs.forget(ino, 1);
        }
        Ok(ino)
    }

    fn place<'a>(&self, path: &'a str) -> io::Result<(Ino, &'a [u8])> {
        let (directory, name) = split(path);
        Ok((self.directory(directory)?, name.as_bytes()))
    }

    /// The inode of a path; the caller must forget the lookup.
    fn look_up(&self, path: &str) -> io::Result<Ino> {
        let (parent, name) = self.place(path)?;
        Ok(self.ask(1).lookup(parent, name).map_err(told)?.ino)
    }

    fn record(&self, kind: Kind, ino: Ino) {
        if let Some(recorder) = &self.recorder {
            recorder.note(Event::bare(kind, ino));
        }
    }
}

impl FileTarget for LocalTarget {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        match self.ask(1).mkdir(parent, name, 0o755, CALLER, Wait::Allowed) {
            Ok(made) => self.fs.forget(made.ino, 1),
            Err(FsError::Exists) => {}
            Err(error) => return Err(told(error)),
        }
        Ok(())
    }
    fn remove_directory(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        self.ask(1).rmdir(parent, name, Wait::Allowed).map_err(told)?;
        let known = self.directories.lock().remove(path);
        if let Some(ino) = known {
            self.fs.forget(ino, 1);
        }
        Ok(())
    }
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenedFile>> {
        let (parent, name) = self.place(path)?;
        let ino = match self.ask(1).lookup(parent, name) {
            Ok(found) => found.ino,
            Err(FsError::NotFound) if create => {
                let made = self.ask(1).mknod(parent, name, 0o644, 0, CALLER, Wait::Allowed).map_err(told)?;
                self.record(Kind::Create, made.ino);
                made.ino
            }
            Err(error) => return Err(told(error)),
        };
        if let Err(error) = self.ask(1).open(ino, false, true, Wait::Allowed) {
            self.fs.forget(ino, 1);
            return Err(told(error));
        }
        self.record(Kind::Open, ino);
        Ok(Box::new(LocalFile {
            fs: self.fs.clone(),
            ino,
            recorder: self.recorder.clone(),
            requests: self.requests.clone(),
        }))
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        if self.recorder.is_some() {
            let ino = self.look_up(path)?;
            self.record(Kind::Unlink, ino);
            self.fs.forget(ino, 1);
        }
        self.ask(1).unlink(parent, name, Wait::Allowed).map_err(told)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((parent, name), (new_parent, new_name)) = (self.place(from)?, self.place(to)?);
        self.ask(1).rename(parent, name, new_parent, new_name, false, Wait::Allowed).map_err(told)?;
        let moved = self.directories.lock().remove(from);
        if let Some(ino) = moved {
            self.fs.forget(ino, 1);
        }
        Ok(())
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let (parent, name) = self.place(to)?;
        let ino = self.look_up(from)?;
        let linked = self.ask(1).link(ino, parent, name, Wait::Allowed);
        // Forgets the lookup of the path, and the lookup of the new link.
        self.fs.forget(ino, 1 + u64::from(linked.is_ok()));
        linked.map(|_| ()).map_err(told)
    }
    fn symlink(&self, text: &str, path: &str) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        let made = self.ask(1).symlink(parent, name, text.as_bytes(), CALLER, Wait::Allowed).map_err(told)?;
        self.fs.forget(made.ino, 1);
        Ok(())
    }
    fn change_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        let ino = self.look_up(path)?;
        let change = SetAttributes { mode: Some(mode), ..Default::default() };
        let done = self.ask(1).setattr(ino, &change, Wait::Allowed);
        self.fs.forget(ino, 1);
        done.map(|_| ()).map_err(told)
    }
    fn size(&self, path: &str) -> io::Result<u64> {
        let (parent, name) = self.place(path)?;
        let found = self.ask(1).lookup(parent, name).map_err(told)?;
        self.fs.forget(found.ino, 1);
        Ok(found.size)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let directory = self.directory(path)?;
        let mut names = Vec::new();
        let mut visit = |entry: &terrace_engine::DirectoryEntry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
            }
            true
        };
        self.ask(1).readdir(directory, 0, &mut visit).map_err(told)?;
        Ok(names)
    }
    fn settle(&self) -> io::Result<()> {
        self.fs.sync().map_err(told)
    }
}

struct LocalFile {
    fs: Arc<Engine>,
    ino: Ino,
    recorder: Option<Arc<Recorder>>,
    requests: Arc<AtomicU64>,
}

impl LocalFile {
    fn ask(&self) -> &Engine {
        self.requests.fetch_add(1, Ordering::Relaxed);
        &self.fs
    }

    fn note(&self, kind: Kind, offset: u64, length: usize, sync: bool) {
        if let Some(recorder) = &self.recorder {
            recorder.note(Event { offset, length: length as u32, sync, ..Event::bare(kind, self.ino) });
        }
    }
}

impl OpenedFile for LocalFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.note(Kind::Read, offset, into.len(), false);
        self.ask().read(self.ino, offset, into, Wait::Allowed).map_err(told)
    }
    fn write_at(&mut self, bytes: &[u8], offset: u64, sync: bool) -> io::Result<()> {
        self.note(Kind::Write, offset, bytes.len(), sync);
        let flags = WriteFlags { sync, ..Default::default() };
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match self.ask().write(self.ino, at, &bytes[done..], flags, Wait::Allowed).map_err(told)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => done += written,
            }
        }
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.note(Kind::Fsync, 0, 0, false);
        self.ask().fsync(self.ino, false, Wait::Allowed).map_err(told)
    }
    fn size(&mut self) -> io::Result<u64> {
        Ok(self.ask().getattr(self.ino).map_err(told)?.size)
    }
    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.note(Kind::Truncate, bytes, 0, false);
        let change = SetAttributes { size: Some(bytes), ..Default::default() };
        self.ask().setattr(self.ino, &change, Wait::Allowed).map(|_| ()).map_err(told)
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        self.note(Kind::Close, 0, 0, false);
        self.ask().release(self.ino);
        self.fs.forget(self.ino, 1);
    }
}
