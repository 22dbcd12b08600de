//! Extended attributes: part 0 starts with the total length, contents in parts of 1 KiB.

use crate::edit::Edit;
use crate::parts;
use crate::reader::Reader;
use crate::shards::ShardsWrite;
use std::ops::ControlFlow;
use terrace_format::keys::{Key, Kind, MAX_VALUE};
use terrace_format::{Corrupt, Ino};
use terrace_wal::{Error, Result, Tx};

/// Bytes before the content in part 0.
const HEAD_BYTES: usize = 4;
/// Longest name.
pub const MAX_NAME_BYTES: usize = 255;
/// Largest value that Linux lets through.
pub const MAX_SIZE_BYTES: usize = 64 << 10;

/// The condition of `set` on an existing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// Nothing.
    Any,
    /// It must not exist (XATTR_CREATE).
    Create,
    /// It must exist (XATTR_REPLACE).
    Replace,
}

fn part_count(total: usize) -> usize {
    (HEAD_BYTES + total).div_ceil(MAX_VALUE)
}

fn damaged(ino: Ino, name: &[u8], expected: &str, found: impl ToString) -> Error {
    let site = format!("xattr {} of inode {ino}", String::from_utf8_lossy(name));
    Corrupt::new(site, expected, found.to_string()).into()
}

/// Length of an attribute's value; `None` when it does not exist.
///
/// # Errors
/// A damaged page or value; the medium's.
pub fn length(reader: Reader<'_>, ino: Ino, name: &[u8]) -> Result<Option<usize>> {
    let head = reader.get_with(&Key::xattr(ino, name, 0), |value| {
        value.first_chunk::<HEAD_BYTES>().map(|head| u32::from_le_bytes(*head) as usize)
    })?;
    match head {
        None => Ok(None),
        Some(Some(total)) if total <= MAX_SIZE_BYTES => Ok(Some(total)),
        Some(found) => Err(damaged(ino, name, "a length of at most 64 KiB", format!("{found:?}"))),
    }
}

/// An attribute's value; `None` when it does not exist.
///
/// # Errors
/// A damaged page or value; the medium's.
pub fn get(reader: Reader<'_>, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(total) = length(reader, ino, name)? else {
        return Ok(None);
    };
    let mut content = Vec::with_capacity(HEAD_BYTES + total);
    let key = |part| Key::xattr(ino, name, part);
    let whole = parts::load(reader, key, 0..part_count(total), &mut content)?;
    if !whole || content.len() != HEAD_BYTES + total {
        return Err(damaged(ino, name, &format!("{total} bytes"), content.len()));
    }
    content.drain(..HEAD_BYTES);
    Ok(Some(content))
}

/// Visits the names of an inode's attributes that come after `after`, those of the first `most` keys; false when others
/// may follow. A value's parts behind the first are keys too.
///
/// # Errors
/// A damaged page or key; the medium's.
pub fn list(
    reader: Reader<'_>,
    ino: Ino,
    after: Option<&[u8]>,
    most: usize,
    mut visit: impl FnMut(&[u8]),
) -> Result<bool> {
    let prefix = Key::new(ino.0, Kind::Xattr, &[]);
    // No value has as many parts.
    let from =
        after.map_or_else(|| Key::new(ino.0, Kind::Xattr, &[]), |name| Key::xattr(ino, name, u16::MAX));
    let (mut sound, mut left) = (true, most);
    reader.scan(&from, &prefix.0, |key, _| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        let name = Key::split(key).and_then(|(_, _, sub)| sub.split_last_chunk::<3>());
        match name {
            Some((name, [0, 0, 0])) => visit(name),
            Some((_, [0, _, _])) => {}
            _ => {
                sound = false;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    if sound { Ok(left > 0) } else { Err(damaged(ino, b"?", "a name, a zero and a part", "another key")) }
}

/// The puts that [`set`] will do, for `make_room_many` (needed beyond 2 KiB) and the size of the record.
pub fn set_puts(ino: Ino, name: &[u8], length: usize) -> Vec<(Key, usize)> {
    parts::puts(|part| Key::xattr(ino, name, part), HEAD_BYTES, length)
}

/// Sets an attribute. `limit` is the largest value the caller's record can hold.
///
/// # Errors
/// `Exists`, `Missing` as `mode` says, `TooLarge` beyond `limit` or 64 KiB, `Full`.
pub fn set(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    mode: SetMode,
    limit: usize,
) -> std::result::Result<(), Edit> {
    assert!(!name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(&0), "an xattr name");
    if value.len() > limit.min(MAX_SIZE_BYTES) {
        return Err(Edit::TooLarge);
    }
    let old = length(guard.reader(tx), ino, name)?;
    match (mode, old) {
        (SetMode::Create, Some(_)) => return Err(Edit::Exists),
        (SetMode::Replace, None) => return Err(Edit::Missing),
        _ => {}
    }
    let mut content = Vec::with_capacity(HEAD_BYTES + value.len());
    content.extend_from_slice(&(value.len() as u32).to_le_bytes());
    content.extend_from_slice(value);
    let key = |part| Key::xattr(ino, name, part);
    parts::store(guard, tx, key, &content, old.map_or(0, part_count))
}

/// Removes an attribute; false when it does not exist.
///
/// # Errors
/// A damaged page or value; the medium's.
pub fn remove(guard: &mut ShardsWrite<'_>, tx: &mut Tx, ino: Ino, name: &[u8]) -> Result<bool> {
    let Some(total) = length(guard.reader(tx), ino, name)? else {
        return Ok(false);
    };
    for part in 0..part_count(total) {
        guard.remove(tx, &Key::xattr(ino, name, part as u16))?;
    }
    Ok(true)
}

/// Removes up to `most` keys of an inode's attributes, for the removal of the inode in bounded
/// transactions; true when none are left.
///
/// # Errors
/// A damaged page; the medium's.
pub fn remove_some(guard: &mut ShardsWrite<'_>, tx: &mut Tx, ino: Ino, most: usize) -> Result<bool> {
    guard.remove_prefix(tx, &Key::new(ino.0, Kind::Xattr, &[]), most)
}
