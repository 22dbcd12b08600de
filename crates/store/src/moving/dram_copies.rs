//! Copies of read-dominated blocks that stay in DRAM when the blocks are demoted ([TPFS] section 5.3).

use crate::moving::candidate::Copied;
use crate::steering::read_dominated::is_read_dominated;
use crate::store::Store;
use crate::types::inode::Inode;
use smallvec::SmallVec;
use terrace_cache::Page;
use terrace_format::checksum::crc32c;
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_media::block::AlignedBlock;

/// Not worth moving for fewer.
pub const LEAST: u64 = 16;

/// A copy of a block that leaves PM.
pub struct Copy {
    block: FileBlock,
    page: Page,
    /// The copy replaces an older page.
    renews: bool,
}

/// Blocks of which a copy may stay in DRAM: until half of the cache is in use.
pub fn room_for_copies(store: &Store) -> u64 {
    (store.dram.cache().budget_bytes() / 2).saturating_sub(store.dram.cache().bytes()) / BLOCK_SIZE
}

/// Whether DRAM has a requested clean page of each block that is about to be installed. Called before the
/// versions of the blocks change; the caller holds the inode lock.
pub(crate) fn held_in_dram<'b, 'c: 'b>(
    store: &Store,
    inode: &Inode,
    part: impl Iterator<Item = &'b Copied<'c>>,
) -> SmallVec<[bool; 32]> {
    let any = store.dram.cache().bytes() > 0;
    let version = |block| store.dram.cold_versions().get(inode.ino, block);
    let held = |block| any && store.dram.cache().holds(inode.page_key(block), version(block));
    part.map(|copied| held(copied.candidate.block)).collect()
}

/// Clean pages for blocks that are about to be installed: for blocks that DRAM `held` a requested clean page
/// of, and for all blocks if the file is read-dominated and half of the cache is free. The choice must not
/// depend on whether PM is idle now: blocks demoted without a clean page at an idle moment were read from the
/// device ever after. The caller holds the inode lock.
pub(crate) fn copies_for_dram<'b, 'c: 'b>(
    store: &Store,
    inode: &Inode,
    part: impl Iterator<Item = &'b Copied<'c>>,
    held: &[bool],
) -> Vec<Copy> {
    let mut room = room_for_copies(store);
    if room == 0 || !is_read_dominated(store, inode) {
        room = 0;
    } else {
        store
            .dram
            .kept_copies()
            .wanted(store.clock.monotonic_ns().saturating_sub(store.steering.mounted_ns()));
    }
    let copy = |(copied, held): (&Copied<'c>, &bool)| {
        if !held {
            room = room.checked_sub(1)?;
        }
        let mut block = AlignedBlock::zeroed();
        store.persistent.pm().read(copied.candidate.pm.offset(), &mut block.0).ok()?;
        // A partial shadow was merged with its cold copy for the demotion, so its PM block is not the demoted
        // content.
        let same = copied.location.copy().is_some_and(|copy| crc32c(&block.0) == copy.get().crc);
        let page = same.then(|| Page::copy(&block.0))?;
        Some(Copy { block: copied.candidate.block, page, renews: *held })
    };
    part.zip(held).filter_map(copy).collect()
}

/// Keeps the copies in DRAM, once their extent is installed. The caller still holds the inode lock.
pub(crate) fn keep_copies(store: &Store, inode: &Inode, copies: Vec<Copy>) {
    let now = store.clock.monotonic_ns();
    for Copy { block, page, renews } in copies {
        let (key, version) = (inode.page_key(block), store.dram.cold_versions().get(inode.ino, block));
        if renews {
            store.dram.cache().renew(key, version, page);
        } else {
            store.dram.kept_copies().note_kept();
            store.dram.cache().insert(key, version, page, true, now);
        }
    }
}
