//! What `sync --to` needs besides demotion: everything that lies on lower tiers above the wanted one goes there too.

use super::Destination;
use super::between::{FileId, MovingGroup};
use super::survey::Survey;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::types::Wait;
use terrace_format::inode::{SLOTS_PER_PAGE, flag};
use terrace_format::{FileBlock, Ino, TierId};
use terrace_runtime::interleave;

/// How often all files are gone through, and how often all begins again because something came up into PM. What comes above
/// the tier meanwhile goes there by itself (`tiers_for`), so twice is the rule.
pub(crate) const MOST_PASSES: u32 = 8;

impl Fs {
    /// Blocks in use on lower tiers above `tier`, stale copies included.
    pub(crate) fn used_between(&self, tier: u8) -> u64 {
        let above = self.devices.tiers().into_iter().filter(|above| above.0 < tier);
        let totals = above.map(|above| self.devices.space.totals_now(&self.devices.of_tier(above)));
        totals.map(|totals| totals.total - totals.free).sum()
    }

    /// Moves what lies on lower tiers above `tier` there. `progress` is told how many blocks are left at most.
    ///
    /// # Errors
    /// ENOSPC, EIO; EAGAIN when changes were faster again and again.
    pub(crate) fn drain_below(&self, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
        if !self.devices.tiers().iter().any(|above| above.0 < tier) {
            return Ok(());
        }
        // Counting what is left needs all bitmaps.
        while self.devices.space.load_step()? {}
        for _ in 0..MOST_PASSES {
            let (found, trouble) = self.drain_pass(tier, progress)?;
            if let Some(trouble) = trouble {
                return Err(trouble);
            }
            if !found {
                return Ok(());
            }
        }
        Err(FsError::WouldBlock)
    }

    /// Goes through all files once; whether it found anything to move, and the first damage that it met.
    fn drain_pass(&self, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<(bool, Option<FsError>)> {
        let (to, most) = (Destination::AtOrBelow(TierId(tier)), self.group_blocks as usize);
        let (mut group, mut found, mut trouble) = (MovingGroup::default(), false, None);
        let pages = self.numbers.lock().pages;
        for ino in (1..pages * SLOTS_PER_PAGE).map(Ino) {
            let Some(file) = self.has_cold(ino, &mut trouble)? else { continue };
            let mut at = Some(FileBlock(0));
            while let Some(from) = at {
                self.go_on()?;
                at = match self.collect_below(file, from, most, to, &mut group) {
                    Err(error) if error.concerns_one_file() && !self.concerns_all_files(&error) => {
                        trouble.get_or_insert(error);
                        None
                    }
                    collected => collected?,
                };
                if group.blocks.len() >= most {
                    found = true;
                    interleave::point("drain:between-rounds");
                    self.move_between(std::mem::take(&mut group), to, &mut trouble)?;
                    progress(self.used_between(tier));
                }
            }
        }
        found |= !group.blocks.is_empty();
        self.move_between(group, to, &mut trouble)?;
        progress(self.used_between(tier));
        Ok((found, trouble))
    }

    /// Bytes of files on each lower tier above `tier`.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn survey_between(&self, tier: u8) -> FsResult<Vec<(u8, u64)>> {
        if !self.devices.tiers().iter().any(|above| above.0 < tier) {
            return Ok(Vec::new());
        }
        let (mut survey, mut trouble) = (Survey::default(), None);
        let pages = self.numbers.lock().pages;
        for ino in (1..pages * SLOTS_PER_PAGE).map(Ino) {
            let Some(file) = self.has_cold(ino, &mut trouble)? else { continue };
            let mut at = Some(FileBlock(0));
            while let Some(from) = at {
                self.go_on()?;
                at = self.survey(file, from, &mut survey)?;
            }
        }
        let found = (0..tier).zip(survey.0).skip(1);
        trouble.map_or(Ok(found.collect()), Err)
    }

    /// A file with blocks below PM. One that cannot be read is `trouble`.
    fn has_cold(&self, ino: Ino, trouble: &mut Option<FsError>) -> FsResult<Option<FileId>> {
        let found = self.with_pages(Wait::Allowed, || {
            let _guard = self.locks.read(ino);
            self.load(ino)
        });
        match found {
            Ok(inode) if inode.slot.is_regular() && inode.slot.has(flag::HAS_COLD) => {
                Ok(Some(FileId { ino, generation: inode.slot.generation.get() }))
            }
            Ok(_) | Err(FsError::Stale) => Ok(None),
            Err(error) if self.wal.is_stopped() => Err(error),
            Err(error) => {
                trouble.get_or_insert(error);
                Ok(None)
            }
        }
    }
}
