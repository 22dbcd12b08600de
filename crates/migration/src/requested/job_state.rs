//! The state of a requested movement: the files found, the phase, and the report.

use crate::requested::progress::{MoveRequest, Progress, RequestReport, RequestState};
use crate::requested::survey::Survey;
use std::collections::HashSet;
use std::sync::Arc;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_runtime::sync::Mutex;
use terrace_store::error::FsError;
use terrace_store::moving::file_id::FileId;
use terrace_store::types::Attributes;

/// The file type of a directory, as st_mode >> 12.
pub(super) const DIRECTORY_TYPE: u8 = 4;

/// The file type of a regular file, as st_mode >> 12.
pub(super) const REGULAR_TYPE: u8 = 8;

/// Files without blocks to move that a piece visits.
pub(super) const MOST_FILES: usize = 256;

/// The phases of a job, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
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
    /// The movement that was asked for.
    pub(super) action: MoveRequest,
    /// The file or directory of the path.
    pub(super) root: FileId,
    /// File type of the root, as st_mode >> 12.
    pub(super) file_type: u8,
    /// Whether the walk has dealt with the root itself.
    pub(super) begun: bool,
    /// The present phase.
    pub(super) phase: Phase,
    /// Directories to read, with the cookie after which to go on.
    pub(super) directories: Vec<(FileId, u64)>,
    /// The files found so far.
    pub(super) files: Vec<FileId>,
    /// Files with several names found so far: each of them is moved once.
    pub(super) linked: HashSet<Ino>,
    /// The index of the file, and the block, to go on at.
    pub(super) at: (usize, FileBlock),
    /// The bytes of each tier.
    pub(super) survey: Survey,
    /// The first damage; it is reported at the end.
    pub(super) trouble: Option<FsError>,
    /// The error that ends the job after the bytes that are left are counted.
    pub(super) fatal: Option<FsError>,
    /// Failures of the present piece.
    pub(super) failures: u32,
    /// Passes over all files so far.
    pub(super) passes: u32,
    /// Blocks moved in this pass.
    pub(super) moved_in_pass: u64,
    /// The progress, for other threads.
    pub(super) progress: Arc<Mutex<Progress>>,
}

/// The work that is left after a piece.
pub(super) enum Piece {
    /// The phase goes on.
    More,
    /// The phase ends.
    PhaseEnds,
}

impl Job {
    /// A job that has not begun.
    pub fn new(id: u64, of: &Attributes, action: MoveRequest) -> Job {
        let report = RequestReport {
            id,
            action: action.name(),
            tier: action.tier(),
            state: RequestState::Queued,
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
    pub(super) fn rooted_at(mut self, file_type: u8) -> Job {
        self.file_type = file_type;
        self.begin_walk();
        self
    }

    pub(super) fn begin_walk(&mut self) {
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

    pub(super) fn to(&self) -> u8 {
        self.action.tier().unwrap_or(0)
    }

    pub(super) fn moves(&self) -> bool {
        matches!(self.phase, Phase::Down | Phase::Between | Phase::Up)
    }

    /// Updates the report; with a reason the job waits.
    pub(super) fn note(&mut self, reason: Option<String>) {
        let report = &mut self.progress.lock().report;
        report.state = match self.phase {
            _ if reason.is_some() => RequestState::Waiting,
            Phase::Walk | Phase::Survey => RequestState::Looking,
            Phase::Mark => RequestState::Pinning,
            _ => RequestState::Moving,
        };
        report.reason = reason;
    }

    pub(super) fn moved(&mut self, blocks: u64) {
        self.moved_in_pass += blocks;
        let report = &mut self.progress.lock().report;
        // A clean block is dropped from PM first, and then its cold copy is relocated: the block counts
        // twice.
        report.done_bytes = (report.done_bytes + blocks * BLOCK_SIZE).min(report.total_bytes);
    }
}
