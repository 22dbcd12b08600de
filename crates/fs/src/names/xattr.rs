//! Extended attributes. Namespaces user, trusted and security are stored; the kernel checks who may.
//! POSIX ACLs (system.*) are not there yet and answer EOPNOTSUPP.

use terrace_catalog::Reader;
use terrace_catalog::xattr;
use terrace_catalog::xattr::SetMode;
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::attempt::with_pages::reading;
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::capability::CAPABILITY;
use terrace_store::inode::slot::{load, load_to_read, log_slot, wall_now};
use terrace_store::inode::tier_pin::OWN_NAMESPACE;
use terrace_store::operation::need::{Attempt, Fail, Need};
use terrace_store::operation::op::Op;
use terrace_store::operation::progress::{Progress, TURN_ENTRIES, all_turns};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{Wait, XattrMode};

/// Longest name with its namespace.
const NAME_MAX: usize = 255;

/// Longest value that the kernel passes.
const VALUE_MAX: usize = 65536;

/// Most bytes of all names of an inode, each with a NUL behind it: the kernel lists no more (XATTR_LIST_MAX).
const LIST_MAX: usize = 65536;

fn check(name: &[u8]) -> FsResult<()> {
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.len() > NAME_MAX {
        return Err(FsError::Range);
    }
    if name.contains(&0) {
        return Err(FsError::Invalid);
    }
    match known.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len()) {
        true => Ok(()),
        false => Err(FsError::NotSupported),
    }
}

/// Bytes of a name in a list; a name hidden from users takes none.
fn listed(name: &[u8]) -> usize {
    if name.starts_with(OWN_NAMESPACE) { 0 } else { name.len() + 1 }
}

/// Longest value: what one record holds beside a page's shift, at most 64 KiB. On large pools 64 KiB,
/// on the smallest lanes 2 KiB.
fn xattr_limit(store: &Store) -> usize {
    (store.persistent.wal().max_record() / 2).min(VALUE_MAX)
}

/// Value of an attribute.
///
/// # Errors
/// ENODATA, EOPNOTSUPP for other namespaces, EIO.
pub fn getxattr(store: &Store, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
    try_getxattr(store, ino, name, Wait::Allowed)
}

/// As [`getxattr`]; it waits for metadata on a lower tier only if it may.
///
/// # Errors
/// As [`getxattr`]; `WouldBlock`.
pub fn try_getxattr(store: &Store, ino: Ino, name: &[u8], wait: Wait) -> FsResult<Vec<u8>> {
    check(name)?;
    reading(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_to_read(store, ino)?;
        if !inode.slot.has(flag::HAS_XATTR) {
            return Err(FsError::NoAttribute);
        }
        let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(ino.0));
        xattr::get(shard.reader(), ino, name)?.ok_or(FsError::NoAttribute)
    })
}

/// The attribute names of an inode, each with a NUL behind it.
///
/// # Errors
/// EIO.
pub fn listxattr(store: &Store, ino: Ino) -> FsResult<Vec<u8>> {
    all_turns(|progress| listxattr_turn(store, ino, progress, Wait::Allowed))
}

/// A turn of [`listxattr`]; it waits for metadata on a lower tier only if `wait` allows it. Of more than 64
/// KiB of names, which only older versions allowed, it returns the first 64 KiB: no caller has room for more.
///
/// # Errors
/// As [`listxattr`]; `WouldBlock`, `Unfinished`.
pub fn listxattr_turn(store: &Store, ino: Ino, progress: &mut Progress, wait: Wait) -> FsResult<Vec<u8>> {
    let names = &mut progress.names;
    let ended = reading(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_to_read(store, ino)?;
        if !inode.slot.has(flag::HAS_XATTR) {
            return Ok(true);
        }
        let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(ino.0));
        let last = names.strip_suffix(&[0]).map(|names| names.rsplit(|byte| *byte == 0).next());
        let last = last.flatten().map(<[u8]>::to_vec);
        Ok(xattr::list(shard.reader(), ino, last.as_deref(), TURN_ENTRIES, |name| {
            if !name.starts_with(OWN_NAMESPACE) {
                names.extend_from_slice(name);
                names.push(0);
            }
        })?)
    })?;
    if ended || names.len() > LIST_MAX { Ok(std::mem::take(names)) } else { Err(FsError::Unfinished) }
}

