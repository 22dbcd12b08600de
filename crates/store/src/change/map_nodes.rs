//! Map nodes for a range, added by transactions of their own (T7).

use crate::error::FsResult;
use crate::inode::slot::load;
use crate::operation::op::{Op, SMALL_RECORD};
use crate::store::Store;
use terrace_format::{FileBlock, Ino};

/// Adds the map nodes below a range, as transactions of their own.
pub fn add_map_nodes(store: &Store, op: &Op, ino: Ino, first: FileBlock, count: u64) -> FsResult<()> {
    loop {
        let reservation =
            store.persistent.wal().reserve(SMALL_RECORD.min(store.persistent.wal().max_record()))?;
        let mut claim = store.persistent.blocks().claim(6, op.purpose)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = load(store, ino)?;
        let missing = store.persistent.map().missing_nodes(&inode.map(), first, count as usize)?;
        if missing == 0 {
            return Ok(());
        }
        let mut tx = terrace_wal::Tx::new();
        if let Err(error) =
            store.persistent.map().add_nodes(&mut tx, &inode.map(), first, count as usize, &mut claim)
        {
            claim.give_back_all();
            return Err(error.into());
        }
        // After a failure the nodes stay taken: the record may be valid.
        store.persistent.wal().commit(reservation, &tx)?;
    }
}
