//! Tier 0 of a pool: a file of persistent memory, or a journal. This module alone knows which.

use super::read::open_to_read;
use super::superblock::open_failure;
use crate::failure::{Failure, Outcome};
use crate::names::PoolFile;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use terrace_format::BLOCK_SIZE;
use terrace_format::journal::{ANCHOR_COPIES, Anchor, RefusedAnchor};
use terrace_media::block::FileDevice;
use terrace_media::pm::{JournalError, JournalOptions, JournaledPm, RamPm};
use terrace_media::{Access, Found, PmMedium};

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
}

/// The content of an unopened tier 0 by offset, as far as it is in the file: of a journal the pages in home.
pub struct Tier0File {
    file: File,
    /// First byte of the content.
    start: u64,
    anchor: Option<Anchor>,
}

impl Tier0File {
    /// Opens a tier 0 to look into it. It may be in use.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(path: &Path) -> io::Result<Tier0File> {
        let file = open_to_read(path)?;
        let anchor = anchor_of(&file);
        let home = |anchor: &Anchor| anchor.layout().ok().map(|layout| layout.home().byte_offset());
        let start = anchor.as_ref().and_then(home).unwrap_or(0);
        Ok(Tier0File { file, start, anchor })
    }

    /// Fills `into` from an offset of the content.
    ///
    /// # Errors
    /// The operating system's; an end of the file before.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(into, self.start + offset)
    }

    /// Bytes of the content.
    ///
    /// # Errors
    /// The operating system's.
    pub fn size(&self) -> io::Result<u64> {
        match &self.anchor {
            Some(anchor) => Ok(anchor.image_bytes),
            None => io::Seek::seek(&mut &self.file, io::SeekFrom::End(0)),
        }
    }

    /// Whether the content is that of a journal.
    pub fn is_journal(&self) -> bool {
        self.anchor.is_some()
    }

    /// Whether a log has newer content than the file shows.
    pub fn has_log(&self) -> bool {
        self.anchor.is_some_and(|anchor| !anchor.clean)
    }
}

/// The newest sound anchor of a file.
fn anchor_of(file: &File) -> Option<Anchor> {
    let read = |copy: terrace_format::DeviceBlock| {
        let mut block = vec![0; BLOCK_SIZE as usize];
        file.read_exact_at(&mut block, copy.byte_offset()).ok()?;
        Anchor::decode(&block).ok()
    };
    ANCHOR_COPIES.into_iter().filter_map(read).max_by_key(|anchor| anchor.number)
}

/// Whether a path holds a journal, sound or not.
fn is_journal(path: &Path) -> bool {
    let Ok(file) = open_to_read(path) else { return false };
    let has_magic = |copy: terrace_format::DeviceBlock| {
        let mut block = vec![0; BLOCK_SIZE as usize];
        let read = file.read_exact_at(&mut block, copy.byte_offset());
        read.is_ok() && !matches!(Anchor::decode(&block), Err(RefusedAnchor::NotAJournal))
    };
    ANCHOR_COPIES.into_iter().any(has_magic)
}

/// Opens and locks tier 0.
///
/// # Errors
/// See [`JournalError`].
pub fn open_tier0(path: &Path, read_only: bool, options: JournalOptions) -> Result<Tier0, JournalError> {
    if !is_journal(path) {
        let pm = RamPm::open(path, read_only)?;
        let (access, name) = (pm.access(), PoolFile::new(path, pm.file()));
        return Ok(Tier0 { pm: Arc::new(pm), access, name, warnings: Vec::new() });
    }
    let device = FileDevice::open_found(&Found::at(path)?, true, read_only)?;
    let (access, name) = (device.access(), PoolFile::new(path, device.file()));
    let opened = JournaledPm::open(Arc::new(device), JournalOptions { read_only, ..options })?;
    let mut warnings = Vec::new();
    if opened.condemned > 0 {
        let count = crate::output::count(opened.condemned, "page", "pages");
        let text =
            "of tier 0 are damaged in the journal, and their reads fail; 'terrace check' says what is lost";
        warnings.push(format!("{}: {count} {text}", path.display()));
    }
    Ok(Tier0 { pm: Arc::new(opened.pm), access, name, warnings })
}

/// A tier 0 that could not be opened, in the user's words.
pub fn tier0_failure(error: &JournalError) -> Failure {
    match error {
        JournalError::Open(error) => open_failure(error),
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
