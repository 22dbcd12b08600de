//! The short way of the commonest write: one whole block, placed in PM, nothing in the way.
//!
//! The same transaction as the general way in write_pm.rs makes, arranged for the processor: it is made before the
//! data is streamed, and between the stream and the fence there is no lock and no locked instruction, because
//! each would wait for the stream; so data and record are on their way together.

use crate::content::write_pm::USER;
use terrace_blocks::Target;
use terrace_format::inode::flag;
use terrace_format::table::{DataChecksum, Owner};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmBlock};
use terrace_map::file_map::MapGuard;
use terrace_map::{Cursor, Mapping};
use terrace_placement::Home;
use terrace_store::change::give_back::give_back_unless_named;
use terrace_store::change::staged::kill_set_id;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::capability::has_capability;
use terrace_store::inode::load::load_regular;
use terrace_store::inode::slot::{check_owner, log_size_and_times, log_slot, wall_now};
use terrace_store::steering::choose_home::{home_of, is_lazy};
use terrace_store::steering::learn::{note_lines, note_write};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::segment::Segment;
use terrace_store::types::{BlockRange, WriteFlags};
use terrace_wal::{Error, NoSpace, Tx};

/// Record room beside the map's: header, data check, slot (three runs of words), two table entries.
const RECORD: usize = 496;

/// The result of the short way of a write.
pub enum WholeBlock {
    /// The write is in PM.
    Written,
    /// No change was made: the write takes the general way. Its home was decided.
    Redirect(Home),
    /// No change was made, and the home of the write was not decided.
    NotTried,
}

/// Writes one block, unless the general way has to be taken.
#[inline]
pub(crate) fn write_whole_block(
    store: &Store,
    ino: Ino,
    block: FileBlock,
    data: &[u8],
    flags: WriteFlags,
) -> FsResult<WholeBlock> {
    if store.mode.read_only || store.mode.data_ordered {
        return Ok(WholeBlock::NotTried);
    }
    let mut claim = match store.persistent.blocks().claim(1, USER) {
        Err(Error::NoSpace(NoSpace::Pm)) => return Ok(WholeBlock::NotTried),
        claim => claim?,
    };
    let guard = store.inodes.locks().write(ino);
    let inode = match load_regular(store, ino) {
        Err(FsError::Engine(Error::PageBelow(_))) => return Ok(WholeBlock::NotTried),
        inode => inode?,
    };
    if flags.kill_set_id {
        match has_capability(store, &inode) {
            Ok(false) => {}
            Ok(true) | Err(FsError::Engine(Error::PageBelow(_))) => {
                claim.give_back_all();
                return Ok(WholeBlock::NotTried);
            }
            Err(error) => return Err(error),
        }
    }
    let segment = Segment { offset: block.0 * BLOCK_SIZE, length: BLOCK_SIZE, data: Some(data) };
    let home = home_of(store, &inode, &segment, flags);
    if home == Home::Block || inode.pending.is_some() || is_lazy(store, &inode, block, flags) {
        claim.give_back_all();
        return Ok(WholeBlock::Redirect(home));
    }
    let Some(new) = claim.take(Target::File { ino, block }) else {
        claim.give_back_all();
        return Ok(WholeBlock::NotTried);
    };
    let mut tx = Tx::new();
    let mut map_guard = MapGuard::default();
    let old = match stage_whole_block(store, (&guard, &mut map_guard), &mut tx, &inode, block, new) {
        Ok(Some(old)) => old,
        other => {
            drop(map_guard);
            claim.give_back_all();
            return other.map(|_| WholeBlock::Redirect(home));
        }
    };
    let keep_old = || old.iter().for_each(|old| store.persistent.blocks().keep(*old));
    log_whole_block(store, &mut tx, &inode, block, new, old, flags);
    let open = store
        .persistent
        .wal()
        .try_begin(RECORD + store.persistent.map().record().bytes(1, 1))
        .inspect_err(|_| keep_old())?;
    let Some(open) = open else {
        keep_old();
        claim.give_back_all();
        return Ok(WholeBlock::Redirect(home));
    };
    let due = open.is_due();
    // From here to the fence no lock and no locked instruction.
    match open.stream_named(&mut tx, new.offset(), data) {
        Ok(crc) if store.mode.has_checksums => {
            let owner = Owner::File { ino: inode.ino, block, unwritten: false };
            store.persistent.blocks().set_checksum(
                &mut tx,
                new,
                owner,
                DataChecksum::from_crc(data.len(), crc),
            );
        }
        Ok(_) => {}
        Err(error) => {
            // The new block stays taken: it cannot be stored to.
            keep_old();
            return Err(error.into());
        }
    }
    let committed = open.commit(&tx);
    map_guard.ended(&committed, store.persistent.wal().is_stopped());
    let lsn = committed.inspect_err(|_| give_back_unless_named(store, keep_old))?;
    if let Some(old) = old {
        store.persistent.blocks().freed(lsn, &[old]);
    }
    if let Some(tick) = store.steering.stamp() {
        store.persistent.blocks().descriptor(new).touch_written(tick);
    }
    note_write(store, &inode, BlockRange::new(block, block.plus(1)), BLOCK_SIZE, flags);
    note_lines(store, &inode, &segment, flags, true);
    drop(guard);
    store.devices.io().pm.write(data.len());
    if due {
        store.persistent.wal().checkpoint_if_idle()?;
    }
    Ok(WholeBlock::Written)
}