/// Bytes that the names of an inode's attributes have in a list. The caller holds its exclusive lock.
fn name_bytes(store: &Store, inode: &Inode, reader: Reader<'_>) -> FsResult<usize> {
    if let Some(bytes) = store.inodes.name_bytes().get(inode) {
        return Ok(bytes);
    }
    let mut bytes = 0;
    if inode.slot.has(flag::HAS_XATTR) {
        xattr::list(reader, inode.ino, None, usize::MAX, |name| bytes += listed(name))?;
    }
    store.inodes.name_bytes().set(inode, Some(bytes));
    Ok(bytes)
}

/// Sets an attribute.
///
/// # Errors
/// EEXIST, ENODATA by mode; ERANGE, E2BIG as ENOSPC beyond what one transaction holds; ENOSPC, also when all names
/// together would be longer than a list of them may be (64 KiB); EIO.
pub fn setxattr(
    store: &Store,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
    wait: Wait,
) -> FsResult<()> {
    check(name)?;
    let mode = match mode {
        XattrMode::Any => SetMode::Any,
        XattrMode::Create => SetMode::Create,
        XattrMode::Replace => SetMode::Replace,
    };
    let mut op = Op::new(wait);
    change_xattrs(store, &mut op, ino, |staged, shards, inode| {
        store.persistent.blocks().probe()?;
        let mut bytes = store.inodes.name_bytes().get(inode);
        if xattr::length(shards.reader(&staged.tx), ino, name)?.is_none() && mode != SetMode::Replace {
            let sum = name_bytes(store, inode, shards.reader(&staged.tx))? + listed(name);
            if sum > LIST_MAX && listed(name) > 0 {
                return Err(FsError::from(terrace_wal::NoSpace::Tier).into());
            }
            bytes = Some(sum);
        }
        xattr::set(shards, &mut staged.tx, ino, name, value, mode, xattr_limit(store)).map_err(|edit| {
            match edit {
                terrace_catalog::Edit::Full(_) => {
                    Need::CatalogRooms(xattr::set_puts(ino, name, value.len())).into()
                }
                terrace_catalog::Edit::Missing => FsError::NoAttribute.into(),
                terrace_catalog::Edit::TooLarge => FsError::from(terrace_wal::NoSpace::Tier).into(),
                other => Fail::from(other),
            }
        })?;
        Ok(bytes)
    })
}

/// Removes an attribute.
///
/// # Errors
/// ENODATA; EIO.
pub fn removexattr(store: &Store, ino: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
    check(name)?;
    let mut op = Op::reclaiming(wait);
    change_xattrs(store, &mut op, ino, |staged, shards, inode| {
        let there = inode.slot.has(flag::HAS_XATTR);
        match there && xattr::remove(shards, &mut staged.tx, ino, name)? {
            true => Ok(store.inodes.name_bytes().get(inode).map(|bytes| bytes.saturating_sub(listed(name)))),
            false => Err(FsError::NoAttribute.into()),
        }
    })
}

/// Removes a file's capabilities, if it still has some.
pub fn remove_capability(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    match removexattr(store, ino, CAPABILITY, wait) {
        Err(FsError::NoAttribute) => Ok(()),
        removed => removed,
    }
}

/// Changes attributes in a transaction. `edit` returns the bytes of the attribute names after the change, if
/// they are known.
fn change_xattrs(
    store: &Store,
    op: &mut Op,
    ino: Ino,
    mut edit: impl FnMut(&mut Staged<'_>, &mut terrace_catalog::ShardsWrite<'_>, &Inode) -> Attempt<Option<usize>>,
) -> FsResult<()> {
    run_attempts(store, op, large_record(store), |reservation, _op| {
        let _guard = store.inodes.locks().write(ino);
        let inode = load(store, ino)?;
        let mut shards = store.persistent.catalog().write(&[store.persistent.catalog().shard_of(ino.0)]);
        let mut staged = Staged::new(store, None, false);
        let name_bytes = edit(&mut staged, &mut shards, &inode)?;
        staged.unlink_emptied(&mut shards)?;
        let mut slot = inode.slot;
        slot.flags = (slot.flags.get() | flag::HAS_XATTR).into();
        slot.ctime = wall_now(store).into();
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        // Not known while it is not certain what is committed.
        store.inodes.name_bytes().set(&inode, None);
        staged.commit(reservation)?;
        store.inodes.name_bytes().set(&inode, name_bytes);
        Ok(())
    })
}
