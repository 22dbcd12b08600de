//! Names in directories (design C2).
//!
//! Cookie: 55 bits of SipHash-1-3 (Aumasson and Bernstein, INDOCRYPT 2012) of the name, keyed by the
//! superblock's hash key, then 8 bits of collision number; a positive 63-bit number, at least 256, so
//! that the reserved ones (start, ".", "..", below 16) never meet a name.
//! Invariants: a name keeps its cookie until it is removed; names of one hash have different collision
//! numbers, with gaps where names were removed.

use crate::edit::Edit;
use crate::node::damaged;
use crate::reader::Reader;
use crate::shards::ShardsWrite;
use siphasher::sip::SipHasher13;
use std::ops::ControlFlow;
use terrace_format::keys::{Key, Kind};
use terrace_format::{Ino, PmBlock};
use terrace_runtime::narrow::name_hash_bits;
use terrace_wal::{NoSpace, Result, Tx};

/// Cookies below this are reserved: 0 start, 1 ".", 2 "..".
pub const FIRST_COOKIE: u64 = 16;
/// Bytes of a dentry's value before the name.
const HEAD_BYTES: usize = 5;
/// Longest name.
pub const MAX_NAME_BYTES: usize = 255;

/// The keyed hash of names.
#[derive(Debug, Clone, Copy)]
pub struct NameHash {
    hasher: SipHasher13,
    mask: u64,
}

impl NameHash {
    /// The hash of a pool; `key` is the superblock's.
    pub fn new(key: &[u8; 16]) -> NameHash {
        NameHash { hasher: SipHasher13::new_with_key(key), mask: (1 << name_hash_bits()) - 1 }
    }
    /// For tests: only `bits` bits of hash, so that names collide.
    pub fn weak(key: &[u8; 16], bits: u32) -> NameHash {
        NameHash { mask: (1 << bits.min(55)) - 1, ..NameHash::new(key) }
    }
    /// Cookie of a name without its collision number.
    pub fn base(&self, name: &[u8]) -> u64 {
        (self.hasher.hash(name) & self.mask).max(1) << 8
    }
}

/// A name's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dentry {
    /// The inode that the name stands for.
    pub ino: Ino,
    /// Mode >> 12.
    pub file_type: u8,
    /// Its directory cookie.
    pub cookie: u64,
}

fn prefix(directory: Ino) -> Key {
    Key::new(directory.0, Kind::Dentry, &[])
}

fn decode<'a>(key: &[u8], value: &'a [u8]) -> Option<(Dentry, &'a [u8])> {
    let (head, name) = value.split_first_chunk::<HEAD_BYTES>()?;
    let [i0, i1, i2, i3, file_type] = *head;
    let dentry = Dentry {
        ino: Ino(u32::from_le_bytes([i0, i1, i2, i3]).into()),
        file_type,
        cookie: Key::sub_number(key)?,
    };
    (!name.is_empty() && name.len() <= MAX_NAME_BYTES).then_some((dentry, name))
}

fn head(ino: Ino, file_type: u8) -> [u8; HEAD_BYTES] {
    let [i0, i1, i2, i3] = (ino.0 as u32).to_le_bytes();
    [i0, i1, i2, i3, file_type]
}

fn unreadable(directory: Ino) -> terrace_wal::Error {
    let site = format!("dentry of directory {directory}");
    damaged(PmBlock(0), &site, "an inode, a type and a name", "something else")
}

/// Visits the entries that share a name's hash; false from `visit` ends it.
fn same_hash(
    reader: Reader<'_>,
    directory: Ino,
    base: u64,
    mut visit: impl FnMut(Dentry, &[u8]) -> bool,
) -> Result<()> {
    let from = Key::dentry(directory, base);
    let shared = from.0.len() - 1;
    let mut sound = true;
    reader.scan(&from, from.0.get(..shared).unwrap_or_default(), |key, value| match decode(key, value) {
        Some((dentry, name)) if visit(dentry, name) => ControlFlow::Continue(()),
        Some(_) => ControlFlow::Break(()),
        None => {
            sound = false;
            ControlFlow::Break(())
        }
    })?;
    if sound { Ok(()) } else { Err(unreadable(directory)) }
}

/// Finds a name.
///
/// # Errors
/// A damaged page or entry; the medium's.
pub fn lookup(reader: Reader<'_>, hash: &NameHash, directory: Ino, name: &[u8]) -> Result<Option<Dentry>> {
    let mut found = None;
    same_hash(reader, directory, hash.base(name), |dentry, other| {
        if other == name || wrong::takes_hash_for_name() {
            found = Some(dentry);
        }
        found.is_none()
    })?;
    Ok(found)
}

