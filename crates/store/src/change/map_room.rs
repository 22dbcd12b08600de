//! Room in the map for a range, made by transactions of their own (T7).

use crate::error::FsResult;
use crate::inode::slot::load;
use crate::operation::op::{Op, SMALL_RECORD};
use crate::store::Store;
use terrace_format::{FileBlock, Ino};

/// Most pages that a transaction adds to a map.
const PAGES: usize = 6;

/// Makes room in the map for a range, in transactions of their own.
pub fn make_map_room(store: &Store, op: &Op, ino: Ino, first: FileBlock, count: u64) -> FsResult<()> {
    loop {
        let reservation =
            store.persistent.wal().reserve(SMALL_RECORD.min(store.persistent.wal().max_record()))?;
        let mut claim = store.persistent.blocks().claim(PAGES, op.purpose)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = load(store, ino)?;
        if store.persistent.map().missing_room(&inode.map(), first, count as usize)?.is_none() {
            return Ok(());
        }
        let mut tx = terrace_wal::Tx::new();
        if let Err(error) =
            store.persistent.map().make_room(&mut tx, &inode.map(), first, count as usize, &mut claim)
        {
            claim.give_back_all();
            return Err(error.into());
        }
        // After a failure the pages stay taken: the record may be valid.
        store.persistent.wal().commit(reservation, &tx)?;
    }
}
