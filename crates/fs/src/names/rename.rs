//! Rename: a single transaction for both directories, the moved inode and the replaced inode.

use crate::names::directory_change::stage_directory_change;
use crate::names::link::LINK_MAX;
use crate::names::lookup::{check_name, find};
use crate::names::unlink::{InodeList, check_removable, drop_link};
use crate::removal::orphans::help_reclaim;
use crate::write_back::rounds::write_back_noted;
use std::cell::Cell;
use terrace_catalog::ShardsWrite;
use terrace_catalog::dentry::{self, Dentry};
use terrace_format::address::ROOT_INO;
use terrace_format::{Corrupt, Ino};
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, load_directory, log_slot, wall_now};
use terrace_store::operation::need::{Attempt, Need};
use terrace_store::operation::op::Op;
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_store::types::inode::Inode;

/// A rename's arguments.
#[derive(Clone, Copy)]
struct Names<'a> {
    parent: Ino,
    name: &'a [u8],
    new_parent: Ino,
    new_name: &'a [u8],
}

/// Whether `ancestor` is met on the way from a directory, itself included, to the root; `None` when that way goes in a
/// circle (found as by Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980).
fn is_ancestor<E>(
    ancestor: Ino,
    from: Ino,
    mut parent: impl FnMut(Ino) -> Result<Ino, E>,
) -> Result<Option<bool>, E> {
    let (mut at, mut mark, mut steps, mut most) = (from, from, 0u64, 1u64);
    while at != ancestor && at != ROOT_INO {
        at = parent(at)?;
        if at == mark {
            return Ok(None);
        }
        steps += 1;
        if steps == most {
            (mark, steps, most) = (at, 0, 2 * most);
        }
    }
    Ok(Some(at == ancestor))
}

/// Renames; the inode of `new_name` is replaced, or EEXIST with `no_replace`. Dirty pages of the moved file
/// are written back before it replaces another file: a program that replaces an old file by a new one without
/// an fsync expects either the old or the new content after a crash, as ext4 (auto_da_alloc) and btrfs give
/// it.
///
/// # Errors
/// `WouldBlock` when content has to be written back and the caller may not wait;
/// ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL (a directory into itself), EMLINK, ENOSPC, EIO.
pub fn rename(
    store: &Store,
    parent: Ino,
    name: &[u8],
    new_parent: Ino,
    new_name: &[u8],
    no_replace: bool,
    wait: Wait,
) -> FsResult<()> {
    check_name(name)?;
    check_name(new_name)?;
    let names = Names { parent, name, new_parent, new_name };
    let (mut op, to_write, mut written) = (Op::new(wait), Cell::new(None), None);
    let mut attempt = |written: Option<Ino>| {
        run_attempts(store, &mut op, large_record(store), |reservation, _op| {
            store.persistent.blocks().probe()?;
            // A rename between two directories: the rename lock keeps the ancestors of both as they are.
            let _tree = (parent != new_parent).then(|| store.inodes.lock_tree());
            let (source, target) = find_both(store, &names)?;
            if no_replace && target.is_some() {
                return Err(FsError::Exists.into());
            }
            if target.as_ref().is_some_and(|target| target.ino == source.ino) {
                return Ok(());
            }
            if parent != new_parent {
                refuse_loop(store, source.ino, new_parent)?;
            }
            if target.is_some()
                && written != Some(source.ino)
                && store.dram.volatile_sizes().get(source.ino).is_some()
            {
                to_write.set(Some(source.ino));
                return Err(FsError::WouldBlock.into());
            }
            let mut inos: InodeList = smallvec::smallvec![parent, new_parent, source.ino];
            inos.extend(target.as_ref().map(|target| target.ino));
            let _guards = store.inodes.locks().write_many(&inos);
            rename_locked(store, reservation, &names, &source, target.as_ref())
        })
    };
    loop {
        let result = attempt(written);
        match to_write.take() {
            Some(ino) if wait == Wait::Allowed => {
                // Once; its next fsync is told of an error. A device that takes nothing holds back no name.
                if let Err(error) = write_back_noted(store, ino, Wait::Allowed) {
                    tracing::warn!("inode {ino} cannot be written back before it replaces another: {error}");
                }
                written = Some(ino);
            }
            _ => {
                result?;
                break;
            }
        }
    }
    help_reclaim(store);
    Ok(())
}

