//! The short way of the commonest write: one whole block, placed in PM, nothing in the way.
//!
//! The same transaction as the general way in write.rs makes, arranged for the processor: every lock and
//! every locked instruction comes before the data is streamed or after the fence, because each would wait for
//! the stream. Between them the transaction is computed while the data is on its way.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::slot::{Inode, log_slot};
use crate::types::WriteFlags;
use crate::write::{USER, kill_set_id};
use std::sync::atomic::Ordering;
use terrace_format::checksum::crc32c;
use terrace_format::inode::flag;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, Lsn, PmBlock};
use terrace_map::Mapping;
use terrace_wal::{Error, NoSpace, Open, Tx};

/// Record room: header, data check, slot (three runs of words), map word, two table entries.
const RECORD: usize = 512;

impl Fs {
    /// Writes one block; false, with nothing changed, when the general way has to be taken.
    pub(crate) fn write_whole_block(
        &self,
        ino: Ino,
        block: FileBlock,
        data: &[u8],
        flags: WriteFlags,
    ) -> FsResult<bool> {
        if self.read_only || self.data_ordered {
            return Ok(false);
        }
        let reservation = self.wal.reserve(RECORD)?;
        let mut claim = match self.blocks.claim(1, USER) {
            Err(Error::NoSpace(NoSpace::Pm)) => return Ok(false),
            claim => claim?,
        };
        let _guard = self.locks.write(ino);
        let inode = self.load_regular(ino)?;
        let old = self.map.lookup(None, &inode.map(), block)?;
        if !self.is_simple(&inode, block, old)? {
            return Ok(false);
        }
        let new = claim.take().ok_or(FsError::Engine(NoSpace::Pm.into()))?;
        if let Some(old) = old {
            self.blocks.quarantine(old.block);
        }
        let done = self
            .wal
            .begin(reservation)
            .map_err(FsError::from)
            .and_then(|open| self.commit_block(open, &inode, block, data, flags, old, new));
        match done {
            Ok(lsn) => {
                if let Some(old) = old {
                    self.blocks.freed(lsn, &[old.block]);
                }
                self.blocks.descriptor(new).touch(self.tick.load(Ordering::Relaxed));
                Ok(true)
            }
            // A record that failed on the way may be valid: its blocks must not be handed out again.
            Err(error) if self.wal.is_stopped() => Err(error),
            Err(error) => {
                if let Some(old) = old {
                    self.blocks.keep(old.block);
                }
                claim.give_back_all();
                Err(error)
            }
        }
    }

    /// Whether nothing but the block itself is concerned: no intent, no cold block that becomes shadowed, no tail
    /// of an old last block to clear, no map node to add.
    fn is_simple(&self, inode: &Inode, block: FileBlock, old: Option<Mapping>) -> FsResult<bool> {
        let size = inode.size();
        // Also over a preallocated block past the end (S5).
        let clears_tail = !size.is_multiple_of(BLOCK_SIZE) && block.0 > size / BLOCK_SIZE;
        if inode.slot.has(flag::HAS_INTENT) || clears_tail {
            return Ok(false);
        }
        if old.is_some() {
            return Ok(true);
        }
        Ok(!inode.slot.has(flag::HAS_COLD) && self.map.missing_nodes(&inode.map(), block, 1)? == 0)
    }

    #[allow(clippy::too_many_arguments)] // one step of `write_whole_block`, split off for its failures
    fn commit_block(
        &self,
        open: Open<'_>,
        inode: &Inode,
        block: FileBlock,
        data: &[u8],
        flags: WriteFlags,
        old: Option<Mapping>,
        new: PmBlock,
    ) -> FsResult<Lsn> {
        open.stream(new.offset(), data)?;
        let mut tx = Tx::new();
        tx.name_data(new.offset(), data.len() as u32, crc32c(data));
        if let Some(old) = old {
            self.blocks.set_owner(&mut tx, old.block, Owner::Free);
        }
        self.map.set(&mut tx, &inode.map(), block, &[Some(Mapping::written(new))])?;
        let mut slot = inode.slot;
        let now = self.now();
        slot.mtime = now.into();
        slot.ctime = now.into();
        slot.size = inode.size().max((block.0 + 1) * BLOCK_SIZE).into();
        slot.blocks = (slot.blocks.get() + u64::from(old.is_none())).into();
        if flags.kill_set_id {
            kill_set_id(&mut slot);
        }
        log_slot(&mut tx, inode.place, &inode.slot, &slot);
        self.blocks.set_owner(&mut tx, new, Owner::File { ino: inode.ino, block, unwritten: false });
        Ok(open.commit(&tx)?)
    }
}
