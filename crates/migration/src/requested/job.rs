//! A requested movement, as a sequence of bounded pieces.
//!
//! Order: the files below the path are found and counted. Towards a lower tier, PM blocks are demoted in
//! groups that may span files, then blocks of other lower tiers are relocated. Towards PM, blocks are
//! promoted piece by piece. Then all files are counted again, and moved again a few times if they changed
//! meanwhile. Each piece is at most a group, and leaves a state in which the job may end.

use crate::migration::Migration;
use crate::requested::job_state::{Phase, Piece};
use crate::requested::pinned_bytes::pinned_bytes;
use crate::requested::progress::{MovePlan, MoveRequest, RequestState};
use crate::requested::survey::Survey;
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_fs::sync::is_stopped;
use terrace_runtime::Next;
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::attributes::getattr;
use terrace_store::inode::tier_pin::most_kept;
use terrace_store::types::Wait;

pub use crate::requested::job_state::Job;

/// Pause after a failure that may pass.
const BACK_OFF: Duration = Duration::from_secs(1);

/// How often a piece is tried.
const MOST_FAILURES: u32 = 3;

/// How often all files are visited.
const MOST_PASSES: u32 = 3;

impl Job {
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
    pub fn plan(&self, migration: &Migration) -> FsResult<MovePlan> {
        let refused = self.refusal(migration)?;
        let moves = self.action != MoveRequest::Unpin;
        let report = &self.progress.lock().report;
        let tiers = self.survey.0.iter().enumerate();
        Ok(MovePlan {
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
        if self.phase == Phase::Walk && self.action == MoveRequest::Unpin {
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
                    Piece::PhaseEnds if self.phase == Phase::Mark && self.action == MoveRequest::Unpin => {
                        self.end(Ok(()))
                    }
                    Piece::PhaseEnds => match self.refusal(migration) {
                        Ok(None) => {
                            self.next_phase();
                            Next::Again
                        }
                        Ok(Some(refusal)) => {
                            let report = &mut self.progress.lock().report;
                            (report.state, report.reason) = (RequestState::Failed, Some(refusal));
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

    fn next_phase(&mut self) {
        self.at = (0, FileBlock(0));
        let first = if self.to() == 0 { Phase::Up } else { Phase::Down };
        self.phase = match self.phase {
            Phase::Walk => Phase::Survey,
            Phase::Survey => {
                let total = self.survey.elsewhere(self.to());
                self.progress.lock().report.total_bytes = total;
                if matches!(self.action, MoveRequest::Pin { .. }) {
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
            Ok(()) if report.left_bytes == 0 => (RequestState::Done, None),
            Ok(()) => (RequestState::Done, Some("the rest was changed while it was moved".to_string())),
            Err(error) => {
                let pinned = matches!(self.action, MoveRequest::Pin { .. }) && self.phase == Phase::Verify;
                let pinned = if pinned { "pinned, but not all of it is there: " } else { "" };
                (RequestState::Failed, Some(format!("{pinned}{}", reason(&error, self.action))))
            }
        };
        Next::Done
    }

    /// The reason to refuse a pin to PM, after the count and before any pin is set: pinned files may take
    /// half of PM.
    fn refusal(&self, migration: &Migration) -> FsResult<Option<String>> {
        if self.phase != Phase::Survey || self.action != (MoveRequest::Pin { tier: 0 }) {
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
}

/// The reason why a job failed, with advice.
fn reason(error: &FsError, action: MoveRequest) -> String {
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
