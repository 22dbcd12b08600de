//! Reading directories (design C2): entries in the order of their cookies, resuming strictly after one.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::types::{Attributes, DirectoryEntry};
use std::ops::ControlFlow;
use terrace_catalog::dentry;
use terrace_format::Ino;
use terrace_format::inode::flag;

/// Cookies of "." and "..".
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const DIRECTORY_TYPE: u8 = 4;
/// Entries collected under the directory's lock before their attributes are loaded without it.
const BATCH: usize = 64;

impl Fs {
    /// Visits entries after `after` until `visit` says that it has no room for one.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE, EIO.
    pub fn readdir(
        &self,
        ino: Ino,
        after: u64,
        visit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> FsResult<()> {
        let mut after = after;
        loop {
            let batch = self.read_entries(ino, after, false)?;
            let Some(last) = batch.last() else { break };
            after = last.cookie;
            if batch.iter().any(|entry| !visit(entry)) {
                break;
            }
        }
        self.directory_read(ino)
    }

    /// As [`Self::readdir`], with attributes; takes a lookup reference for each entry that is consumed,
    /// except "." and "..". An error ends it after the entries before it; the next call, from there, returns it.
    ///
    /// # Errors
    /// As [`Self::readdir`].
    pub fn readdir_plus(
        &self,
        ino: Ino,
        after: u64,
        visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
    ) -> FsResult<()> {
        let mut consumed = false;
        let result = self.read_plus(ino, after, &mut |entry, attributes| {
            let taken = visit(entry, attributes);
            consumed |= taken;
            taken
        });
        let result = result.and_then(|()| self.directory_read(ino));
        // Of what was consumed the kernel must be told, or it never gives the references back.
        if consumed { Ok(()) } else { result }
    }

    fn read_plus(
        &self,
        ino: Ino,
        after: u64,
        visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
    ) -> FsResult<()> {
        let mut after = after;
        loop {
            let batch = self.read_entries(ino, after, true)?;
            let Some(last) = batch.last() else { return Ok(()) };
            after = last.cookie;
            let mut ended = None;
            for entry in &batch {
                let dots = entry.cookie <= DOT_DOT;
                if ended.is_some() {
                    if !dots {
                        self.forget(entry.ino, 1);
                    }
                    continue;
                }
                let found = if dots { self.getattr(entry.ino) } else { self.attributes_or_forget(entry.ino) };
                match found {
                    Ok(attributes) if visit(entry, &attributes) => {}
                    Ok(_) => {
                        ended = Some(Ok(()));
                        if !dots {
                            self.forget(entry.ino, 1);
                        }
                    }
                    // Gone since the names were read: leave it out, as a later read of the names would.
                    Err(FsError::Stale | FsError::NotFound) => {}
                    Err(error) => ended = Some(Err(error)),
                }
            }
            if let Some(result) = ended {
                return result;
            }
        }
    }

    /// Some entries after a cookie. With `refer`, each gets a lookup reference under the directory's lock,
    /// so that the inode cannot be freed and reused before its attributes are loaded.
    pub(crate) fn read_entries(&self, ino: Ino, after: u64, refer: bool) -> FsResult<Vec<DirectoryEntry>> {
        let _guard = self.locks.read(ino);
        let directory = self.load_directory(ino)?;
        let mut entries = Vec::new();
        // A removed directory's parent may be gone too, and its number another file's.
        let parent = match directory.slot.has(flag::ORPHAN) {
            true => ino,
            false => Ino(u64::from(directory.slot.parent_or_rdev.get())),
        };
        for (cookie, target, name) in [(DOT, ino, "."), (DOT_DOT, parent, "..")] {
            if after < cookie {
                let name = name.as_bytes().to_vec();
                entries.push(DirectoryEntry { ino: target, file_type: DIRECTORY_TYPE, cookie, name });
            }
        }
        let shard = self.catalog.read(self.catalog.shard_of(ino.0));
        dentry::read_from(shard.reader(), ino, after, |found, name| {
            let entry = DirectoryEntry {
                ino: found.ino,
                file_type: found.file_type,
                cookie: found.cookie,
                name: name.to_vec(),
            };
            entries.push(entry);
            if entries.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if refer {
            let named = entries.iter().filter(|entry| entry.cookie > DOT_DOT);
            named.for_each(|entry| self.references.looked_up(entry.ino));
        }
        Ok(entries)
    }

    fn directory_read(&self, ino: Ino) -> FsResult<()> {
        let due = {
            let _guard = self.locks.read(ino);
            self.load(ino).map(|inode| self.atime_due(&inode))?
        };
        if due {
            self.touch_atime(ino);
        }
        Ok(())
    }
}
