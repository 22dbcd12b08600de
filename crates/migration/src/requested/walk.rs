//! The walk of a requested movement: finds the files below the path, and sets or takes away their tier pins.
//!
//! Invariant: the walk holds look-up references of the entries that it has read, so that no inode number is used again
//! before the walk has looked at it.

use crate::migration::Migration;
use crate::requested::job_state::{DIRECTORY_TYPE, Job, Phase, Piece, REGULAR_TYPE};
use crate::requested::progress::MoveRequest;
use terrace_format::Ino;
use terrace_fs::names::lookup::forget;
use terrace_fs::names::readdir::read_entries;
use terrace_fs::names::tier_pin::set_pin;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::attributes::getattr;
use terrace_store::inode::tier_pin::pinned;
use terrace_store::moving::file_id::FileId;
use terrace_store::types::DirectoryEntry;

/// The cookies up to this one are "." and "..".
const DOTS: u64 = 2;

impl Job {
    /// Reads a part of a directory.
    pub(super) fn walk(&mut self, migration: &Migration) -> FsResult<Piece> {
        if !self.begun {
            self.deal_with_root(migration)?;
            self.begun = true;
        }
        let Some((directory, after)) = self.directories.pop() else { return Ok(Piece::PhaseEnds) };
        // The walk takes lookup references, so that no inode number is reused before the walk has looked at
        // it.
        let entries =
            match read_entries(&migration.store, directory.ino, Some(directory.generation), after, true) {
                // The directory was removed meanwhile; its inode number may belong to a file anywhere.
                Err(FsError::Stale | FsError::NotDirectory) if directory != self.root => {
                    return Ok(Piece::More);
                }
                Err(error) => {
                    self.directories.push((directory, after));
                    return Err(error);
                }
                Ok(entries) => entries,
            };
        // The directory stays in the list below its subdirectories. After an error the next piece goes on at
        // the entry with the error.
        let place = self.directories.len();
        let (mut result, mut done) = (Ok(Piece::More), after);
        for entry in &entries {
            if entry.cookie > DOTS {
                if result.is_ok()
                    && let Err(error) = self.found(migration, entry)
                {
                    result = Err(error);
                }
                forget(&migration.store, entry.ino, 1);
            }
            if result.is_ok() {
                done = entry.cookie;
            }
        }
        if !entries.is_empty() {
            self.directories.insert(place, (directory, done));
        }
        result
    }

    /// The root of the path: pinned to another tier it does not move. A pin is set on the root before its
    /// entries.
    fn deal_with_root(&mut self, migration: &Migration) -> FsResult<()> {
        match (self.phase, self.action) {
            (Phase::Mark, action) => {
                set_pin(&migration.store, self.root.ino, self.root.generation, action.tier())
            }
            (_, MoveRequest::Migrate { to }) if self.is_pinned_elsewhere(migration, self.root.ino, to)? => {
                Err(FsError::NotPermitted)
            }
            _ => Ok(()),
        }
    }

    fn is_pinned_elsewhere(&self, migration: &Migration, ino: Ino, to: u8) -> FsResult<bool> {
        Ok(pinned(&migration.store, ino)?.is_some_and(|tier| tier != to))
    }

    /// Handles an entry of a directory, which may have vanished. An entry with an error is not counted.
    fn found(&mut self, migration: &Migration, entry: &DirectoryEntry) -> FsResult<()> {
        let found = match getattr(&migration.store, entry.ino) {
            Err(FsError::Stale) => return Ok(()),
            Err(error) if error.concerns_one_file() => {
                self.trouble.get_or_insert(error);
                return Ok(());
            }
            found => found?,
        };
        if entry.file_type != DIRECTORY_TYPE && entry.file_type != REGULAR_TYPE {
            return Ok(());
        }
        if self.phase == Phase::Mark {
            match set_pin(&migration.store, entry.ino, found.generation, self.action.tier()) {
                Err(FsError::Stale) => return Ok(()),
                done => done?,
            }
        }
        self.progress.lock().report.files += 1;
        let file = FileId { ino: entry.ino, generation: found.generation };
        if entry.file_type == DIRECTORY_TYPE {
            self.directories.push((file, 0));
        } else if found.nlink < 2 || self.linked.insert(entry.ino) {
            if let MoveRequest::Migrate { to } = self.action
                && self.is_pinned_elsewhere(migration, entry.ino, to).unwrap_or(false)
            {
                self.progress.lock().report.pinned_files += 1;
                return Ok(());
            }
            self.files.push(file);
        }
        Ok(())
    }
}
