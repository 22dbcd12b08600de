//! The old pool of `terrace mkfs --from`.

use super::target::Target;
use std::fs;
use std::path::{Path, PathBuf};
use terrace_daemon::failure::{Failure, Outcome};
use terrace_daemon::{mounts, places, pool};
use terrace_format::superblock::Superblock;

/// The tier 0 of an old pool, unopened.
pub struct Old {
    /// Its path.
    pub path: PathBuf,
    superblock: Superblock,
}

impl Old {
    /// Finds the pool.
    pub fn at(path: &Path) -> Outcome<Old> {
        let absolute = mounts::absolute(path)?;
        let superblock = pool::peek(&absolute)?;
        Ok(Old { path: pool::canonical(&absolute)?, superblock })
    }

    /// Bytes of its tier 0.
    pub fn bytes(&self) -> u64 {
        self.superblock.layout.pm_size.get()
    }

    /// Its UUID as text.
    pub fn uuid_text(&self) -> String {
        pool::uuid_text(&self.superblock)
    }

    /// Opens and locks it; looks for all that a mount refuses.
    pub fn open(&self, read_only: bool) -> Outcome<pool::Tier0> {
        let opened = pool::open_tier0_or_say(&self.path, read_only)?;
        pool::refuse_resized(&self.path, &*opened.pm)?;
        let (superblock, _) = terrace_engine::read_superblock(&*opened.pm, true)
            .map_err(|refused| pool::refusal(&self.path, &refused))?;
        pool::refuse_older(&self.path, &*opened.pm, &superblock)?;
        if opened.pm.size() != self.bytes() || superblock.uuid != self.superblock.uuid {
            return Err(Failure::at(&self.path, "was changed meanwhile; try again"));
        }
        Ok(opened)
    }

    /// Refuses a journal at a place that the pool uses.
    pub fn refuse_own(&self, target: &Target) -> Outcome<()> {
        let rows = self.superblock.device_rows().iter();
        let devices = rows.map(|row| places::locate(&self.path, &self.superblock, row));
        let is_target = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|found| found == target.path);
        match std::iter::once(self.path.clone()).chain(devices).find(is_target) {
            Some(_) => {
                let text =
                    format!("belongs to the pool {}; the journal needs another place", self.path.display());
                Err(Failure::at(&target.path, text))
            }
            None => Ok(()),
        }
    }
}