/// The put that [`insert`] will do, for `make_room_many` and the size of the record.
pub fn insert_put(hash: &NameHash, directory: Ino, name: &[u8]) -> (Key, usize) {
    (Key::dentry(directory, hash.base(name)), HEAD_BYTES + name.len())
}

/// Adds a name with the lowest free collision number; gives its cookie.
///
/// # Errors
/// `Edit::Exists`; `NoSpace::Numbers` when 256 names share the hash; `Edit::Full`.
pub fn insert(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    hash: &NameHash,
    directory: Ino,
    name: &[u8],
    ino: Ino,
    file_type: u8,
) -> std::result::Result<u64, Edit> {
    assert!(!name.is_empty() && name.len() <= MAX_NAME_BYTES, "a name of {} bytes", name.len());
    let base = hash.base(name);
    let (mut cookie, mut exists) = (base, false);
    same_hash(guard.reader(tx), directory, base, |dentry, other| {
        exists |= other == name;
        if dentry.cookie == cookie {
            cookie += 1;
        }
        !exists
    })?;
    if exists {
        return Err(Edit::Exists);
    }
    if cookie > base | 255 {
        return Err(terrace_wal::Error::from(NoSpace::Numbers).into());
    }
    let mut value: smallvec::SmallVec<[u8; 512]> = smallvec::SmallVec::from_slice(&head(ino, file_type));
    value.extend_from_slice(name);
    guard.put(tx, &Key::dentry(directory, cookie), &value)?;
    Ok(cookie)
}

/// Points an existing entry to another inode (rename over a name); false when it is gone.
///
/// # Errors
/// A damaged page; the medium's.
pub fn replace(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    directory: Ino,
    cookie: u64,
    ino: Ino,
    file_type: u8,
) -> Result<bool> {
    guard.update_bytes(tx, &Key::dentry(directory, cookie), 0, &head(ino, file_type))
}

/// Removes the entry of a cookie; false when it is gone.
///
/// # Errors
/// A damaged page; the medium's.
pub fn remove(guard: &mut ShardsWrite<'_>, tx: &mut Tx, directory: Ino, cookie: u64) -> Result<bool> {
    guard.remove(tx, &Key::dentry(directory, cookie))
}

/// As [`remove`], only if the cookie still belongs to that name of that inode.
///
/// # Errors
/// A damaged page; the medium's.
pub fn remove_same(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    directory: Ino,
    entry: &Dentry,
    name: &[u8],
) -> Result<bool> {
    let key = Key::dentry(directory, entry.cookie);
    guard.remove_if(tx, &key, |value| {
        decode(&key.0, value).is_some_and(|(found, other)| found == *entry && other == name)
    })
}

/// Visits entries with cookies strictly after `after`, ascending.
///
/// # Errors
/// A damaged page or entry; the medium's.
pub fn read_from(
    reader: Reader<'_>,
    directory: Ino,
    after: u64,
    mut visit: impl FnMut(Dentry, &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let Some(from) = after.checked_add(1) else {
        return Ok(());
    };
    let (mut sound, mut last) = (true, after);
    reader.scan(&Key::dentry(directory, from), &prefix(directory).0, |key, value| {
        match decode(key, value) {
            // Out of order a reader that goes on after the last would never come to an end.
            Some((dentry, name)) if dentry.cookie > last => {
                last = dentry.cookie;
                visit(dentry, name)
            }
            _ => {
                sound = false;
                ControlFlow::Break(())
            }
        }
    })?;
    if sound { Ok(()) } else { Err(unreadable(directory)) }
}

/// Whether a directory has no entries.
///
/// # Errors
/// A damaged page; the medium's.
pub fn is_empty(reader: Reader<'_>, directory: Ino) -> Result<bool> {
    let mut empty = true;
    reader.scan(&prefix(directory), &prefix(directory).0, |_, _| {
        empty = false;
        ControlFlow::Break(())
    })?;
    Ok(empty)
}

/// The branches of planted mistakes.
mod wrong {
    use terrace_runtime::planted::{Mistake, planted};

    /// A name with the same hash is taken for the name.
    pub(super) fn takes_hash_for_name() -> bool {
        planted(Mistake::HashTakenForName)
    }
}
