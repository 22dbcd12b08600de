//! The cold map: which blocks of a file lie on which lower tier, and their checksums (design 4.5).
//!
//! Extents of at most 128 blocks with their CRCs in the value (docs/decisions/0001). Invariant: the
//! extents of an inode do not overlap.

use crate::edit::Edit;
use crate::reader::Reader;
use crate::shards::ShardsWrite;
use std::ops::ControlFlow;
use terrace_format::keys::{ColdExtent, Key, Kind, MAX_EXTENT_BLOCKS};
use terrace_format::{Corrupt, DeviceBlock, DeviceId, FileBlock, Ino};
use terrace_wal::{Result, Tx};

/// Blocks of a device: device, first block, count.
pub type FreedRun = (DeviceId, DeviceBlock, u64);

fn prefix(ino: Ino) -> Key {
    Key::new(ino.0, Kind::Cold, &[])
}

/// Largest file block a key can name.
const LAST_BLOCK: u64 = u32::MAX as u64;

fn overlap(ino: Ino, at: FileBlock, found: FileBlock) -> terrace_wal::Error {
    let site = format!("cold map of inode {ino}");
    let expected = format!("an extent from block {at} on");
    Corrupt::new(site, expected, format!("one that starts at {found}")).into()
}

/// The last extent that starts at or before `block`.
fn at_or_before(reader: Reader<'_>, ino: Ino, block: FileBlock) -> Result<Option<ColdExtent>> {
    let from = Key::cold(ino, FileBlock(block.0.min(LAST_BLOCK)));
    let found = reader.previous_with(&from, &prefix(ino).0, ColdExtent::decode)?;
    Ok(found.transpose()?)
}

/// The extent that covers `block`.
///
/// # Errors
/// A damaged page or extent; the medium's.
pub fn lookup(reader: Reader<'_>, ino: Ino, block: FileBlock) -> Result<Option<ColdExtent>> {
    Ok(at_or_before(reader, ino, block)?.filter(|extent| extent.end() > block))
}

/// The whole extents that overlap `from..to`, ascending.
///
/// # Errors
/// Damaged or overlapping extents; the medium's.
pub fn range(reader: Reader<'_>, ino: Ino, from: FileBlock, to: FileBlock) -> Result<Vec<ColdExtent>> {
    let mut extents = Vec::new();
    scan(reader, ino, from, to, |extent| {
        extents.push(extent);
        ControlFlow::Continue(())
    })?;
    Ok(extents)
}

/// Visits the whole extents that overlap `from..to`, ascending.
///
/// # Errors
/// Damaged or overlapping extents; the medium's.
pub fn scan(
    reader: Reader<'_>,
    ino: Ino,
    from: FileBlock,
    to: FileBlock,
    mut visit: impl FnMut(ColdExtent) -> ControlFlow<()>,
) -> Result<()> {
    if from >= to || from.0 > LAST_BLOCK {
        return Ok(());
    }
    let (mut end, mut failed) = (FileBlock(0), None);
    reader.scan_around(&Key::cold(ino, from), &prefix(ino).0, |key, value| {
        let extent = match ColdExtent::decode(key, value) {
            Ok(extent) if extent.first >= to => return ControlFlow::Break(()),
            Ok(extent) if extent.first >= end => extent,
            Ok(extent) => {
                failed = Some(overlap(ino, end, extent.first));
                return ControlFlow::Break(());
            }
            Err(corrupt) => {
                failed = Some(corrupt.into());
                return ControlFlow::Break(());
            }
        };
        end = extent.end();
        // The one before may end before.
        if end > from { visit(extent) } else { ControlFlow::Continue(()) }
    })?;
    failed.map_or(Ok(()), Err)
}

/// The put that a [`cut`] ending at `to` can need: the right slice of an extent that reaches beyond.
pub fn cut_puts(ino: Ino, to: FileBlock) -> Vec<(Key, usize)> {
    if to.0 > LAST_BLOCK {
        return Vec::new();
    }
    vec![(Key::cold(ino, to), value_size(MAX_EXTENT_BLOCKS))]
}

/// The puts that [`install`] can need at most.
pub fn install_puts(ino: Ino, extent: &ColdExtent) -> Vec<(Key, usize)> {
    let length = if extent.unwritten { 0 } else { extent.length };
    let mut puts = vec![(Key::cold(ino, extent.first), value_size(length))];
    puts.extend(cut_puts(ino, extent.end()));
    puts
}

/// Bytes of the value of an extent of `length` written blocks.
pub fn value_size(length: u32) -> usize {
    16 + 4 * length as usize
}

/// Removes the coverage of `from..to`, leaving slices of extents that reach beyond; what the removed
/// parts occupied is appended to `freed`. Puts at most one key, the right slice ([`cut_puts`]).
/// Every extent inside adds a remove to the record: bound the range.
///
/// # Errors
/// `Full`; damaged or overlapping extents; the medium's.
pub fn cut(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    ino: Ino,
    from: FileBlock,
    to: FileBlock,
    freed: &mut Vec<FreedRun>,
) -> std::result::Result<(), Edit> {
    replace(guard, tx, ino, from, to, None, freed)
}

/// Installs an extent in the place of whatever covered its blocks ([`install_puts`]).
///
/// # Errors
/// As [`cut`].
pub fn install(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    ino: Ino,
    extent: &ColdExtent,
    freed: &mut Vec<FreedRun>,
) -> std::result::Result<(), Edit> {
    let crcs = if extent.unwritten { 0 } else { extent.length };
    assert!(
        (1..=MAX_EXTENT_BLOCKS).contains(&extent.length)
            && extent.crcs.len() == crcs as usize
            && extent.end().0 <= LAST_BLOCK,
        "a cold extent that cannot be: {extent:?}"
    );
    replace(guard, tx, ino, extent.first, extent.end(), Some(extent), freed)
}

fn replace(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    ino: Ino,
    from: FileBlock,
    to: FileBlock,
    new: Option<&ColdExtent>,
    freed: &mut Vec<FreedRun>,
) -> std::result::Result<(), Edit> {
    let old = range(guard.reader(tx), ino, from, to)?;
    // The puts come first, so that a full leaf ends the attempt early.
    for extent in &old {
        if let Some(right) = extent.slice(to, extent.end()) {
            guard.put(tx, &Key::cold(ino, to), &right.encode())?;
        }
        if let Some(left) = extent.slice(extent.first, from) {
            guard.put(tx, &Key::cold(ino, extent.first), &left.encode())?;
        }
    }
    if let Some(extent) = new {
        guard.put(tx, &Key::cold(ino, from), &extent.encode())?;
    }
    for extent in &old {
        if extent.first >= from && (new.is_none() || extent.first > from) {
            guard.remove(tx, &Key::cold(ino, extent.first))?;
        }
        if let Some(middle) = extent.slice(from, to) {
            freed.push((middle.device, middle.start, middle.length.into()));
        }
    }
    Ok(())
}
