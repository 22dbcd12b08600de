//! Writes (design 5): new blocks by streaming stores, a single transaction for map, block table, size and
//! times, with a single fence.
//!
//! `data=atomic`: every written block is a new one, so a request is all or nothing (I4). The exception stores
//! bytes past the end of the file into its last block in place: no reader sees them before the record raises
//! the size. `data=ordered`: blocks that exist are overwritten in place. T4: up to [`CHECKED_BYTES`] of new
//! data are named by checksum and share the record's fence; more gets a fence of its own, which is cheaper
//! than the checksums.

use smallvec::SmallVec;
use terrace_blocks::Purpose;
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_map::Mapping;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::run::run_attempts;
use terrace_store::change::finish::finish_change;
use terrace_store::change::record_room::{atomic_blocks, record_of};
use terrace_store::change::stage_block::stage;
use terrace_store::change::staged::{CHECKED_BYTES, Staged, kill_set_id};
use terrace_store::change::tail::stage_tail_zeros;
use terrace_store::error::{FsError, FsResult, final_no_space};
use terrace_store::inode::capability::expect_no_capability;
use terrace_store::inode::load::load_regular;
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::{Op, SMALL_RECORD};
use terrace_store::steering::learn::{note_lines, note_write};
use terrace_store::store::Store;
use terrace_store::types::segment::Segment;
use terrace_store::types::{BlockRange, Wait, WriteFlags};
use terrace_wal::Error;

/// Writes into PM; gives the bytes written, and why the rest was not.
pub(crate) fn write_pm(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<(usize, Rest)> {
    let mut op = Op { may_overwrite: true, ..Op::new(wait) };
    let mut at = offset;
    let mut rest = data;
    let mut why = Rest::Done;
    let mut most = atomic_blocks(store);
    while !rest.is_empty() {
        let room = (most * BLOCK_SIZE - at % BLOCK_SIZE) as usize;
        let (piece, tail) = rest.split_at(rest.len().min(room));
        if at != offset {
            interleave::point("write:between-pieces");
        }
        let segment = Segment { offset: at, length: piece.len() as u64, data: Some(piece) };
        match write_piece(store, &mut op, ino, segment, flags) {
            Ok(true) => {}
            Ok(false) => {
                why = Rest::DirtyBytesBefore;
                break;
            }
            // The kernel would drop all of these pages for the error.
            Err(FsError::Engine(Error::NoSpace(_))) if flags.pages && segment.blocks().count() > 1 => {
                most = segment.blocks().count().div_ceil(2);
                continue;
            }
            // Earlier pieces are in the file, so the call returns their length and drops the error.
            Err(_) if at != offset => break,
            Err(error) => return Err(error),
        }
        at += piece.len() as u64;
        rest = tail;
    }
    Ok((data.len() - rest.len(), why))
}

/// Writes a piece into PM; false, changing nothing, when bytes that are only in DRAM lie between the durable end and
/// its own: a crash would leave a hole (C28). Asked under the lock: others may have written since its home was chosen.
fn write_piece(
    store: &Store,
    op: &mut Op,
    ino: Ino,
    segment: Segment<'_>,
    flags: WriteFlags,
) -> FsResult<bool> {
    let blocks = segment.blocks().count() as usize;
    let record = record_of(store, blocks).max(SMALL_RECORD);
    let mut first_seen = None;
    run_attempts(store, op, record, |reservation, op| {
        let overwrites = op.purpose == Purpose::Overwrite;
        let wanted = if overwrites { blocks_to_claim(store, ino, segment.blocks())? } else { blocks };
        if overwrites && (wanted + op.extra_blocks) as u64 > store.persistent.blocks().share(op.purpose) {
            // There is never room for all of it at once, and a part would be half a request (C13).
            return Err(op.refused.take().unwrap_or_else(final_no_space).into());
        }
        // The old last block, whose tail may have to become zeros, rarely needs one more.
        let claim = store.persistent.blocks().claim(wanted + op.extra_blocks, op.purpose)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = load_regular(store, ino)?;
        if flags.kill_set_id {
            expect_no_capability(store, &inode)?;
        }
        let seen = *first_seen.get_or_insert(inode.durable_size());
        let mut staged = Staged::new(store, Some(claim), segment.length <= CHECKED_BYTES);
        let end = segment.offset + segment.length;
        if !flags.sync && inode.size() > inode.durable_size() && end > inode.durable_size() {
            return Ok(false);
        }
        stage_tail_zeros(store, op, &inode, segment.offset, &mut staged)?;
        stage(store, op, &inode, segment, &mut staged)?;
        let mut slot = inode.slot;
        let size = if planted(Mistake::SizeFromBeforeTheWait) { seen } else { inode.durable_size() };
        slot.size = size.max(end).max(staged.absorbed_end(&inode)).into();
        if flags.kill_set_id {
            kill_set_id(&mut slot);
        }
        finish_change(store, reservation, &inode, slot, staged)?;
        note_write(store, &inode, segment.blocks(), segment.length, flags);
        note_lines(store, &inode, &segment, flags, true);
        Ok(true)
    })
}

/// Blocks that a write to a range needs on a full pool: those that are laid out in PM are written where they are, and
/// under data=ordered so are all that PM has.
fn blocks_to_claim(store: &Store, ino: Ino, range: BlockRange) -> Attempt<usize> {
    let _guard = store.inodes.locks().read(ino);
    let inode = load_regular(store, ino)?;
    let mut mappings: SmallVec<[Option<Mapping>; 8]> = SmallVec::from_elem(None, range.count() as usize);
    store.persistent.map().lookup_run(&inode.map(), range.first, &mut mappings)?;
    let stays = |mapping: &Mapping| mapping.unwritten || store.mode.data_ordered;
    Ok(mappings.iter().filter(|mapping| !mapping.as_ref().is_some_and(stays)).count())
}

/// Why a write into PM ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// The whole write is done, or the caller tries the failed rest again.
    Done,
    /// The rest lies behind dirty pages past the durable end, and must not become durable before them.
    DirtyBytesBefore,
}

/// The purpose of claims for user data.
pub(crate) const USER: Purpose = Purpose::User;