fn find_both(store: &Store, names: &Names<'_>) -> Attempt<(Dentry, Option<Dentry>)> {
    let source = {
        let _guard = store.inodes.locks().read(names.parent);
        load_directory(store, names.parent)?;
        find(store, names.parent, names.name)?.ok_or(FsError::NotFound)?
    };
    let _guard = store.inodes.locks().read(names.new_parent);
    if load_directory(store, names.new_parent)?.slot.nlink.get() == 0 {
        // The directory was removed: the inode number of its parent may be used again by now.
        return Err(FsError::NotFound.into());
    }
    Ok((source, find(store, names.new_parent, names.new_name)?))
}

/// A directory must not become its own descendant. The rename lock keeps ancestors as they are.
fn refuse_loop(store: &Store, moved: Ino, new_parent: Ino) -> Attempt<()> {
    let is_ancestor = is_ancestor(moved, new_parent, |at| -> Attempt<Ino> {
        let _guard = store.inodes.locks().read(at);
        let directory = load_directory(store, at)?;
        Ok(Ino(u64::from(directory.slot.parent_or_rdev.get())))
    })?;
    match is_ancestor {
        Some(false) => Ok(()),
        Some(true) => Err(FsError::Invalid.into()),
        None => {
            let site = format!("ancestors of directory {new_parent}");
            Err(FsError::from(Corrupt::new(site, "the root", "a circle")).into())
        }
    }
}

fn rename_locked(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
    names: &Names<'_>,
    source: &Dentry,
    target: Option<&Dentry>,
) -> Attempt<()> {
    let old_parent = load_directory(store, names.parent)?;
    let new_parent = load_directory(store, names.new_parent)?;
    let (source, target_now) = find_again(store, names, source, target)?;
    if new_parent.slot.nlink.get() == 0 {
        return Err(FsError::NotFound.into());
    }
    let moved = load(store, source.ino)?;
    let replaced = target.map(|target| load(store, target.ino)).transpose()?;
    if let Some(replaced) = &replaced {
        check_removable(replaced, moved.slot.is_directory())?;
    } else if moved.slot.is_directory()
        && old_parent.ino != new_parent.ino
        && new_parent.slot.nlink.get() >= LINK_MAX
    {
        return Err(FsError::TooManyLinks.into());
    }
    let mut staged = Staged::new(store, None, false);
    let shards = [
        store.persistent.catalog().shard_of(names.parent.0),
        store.persistent.catalog().shard_of(names.new_parent.0),
    ];
    let mut shards = store.persistent.catalog().write(&shards);
    // The new name first: a slot shift of the removal must not move what a Full would abandon.
    stage_new_name(store, &mut staged, &mut shards, names, &source, target_now.as_ref())?;
    if !planted(Mistake::RenameInTwo) {
        dentry::remove(&mut shards, &mut staged.tx, names.parent, source.cookie)?;
        staged.unlink_emptied(&mut shards)?;
    }
    stage_parents(store, &mut staged, &old_parent, &new_parent, &moved, replaced.as_ref());
    stage_moved(store, &mut staged, &moved, names.new_parent);
    match &replaced {
        Some(replaced) => drop_link(store, reservation, staged, replaced)?,
        None => staged.commit(reservation).map(|_| ())?,
    }
    if planted(Mistake::RenameInTwo) {
        wrong::remove_old_name(store, &mut shards, names.parent, source.cookie)?;
    }
    Ok(())
}

