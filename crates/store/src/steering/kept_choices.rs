//! Blocks that syncs made eager, which have no state in the index of dirty blocks: a flag in the descriptor of the PM block, which a
//! new block takes over from the block that it replaces ([HiNFS] section 3.2). Volatile: after a mount every block is lazy.

use crate::inode::slot::load;
use crate::store::Store;
use crate::types::inode::Inode;
use terrace_cache::SyncVerdicts;
use terrace_format::{FileBlock, Ino};

/// Keeps the choices of a sync, and counts those that blocks have again. Called after the sync has given the blocks their places,
/// without locks. A block that cannot be looked up keeps none: it is a hint.
pub fn keep_choices(store: &Store, ino: Ino, eager: &[(FileBlock, bool)]) {
    if eager.is_empty() {
        return;
    }
    let _guard = store.inodes.locks().read(ino);
    let Ok(inode) = load(store, ino) else { return };
    let mut verdicts = SyncVerdicts::default();
    for (block, is_eager) in eager {
        if let Ok(Some(mapping)) = store.persistent.map().lookup(&inode.map(), *block) {
            let descriptor = store.persistent.blocks().descriptor(mapping.block);
            let was_eager = descriptor.is_eager();
            verdicts.again += u64::from(was_eager);
            verdicts.agreed += u64::from(was_eager && *is_eager);
            if was_eager != *is_eager {
                descriptor.set_eager(*is_eager);
            }
        }
    }
    store.dram.lazy_writes().counts().add_choices(ino, &verdicts);
}

/// Whether a block is lazy, by the flag of its PM block; `None`: it is not flagged. For a block without a state in the index. The
/// caller holds the inode's lock.
pub(crate) fn kept_choice(store: &Store, inode: &Inode, block: FileBlock) -> Option<bool> {
    let cache = store.dram.cache();
    // Most mounts have no eager block: nothing is looked up.
    if !cache.has_eager() {
        return None;
    }
    let (now, ages) = (store.clock.monotonic_coarse_ns(), store.dram.lazy_writes().ages());
    let is_synced = cache.is_synced(inode.ino, inode.slot.generation.get(), now, ages)?;
    let mapping = store.persistent.map().lookup(&inode.map(), block).ok()??;
    let is_eager = store.persistent.blocks().descriptor(mapping.block).is_eager();
    is_eager.then_some(!is_synced)
}
