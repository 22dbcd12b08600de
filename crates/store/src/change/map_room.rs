//! Room in the map of a file, made by transactions of their own (T7).

use crate::error::FsResult;
use crate::inode::slot::load;
use crate::operation::op::{Op, SMALL_RECORD};
use crate::store::Store;
use terrace_wal::{Error, MapRoom, Tx};

/// Most pages that a transaction adds to a map.
const PAGES: usize = 6;

/// Reads the block table to its end, so that memory knows the blocks of all files.
pub fn scan_table(store: &Store) -> FsResult<()> {
    while store.persistent.blocks().scan_step()? {}
    Ok(())
}

/// Makes room in the map of a file, in transactions of their own. False: nothing was to be made.
pub fn make_map_room(store: &Store, op: &Op, room: &MapRoom) -> FsResult<bool> {
    let mut is_made = false;
    loop {
        let reservation =
            store.persistent.wal().reserve(SMALL_RECORD.min(store.persistent.wal().max_record()))?;
        let mut claim = match store.persistent.blocks().claim(room.pages.min(PAGES), op.purpose) {
            // A page was made, and perhaps it is enough: the operation looks again.
            Err(Error::NoSpace(_)) if is_made => return Ok(true),
            claim => claim?,
        };
        let _guard = store.inodes.locks().write(room.ino);
        let inode = load(store, room.ino)?;
        let mut tx = Tx::new();
        let made = match store.persistent.map().make_room(&mut tx, &inode.map(), room, &mut claim) {
            Ok(made) => made,
            Err(error) => {
                claim.give_back_all();
                return Err(error.into());
            }
        };
        if tx.is_empty() {
            return Ok(is_made);
        }
        // After a failure the pages stay taken: the record may be valid.
        store.persistent.wal().commit(reservation, &tx)?;
        made.committed();
        is_made = true;
    }
}
