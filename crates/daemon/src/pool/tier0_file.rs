//! The file of tier 0, unopened: persistent memory, or a journal whose pages in home are the content.

use super::look::open_to_read;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use terrace_format::journal::{ANCHOR_COPIES, Anchor, RefusedAnchor};
use terrace_format::{BLOCK_SIZE, DeviceBlock};

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
        if anchor.is_none() && is_journal(path) {
            let text = "the journal's anchor is damaged, or of another version; 'terrace check' says more";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
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

    /// Whether a log has newer content than the file shows.
    pub fn has_log(&self) -> bool {
        self.anchor.is_some_and(|anchor| !anchor.clean)
    }
}

/// The newest sound anchor of a file.
fn anchor_of(file: &File) -> Option<Anchor> {
    let read = |copy: DeviceBlock| {
        let mut block = vec![0; BLOCK_SIZE as usize];
        file.read_exact_at(&mut block, copy.byte_offset()).ok()?;
        Anchor::decode(&block).ok()
    };
    ANCHOR_COPIES.into_iter().filter_map(read).max_by_key(|anchor| anchor.number)
}

/// The kind of an unopened tier 0, as status names it.
pub fn kind_of_tier0(path: &Path) -> &'static str {
    if is_journal(path) { "journaled" } else { "ram" }
}

/// Whether a path holds a journal, sound or not.
pub(super) fn is_journal(path: &Path) -> bool {
    let Ok(file) = open_to_read(path) else { return false };
    let has_magic = |copy: DeviceBlock| {
        let mut block = vec![0; BLOCK_SIZE as usize];
        let read = file.read_exact_at(&mut block, copy.byte_offset());
        read.is_ok() && !matches!(Anchor::decode(&block), Err(RefusedAnchor::NotAJournal))
    };
    ANCHOR_COPIES.into_iter().any(has_magic)
}
