//! The passes over a pool after a mount: each finds a part of the volatile state that a mount does not read.
//!
//! Invariant: a pass waits for no device. The reclaimer does a piece of each pass in turn, in the order of the table,
//! until all are done. Orphan lists wait for removal from the mount on; the pass over inode pages finds intents.

use terrace_store::error::FsResult;
use terrace_store::inode::numbers::scan_inode_page;
use terrace_store::store::Store;

/// A pass.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// The state that it finds, as a sentence.
    pub sentence: &'static str,
    /// Does a piece; false when the pass is done.
    pub(crate) step: fn(&Store) -> FsResult<bool>,
}

/// All passes, in order. A new pass is a row here.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "block-table",
        sentence: "free PM blocks, and metadata pages without a checksum, from the block table",
        step: |store| Ok(store.persistent.blocks().scan_step()?),
    },
    Pass {
        name: "inode-pages",
        sentence: "free inode numbers, and inodes with intents, from the inode file",
        step: |store| scan_inode_page(store, &mut store.inodes.numbers().lock()),
    },
    Pass {
        name: "chunk-bitmaps",
        sentence: "free blocks of lower tiers, from the chunk bitmaps",
        step: |store| Ok(store.devices.space().load_step()?),
    },
];
