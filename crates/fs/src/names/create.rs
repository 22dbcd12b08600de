//! New files, directories, symbolic links: name, inode and parent in one transaction.

use crate::names::directory_change::stage_directory_change;
use crate::names::link::LINK_MAX;
use crate::names::lookup::check_name;
use crate::names::tier_pin::{pin_puts, stage_pin};
use terrace_catalog::dentry;
use terrace_catalog::{Edit, symlink};
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::{Corrupt, Ino};
use terrace_runtime::interleave;
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::numbers::new_number;
use terrace_store::inode::slot::{load_any, load_directory, log_whole_slot, wall_now};
use terrace_store::inode::tier_pin::pin_of;
use terrace_store::operation::need::Need;
use terrace_store::operation::op::{Op, SMALL_RECORD};
use terrace_store::steering::learn::expect_use;
use terrace_store::steering::learn::note_made;
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{Attributes, Caller, Wait};

/// Longest symlink target.
const TARGET_MAX: usize = 4095;

pub(crate) const S_IFMT: u32 = 0o170000;

pub(crate) const S_IFDIR: u32 = 0o040000;

const S_IFREG: u32 = 0o100000;

const S_IFLNK: u32 = 0o120000;

const S_ISGID: u32 = 0o2000;

/// Type, permissions, device number and symlink target of a new inode.
struct NewInode<'a> {
    mode: u32,
    rdev: u32,
    target: Option<&'a [u8]>,
}

/// Makes a file of any type but directory and symlink. Takes a lookup reference.
///
/// # Errors
/// EEXIST, ENOENT and ENOTDIR of the directory, ENAMETOOLONG, ENOSPC, EIO.
pub fn mknod(
    store: &Store,
    parent: Ino,
    name: &[u8],
    mode: u32,
    rdev: u32,
    caller: Caller,
    wait: Wait,
) -> FsResult<Attributes> {
    let mode = if mode & S_IFMT == 0 { mode | S_IFREG } else { mode };
    if mode & S_IFMT == S_IFDIR || mode & S_IFMT == S_IFLNK {
        return Err(FsError::Invalid);
    }
    make(store, parent, name, &NewInode { mode, rdev, target: None }, caller, wait)
}

/// Makes a directory. Takes a lookup reference.
///
/// # Errors
/// As [`mknod`]; EMLINK.
pub fn mkdir(
    store: &Store,
    parent: Ino,
    name: &[u8],
    mode: u32,
    caller: Caller,
    wait: Wait,
) -> FsResult<Attributes> {
    let mode = S_IFDIR | mode & 0o7777;
    make(store, parent, name, &NewInode { mode, rdev: 0, target: None }, caller, wait)
}

/// Makes a symbolic link. Takes a lookup reference.
///
/// # Errors
/// As [`mknod`]; ENAMETOOLONG for a target over 4095 bytes.
pub fn symlink(
    store: &Store,
    parent: Ino,
    name: &[u8],
    target: &[u8],
    caller: Caller,
    wait: Wait,
) -> FsResult<Attributes> {
    // The smallest lanes cannot record the longest targets.
    if target.len() > TARGET_MAX.min(store.persistent.wal().max_record() / 2) {
        return Err(FsError::NameTooLong);
    }
    if target.is_empty() {
        return Err(FsError::NotFound);
    }
    let new = NewInode { mode: S_IFLNK | 0o777, rdev: 0, target: Some(target) };
    make(store, parent, name, &new, caller, wait)
}