/// The two entries as they are now: a number may be another file's, of another type.
fn find_again(
    store: &Store,
    names: &Names<'_>,
    source: &Dentry,
    target: Option<&Dentry>,
) -> Attempt<(Dentry, Option<Dentry>)> {
    let source_now = find(store, names.parent, names.name)?.filter(|now| now.ino == source.ino);
    let target_now = find(store, names.new_parent, names.new_name)?;
    let is_same = target_now.as_ref().map(|now| now.ino) == target.map(|target| target.ino);
    match source_now {
        Some(source) if is_same => Ok((source, target_now)),
        _ => Err(Need::Again.into()),
    }
}

/// The new name names the moved inode.
fn stage_new_name(
    store: &Store,
    staged: &mut Staged<'_>,
    shards: &mut ShardsWrite<'_>,
    names: &Names<'_>,
    source: &Dentry,
    target: Option<&Dentry>,
) -> Attempt<()> {
    let (parent, ino, file_type) = (names.new_parent, source.ino, source.file_type);
    match target {
        Some(target) => {
            dentry::replace(shards, &mut staged.tx, parent, target.cookie, ino, file_type)?;
        }
        None => {
            let hash = store.persistent.name_hash();
            dentry::insert(shards, &mut staged.tx, hash, parent, names.new_name, ino, file_type)?;
        }
    }
    Ok(())
}

/// Entry counts and link counts of the two directories (or the one).
fn stage_parents(
    store: &Store,
    staged: &mut Staged<'_>,
    old_parent: &Inode,
    new_parent: &Inode,
    moved: &Inode,
    replaced: Option<&Inode>,
) {
    let moves_directory = i32::from(moved.slot.is_directory());
    let loses_directory = i32::from(replaced.is_some_and(|inode| inode.slot.is_directory()));
    let gained = i64::from(replaced.is_none());
    if old_parent.ino == new_parent.ino {
        stage_directory_change(store, staged, old_parent, gained - 1, -loses_directory);
    } else {
        stage_directory_change(store, staged, old_parent, -1, -moves_directory);
        stage_directory_change(store, staged, new_parent, gained, moves_directory - loses_directory);
    }
}

fn stage_moved(store: &Store, staged: &mut Staged<'_>, moved: &Inode, new_parent: Ino) {
    let mut slot = moved.slot;
    slot.ctime = wall_now(store).into();
    if slot.is_directory() {
        slot.parent_or_rdev = (new_parent.0 as u32).into();
    }
    log_slot(&mut staged.tx, moved.place, &moved.slot, &slot);
}

/// Planted mistakes of this file.
mod wrong {
    use super::{ShardsWrite, Staged, Store, dentry, large_record};
    use terrace_format::Ino;
    use terrace_store::operation::need::Attempt;

    /// `rename-in-two`.
    pub(super) fn remove_old_name(
        store: &Store,
        shards: &mut ShardsWrite<'_>,
        parent: Ino,
        cookie: u64,
    ) -> Attempt<()> {
        let mut staged = Staged::new(store, None, false);
        dentry::remove(shards, &mut staged.tx, parent, cookie)?;
        staged.unlink_emptied(shards)?;
        staged.commit(store.persistent.wal().reserve(large_record(store))?)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A rename into a directory more than 2^20 below the root was told that its ancestors go in a circle (EIO).
    #[test]
    fn ancestors_are_found_in_any_depth_and_circles_too() {
        let asked = |ancestor, from, parent: &dyn Fn(u64) -> u64| {
            is_ancestor(Ino(ancestor), Ino(from), |at| Ok::<_, Infallible>(Ino(parent(at.0)))).ok().flatten()
        };
        let deep = |at: u64| at - 1;
        assert_eq!(asked(1 << 30, 3 << 20, &deep), Some(false));
        assert_eq!(asked(2, 3 << 20, &deep), Some(true));
        assert_eq!(asked(7, 7, &deep), Some(true));
        assert_eq!(asked(ROOT_INO.0, 9, &deep), Some(true));
        for length in [1, 2, 3, 1000] {
            let circle = |at: u64| if at > 5000 { at - 1 } else { 2 + (at - 1) % length };
            assert_eq!(asked(1 << 30, 6000, &circle), None, "circle of {length}");
        }
    }
}
