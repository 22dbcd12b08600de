//! PM bytes of files that are pinned to PM.

use crate::migration::Migration;
use std::collections::{HashMap, HashSet};
use terrace_blocks::State;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, Ino, PmBlock};
use terrace_store::error::FsResult;
use terrace_store::inode::tier_pin::pinned;

/// Bytes in PM of files pinned to PM, without the inodes `besides`.
///
/// # Errors
/// EIO.
pub(crate) fn pinned_bytes(migration: &Migration, besides: &HashSet<Ino>) -> FsResult<u64> {
    while migration.store.persistent.blocks().scan_step()? {}
    let (mut known, mut found) = (HashMap::new(), 0);
    for pm in (migration.store.persistent.blocks().first_block().0
        ..migration.store.persistent.blocks().end_block().0)
        .map(PmBlock)
    {
        if migration.store.persistent.blocks().descriptor(pm).state() == State::Used
            && let Ok(Owner::File { ino, .. }) = migration.store.persistent.blocks().owner(pm)
            && !besides.contains(&ino)
        {
            let pin = known.entry(ino).or_insert_with(|| pinned(&migration.store, ino).unwrap_or(None));
            found += u64::from(*pin == Some(0));
        }
    }
    Ok(found * BLOCK_SIZE)
}
