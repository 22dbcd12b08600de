//! Intents: ranges of a file that a truncation removes in the background (design T7).

use crate::edit::Edit;
use crate::reader::Reader;
use crate::shards::ShardsWrite;
use std::ops::ControlFlow;
use terrace_format::keys::{Key, Kind};
use terrace_format::{Corrupt, FileBlock, Ino};
use terrace_wal::{Result, Tx};

/// Bytes of an intent's value.
pub const VALUE_BYTES: usize = 12;

/// A range to be removed; until then it reads as gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// First block.
    pub first: FileBlock,
    /// The block behind the last block.
    pub end: FileBlock,
    /// The inode's generation.
    pub generation: u32,
}

/// The put that [`put`] will do.
pub fn put_size(ino: Ino, first: FileBlock) -> (Key, usize) {
    (Key::intent(ino, first), VALUE_BYTES)
}

/// Stores an intent, or replaces the one that starts at the same block.
///
/// # Errors
/// `Full`; a damaged page; the medium's.
pub fn put(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    ino: Ino,
    intent: Intent,
) -> std::result::Result<(), Edit> {
    assert!(intent.first < intent.end, "an empty intent {intent:?}");
    let mut value = [0; VALUE_BYTES];
    let (generation, end) = value.split_at_mut(4);
    generation.copy_from_slice(&intent.generation.to_le_bytes());
    end.copy_from_slice(&intent.end.0.to_le_bytes());
    guard.put(tx, &Key::intent(ino, intent.first), &value)
}

/// Removes the intent that starts at a block; false when there is none.
///
/// # Errors
/// A damaged page; the medium's.
pub fn remove(guard: &mut ShardsWrite<'_>, tx: &mut Tx, ino: Ino, first: FileBlock) -> Result<bool> {
    guard.remove(tx, &Key::intent(ino, first))
}

/// The intents of an inode, ascending.
///
/// # Errors
/// A damaged page or value; the medium's.
pub fn list(reader: Reader<'_>, ino: Ino) -> Result<Vec<Intent>> {
    let prefix = Key::new(ino.0, Kind::Intent, &[]);
    let mut intents: Vec<Intent> = Vec::new();
    let mut sound = true;
    reader.scan(&prefix, &prefix.0, |key, value| {
        match decode(key, value) {
            Some(intent) if intents.last().is_none_or(|last| last.end <= intent.first) => {
                intents.push(intent)
            }
            _ => sound = false,
        }
        if sound { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if sound {
        return Ok(intents);
    }
    let site = format!("intents of inode {ino}");
    Err(Corrupt::new(site, "a generation and ranges that do not overlap", "something else").into())
}

fn decode(key: &[u8], value: &[u8]) -> Option<Intent> {
    let (generation, end) = value.split_first_chunk::<4>()?;
    let intent = Intent {
        first: FileBlock(Key::sub_number(key)?),
        end: FileBlock(u64::from_le_bytes(end.try_into().ok()?)),
        generation: u32::from_le_bytes(*generation),
    };
    (intent.first < intent.end && intent.end.0 <= 1 << 32).then_some(intent)
}
