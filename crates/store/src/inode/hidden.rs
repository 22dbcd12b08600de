//! Judges whether a file may have blocks in entries of a shared table that cannot be read, where no other table has them:
//! its known blocks are counted against the number in its slot.

use crate::attempt::with_pages::reading;
use crate::error::FsResult;
use crate::inode::slot::load_to_read;
use crate::store::Store;
use crate::types::Wait;
use std::ops::ControlFlow;
use terrace_catalog::cold_map;
use terrace_format::inode::flag;
use terrace_format::{FileBlock, Ino};

/// Judges a file. Called without locks; may wait for metadata pages on lower tiers.
///
/// # Errors
/// ESTALE; EIO.
pub fn judge_hidden(store: &Store, ino: Ino) -> FsResult<()> {
    let Some(hashed) = store.persistent.blocks().hashed() else { return Ok(()) };
    store.persistent.map().learn()?;
    reading(store, Wait::Allowed, || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_to_read(store, ino)?;
        let mut cold = Vec::new();
        if inode.slot.has(flag::HAS_COLD) {
            let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(ino.0));
            cold_map::scan(shard.reader(), ino, FileBlock(0), FileBlock(u64::MAX), |extent| {
                cold.push((extent.first, extent.length));
                ControlFlow::Continue(())
            })?;
        }
        hashed.judge(ino, &inode.slot, &cold);
        Ok(())
    })
}
