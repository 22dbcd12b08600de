//! Read-dominated files: whether a file's blocks belong into DRAM.

use crate::store::Store;
use crate::types::inode::Inode;
use terrace_placement::Idle;

/// Whether a file's blocks are better in DRAM than in PM: read-dominated, and PM does not idle.
pub fn belongs_in_dram(store: &Store, inode: &Inode) -> bool {
    store.steering.data_flows().idle() != Idle::Pm && is_read_dominated(store, inode)
}

/// Whether it was read more than twice over since it was last written ([TPFS] read frequency).
pub fn is_read_dominated(store: &Store, inode: &Inode) -> bool {
    let file = || store.steering.file_histories().get(inode.ino, inode.slot.generation.get());
    store.steering.policy().follows_reads()
        && file().is_some_and(|file| {
            file.reads().is_dominated(inode.size(), store.steering.parameters().read_times)
        })
}
