//! Cold blocks: finding them in the cold map, reading them with their checksums, keeping them in DRAM.
//!
//! A read from a lower tier holds no lock: location, version and a pin on the device range are taken
//! together under the shared inode lock, and the content is used only if the version is unchanged
//! afterwards (design S6, S7).

use crate::attempt::with_pages::reading;
use crate::error::{FsError, FsResult};
use crate::inode::slot::load_to_read;
use crate::lookup::cold_extents::cold_extents;
use crate::lookup::intents::intents_of;
use crate::lookup::newest::{is_dirty_in, is_hidden};
use crate::lookup::read_ahead::window_of;
use crate::operation::need::{Attempt, Need};
use crate::operation::op::Op;
use crate::parts::devices::device::DeviceRead;
use crate::steering::read_dominated::belongs_in_dram;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::{BlockRange, Wait};
use std::sync::Arc;
use terrace_cache::{Page, PageKey};
use terrace_catalog::DeviceRun;
use terrace_format::checksum::crc32c;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{BLOCK_SIZE, Corrupt, DeviceId, FileBlock, Ino};
use terrace_media::MediaError;
use terrace_media::block::Buffer;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};

/// How often a fetch is begun anew because something of the window has changed.
const MOST_ROUNDS: u32 = 3;

/// A cold block's content: from this operation's reads, from the cache, or as a need to read
/// `block..until`. The caller holds the inode lock.
pub fn cold_page(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    block: FileBlock,
    until: FileBlock,
) -> Attempt<Page> {
    let need = || Need::Cold { ino: inode.ino, range: BlockRange::new(block, until) };
    known_page(store, op, inode, block).ok_or_else(|| need().into())
}

/// A cold block's content, if this operation has read it or the cache has it. The cold map need not be read
/// then: each change of it raises the version (S6). The caller holds the inode lock.
pub fn known_page(store: &Store, op: &mut Op, inode: &Inode, block: FileBlock) -> Option<Page> {
    let version = store.dram.cold_versions().get(inode.ino, block);
    if let Some((read_at, page)) = op.fetched.pages.get(&block)
        && *read_at == version
    {
        return Some(page.clone());
    }
    let page = cached_page(store, inode, block)?;
    op.fetched.pages.insert(block, (version, page.clone()));
    Some(page)
}

/// A cold block's clean copy in DRAM, if there is one. The caller holds the inode lock.
pub fn cached_page(store: &Store, inode: &Inode, block: FileBlock) -> Option<Page> {
    let (key, version) = (inode.page_key(block), store.dram.cold_versions().get(inode.ino, block));
    let found = store.dram.cache().get(key, version, store.clock.monotonic_ns())?;
    if store.steering.policy().promotes(found.touches) && !belongs_in_dram(store, inode) {
        store.dram.promotions().want(key, version, &found.page);
    }
    store.devices.io().dram.read(BLOCK_SIZE as usize);
    Some(found.page)
}

/// A cold block that a write has to merge.
pub fn fetched_block(store: &Store, op: &mut Op, inode: &Inode, block: FileBlock) -> Attempt<Page> {
    cold_page(store, op, inode, block, block.plus(1))
}

/// Reads the cold blocks of a range (and prefetches their neighbours).
pub fn fetch_cold(store: &Store, op: &mut Op, ino: Ino, range: BlockRange) -> FsResult<()> {
    if op.wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    match window_of(store, ino, range) {
        Some(window) => fetch_window(store, op, ino, range, window),
        None => Ok(()),
    }
}