/// Stages the map word, and the quarantine of the replaced block. `None`, without a change, if the write
/// concerns more than the block itself: an intent, a cold block that becomes shadowed, a tail of an old last
/// block to clear, or a map node to add.
#[inline]
fn stage_whole_block<'s>(
    store: &'s Store,
    (cursor, guard): (&Cursor, &mut MapGuard<'s>),
    tx: &mut Tx,
    inode: &Inode,
    block: FileBlock,
    new: PmBlock,
) -> FsResult<Option<Option<PmBlock>>> {
    let size = inode.size();
    // Also over a preallocated block past the end (S5).
    let clears_tail = !size.is_multiple_of(BLOCK_SIZE) && block.0 > size / BLOCK_SIZE;
    if inode.slot.has(flag::HAS_INTENT) || clears_tail {
        return Ok(None);
    }
    let (map, mapping) = (store.persistent.map(), Mapping::written(new));
    let Some(old) = map.exchange(Some(cursor), tx, &inode.map(), (block, mapping), guard)? else {
        return Ok(None);
    };
    if old.is_none() && inode.slot.has(flag::HAS_COLD) {
        return Ok(None);
    }
    let old = old.map(|old| old.block);
    if let Some(old) = old {
        check_owner(store, inode, block, old)?;
        store.persistent.blocks().quarantine_for(old, new);
    }
    Ok(Some(old))
}

/// The rest of the transaction: size, times and owners.
#[inline]
fn log_whole_block(
    store: &Store,
    tx: &mut Tx,
    inode: &Inode,
    block: FileBlock,
    new: PmBlock,
    old: Option<PmBlock>,
    flags: WriteFlags,
) {
    let size = inode.size().max((block.0 + 1) * BLOCK_SIZE);
    let blocks = inode.slot.blocks.get() + u64::from(old.is_none());
    let now = wall_now(store);
    if flags.kill_set_id {
        let mut slot = inode.slot;
        (slot.size, slot.blocks) = (size.into(), blocks.into());
        (slot.mtime, slot.ctime) = (now.into(), now.into());
        kill_set_id(&mut slot);
        log_slot(tx, inode.place, &inode.slot, &slot);
    } else {
        log_size_and_times(tx, inode.place, size, blocks, now);
    }
    if !store.mode.has_checksums {
        store.persistent.blocks().set_owner(tx, new, Owner::File { ino: inode.ino, block, unwritten: false });
    }
    if let Some(old) = old {
        store.persistent.blocks().set_owner(tx, old, Owner::Free);
    }
}
