//! A requested movement, as a sequence of bounded pieces.
//!
//! Order: the files below the path are found and counted. Towards a lower tier, PM blocks are demoted in
//! groups that may span files, then blocks of other lower tiers are relocated. Towards PM, blocks are
//! promoted piece by piece. Then all files are counted again, and moved again a few times if they changed
//! meanwhile. Each piece is at most a group, and leaves a state in which the job may end.

use crate::demote::victims::give_back_victims;
use crate::migration::Migration;
use crate::requested::pinned_bytes::pinned_bytes;
use crate::requested::progress::{HandMove, HandPlan, HandReport, HandState, Progress};
use crate::requested::raise::raise;
use crate::requested::survey::{Survey, survey};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, TierId};
use terrace_fs::names::lookup::forget;
use terrace_fs::names::readdir::read_entries;
use terrace_fs::names::tier_pin::set_pin;
use terrace_fs::sync::is_stopped;
use terrace_fs::write_back::steps::write_back_noted;
use terrace_runtime::Next;
use terrace_runtime::sync::Mutex;
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::attributes::getattr;
use terrace_store::inode::slot::next_mapped;
use terrace_store::inode::tier_pin::{most_kept, pinned};
use terrace_store::moving::demote::demote_to;
use terrace_store::moving::destination::Destination;
use terrace_store::moving::file_id::{FileId, load_file};
use terrace_store::moving::relocate::move_between;
use terrace_store::moving::relocation_group::{MovingGroup, collect_below};
use terrace_store::moving::victim::{LEAVING, Victim};
use terrace_store::types::{Attributes, DirectoryEntry, FILE_END, Wait};

/// Pause after a failure that may pass.
const BACK_OFF: Duration = Duration::from_secs(1);

/// How often a piece is tried.
const MOST_FAILURES: u32 = 3;

/// How often all files are visited.
const MOST_PASSES: u32 = 3;

/// Files without blocks to move that a piece visits.
const MOST_FILES: usize = 256;

const DIRECTORY_TYPE: u8 = 4;

const REGULAR_TYPE: u8 = 8;

/// The cookies up to this one are "." and "..".
const DOTS: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Files are found.
    Walk,
    /// The bytes of the files are counted.
    Survey,
    /// Pins are set or taken away; files are found once more.
    Mark,
    /// PM blocks are demoted.
    Down,
    /// Blocks of other lower tiers are relocated.
    Between,
    /// Blocks are promoted.
    Up,
    /// The bytes that are left to move are counted.
    Verify,
}

/// A job under way.
pub struct Job {
    action: HandMove,
    root: FileId,
    /// File type of the root, as st_mode >> 12.
    file_type: u8,
    /// Whether the walk has dealt with the root itself.
    begun: bool,
    phase: Phase,
    /// Directories to read, with the cookie after which to go on.
    directories: Vec<(FileId, u64)>,
    files: Vec<FileId>,
    /// Files with several names found so far: each of them is moved once.
    linked: HashSet<Ino>,
    /// The index of the file, and the block, to go on at.
    at: (usize, FileBlock),
    survey: Survey,
    /// The first damage; it is reported at the end.
    trouble: Option<FsError>,
    /// The error that ends the job after the bytes that are left are counted.
    fatal: Option<FsError>,
    failures: u32,
    passes: u32,
    moved_in_pass: u64,
    progress: Arc<Mutex<Progress>>,
}

/// The work that is left after a piece.
enum Piece {
    More,
    PhaseEnds,
}

impl Job {
    /// A job that has not begun.
    pub fn new(id: u64, of: &Attributes, action: HandMove) -> Job {
        let report = HandReport {
            id,
            action: action.name(),
            tier: action.tier(),
            state: HandState::Queued,
            reason: None,
            files: 1,
            pinned_files: 0,
            total_bytes: 0,
            done_bytes: 0,
            left_bytes: 0,
        };
        let job = Job {
            action,
            root: FileId { ino: of.ino, generation: of.generation },
            file_type: 0,
            begun: false,
            phase: Phase::Walk,
            directories: Vec::new(),
            files: Vec::new(),
            linked: HashSet::new(),
            at: (0, FileBlock(0)),
            survey: Survey::default(),
            trouble: None,
            fatal: None,
            failures: 0,
            passes: 0,
            moved_in_pass: 0,
            progress: Arc::new(Mutex::new(Progress { report })),
        };
        job.rooted_at((of.mode >> 12) as u8)
    }

    /// Sets the root of the walk.
    fn rooted_at(mut self, file_type: u8) -> Job {
        self.file_type = file_type;
        self.begin_walk();
        self
    }

    fn begin_walk(&mut self) {
        self.files.clear();
        self.linked.clear();
        self.begun = false;
        match self.file_type {
            DIRECTORY_TYPE => self.directories.push((self.root, 0)),
            REGULAR_TYPE => self.files.push(self.root),
            _ => {}
        }
    }

    /// The progress of the job, for other threads.
    pub fn progress(&self) -> Arc<Mutex<Progress>> {
        Arc::clone(&self.progress)
    }

    fn to(&self) -> u8 {
        self.action.tier().unwrap_or(0)
    }