/// Reads the cold blocks of a window, in which `range` was asked for.
pub(crate) fn fetch_window(
    store: &Store,
    op: &mut Op,
    ino: Ino,
    range: BlockRange,
    window: BlockRange,
) -> FsResult<()> {
    let begins = window.first <= range.first && range.first < window.end;
    assert!(begins || range.is_empty(), "{range:?} of inode {ino} is fetched by {window:?} (S6)");
    let mut rounds = 0;
    loop {
        let (inode, reads, versions) = {
            let _guard = store.inodes.locks().read(ino);
            let inode = load_to_read(store, ino)?;
            if !inode.slot.has(flag::HAS_COLD) {
                return Ok(());
            }
            // Only what the versions below speak for (S6): extents may reach out of the window.
            let extents = cold_extents(store, ino, window)?;
            let inside = extents.iter().filter_map(|extent| extent.slice(window.first, window.end));
            (
                inode,
                store.devices.plan_reads(inside.collect()),
                store.dram.cold_versions().of_range(ino, window),
            )
        };
        let mut pages = Vec::new();
        let reads = on_asked_devices(reads, range);
        for (read, result) in reads.iter().zip(DeviceRead::read_all(&reads)) {
            check_pages(store, ino, read, result, range, &mut pages)?;
        }
        let is_first = |(block, _): &(FileBlock, u32)| *block == range.first;
        let is_lacking = reads.iter().any(|read| read.blocks.iter().any(is_first))
            && !pages.iter().any(|(block, _)| *block == range.first);
        rounds += 1;
        interleave::point("cold:read");
        let _guard = store.inodes.locks().read(ino);
        if load_to_read(store, ino)?.slot.generation != inode.slot.generation {
            continue;
        }
        if store.dram.cold_versions().of_range(ino, window) != versions {
            if rounds < MOST_ROUNDS {
                continue;
            }
            // Something in the window changes faster than the device answers. What the map still names is as good.
            if !planted(Mistake::FetchKeepsChanged) {
                keep_named(store, ino, window, &mut pages)?;
            }
        }
        // A second request for the same block shows that it is needed after all, as the edge of a hole below
        // a dirty page.
        if is_lacking && op.fetched.passed_over.replace(range.first) == Some(range.first) {
            let site = format!("copy below of block {} of inode {ino}", range.first);
            return Err(Corrupt::new(site, "one that can be read", "none").into());
        }
        keep_pages(store, op, &inode, range, pages);
        return Ok(());
    }
}

/// Retains only the pages whose checksum equals the present checksum of their block in the cold map. The
/// caller holds the inode lock.
fn keep_named(
    store: &Store,
    ino: Ino,
    window: BlockRange,
    pages: &mut Vec<(FileBlock, Page)>,
) -> FsResult<()> {
    let extents = cold_extents(store, ino, window)?;
    pages.retain(|(block, page)| {
        let extent = extents.iter().find(|e| e.first <= *block && *block < e.end() && !e.unwritten);
        let named = extent.and_then(|extent| extent.crcs.get((block.0 - extent.first.0) as usize));
        named == Some(&crc32c(page.bytes()))
    });
    Ok(())
}

/// Asks for what an operation fetched to come into PM.
pub(crate) fn promote_fetched(store: &Store, op: &mut Op, ino: Ino, generation: u32) {
    for (block, (version, page)) in std::mem::take(&mut op.fetched.pages) {
        store.dram.promotions().want(PageKey { ino, generation, block }, version, &page);
    }
}

/// Reads one device run and checks every block's checksum. A wrong one fails the read only when the
/// block was asked for.
pub fn read_pages(
    store: &Store,
    ino: Ino,
    read: &DeviceRead<'_>,
    asked: BlockRange,
    pages: &mut Vec<(FileBlock, Page)>,
) -> FsResult<()> {
    check_pages(store, ino, read, read.read(), asked, pages)
}

