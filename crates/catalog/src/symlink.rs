//! Targets of symbolic links, in parts of 1 KiB.

use crate::edit::Edit;
use crate::parts;
use crate::reader::Reader;
use crate::shards::ShardsWrite;
use std::ops::ControlFlow;
use terrace_format::keys::{Key, Kind};
use terrace_format::{Corrupt, Ino};
use terrace_wal::{Result, Tx};

/// Longest target.
pub const MAX_TARGET_BYTES: usize = 4095;

/// The puts that [`create`] will do.
pub fn create_puts(ino: Ino, length: usize) -> Vec<(Key, usize)> {
    parts::puts(|part| Key::symlink(ino, part), 0, length)
}

/// Stores the target of a new link.
///
/// # Errors
/// `TooLarge` beyond 4095 bytes; `Full`.
pub fn create(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    ino: Ino,
    target: &[u8],
) -> std::result::Result<(), Edit> {
    if target.len() > MAX_TARGET_BYTES {
        return Err(Edit::TooLarge);
    }
    parts::store(guard, tx, |part| Key::symlink(ino, part), target, 0)
}

/// The target.
///
/// # Errors
/// `Corrupt` when the target is missing or too long; errors of the medium.
pub fn read(reader: Reader<'_>, ino: Ino) -> Result<Vec<u8>> {
    let prefix = Key::new(ino.0, Kind::Symlink, &[]);
    let mut target = Vec::new();
    reader.scan(&prefix, &prefix.0, |_, value| {
        target.extend_from_slice(value);
        if target.len() > MAX_TARGET_BYTES {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    if target.is_empty() || target.len() > MAX_TARGET_BYTES {
        let found = format!("{} bytes", target.len());
        return Err(Corrupt::new(format!("symlink {ino}"), "1 to 4095 bytes", found).into());
    }
    Ok(target)
}

/// Removes the target.
///
/// # Errors
/// A damaged page; the medium's.
pub fn remove(guard: &mut ShardsWrite<'_>, tx: &mut Tx, ino: Ino) -> Result<()> {
    let parts = MAX_TARGET_BYTES.div_ceil(terrace_format::keys::MAX_VALUE);
    guard.remove_prefix(tx, &Key::new(ino.0, Kind::Symlink, &[]), parts)?;
    Ok(())
}
