//! The pieces of a requested movement: counting, demotion, relocation and promotion of the files found.

use crate::demote::victims::give_back_victims;
use crate::migration::Migration;
use crate::requested::job_state::{Job, MOST_FILES, Phase, Piece};
use crate::requested::raise::raise;
use crate::requested::survey::survey;
use terrace_format::{FileBlock, TierId};
use terrace_fs::write_back::rounds::write_back_noted;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::mapped;
use terrace_store::moving::demote::demote_to;
use terrace_store::moving::destination::Destination;
use terrace_store::moving::file_id::{FileId, load_file};
use terrace_store::moving::relocate::move_between;
use terrace_store::moving::relocation_group::{MovingGroup, collect_below};
use terrace_store::moving::victim::{LEAVING, Victim};
use terrace_store::types::Wait;
use terrace_store::types::{BlockRange, FILE_END};

impl Job {
    /// Counts a part of a file, or several small files.
    pub(super) fn count(&mut self, migration: &Migration) -> FsResult<Piece> {
        for _ in 0..MOST_FILES {
            let Some(file) = self.files.get(self.at.0) else { return Ok(Piece::PhaseEnds) };
            if self.phase == Phase::Survey
                && self.at.1.0 == 0
                && migration.store.dram.volatile_sizes().get(file.ino).is_some()
            {
                // Dirty pages lie on no tier yet.
                write_back_noted(&migration.store, file.ino, Wait::Allowed)?;
            }
            match survey(migration, *file, self.at.1, &mut self.survey) {
                Ok(Some(next)) => {
                    self.at.1 = next;
                    return Ok(Piece::More);
                }
                Ok(None) => self.at = (self.at.0 + 1, FileBlock(0)),
                Err(error) => self.pass_over(error)?,
            }
        }
        Ok(Piece::More)
    }

    /// Goes on after a damaged file; other errors are returned.
    fn pass_over(&mut self, error: FsError) -> FsResult<()> {
        if !error.concerns_one_file() {
            return Err(error);
        }
        self.trouble.get_or_insert(error);
        self.at = (self.at.0 + 1, FileBlock(0));
        Ok(())
    }

    /// Collects from file after file until the group is full.
    fn collect<T>(
        &mut self,
        most: usize,
        group: &mut T,
        length: impl Fn(&T) -> usize,
        mut collect: impl FnMut(FileId, FileBlock, &mut T) -> FsResult<Option<FileBlock>>,
    ) -> FsResult<()> {
        for _ in 0..MOST_FILES {
            let Some(file) = self.files.get(self.at.0) else { break };
            if length(group) >= most {
                break;
            }
            match collect(*file, self.at.1, group) {
                Ok(Some(next)) => self.at.1 = next,
                Ok(None) => self.at = (self.at.0 + 1, FileBlock(0)),
                Err(error) => self.pass_over(error)?,
            }
        }
        Ok(())
    }

    fn piece(&self) -> Piece {
        if self.at.0 < self.files.len() { Piece::More } else { Piece::PhaseEnds }
    }

    /// Demotes a group of PM blocks.
    pub(super) fn down(&mut self, migration: &Migration) -> FsResult<Piece> {
        let (most, to) = (migration.store.mode.group_blocks as usize, Destination::Only(TierId(self.to())));
        let (begin, mut victims) = (self.at, Vec::new());
        self.collect(most, &mut victims, Vec::len, |file, from, victims| {
            collect_pm(migration, file, from, most - victims.len(), victims)
        })?;
        // The movement of a whole file includes its last block, even of an open file.
        let moved = migration.store.pressure.pressed(|| move_down(migration, &victims, to));
        match moved {
            Ok(blocks) => self.moved(blocks),
            Err(error) => self.failed_at(begin, error)?,
        }
        Ok(self.piece())
    }

    /// Relocates a group of blocks of other lower tiers.
    pub(super) fn between(&mut self, migration: &Migration) -> FsResult<Piece> {
        let (most, to) = (migration.store.mode.group_blocks as usize, Destination::Only(TierId(self.to())));
        let (begin, mut group) = (self.at, MovingGroup::default());
        self.collect(
            most,
            &mut group,
            |group| group.blocks.len(),
            |file, from, group| collect_below(&migration.store, file, from, most, to, group),
        )?;
        match move_between(&migration.store, group, to, &mut self.trouble) {
            Ok(blocks) => self.moved(blocks),
            Err(error) => self.failed_at(begin, error)?,
        }
        Ok(self.piece())
    }

    /// Promotes a few blocks.
    pub(super) fn up(&mut self, migration: &Migration) -> FsResult<Piece> {
        for _ in 0..MOST_FILES {
            let Some(file) = self.files.get(self.at.0) else { break };
            match raise(migration, *file, self.at.1, &mut self.trouble) {
                Ok(raised) => {
                    self.at = match raised.next {
                        Some(next) => (self.at.0, next),
                        None => (self.at.0 + 1, FileBlock(0)),
                    };
                    if raised.blocks > 0 {
                        self.moved(raised.blocks);
                        break;
                    }
                }
                Err(error) => self.pass_over(error)?,
            }
        }
        Ok(self.piece())
    }

    /// A failed group is tried again, except after damage.
    fn failed_at(&mut self, begin: (usize, FileBlock), error: FsError) -> FsResult<()> {
        if error.concerns_one_file() {
            self.trouble.get_or_insert(error);
            return Ok(());
        }
        self.at = begin;
        Err(error)
    }
}

/// Adds PM blocks of a file from `from` on, at most `most`. Gives the block to go on at; `None` at the end of
/// the file, or when the file is gone.
fn collect_pm(
    migration: &Migration,
    file: FileId,
    from: FileBlock,
    most: usize,
    victims: &mut Vec<Victim>,
) -> FsResult<Option<FileBlock>> {
    let _guard = migration.store.inodes.locks().read(file.ino);
    let inode = match load_file(&migration.store, file) {
        // An inode with blocks in PM is in PM too, so an inode on a lower tier has none.
        Err(FsError::Engine(terrace_wal::Error::PageBelow(_))) => return Ok(None),
        inode => inode?,
    };
    let Some(inode) = inode else { return Ok(None) };
    let mut found = Vec::new();
    let mut next = Some(from);
    while let Some(at) = next
        && found.len() < most
    {
        let left = most - found.len();
        next = mapped(&migration.store, &inode, BlockRange::new(at, FILE_END), left, &mut found)?;
    }
    victims.extend(found.iter().map(|(block, at)| Victim { ino: file.ino, block: *block, pm: at.block }));
    Ok(next)
}

/// Demotes a group that the policy did not choose. Gives the number of freed PM blocks.
pub(crate) fn move_down(migration: &Migration, victims: &[Victim], to: Destination) -> FsResult<u64> {
    if victims.is_empty() {
        return Ok(0);
    }
    // The mark keeps the policy from choosing these blocks meanwhile; an access makes a block young again.
    victims
        .iter()
        .for_each(|victim| migration.store.persistent.blocks().descriptor(victim.pm).touch_read(LEAVING));
    let freed = demote_to(&migration.store, victims, to);
    give_back_victims(migration, victims);
    let freed = freed?;
    migration.store.persistent.wal().checkpoint_at_leisure()?;
    migration.store.persistent.blocks().drain_quarantine();
    migration.store.pressure.round_done();
    Ok(freed)
}
