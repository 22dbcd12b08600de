//! Contents longer than one value, in parts (xattrs, symlinks).

use crate::edit::Edit;
use crate::reader::Reader;
use crate::shards::ShardsWrite;
use terrace_format::keys::{Key, MAX_VALUE};
use terrace_wal::{Result, Tx};

/// The puts that storing `length` bytes does; the first part carries `head` bytes more.
pub(crate) fn puts(key: impl Fn(u16) -> Key, head: usize, length: usize) -> Vec<(Key, usize)> {
    let total = head + length;
    let count = total.div_ceil(MAX_VALUE).max(1);
    (0..count).map(|part| (key(part as u16), (total - part * MAX_VALUE).min(MAX_VALUE))).collect()
}

/// Stores `content` (head included) and removes parts that an older, longer content had.
pub(crate) fn store(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    key: impl Fn(u16) -> Key,
    content: &[u8],
    old_parts: usize,
) -> std::result::Result<(), Edit> {
    let count = content.len().div_ceil(MAX_VALUE).max(1);
    let mut chunks = content.chunks(MAX_VALUE);
    for part in 0..count {
        guard.put(tx, &key(part as u16), chunks.next().unwrap_or_default())?;
    }
    for part in count..old_parts {
        guard.remove(tx, &key(part as u16))?;
    }
    Ok(())
}

/// Appends the parts from `first` to `count` to `into`; false when one is missing.
pub(crate) fn load(
    reader: Reader<'_>,
    key: impl Fn(u16) -> Key,
    parts: std::ops::Range<usize>,
    into: &mut Vec<u8>,
) -> Result<bool> {
    for part in parts {
        if reader.get_with(&key(part as u16), |bytes| into.extend_from_slice(bytes))?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}
