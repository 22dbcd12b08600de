//! Reading directories (design C2): entries in the order of their cookies, resuming strictly after one.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::types::{Attributes, DirectoryEntry, Wait};
use std::ops::ControlFlow;
use terrace_catalog::dentry;
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_runtime::planted::{Mistake, planted};

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
        self.try_readdir(ino, after, Wait::Allowed, visit)
    }

    /// As [`Self::readdir`]; it waits for metadata on a lower tier only if it may, and ends before what it would have to
    /// wait for when it has visited some.
    ///
    /// # Errors
    /// As [`Self::readdir`]; `WouldBlock`.
    pub fn try_readdir(
        &self,
        ino: Ino,
        after: u64,
        wait: Wait,
        visit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> FsResult<()> {
        let (mut next, mut consumed) = (after, false);
        loop {
            let batch = match self.reading(wait, || self.read_entries(ino, None, next, false)) {
                Err(FsError::WouldBlock) if consumed => break,
                batch => batch?,
            };
            let Some(last) = batch.last() else { break };
            next = last.cookie;
            let visited = batch.iter().take_while(|entry| visit(entry)).count();
            consumed |= visited > 0;
            if visited < batch.len() {
                break;
            }
        }
        match self.directory_read(ino, wait) {
            Err(FsError::WouldBlock) if consumed => Ok(()),
            read => read,
        }
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
        self.try_readdir_plus(ino, after, Wait::Allowed, visit)
    }

    /// As [`Self::readdir_plus`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::readdir`]; `WouldBlock`, when nothing was consumed.
    pub fn try_readdir_plus(
        &self,
        ino: Ino,
        after: u64,
        wait: Wait,
        visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
    ) -> FsResult<()> {
        let mut consumed = false;
        let result = self.read_plus(ino, after, wait, &mut |entry, attributes| {
            let taken = visit(entry, attributes);
            consumed |= taken;
            taken
        });
        let result = result.and_then(|()| self.directory_read(ino, wait));
        // Of what was consumed the kernel must be told, or it never gives the references back.
        if consumed { Ok(()) } else { result }
    }

    fn read_plus(
        &self,
        ino: Ino,
        after: u64,
        wait: Wait,
        visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
    ) -> FsResult<()> {
        let mut after = after;
        loop {
            let batch = self.reading(wait, || self.read_entries(ino, None, after, true))?;
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
                let found = match dots {
                    true => self.try_getattr(entry.ino, wait),
                    false => self.attributes_or_forget(entry.ino, wait),
                };
                match found {
                    Ok(attributes) if visit(entry, &attributes) => {}
                    Ok(_) => {
                        ended = Some(Ok(()));
                        if !dots && !planted(Mistake::EntryReferenceStays) {
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
    /// so that the inode cannot be freed and reused before its attributes are loaded. `generation` is for who holds no
    /// reference to the directory: under another one the number is another directory's, and the answer ESTALE.
    pub(crate) fn read_entries(
        &self,
        ino: Ino,
        generation: Option<u32>,
        after: u64,
        refer: bool,
    ) -> FsResult<Vec<DirectoryEntry>> {
        let _guard = self.locks.read(ino);
        let directory = self.load_directory_to_read(ino)?;
        if generation.is_some_and(|generation| generation != directory.slot.generation.get()) {
            return Err(FsError::Stale);
        }
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

    fn directory_read(&self, ino: Ino, wait: Wait) -> FsResult<()> {
        let due = self.reading(wait, || {
            let _guard = self.locks.read(ino);
            self.load_to_read(ino).map(|inode| self.atime_due(&inode))
        })?;
        if due {
            self.touch_atime(ino);
        }
        Ok(())
    }
}
