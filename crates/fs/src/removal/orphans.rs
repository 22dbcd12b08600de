//! The reclaimer: removes orphans without a reference, and finishes intents after a crash.
//!
//! Invariant: steps (`steps.rs`) and operations may work on the same inode: each piece takes the inode lock and looks
//! anew.

use crate::content::intents::clear_intent;
use crate::removal::log_freed::log_freed_slot;
use std::time::Duration;
use terrace_format::Ino;
use terrace_format::inode::{InodeSlot, ORPHAN_LISTS, flag};
use terrace_format::keys::Kind;
use terrace_runtime::interleave;
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::dirty::forget_dirty;
use terrace_store::change::prune::stage_prune;
use terrace_store::change::removal::{lock_piece, next_piece, stage_piece};
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::numbers::{begin_free, end_free};
use terrace_store::inode::orphan_list::{has_orphans, lock_orphans, orphans_of, unlink_orphan};
use terrace_store::inode::slot::{load_any, log_slot};
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::Op;
use terrace_store::parts::inodes::removal_queue::{Job, Task};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{WHOLE_FILE, Wait};

/// Keys of an orphan removed in one transaction.
const KEYS_PER_PIECE: usize = 2;

/// While more orphans wait than this, an operation that makes an orphan removes a waiting orphan itself.
/// Beside many busy threads the reclaimer gets only its share of a processor, and PM would fill with orphans.
const MOST_WAITING: usize = 16;

/// The most pieces of an orphan that such an operation removes: a small file has its content, its keys, and
/// its slot.
const HELPED_PIECES: usize = 4;

fn reclaim_job(store: &Store, job: Job, wait: Wait) -> FsResult<()> {
    match job {
        Job::OrphanList(list) => {
            let unreferenced = |ino: &Ino| !store.inodes.open_files().is_referenced(*ino);
            let members = orphans_of(store, list)?;
            members
                .into_iter()
                .filter(unreferenced)
                .for_each(|ino| store.inodes.removals().push(Job::Orphan(ino)));
            Ok(())
        }
        Job::Intents(ino) => clear_intent(store, wait, ino, WHOLE_FILE),
        Job::Orphan(ino) => reclaim_orphan(store, ino, wait, usize::MAX),
    }
}

/// Back-pressure on operations that make orphans: removes pieces of an orphan while too many wait. Waits for
/// no device. Called without locks.
pub(crate) fn help_reclaim(store: &Store) {
    if store.inodes.removals().backlog() <= MOST_WAITING
        || store.mode.read_only
        || store.persistent.wal().is_stopped()
    {
        return;
    }
    let now_ns = store.clock.monotonic_ns();
    let Some((ino, task)) = store.inodes.removals().take_orphan() else { return };
    let done = reclaim_orphan(store, ino, Wait::Never, HELPED_PIECES);
    reclaim_done(store, task, done, Wait::Never, now_ns);
}

/// Does a job; a failed job is put back.
pub(crate) fn reclaim_task(store: &Store, task: Task, wait: Wait, now_ns: u64) {
    let done = reclaim_job(store, task.job, wait);
    reclaim_done(store, task, done, wait, now_ns);
}

/// For an operation after a failed search for space: removes pieces of an orphan, or waits for the threads that do and for
/// references that the kernel is about to give back. True if there may be more space now. `seen` is the number of jobs that
/// had ended when the search began: a job that ended since may have freed space. Called without locks.
///
/// # Errors
/// `WouldBlock`.
pub fn reclaim_for_space(store: &Store, seen: u64, wait: Wait) -> FsResult<bool> {
    if store.mode.read_only || store.persistent.wal().is_stopped() {
        return Ok(false);
    }
    // Before the queue: the job of an orphan ends after the orphan has left its list.
    let is_left_behind = is_orphan_left_behind(store);
    if let Some((ino, task)) = store.inodes.removals().take_orphan() {
        let done = reclaim_orphan(store, ino, wait, HELPED_PIECES);
        let is_done = done.is_ok();
        reclaim_done(store, task, done, wait, store.clock.monotonic_ns());
        return Ok(is_done);
    }
    // The order matters: a job that ends between the two looks is counted by the second.
    let is_at_work = store.inodes.removals().is_at_work();
    if store.inodes.removals().ended_so_far() != seen {
        return Ok(true);
    }
    if !is_at_work && !is_left_behind {
        return Ok(false);
    }
    if wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    store.pressure.wait_round(Duration::from_millis(10));
    Ok(true)
}

