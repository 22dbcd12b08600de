//! Pins: a file or directory is kept on a tier (`terrace pin`).
//!
//! A pin is an extended attribute in a namespace of the file system's own: users can neither set nor read nor
//! list it (`xattr.rs` knows only the namespaces of users), and it is removed with the inode. A file or
//! directory made in a pinned directory inherits the pin, in the transaction that makes it; a rename changes
//! no pin. Pinned to PM: the policy does not demote a pinned block while pinned blocks take at most half of
//! PM (design P1). A block is recognised when it is picked for the first time, and marked in its volatile
//! descriptor, so that it is not picked again and again; beyond half of PM, and when nothing else can be
//! demoted, the mark does not protect, so that a pin is never a reason for ENOSPC (I9). Pinned to a lower
//! tier: writes go to PM as usual, and are demoted to the pinned tier soon (`migration/sweep.rs`).

use terrace_catalog::xattr;
use terrace_catalog::xattr::SetMode;
use terrace_catalog::{Edit, ShardsWrite};
use terrace_format::Ino;
use terrace_format::address::ROOT_INO;
use terrace_format::inode::{InodeSlot, flag};
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, log_slot};
use terrace_store::inode::tier_pin::{PIN, SWEPT, are_pins_below};
use terrace_store::operation::need::{Attempt, Fail, Need};
use terrace_store::operation::op::Op;
use terrace_store::parts::inodes::tier_pins::SOME;
use terrace_store::store::Store;
use terrace_store::types::Wait;

/// Adds a pin to the transaction that makes an inode. The caller holds the shard of its number.
pub(crate) fn stage_pin(
    _store: &Store,
    shards: &mut ShardsWrite<'_>,
    staged: &mut Staged<'_>,
    ino: Ino,
    slot: &mut InodeSlot,
    tier: u8,
) -> Result<(), Edit> {
    xattr::set(shards, &mut staged.tx, ino, PIN, &[tier], SetMode::Any, 1)?;
    slot.flags = (slot.flags.get() | flag::HAS_XATTR).into();
    Ok(())
}

/// The puts of [`stage_pin`], for making room.
pub(crate) fn pin_puts(ino: Ino) -> Vec<(terrace_format::keys::Key, usize)> {
    xattr::set_puts(ino, PIN, 1)
}

/// Pins one inode, or takes its pin away.
///
/// # Errors
/// ESTALE, EROFS, ENOSPC, EIO.
pub fn set_pin(store: &Store, ino: Ino, generation: u32, tier: Option<u8>) -> FsResult<()> {
    if tier.is_some_and(|tier| tier > 0) {
        note_pins_below(store)?;
    }
    let value = tier.map(|tier| [tier]);
    change_own(store, ino, Some(generation), PIN, value.as_ref().map(|value| &value[..]))?;
    store.inodes.tier_pins().changed.store(true, Ordering::Release);
    Ok(())
}

/// Sets or removes one of the file system's own attributes. What users see of the inode does not change.
fn change_own(
    store: &Store,
    ino: Ino,
    generation: Option<u32>,
    name: &[u8],
    value: Option<&[u8]>,
) -> FsResult<()> {
    let mut op = if value.is_some() { Op::new(Wait::Allowed) } else { Op::reclaiming(Wait::Allowed) };
    run_attempts(store, &mut op, large_record(store), |reservation, _op| -> Attempt<()> {
        let _guard = store.inodes.locks().write(ino);
        let inode = load(store, ino)?;
        if generation.is_some_and(|generation| generation != inode.slot.generation.get()) {
            return Err(FsError::Stale.into());
        }
        let mut shards = store.persistent.catalog().write(&[store.persistent.catalog().shard_of(ino.0)]);
        let mut staged = Staged::new(store, None, false);
        match value {
            Some(value) => {
                store.persistent.blocks().probe()?;
                xattr::set(&mut shards, &mut staged.tx, ino, name, value, SetMode::Any, value.len())
                    .map_err(|edit| match edit {
                        Edit::Full(_) => Need::CatalogRooms(xattr::set_puts(ino, name, value.len())).into(),
                        other => Fail::from(other),
                    })?;
            }
            None => {
                let there = inode.slot.has(flag::HAS_XATTR);
                if !there || !xattr::remove(&mut shards, &mut staged.tx, ino, name)? {
                    return Ok(());
                }
            }
        }
        staged.unlink_emptied(&mut shards)?;
        let mut slot = inode.slot;
        slot.flags = (slot.flags.get() | flag::HAS_XATTR).into();
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        Ok(())
    })
}

/// Notes, before the first such pin, that files may be pinned to a lower tier.
fn note_pins_below(store: &Store) -> FsResult<()> {
    if are_pins_below(store)? {
        return Ok(());
    }
    change_own(store, ROOT_INO, None, SWEPT, Some(&[1]))?;
    store.inodes.tier_pins().below.store(SOME, Ordering::Release);
    Ok(())
}
