//! A workload's files in a directory, through the kernel.

use super::target::{FileTarget, OpenedFile};
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Files below a directory.
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// A target in the directory `root`.
    pub fn new(root: &Path) -> Directory {
        Directory { root: root.to_path_buf() }
    }
}

impl FileTarget for Directory {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        match fs::create_dir(self.root.join(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }
    fn remove_directory(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.root.join(path))
    }
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenedFile>> {
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        flags.set(OFlags::CREATE, create);
        let file = rustix::fs::open(self.root.join(path), flags, Mode::from_raw_mode(0o644))?;
        Ok(Box::new(DirectoryFile(File::from(file))))
    }
    fn open_to_read(&self, path: &str) -> io::Result<Box<dyn OpenedFile>> {
        Ok(Box::new(DirectoryFile(File::open(self.root.join(path))?)))
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        fs::hard_link(self.root.join(from), self.root.join(to))
    }
    fn symlink(&self, text: &str, path: &str) -> io::Result<()> {
        symlink(text, self.root.join(path))
    }
    fn change_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.root.join(path), fs::Permissions::from_mode(mode))
    }
    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.root.join(path))?.len())
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        fs::read_dir(self.root.join(path))?.map(name).collect()
    }
    fn settle(&self) -> io::Result<()> {
        rustix::fs::syncfs(File::open(&self.root)?)?;
        forget_pages(&self.root)
    }
}

/// Drops the kernel's clean pages of all files below a directory.
fn forget_pages(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = match entry {
            // The null server has no directories to read.
            Err(error) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => return Ok(()),
            entry => entry?,
        };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            // Best effort: no permission (lost+found, directories of a database), or removed meanwhile.
            let _ = forget_pages(&entry.path());
        } else if kind.is_file()
            && let Ok(file) = File::open(entry.path())
        {
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

struct DirectoryFile(File);

impl OpenedFile for DirectoryFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.0.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
    fn write_at(&mut self, bytes: &[u8], offset: u64, sync: bool) -> io::Result<()> {
        if !sync {
            return self.0.write_all_at(bytes, offset);
        }
        let mut done = 0;
        while done < bytes.len() {
            let rest = [IoSlice::new(&bytes[done..])];
            match pwritev2(&self.0, &rest, offset + done as u64, ReadWriteFlags::DSYNC)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => done += written,
            }
        }
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
    fn size(&mut self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}