/// Whether the last reference to an orphan may be about to be given back: FORGET comes some milliseconds after the unlink that
/// it belongs to, and RELEASE after the close.
fn is_orphan_left_behind(store: &Store) -> bool {
    store.inodes.removals().was_left_behind_lately(store.clock.monotonic_ns())
        && (0..ORPHAN_LISTS).any(|list| has_orphans(store, list))
}

fn reclaim_done(store: &Store, task: Task, done: FsResult<()>, wait: Wait, now_ns: u64) {
    match done {
        Ok(()) | Err(FsError::Stale) => {}
        Err(FsError::WouldBlock) if wait == Wait::Never => store.inodes.removals().hand_over(task, now_ns),
        Err(error) => {
            tracing::warn!("reclaiming, {:?}: {error}; tried again later", task.job);
            store.inodes.removals().retry(task, now_ns);
        }
    }
    store.inodes.removals().ended();
}

/// Removes an orphan: its content in pieces, then the catalog keys, at last the inode slot. Does nothing to
/// an inode that has a reference or is no orphan. An orphan with content left after `most` pieces is queued
/// again.
fn reclaim_orphan(store: &Store, ino: Ino, wait: Wait, most: usize) -> FsResult<()> {
    let mut op = Op::reclaiming(wait);
    let mut pieces = 0;
    while run_attempts(store, &mut op, large_record(store), |reservation, op| {
        let _guard = store.inodes.locks().write(ino);
        let inode = load_any(store, ino)?;
        if !inode.slot.has(flag::ORPHAN)
            || inode.slot.is_free()
            || store.inodes.open_files().is_referenced(ino)
        {
            return Ok(false);
        }
        forget_dirty(store, &inode);
        reclaim_piece(store, op, reservation, &inode)
    })? {
        interleave::point("reclaim:between-pieces");
        pieces += 1;
        if pieces >= most {
            store.inodes.removals().push(Job::Orphan(ino));
            break;
        }
    }
    Ok(())
}

fn reclaim_piece(
    store: &Store,
    op: &Op,
    reservation: terrace_wal::Reservation<'_>,
    inode: &Inode,
) -> Attempt<bool> {
    let mut staged = Staged::new(store, None, false);
    let piece = next_piece(store, op, inode, WHOLE_FILE)?;
    let mut shards = lock_piece(store, inode.ino, &piece);
    stage_piece(store, inode, &piece, &mut shards, &mut staged)?;
    let keys = match piece.complete && piece.is_empty() {
        true => {
            // A crash between node transactions can leave empty map nodes.
            stage_prune(store, inode, WHOLE_FILE, reservation.bytes() / 2, &mut staged)?
                || stage_key_removal(store, inode, &mut shards, &mut staged)?
        }
        false => true,
    };
    staged.unlink_emptied(&mut shards)?;
    if keys {
        let mut slot = inode.slot;
        slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        return Ok(true);
    }
    // Nothing is left but the slot: it becomes free in the same transaction as the last change.
    begin_free(store, inode.ino);
    let _list = lock_orphans(store, inode.ino);
    let freed = unlink_orphan(store, &mut staged.tx, inode)
        .map(|()| log_freed_slot(&mut staged, inode))
        .and_then(|()| staged.commit(reservation));
    end_free(store, inode.ino, freed.is_ok());
    freed.map(|_| false)
}

/// Removes some catalog keys of an inode; true if a key was removed.
fn stage_key_removal(
    _store: &Store,
    inode: &Inode,
    shards: &mut terrace_catalog::ShardsWrite<'_>,
    staged: &mut Staged<'_>,
) -> Attempt<bool> {
    let mut keys = Vec::new();
    for kind in [Kind::Xattr, Kind::Symlink, Kind::Intent] {
        let from = terrace_format::keys::Key::new(inode.ino.0, kind, &[]);
        let prefix = from.0.clone();
        shards.reader(&staged.tx).scan(&from, &prefix, |key, _| {
            keys.push(terrace_format::keys::Key(key.to_vec()));
            if keys.len() < KEYS_PER_PIECE {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            }
        })?;
    }
    keys.truncate(KEYS_PER_PIECE);
    for key in &keys {
        shards.remove(&mut staged.tx, key)?;
    }
    Ok(!keys.is_empty())
}

/// True when an inode has nothing but its slot, so that it can be freed at once.
pub(crate) fn is_bare(store: &Store, ino: Ino, slot: &InodeSlot) -> bool {
    let keys = flag::HAS_XATTR | flag::HAS_COLD | flag::HAS_INTENT | flag::HAS_SYMLINK;
    slot.flags.get() & keys == 0 && store.persistent.map().is_empty(ino, slot)
}
