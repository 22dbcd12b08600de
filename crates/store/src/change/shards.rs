//! Catalog shards that a change locks, and device blocks that it frees.

use crate::change::staged::Staged;
use crate::operation::need::Attempt;
use crate::store::Store;
use smallvec::SmallVec;
use terrace_catalog::{DeviceRun, ShardsWrite, chunks};
use terrace_format::Ino;

/// Locks the shards of an inode and of the chunks of device runs.
pub fn lock_shards(store: &Store, ino: Ino, runs: impl IntoIterator<Item = DeviceRun>) -> ShardsWrite<'_> {
    let mut shards: SmallVec<[u32; 8]> = SmallVec::new();
    shards.push(store.persistent.catalog().shard_of(ino.0));
    runs.into_iter().for_each(|run| shards.extend(chunks::shards(store.persistent.catalog(), run)));
    store.persistent.catalog().write(&shards)
}

/// Frees device blocks in this transaction; after the commit the staging hands them to the space map.
pub fn stage_device_free(
    _store: &Store,
    run: DeviceRun,
    shards: &mut ShardsWrite<'_>,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    chunks::mark(shards, &mut staged.tx, run, false)?;
    staged.device_freed.push(run);
    Ok(())
}
