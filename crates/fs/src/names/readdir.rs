//! Reading directories (design C2): entries in the order of their cookies, resuming strictly after one.

use crate::content::access_time::{atime_due, touch_atime};
use crate::names::lookup::{attributes_or_forget, forget};
use std::ops::ControlFlow;
use terrace_catalog::dentry;
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::with_pages::reading;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::attributes::try_getattr;
use terrace_store::inode::slot::{load_directory_to_read, load_to_read};
use terrace_store::store::Store;
use terrace_store::types::{Attributes, DirectoryEntry, Wait};

/// Cookies of "." and "..".
const DOT: u64 = 1;

const DOT_DOT: u64 = 2;

const DIRECTORY_TYPE: u8 = 4;

/// Entries collected under the directory's lock before their attributes are loaded without it.
const BATCH: usize = 64;

/// Visits entries after `after` until `visit` says that it has no room for one.
///
/// # Errors
/// ENOTDIR, ESTALE, EIO.
pub fn readdir(
    store: &Store,
    ino: Ino,
    after: u64,
    visit: &mut dyn FnMut(&DirectoryEntry) -> bool,
) -> FsResult<()> {
    try_readdir(store, ino, after, Wait::Allowed, visit)
}

/// As [`readdir`]; it waits for metadata on a lower tier only if it may, and ends before what it would have to
/// wait for when it has visited some.
///
/// # Errors
/// As [`readdir`]; `WouldBlock`.
pub fn try_readdir(
    store: &Store,
    ino: Ino,
    after: u64,
    wait: Wait,
    visit: &mut dyn FnMut(&DirectoryEntry) -> bool,
) -> FsResult<()> {
    let (mut next, mut consumed) = (after, false);
    loop {
        let batch = match reading(store, wait, || read_entries(store, ino, None, next, false)) {
            Err(FsError::WouldBlock) if consumed => break,
            batch => batch?,
        };
        let Some(last) = batch.last() else { break };
        next = last.cookie;
        let visited = batch.iter().take_while(|entry| visit(entry)).count();
        consumed |= visited > 0;
        if visited < batch.len() {
            break;
        }
    }
    match directory_read(store, ino, wait) {
        Err(FsError::WouldBlock) if consumed => Ok(()),
        read => read,
    }
}

/// As [`readdir`], with attributes; takes a lookup reference for each entry that is consumed,
/// except "." and "..". An error ends it after the entries before it; the next call, from there, returns it.
///
/// # Errors
/// As [`readdir`].
pub fn readdir_plus(
    store: &Store,
    ino: Ino,
    after: u64,
    visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
) -> FsResult<()> {
    try_readdir_plus(store, ino, after, Wait::Allowed, visit)
}

/// As [`readdir_plus`]; it waits for metadata on a lower tier only if it may.
///
/// # Errors
/// As [`readdir`]; `WouldBlock`, when nothing was consumed.
pub fn try_readdir_plus(
    store: &Store,
    ino: Ino,
    after: u64,
    wait: Wait,
    visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
) -> FsResult<()> {
    let mut consumed = false;
    let result = read_plus(store, ino, after, wait, &mut |entry, attributes| {
        let taken = visit(entry, attributes);
        consumed |= taken;
        taken
    });
    let result = result.and_then(|()| directory_read(store, ino, wait));
    // Of what was consumed the kernel must be told, or it never gives the references back.
    if consumed { Ok(()) } else { result }
}

fn read_plus(
    store: &Store,
    ino: Ino,
    after: u64,
    wait: Wait,
    visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
) -> FsResult<()> {
    let mut after = after;
    loop {
        let batch = reading(store, wait, || read_entries(store, ino, None, after, true))?;
        let Some(last) = batch.last() else { return Ok(()) };
        after = last.cookie;
        let mut ended = None;
        for entry in &batch {
            let dots = entry.cookie <= DOT_DOT;
            if ended.is_some() {
                if !dots {
                    forget(store, entry.ino, 1);
                }
                continue;
            }
            let found = match dots {
                true => try_getattr(store, entry.ino, wait),
                false => attributes_or_forget(store, entry.ino, wait),
            };
            match found {
                Ok(attributes) if visit(entry, &attributes) => {}
                Ok(_) => {
                    ended = Some(Ok(()));
                    if !dots && !planted(Mistake::EntryReferenceStays) {
                        forget(store, entry.ino, 1);
                    }
                }
                // Gone since the names were read: leave it out, as a later read of the names would.
                Err(FsError::Stale | FsError::NotFound) => {}
                Err(error) => ended = Some(Err(error)),
            }
        }
        if let Some(result) = ended {
            return result;
        }
    }
}

/// Some entries after a cookie. With `refer`, each gets a lookup reference under the directory's lock, so
/// that the inode cannot be freed and reused before its attributes are loaded. `generation` is for a caller
/// without a reference to the directory: if the inode has a different generation, its number was used again,
/// and the answer is ESTALE.
pub fn read_entries(
    store: &Store,
    ino: Ino,
    generation: Option<u32>,
    after: u64,
    refer: bool,
) -> FsResult<Vec<DirectoryEntry>> {
    let _guard = store.inodes.locks().read(ino);
    let directory = load_directory_to_read(store, ino)?;
    if generation.is_some_and(|generation| generation != directory.slot.generation.get()) {
        return Err(FsError::Stale);
    }
    let mut entries = Vec::new();
    // A removed directory's parent may be gone too, and its number another file's.
    let parent = match directory.slot.has(flag::ORPHAN) {
        true => ino,
        false => Ino(u64::from(directory.slot.parent_or_rdev.get())),
    };
    for (cookie, target, name) in [(DOT, ino, "."), (DOT_DOT, parent, "..")] {
        if after < cookie {
            let name = name.as_bytes().to_vec();
            entries.push(DirectoryEntry { ino: target, file_type: DIRECTORY_TYPE, cookie, name });
        }
    }
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(ino.0));
    dentry::read_from(shard.reader(), ino, after, |found, name| {
        let entry = DirectoryEntry {
            ino: found.ino,
            file_type: found.file_type,
            cookie: found.cookie,
            name: name.to_vec(),
        };
        entries.push(entry);
        if entries.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if refer {
        let named = entries.iter().filter(|entry| entry.cookie > DOT_DOT);
        named.for_each(|entry| store.inodes.open_files().looked_up(entry.ino));
    }
    Ok(entries)
}

fn directory_read(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    let due = reading(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        load_to_read(store, ino).map(|inode| atime_due(store, &inode))
    })?;
    if due {
        touch_atime(store, ino);
    }
    Ok(())
}