    /// Does a piece of the walk or the count; false when everything is counted.
    pub fn look(&mut self, migration: &Migration) -> FsResult<bool> {
        let piece = match self.phase {
            Phase::Walk => with_pages(&migration.store, Wait::Allowed, || self.walk(migration))?,
            Phase::Survey => self.count(migration)?,
            _ => return Ok(false),
        };
        match (piece, self.phase) {
            (Piece::PhaseEnds, Phase::Walk) => self.next_phase(),
            (Piece::PhaseEnds, _) => return Ok(false),
            (Piece::More, _) => {}
        }
        Ok(true)
    }

    /// The plan, after all files are counted.
    ///
    /// # Errors
    /// EIO.
    pub fn plan(&self, migration: &Migration) -> FsResult<HandPlan> {
        let refused = self.refusal(migration)?;
        let moves = self.action != HandMove::Unpin;
        let report = &self.progress.lock().report;
        let tiers = self.survey.0.iter().enumerate();
        Ok(HandPlan {
            files: report.files,
            pinned_files: report.pinned_files,
            tiers: tiers.map(|(tier, bytes)| (tier as u8, *bytes)).collect(),
            move_bytes: if moves { self.survey.elsewhere(self.to()) } else { 0 },
            refused,
        })
    }

    /// Does one piece.
    pub fn step(&mut self, migration: &Migration) -> Next {
        if is_stopped(&migration.store) {
            return self.end(Err(FsError::NotDurable));
        }
        // Removing pins needs no count.
        if self.phase == Phase::Walk && self.action == HandMove::Unpin {
            self.phase = Phase::Mark;
        }
        let done = match self.phase {
            Phase::Walk | Phase::Mark => with_pages(&migration.store, Wait::Allowed, || self.walk(migration)),
            Phase::Survey | Phase::Verify => self.count(migration),
            Phase::Down => self.down(migration),
            Phase::Between => self.between(migration),
            Phase::Up => self.up(migration),
        };
        match done {
            Ok(piece) => {
                self.failures = 0;
                self.note(None);
                match piece {
                    Piece::PhaseEnds if self.phase == Phase::Verify => self.verified(migration),
                    Piece::PhaseEnds if self.phase == Phase::Mark && self.action == HandMove::Unpin => {
                        self.end(Ok(()))
                    }
                    Piece::PhaseEnds => match self.refusal(migration) {
                        Ok(None) => {
                            self.next_phase();
                            Next::Again
                        }
                        Ok(Some(refusal)) => {
                            let report = &mut self.progress.lock().report;
                            (report.state, report.reason) = (HandState::Failed, Some(refusal));
                            Next::Done
                        }
                        Err(error) => self.end(Err(error)),
                    },
                    Piece::More => Next::Again,
                }
            }
            Err(error) if self.failures + 1 < MOST_FAILURES && error.is_transient() => {
                self.failures += 1;
                self.note(Some(error.to_string()));
                Next::After(BACK_OFF)
            }
            // The blocks that have moved are counted before the job ends.
            Err(error) if self.moves() => {
                self.fatal = Some(error);
                self.survey = Survey::default();
                (self.phase, self.at, self.failures) = (Phase::Verify, (0, FileBlock(0)), 0);
                Next::Again
            }
            Err(error) => {
                let error = self.fatal.take().unwrap_or(error);
                self.end(Err(error))
            }
        }
    }

    fn moves(&self) -> bool {
        matches!(self.phase, Phase::Down | Phase::Between | Phase::Up)
    }

    /// Updates the report; with a reason the job waits.
    fn note(&mut self, reason: Option<String>) {
        let report = &mut self.progress.lock().report;
        report.state = match self.phase {
            _ if reason.is_some() => HandState::Waiting,
            Phase::Walk | Phase::Survey => HandState::Looking,
            Phase::Mark => HandState::Pinning,
            _ => HandState::Moving,
        };
        report.reason = reason;
    }

    fn next_phase(&mut self) {
        self.at = (0, FileBlock(0));
        let first = if self.to() == 0 { Phase::Up } else { Phase::Down };
        self.phase = match self.phase {
            Phase::Walk => Phase::Survey,
            Phase::Survey => {
                let total = self.survey.elsewhere(self.to());
                self.progress.lock().report.total_bytes = total;
                if matches!(self.action, HandMove::Pin { .. }) {
                    self.progress.lock().report.files = 1;
                    self.begin_walk();
                    Phase::Mark
                } else {
                    first
                }
            }
            Phase::Mark => first,
            Phase::Down => Phase::Between,
            Phase::Between | Phase::Up => {
                self.survey = Survey::default();
                Phase::Verify
            }
            Phase::Verify => first,
        };
    }

