//! Intents of a file: ranges that are gone although their blocks are still there (T7).

use crate::error::FsResult;
use crate::operation::need::{Attempt, Need};
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use terrace_catalog::intent;
use terrace_format::inode::flag;

/// The ranges of an inode that are gone although blocks may still be mapped.
#[inline]
pub fn intents_of(store: &Store, inode: &Inode) -> FsResult<Vec<BlockRange>> {
    if !inode.slot.has(flag::HAS_INTENT) {
        return Ok(Vec::new());
    }
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(inode.ino.0));
    let found = intent::list(shard.reader(), inode.ino)?;
    Ok(found.iter().map(|intent| BlockRange::new(intent.first, intent.end)).collect())
}

/// Fails with a need when an intent overlaps a range that is to be used.
#[inline]
pub fn refuse_intents(store: &Store, inode: &Inode, range: BlockRange) -> Attempt<()> {
    match intents_of(store, inode)?.iter().any(|intent| intent.overlaps(&range)) {
        true => Err(Need::ClearIntent { ino: inode.ino, range }.into()),
        false => Ok(()),
    }
}