fn make(
    store: &Store,
    parent: Ino,
    name: &[u8],
    new: &NewInode<'_>,
    caller: Caller,
    wait: Wait,
) -> FsResult<Attributes> {
    check_name(name)?;
    let mut op = Op::new(wait);
    let record = if new.target.is_some() { large_record(store) } else { SMALL_RECORD };
    let mut number = None;
    run_attempts(store, &mut op, record, |reservation, op| {
        // Pages and slots exist already, but metadata alone must not take the reserve either.
        store.persistent.blocks().probe()?;
        // Kept between attempts, because room is made for its keys.
        if number.is_none() {
            number = Some(new_number(store)?);
        }
        let Some(number) = number.as_mut() else { return Err(Need::Again.into()) };
        interleave::point("number:taken");
        let _guards = store.inodes.locks().write_many(&[parent, number.ino]);
        let directory = load_directory(store, parent)?;
        if directory.slot.nlink.get() == 0 {
            return Err(FsError::NotFound.into());
        }
        let mut staged = Staged::new(store, None, false);
        let is_directory = new.mode & S_IFMT == S_IFDIR;
        if is_directory && directory.slot.nlink.get() >= LINK_MAX {
            return Err(FsError::TooManyLinks.into());
        }
        expect_use(store, number.ino);
        let inode = load_any(store, number.ino)?;
        if !inode.slot.is_free() {
            // Two pages of the inode file lie in one block; this number is not handed out again.
            number.kept = true;
            let site = format!("inode {}", number.ino);
            let error = Corrupt::new(site, "the free slot that was found", "one in use");
            return Err(FsError::from(error).into());
        }
        let mut slot = new_slot(store, &inode, &directory, new, caller);
        let pin = if is_directory || slot.is_regular() { pin_of(store, &directory)? } else { None };
        if pin.is_some() && op.record < large_record(store) {
            op.record = large_record(store);
            return Err(Need::Again.into());
        }
        let shards = [
            store.persistent.catalog().shard_of(parent.0),
            store.persistent.catalog().shard_of(number.ino.0),
        ];
        let keys = new.target.is_some() || pin.is_some();
        let mut shards = store.persistent.catalog().write(&shards[..if keys { 2 } else { 1 }]);
        let file_type = (new.mode >> 12) as u8;
        dentry::insert(
            &mut shards,
            &mut staged.tx,
            store.persistent.name_hash(),
            parent,
            name,
            number.ino,
            file_type,
        )?;
        if let Some(target) = new.target {
            let made = symlink::create(&mut shards, &mut staged.tx, number.ino, target);
            if matches!(made, Err(Edit::Full(_))) {
                // Both in one: the name may take the room in a leaf that they share.
                let mut puts = symlink::create_puts(number.ino, target.len());
                puts.push(dentry::insert_put(store.persistent.name_hash(), parent, name));
                return Err(Need::CatalogRooms(puts).into());
            }
            made?;
        }
        if let Some(tier) = pin {
            let made = stage_pin(store, &mut shards, &mut staged, number.ino, &mut slot, tier);
            if matches!(made, Err(Edit::Full(_))) {
                let mut puts = pin_puts(number.ino);
                puts.push(dentry::insert_put(store.persistent.name_hash(), parent, name));
                return Err(Need::CatalogRooms(puts).into());
            }
            made?;
        }
        log_whole_slot(&mut staged.tx, inode.place, &slot);
        stage_directory_change(store, &mut staged, &directory, 1, i32::from(is_directory));
        staged.commit(reservation)?;
        number.kept = true;
        store.inodes.open_files().looked_up(number.ino);
        let made = Inode { ino: number.ino, place: inode.place, slot, pending: None };
        note_made(store, &directory, name, &made);
        Ok(made.attributes())
    })
}

fn new_slot(store: &Store, free: &Inode, directory: &Inode, new: &NewInode<'_>, caller: Caller) -> InodeSlot {
    let now = wall_now(store);
    let is_directory = new.mode & S_IFMT == S_IFDIR;
    let mut slot = InodeSlot::zeroed();
    let mut mode = new.mode;
    slot.uid = caller.uid.into();
    slot.gid = caller.gid.into();
    if directory.slot.mode.get() & S_ISGID != 0 {
        slot.gid = directory.slot.gid;
        if is_directory {
            mode |= S_ISGID;
        }
    }
    slot.mode = mode.into();
    slot.nlink = if is_directory { 2 } else { 1 }.into();
    slot.generation = free.slot.generation.get().max(1).into();
    for time in [&mut slot.atime, &mut slot.mtime, &mut slot.ctime, &mut slot.btime] {
        *time = now.into();
    }
    slot.parent_or_rdev = if is_directory { directory.ino.0 as u32 } else { new.rdev }.into();
    if let Some(target) = new.target {
        slot.size = (target.len() as u64).into();
        slot.flags = flag::HAS_SYMLINK.into();
    }
    slot
}