    /// The decision after all files were moved and counted again.
    fn verified(&mut self, migration: &Migration) -> Next {
        if !self.is_root_there(migration) {
            return self.end(Err(FsError::Stale));
        }
        let left = self.survey.elsewhere(self.to());
        {
            let report = &mut self.progress.lock().report;
            report.left_bytes = left;
            report.done_bytes = report.done_bytes.max(report.total_bytes.saturating_sub(left));
        }
        if let Some(fatal) = self.fatal.take() {
            return self.end(Err(fatal));
        }
        self.passes += 1;
        // Another pass, if it may help: not against damage, and not without end against a busy writer.
        let again = left > 0 && self.trouble.is_none() && self.passes < MOST_PASSES && self.moved_in_pass > 0;
        self.moved_in_pass = 0;
        if again {
            self.next_phase();
            return Next::Again;
        }
        let trouble = self.trouble.take().filter(|_| left > 0);
        self.end(trouble.map_or(Ok(()), Err))
    }

    /// False when the root was removed during the movement.
    fn is_root_there(&self, migration: &Migration) -> bool {
        let found = getattr(&migration.store, self.root.ino);
        found.is_ok_and(|found| found.generation == self.root.generation && found.nlink > 0)
    }

    fn end(&mut self, result: FsResult<()>) -> Next {
        let report = &mut self.progress.lock().report;
        if report.left_bytes == 0 && result.is_err() {
            report.left_bytes = report.total_bytes.saturating_sub(report.done_bytes);
        }
        (report.state, report.reason) = match result {
            Ok(()) if report.left_bytes == 0 => (HandState::Done, None),
            Ok(()) => (HandState::Done, Some("the rest was changed while it was moved".to_string())),
            Err(error) => {
                let pinned = matches!(self.action, HandMove::Pin { .. }) && self.phase == Phase::Verify;
                let pinned = if pinned { "pinned, but not all of it is there: " } else { "" };
                (HandState::Failed, Some(format!("{pinned}{}", reason(&error, self.action))))
            }
        };
        Next::Done
    }

    fn moved(&mut self, blocks: u64) {
        self.moved_in_pass += blocks;
        let report = &mut self.progress.lock().report;
        // A clean block is dropped from PM first, and then its cold copy is relocated: the block counts
        // twice.
        report.done_bytes = (report.done_bytes + blocks * BLOCK_SIZE).min(report.total_bytes);
    }

    /// Reads a part of a directory.
    fn walk(&mut self, migration: &Migration) -> FsResult<Piece> {
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
            (_, HandMove::Migrate { to }) if self.is_pinned_elsewhere(migration, self.root.ino, to)? => {
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
            if let HandMove::Migrate { to } = self.action
                && self.is_pinned_elsewhere(migration, entry.ino, to).unwrap_or(false)
            {
                self.progress.lock().report.pinned_files += 1;
                return Ok(());
            }
            self.files.push(file);
        }
        Ok(())
    }

    /// The reason to refuse a pin to PM, after the count and before any pin is set: pinned files may take
    /// half of PM.
    fn refusal(&self, migration: &Migration) -> FsResult<Option<String>> {
        if self.phase != Phase::Survey || self.action != (HandMove::Pin { tier: 0 }) {
            return Ok(None);
        }
        let besides = self.files.iter().map(|file| file.ino).collect();
        let pinned = with_pages(&migration.store, Wait::Allowed, || pinned_bytes(migration, &besides))?
            + self.survey.0.iter().sum::<u64>();
        let most = most_kept(&migration.store) * BLOCK_SIZE;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (most_mib, pinned_mib) = (mib(most), mib(pinned));
        let text = || {
            format!(
                "pins to tier 0 may take half of it, {most_mib:.1} MiB; they would take {pinned_mib:.1} MiB"
            )
        };
        Ok((pinned > most).then(text))
    }

    /// Counts a part of a file, or several small files.
    fn count(&mut self, migration: &Migration) -> FsResult<Piece> {
        for _ in 0..MOST_FILES {
            let Some(file) = self.files.get(self.at.0) else { return Ok(Piece::PhaseEnds) };
            if self.phase == Phase::Survey
                && self.at.1.0 == 0
                && migration.store.dram.volatile_sizes().get(file.ino).is_some()
            {
                // Dirty pages lie on no tier yet.
                write_back_noted(&migration.store, file.ino)?;
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
    fn down(&mut self, migration: &Migration) -> FsResult<Piece> {
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
    fn between(&mut self, migration: &Migration) -> FsResult<Piece> {
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
    fn up(&mut self, migration: &Migration) -> FsResult<Piece> {
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
    let (mut at, mut count) = (from, 0);
    while let Some((block, mapping)) = next_mapped(&migration.store, &inode, at, FILE_END)? {
        if count == most {
            return Ok(Some(block));
        }
        victims.push(Victim { ino: file.ino, block, pm: mapping.block });
        count += 1;
        at = block.plus(1);
    }
    Ok(None)
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

/// The reason why a job failed, with advice.
fn reason(error: &FsError, action: HandMove) -> String {
    let full = match action.tier() {
        Some(tier) if tier > 0 => format!("tier {tier} is full"),
        _ => "tier 0 is full: the reserve and the policy's threshold leave no more room".to_string(),
    };
    match (error, error.errno()) {
        (FsError::NotPermitted, _) => "pinned to another tier; unpin it first".to_string(),
        (_, libc::ENOSPC) => full,
        (_, libc::ESTALE) => "the file or directory has vanished".to_string(),
        _ => error.to_string(),
    }
}
