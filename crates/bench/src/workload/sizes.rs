//! Files without data, only with sizes: a load is recorded as on a file system in process (local.rs), but
//! needs no file system.
//!
//! A single thread at a time. The trace equals a trace of local.rs event by event, except for times and inode
//! numbers: this target never uses an inode number again (tested in tests.rs).

use super::target::{FileTarget, OpenedFile, split};
use crate::trace::{Event, Kind, Recorder};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use terrace_format::Ino;
use terrace_runtime::sync::Mutex;

/// A file: its inode number, and its size.
type File = (Ino, Arc<Mutex<u64>>);

/// Directories with their files.
pub struct SizesTarget {
    recorder: Arc<Recorder>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    directories: BTreeMap<String, BTreeMap<String, File>>,
    /// Files made so far.
    made: u64,
}

/// The root and reserved inodes have the first numbers.
const FIRST_INO: u64 = 16;

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl SizesTarget {
    /// A target without data; `recorder` gets the operations.
    pub fn new(recorder: Arc<Recorder>) -> SizesTarget {
        let mut held = Held::default();
        held.directories.insert(String::new(), BTreeMap::new());
        SizesTarget { recorder, held: Mutex::new(held) }
    }

    fn find(&self, path: &str) -> io::Result<File> {
        let (directory, name) = split(path);
        let held = self.held.lock();
        held.directories.get(directory).and_then(|files| files.get(name)).cloned().ok_or_else(missing)
    }

    /// Makes the file of a path.
    fn make(&self, path: &str) -> io::Result<File> {
        let (directory, name) = split(path);
        let mut held = self.held.lock();
        held.made += 1;
        let file = (Ino(FIRST_INO + held.made), Arc::new(Mutex::new(0)));
        let files = held.directories.get_mut(directory).ok_or_else(missing)?;
        files.insert(name.to_string(), file.clone());
        Ok(file)
    }

    fn take(&self, path: &str) -> io::Result<File> {
        let (directory, name) = split(path);
        let mut held = self.held.lock();
        held.directories.get_mut(directory).and_then(|files| files.remove(name)).ok_or_else(missing)
    }
}

impl FileTarget for SizesTarget {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.held.lock().directories.entry(path.to_string()).or_default();
        Ok(())
    }
    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.held.lock().directories.remove(path).map(|_| ()).ok_or_else(missing)
    }
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenedFile>> {
        let (ino, size) = match self.find(path) {
            Err(error) if create && error.kind() == io::ErrorKind::NotFound => {
                let made = self.make(path)?;
                self.recorder.note(Event::bare(Kind::Create, made.0));
                made
            }
            found => found?,
        };
        self.recorder.note(Event::bare(Kind::Open, ino));
        Ok(Box::new(SizesFile { recorder: self.recorder.clone(), ino, size }))
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        let (ino, _) = self.take(path)?;
        self.recorder.note(Event::bare(Kind::Unlink, ino));
        Ok(())
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.take(from)?;
        let (directory, name) = split(to);
        let mut held = self.held.lock();
        held.directories.get_mut(directory).ok_or_else(missing)?.insert(name.to_string(), file);
        Ok(())
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.find(from)?;
        let (directory, name) = split(to);
        let mut held = self.held.lock();
        held.directories.get_mut(directory).ok_or_else(missing)?.insert(name.to_string(), file);
        Ok(())
    }
    fn symlink(&self, _text: &str, _path: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn change_mode(&self, path: &str, _mode: u32) -> io::Result<()> {
        self.find(path).map(|_| ())
    }
    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(*self.find(path)?.1.lock())
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let held = self.held.lock();
        Ok(held.directories.get(path).ok_or_else(missing)?.keys().cloned().collect())
    }
    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
}

struct SizesFile {
    recorder: Arc<Recorder>,
    ino: Ino,
    size: Arc<Mutex<u64>>,
}

impl SizesFile {
    fn note(&self, kind: Kind, offset: u64, length: usize, sync: bool) {
        self.recorder.note(Event { offset, length: length as u32, sync, ..Event::bare(kind, self.ino) });
    }
}

impl OpenedFile for SizesFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.note(Kind::Read, offset, into.len(), false);
        Ok(self.size.lock().saturating_sub(offset).min(into.len() as u64) as usize)
    }
    fn write_at(&mut self, bytes: &[u8], offset: u64, sync: bool) -> io::Result<()> {
        self.note(Kind::Write, offset, bytes.len(), sync);
        let mut size = self.size.lock();
        *size = (*size).max(offset + bytes.len() as u64);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.note(Kind::Fsync, 0, 0, false);
        Ok(())
    }
    fn size(&mut self) -> io::Result<u64> {
        Ok(*self.size.lock())
    }
    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.note(Kind::Truncate, bytes, 0, false);
        *self.size.lock() = bytes;
        Ok(())
    }
}

impl Drop for SizesFile {
    fn drop(&mut self) {
        self.note(Kind::Close, 0, 0, false);
    }
}