/// The rest of [`read_pages`], when the run has been read.
fn check_pages(
    store: &Store,
    ino: Ino,
    read: &DeviceRead<'_>,
    result: Result<Buffer, MediaError>,
    asked: BlockRange,
    pages: &mut Vec<(FileBlock, Page)>,
) -> FsResult<()> {
    let wants = |block: FileBlock| asked.first <= block && block < asked.end;
    let buffer = match result {
        Ok(buffer) => Arc::new(buffer),
        Err(error) => {
            // The bad sector may lie in a block that is only read ahead: reads the requested blocks alone,
            // which are consecutive.
            let Some(first) = read.blocks.iter().position(|(block, _)| wants(*block)) else {
                return Ok(());
            };
            let count = read.blocks.iter().filter(|(block, _)| wants(*block)).count();
            if count < read.blocks.len() {
                let Some(part) = read.part(first..first + count) else { return Err(error.into()) };
                return read_pages(store, ino, &part, asked, pages);
            }
            // The bad sector may lie in a cold copy that a PM block hides: so each block is read alone.
            return match read.blocks.as_slice() {
                [(block, crc)] if is_stale(store, ino, *block, read.place(0), *crc) => Ok(()),
                [_] => Err(error.into()),
                several => (0..several.len())
                    .filter_map(|index| read.part(index..index + 1))
                    .try_for_each(|part| read_pages(store, ino, &part, asked, pages)),
            };
        }
    };
    for (index, (block, crc)) in read.blocks.iter().enumerate() {
        let Some(page) = Page::new(Arc::clone(&buffer), index) else {
            break;
        };
        let found = crc32c(page.bytes());
        if found == *crc {
            pages.push((*block, page));
        } else if wants(*block) && !is_stale(store, ino, *block, read.place(index), *crc) {
            let place = read.start.plus(index as u64);
            store.devices.note_damage(read.device, place, format_args!("inode {ino} file block {block}"));
            let site = format!("{} block {place}", read.name());
            return Err(Corrupt::new(site, format!("CRC {crc:#x}"), format!("{found:#x}")).into());
        }
    }
    Ok(())
}

/// Whether no reader needs a cold copy with a wrong checksum: PM holds the block whole, and the cold copy may
/// be torn (M5); a dirty page is newer; the block is being removed; or the device block belongs to another
/// block by now.
fn is_stale(store: &Store, ino: Ino, block: FileBlock, place: DeviceRun, crc: u32) -> bool {
    let look = || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_to_read(store, ino)?;
        let extents = cold_extents(store, ino, BlockRange::new(block, block.plus(1)))?;
        let same = |extent: &ColdExtent| {
            let slice = extent.slice(block, block.plus(1));
            slice.is_some_and(|slice| DeviceRun::from(&slice) == place && slice.crcs == [crc])
        };
        let is_removed = || {
            let intents = intents_of(store, &inode)?;
            FsResult::Ok(intents.iter().any(|range| range.first <= block && block < range.end))
        };
        Ok(is_hidden(store, &inode, block)?
            || is_dirty_in(store, &inode, block)
            || !extents.iter().any(same)
            || is_removed()?)
    };
    reading(store, Wait::Allowed, look).unwrap_or(false)
}

fn keep_pages(store: &Store, op: &mut Op, inode: &Inode, asked: BlockRange, pages: Vec<(FileBlock, Page)>) {
    let now = store.clock.monotonic_ns();
    for (block, page) in pages {
        let version = store.dram.cold_versions().get(inode.ino, block);
        let key = inode.page_key(block);
        let wanted = asked.first <= block && block < asked.end;
        if wanted {
            if store.steering.policy().promotes(1) {
                store.dram.promotions().want(key, version, &page);
            }
            op.fetched.pages.insert(block, (version, page.clone()));
        }
        store.dram.cache().insert(key, version, page, wanted, now);
        store.devices.io().dram.write(BLOCK_SIZE as usize);
    }
}

/// Drops the reads of devices without a requested block: a reader must not wait for a slower or hanging
/// device only for read-ahead. In the background no block is requested, and every read stays.
fn on_asked_devices(mut reads: Vec<DeviceRead<'_>>, asked: BlockRange) -> Vec<DeviceRead<'_>> {
    if asked.is_empty() {
        return reads;
    }
    let is_asked = |read: &DeviceRead<'_>| {
        read.blocks.iter().any(|(block, _)| asked.first <= *block && *block < asked.end)
    };
    let devices: Vec<DeviceId> = reads.iter().filter(|read| is_asked(read)).map(|read| read.device).collect();
    reads.retain(|read| devices.contains(&read.device));
    reads
}
