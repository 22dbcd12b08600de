//! Changes of the file map, collected while a change is staged and logged by its commit.
//!
//! Invariant: the map is asked once in a transaction, after all work on the catalog: it may lock what inodes share (L1).

use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::inode::Inode;
use smallvec::SmallVec;
use terrace_format::{FileBlock, PmBlock};
use terrace_map::Mapping;
use terrace_map::file_map::{Freed, MapChange, MapGuard};
use terrace_wal::{Error, Tx};

/// The changes of the map in a transaction.
#[derive(Default)]
pub(crate) struct MapChanges {
    changes: SmallVec<[MapChange; 1]>,
}

impl MapChanges {
    /// Maps consecutive blocks from `first` on; `None` clears.
    pub(crate) fn push(
        &mut self,
        store: &Store,
        inode: &Inode,
        first: FileBlock,
        mappings: impl IntoIterator<Item = Option<Mapping>>,
    ) -> Attempt<()> {
        let change = MapChange { inode: inode.map(), first, mappings: mappings.into_iter().collect() };
        debug_assert!(!change.mappings.is_empty(), "a change of no block of inode {}", inode.ino);
        if let Some(room) = store.persistent.map().missing_room(&self.changes, &change)? {
            return Err(Error::from(room).into());
        }
        self.changes.push(change);
        Ok(())
    }

    /// Logs the changes, and frees emptied pages of the map as far as a record of `limit` bytes has room.
    pub(crate) fn log<'s>(
        &self,
        store: &'s Store,
        tx: &mut Tx,
        limit: usize,
        released: &mut SmallVec<[PmBlock; 8]>,
    ) -> Attempt<MapGuard<'s>> {
        if self.changes.is_empty() {
            return Ok(MapGuard::default());
        }
        let is_locked = |change: &MapChange| store.inodes.locks().is_exclusive(change.inode.ino);
        debug_assert!(self.changes.iter().all(is_locked), "the map of an inode is changed unlocked (T2)");
        let mut freed = Freed::new();
        let before = tx.record_size();
        let map = store.persistent.map();
        let logged = map.change(tx, &self.changes, limit, &mut freed);
        released.extend(freed);
        let guard = logged?;
        let blocks = self.changes.iter().map(|change| change.mappings.len()).sum();
        let grown = tx.record_size() - before;
        assert!(
            grown <= map.record().bytes(self.changes.len(), blocks) || tx.record_size() <= limit,
            "a change of the map grows a record by {grown} bytes (T7)"
        );
        Ok(guard)
    }
}
