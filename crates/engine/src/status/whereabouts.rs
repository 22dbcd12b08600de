//! The locations of the bytes of a file (`terrace where`).

use crate::engine::Engine;
use crate::status::predictions::predictions;
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::temperature::Times;
use terrace_store::attempt::with_pages::reading;
use terrace_store::error::FsResult;
use terrace_store::inode::slot::{for_each_mapped, load_to_read};
use terrace_store::inode::tier_pin::pin_of;
use terrace_store::lookup::cold_extents::cold_extents;
use terrace_store::lookup::intents::intents_of;
use terrace_store::types::{BlockRange, WHOLE_FILE, Wait, Whereabouts};

/// The tiers that hold the blocks of a file.
///
/// # Errors
/// ESTALE, EIO.
pub fn whereabouts(engine: &Engine, ino: Ino) -> FsResult<Whereabouts> {
    whereabouts_in(engine, ino, WHOLE_FILE)
}

/// The tiers that hold the blocks of a part of a file.
///
/// # Errors
/// ESTALE, EIO.
pub fn whereabouts_in(engine: &Engine, ino: Ino, range: BlockRange) -> FsResult<Whereabouts> {
    reading(&engine.store, Wait::Allowed, || whereabouts_on_media(engine, ino, range))
}

fn whereabouts_on_media(engine: &Engine, ino: Ino, range: BlockRange) -> FsResult<Whereabouts> {
    let _guard = engine.store.inodes.locks().read(ino);
    let inode = load_to_read(&engine.store, ino)?;
    let (mut written, mut read) = (Times::default(), Times::default());
    let pinned_tier = pin_of(&engine.store, &inode)?;
    let mut found = Whereabouts { size_bytes: inode.size(), pinned_tier, ..Default::default() };
    let mut bytes =
        vec![0u64; 1 + engine.store.devices.tiers().iter().map(|tier| tier.0).max().unwrap_or(0) as usize];
    let mut eager = 0;
    let is_made_lazy = |block| engine.store.dram.cache().is_made_lazy(inode.page_key(block));
    if inode.slot.is_regular() {
        let intents = intents_of(&engine.store, &inode)?;
        let gone = |block: FileBlock| intents.iter().any(|r| r.first <= block && block < r.end);
        if inode.slot.has(flag::HAS_COLD) {
            for extent in cold_extents(&engine.store, ino, range)? {
                let tier = engine
                    .store
                    .devices
                    .list()
                    .get(usize::from(extent.device.0))
                    .map_or(1, |device| device.tier.0);
                for index in 0..u64::from(extent.length) {
                    let block = extent.first.plus(index);
                    if block < range.first || block >= range.end || gone(block) {
                        continue;
                    }
                    match engine.store.persistent.map().lookup(&inode.map(), block)? {
                        Some(_) => found.clean_bytes += BLOCK_SIZE,
                        None => bytes[usize::from(tier)] += BLOCK_SIZE,
                    }
                }
            }
        }
        for_each_mapped(&engine.store, &inode, range, |block, mapping| {
            if !gone(block) {
                bytes[0] += BLOCK_SIZE;
                let descriptor = engine.store.persistent.blocks().descriptor(mapping.block);
                eager += u64::from(descriptor.is_eager() && !is_made_lazy(block));
                written.add(descriptor.written());
                if descriptor.read() > 0 {
                    read.add(descriptor.read());
                }
            }
        })?;
    }
    found.tiers = bytes.into_iter().enumerate().map(|(tier, bytes)| (tier as u8, bytes)).collect();
    found.dirty_bytes = engine.store.dram.cache().count_dirty(ino) * BLOCK_SIZE;
    found.dram_bytes = engine.store.dram.cache().count_file(ino, inode.slot.generation.get()) * BLOCK_SIZE;
    // Eager blocks are known by their descriptors.
    let made_lazy = engine.store.dram.cache().count_made_lazy(ino, inode.slot.generation.get());
    (found.judged_blocks, found.eager_blocks) = (made_lazy + eager, eager);
    // Predictions exist for regular files only.
    if inode.slot.is_regular() {
        found.predictions = predictions(engine, &inode, written, read);
    }
    Ok(found)
}
