//! Opening tier 0 of a pool: a file of persistent memory, or a journal.

use super::superblock::open_failure;
use super::tier0_file::is_journal;
use crate::failure::{Failure, Outcome, plain};
use crate::names::PoolFile;
use std::path::Path;
use std::sync::Arc;
use terrace_media::block::FileDevice;
use terrace_media::pm::{JournalError, JournalOptions, JournaledPm, RamPm};
use terrace_media::{Access, Found, PmMedium};
use terrace_runtime::SystemClock;

/// An opened and locked tier 0.
pub struct Tier0 {
    /// The medium.
    pub pm: Arc<dyn PmMedium>,
    /// Owner and permissions of its file or device.
    pub access: Access,
    /// The file by which the pool is found again; `None` for a device.
    pub name: Option<PoolFile>,
    /// Sentences for the user.
    pub warnings: Vec<String>,
    /// The loss by a damaged log that was cut.
    pub cut: Option<String>,
}

/// Opens and locks tier 0.
///
/// # Errors
/// See [`JournalError`].
pub fn open_tier0(path: &Path, read_only: bool, options: JournalOptions) -> Result<Tier0, JournalError> {
    if !is_journal(path) {
        let pm = RamPm::open(path, read_only)?;
        let (access, name) = (pm.access(), PoolFile::new(path, pm.file()));
        return Ok(Tier0 { pm: Arc::new(pm), access, name, warnings: Vec::new(), cut: None });
    }
    let device = FileDevice::open_found(&Found::at(path)?, true, read_only)?;
    let (access, name) = (device.access(), PoolFile::new(path, device.file()));
    let clock = Arc::new(SystemClock::default());
    let opened = JournaledPm::open(Arc::new(device), JournalOptions { read_only, ..options }, clock)?;
    let mut warnings = Vec::new();
    if opened.condemned > 0 {
        let count = crate::output::count(opened.condemned, "page", "pages");
        let text =
            "of tier 0 are damaged in the journal, and their reads fail; 'terrace check' says what is lost";
        warnings.push(format!("{}: {count} {text}", path.display()));
    }
    if let Some(error) = opened.unlocked {
        let what = "tier 0 is not locked in memory, so the system may swap it out, and then the pool is slow";
        let text = format!("{what} ({}); raise the limit (ulimit -l)", plain(&error));
        warnings.push(format!("{}: {text}", path.display()));
    }
    let cut = opened.cut_at.map(|position| {
        let what = "the damaged log of the journal was cut at position";
        format!("{what} {position}: changes behind it are lost, although they were acknowledged")
    });
    Ok(Tier0 { pm: Arc::new(opened.pm), access, name, warnings, cut })
}

/// A tier 0 that could not be opened, in the user's words.
pub fn tier0_failure(error: &JournalError) -> Failure {
    match error {
        JournalError::Open(error) => open_failure(error),
        damaged @ JournalError::DamagedLog { .. } => {
            let advice = "'terrace check --repair' cuts the log there, and what was acknowledged behind that place is lost";
            Failure::new(format!("{damaged}; {advice}"))
        }
        other => Failure::new(other.to_string()),
    }
}

/// As [`open_tier0`], with the failure in the user's words.
///
/// # Errors
/// As there.
pub fn open_tier0_or_say(path: &Path, read_only: bool) -> Outcome<Tier0> {
    open_tier0(path, read_only, JournalOptions::default()).map_err(|error| tier0_failure(&error))
}
