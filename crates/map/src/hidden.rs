//! The block table as file map where parts of it cannot be read: an answer is given when it can be shown that no block of
//! the question is hidden in an unreadable entry ([`terrace_blocks::hidden`]), and is an error otherwise (I8).
//!
//! Locks: none are held here across calls.

use crate::map_inode::MapInode;
use crate::pages::Pages;
use terrace_blocks::hidden::{impossible, is_possible};
use terrace_blocks::pool::{Hashed, Known};
use terrace_format::homes::Home;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::{Error, Result};
use zerocopy::little_endian::U64;

/// Refuses a block that memory does not know and that may lie in an unreadable entry.
#[inline]
pub(crate) fn refuse_hidden(hashed: &Hashed, known: Known, at: (Ino, FileBlock), home: Home) -> Result<()> {
    match known {
        Known::Doubtful => hashed.hidden.refuse(&hashed.homes, &hashed.presence, at, home),
        Known::Part | Known::All => Ok(()),
    }
}

/// Notes that a block that was known has left PM.
#[inline]
pub(crate) fn note_left(hashed: Option<&Hashed>, ino: Ino, block: FileBlock) {
    if let Some(hashed) = hashed.filter(|hashed| hashed.known() == Known::Doubtful) {
        hashed.hidden.left(&hashed.homes, ino, block);
    }
}

/// As [`note_left`], for a table beside the block table: its lost lines may be unknown yet.
pub(crate) fn note_left_of_table(hashed: &Hashed, ino: Ino, block: FileBlock) {
    match hashed.known() {
        Known::Part | Known::All => {}
        Known::Doubtful if hashed.hidden.has_lost_lines() => hashed.hidden.left(&hashed.homes, ino, block),
        Known::Doubtful => hashed.hidden.note_gone(ino, block),
    }
}

/// Refuses a block without an entry in a readable line of a table, unless it is absent. `error` comes from an unreadable or
/// damaged line; `is_sound` says whether the lines of the block are sound.
pub(crate) fn judge_missing(
    hashed: &Hashed,
    (ino, block): (Ino, FileBlock),
    error: Option<&Error>,
    is_sound: impl FnOnce() -> bool,
) -> Result<()> {
    let known = hashed.known();
    let is_known = hashed.presence.contains(ino, block);
    if !is_known && is_whole(hashed, ino) {
        return Ok(());
    }
    if is_known {
        return error.map_or(Ok(()), |error| Err(error.clone()));
    }
    match known {
        Known::Part if error.is_none() && is_sound() => Ok(()),
        // The scan may have ended meanwhile: the operation starts again.
        Known::Part | Known::All => Err(Error::TableUnread),
        Known::Doubtful if !hashed.hidden.has_lost_lines() => Err(Error::Hidden(ino)),
        Known::Doubtful => {
            let home = hashed.homes.home(ino, block);
            hashed.hidden.refuse(&hashed.homes, &hashed.presence, (ino, block), home)
        }
    }
}

/// Whether memory knows all blocks of a file.
pub(crate) fn is_whole(hashed: &Hashed, ino: Ino) -> bool {
    match hashed.known() {
        Known::All => true,
        Known::Part => false,
        Known::Doubtful => hashed.hidden.is_sound(ino),
    }
}

/// Whether memory knows that a block of a file with blocks below PM is absent: asked before the table is read.
#[inline]
pub(crate) fn is_known_cold(hashed: &Hashed, inode: &MapInode, block: FileBlock) -> bool {
    inode.has_cold && is_whole(hashed, inode.ino) && !hashed.presence.contains(inode.ino, block)
}

/// Keeps of the blocks of a listing those before which none can be hidden. Gives the block to go on at.
pub(crate) fn keep_shown(
    hashed: &Hashed,
    ino: Ino,
    (from, to): (FileBlock, FileBlock),
    next: Option<FileBlock>,
    blocks: &mut Vec<FileBlock>,
) -> Result<Option<FileBlock>> {
    let end = next.unwrap_or(to);
    let shown = hashed.hidden.shown(&hashed.homes, &hashed.presence, ino, (from, end))?;
    if shown >= end {
        return Ok(next);
    }
    assert!(shown > from, "a listing does not get on at block {from} of inode {ino}");
    blocks.retain(|block| *block < shown);
    Ok(Some(shown))
}

/// Refuses the answer of a search that found nothing and passed an entry that cannot be understood.
#[cold]
pub(crate) fn refuse_impossible(pages: &Pages, hashed: &Hashed, home: Home, reach: u64) -> Result<()> {
    for slot in hashed.homes.lines(home, reach).flatten().map(PmBlock) {
        let mut word = [U64::ZERO];
        pages.table_words(pages.blocks.wal().geometry().table_entry(slot), &mut word)?;
        let [word] = word.map(U64::get);
        if !is_possible(word) {
            return Err(impossible(slot, word));
        }
    }
    Ok(())
}
