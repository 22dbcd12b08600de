//! A look at dirty pages with home PM: copies of the pages under the shared inode lock, and stores of lines into blocks of the
//! file without the lock, under a hold of its stores (`store/src/parts/inodes/locks.rs`).
//!
//! Readers go on: reads take these lines from DRAM. Writers into DRAM go on: a page is in flight in a single look at a time, so
//! no older copy is stored after a newer copy. All others who take the exclusive lock wait for the stores. The version of the
//! block rises before the first store and when the pages are installed, and refuses a migration with an earlier look (S6).

use terrace_blocks::Claim;
use terrace_cache::{DirtyPage, Lines};
use terrace_format::table::DataChecksum;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, LineMask, PmBlock};
use terrace_map::Mapping;
use terrace_placement::Home;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::change::record_room::atomic_blocks;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{check_owner, load};
use terrace_store::lookup::intents::intents_of;
use terrace_store::lookup::lines::lines_of;
use terrace_store::lookup::newest::is_written_below;
use terrace_store::parts::inodes::locks::Stores;
use terrace_store::steering::learn::note_written_back;
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_wal::Error;

/// Most pages of a transaction.
pub(super) const MOST_PAGES: u64 = 128;

/// Nanoseconds for which lines are stored in one hold of the stores: direct writers of the file wait as long.
const HELD_NS: f64 = 80_000.0;

/// Pages of a file on the way into PM, marked as in flight until the look is dropped.
pub(super) struct Look<'s> {
    pub(super) store: &'s Store,
    pub(super) ino: Ino,
    pub(super) generation: u32,
    /// The visible size when the pages were copied.
    pub(super) visible: u64,
    /// The pages, in the order of their blocks.
    pub(super) pages: Vec<LazyCopy<'s>>,
    /// Blocks for which the page is not enough: written whole, under the exclusive lock.
    pub(super) whole: Vec<FileBlock>,
    /// Pages that other threads have in flight.
    pub(super) others: usize,
    /// Why the place of a page is unknown.
    pub(super) failed: Option<FsError>,
    /// The last block that was looked at.
    pub(super) last: FileBlock,
    /// The hold of the stores, until all lines in place are stored.
    stores: Option<Stores<'s>>,
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        let copies: Vec<DirtyPage> = self.pages.drain(..).map(|page| page.copy).collect();
        self.store.dram.cache().mark_in_flight(&copies, false);
    }
}

/// A copy of a page, and where its lines are.
pub(super) struct LazyCopy<'s> {
    pub(super) copy: DirtyPage,
    pub(super) place: Place<'s>,
}

/// Where lines of a page are, or will be.
pub(super) enum Place<'s> {
    /// In the block that the file has.
    Present {
        pm: PmBlock,
        /// Lines that were stored.
        stored: LineMask,
        /// The version of the block since then: a later store into it, such as zeros past the durable end, may lie over them.
        version: u64,
    },
    /// Nowhere: a block of the file that cannot be stored to.
    Unstored,
    /// In a new block.
    New {
        /// The block that the file had: an unwritten one.
        old: Option<Mapping>,
        /// Lines that the new block gets; some only over a cold block.
        lines: LineMask,
        /// The new block, once its lines are streamed.
        new: Option<(PmBlock, Claim<'s>, Option<DataChecksum>)>,
    },
}

/// Copies pages with home PM, and begins the stores into blocks of the file ([`Look::store_in_place`]). `all`: pages that other
/// threads have in flight are to be written whole. `None` without pages.
///
/// # Errors
/// EIO of metadata.
pub(super) fn look_at_lazy<'s>(
    store: &'s Store,
    ino: Ino,
    blocks: &[FileBlock],
    all: bool,
) -> FsResult<Option<Look<'s>>> {
    let guard = store.inodes.locks().read(ino);
    let inode = match load(store, ino) {
        Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(None),
        inode => inode?,
    };
    let mut look = Look {
        store,
        ino,
        generation: inode.slot.generation.get(),
        visible: inode.size(),
        pages: Vec::new(),
        whole: Vec::new(),
        others: 0,
        failed: None,
        last: blocks.first().copied().unwrap_or(FileBlock(0)),
        stores: None,
    };
    let durable_block = FileBlock(inode.durable_size() / BLOCK_SIZE);
    let intents = intents_of(store, &inode)?;
    let most = MOST_PAGES.min(atomic_blocks(store)) as usize;
    // Behind the durable end the first dirty page that is not in the look, whatever its home.
    let next_behind = |from| store.dram.cache().next_dirty(ino, from, FileBlock(u64::MAX));
    let mut next = next_behind(durable_block);
    // A page goes with all its lines, or not at all.
    let mut left = (HELD_NS / store.dram.lazy_writes().costs().pm_ns) as u32;
    for block in blocks {
        let Some(copy) = store.dram.cache().dirty(inode.page_key(*block)) else { continue };
        // Behind the durable end a page that does not go now goes first (C28): one that is not among these blocks, too, or a page
        // that goes whole would take it along, into space that nobody promised it.
        let is_behind = *block >= durable_block;
        if is_behind && next.is_some_and(|next| next < *block) {
            break;
        }
        next = if is_behind { next_behind(block.plus(1)) } else { next };
        look.last = *block;
        let goes = if copy.home != Home::Pm {
            false
        } else if copy.in_flight {
            look.leave(*block, all)
        } else {
            let is_gone = intents.iter().any(|range| range.first <= *block && *block < range.end);
            take_page(&mut look, &inode, copy, (is_gone, all), &mut left)?
        };
        let is_full = left == 0 || look.pages.len() + look.whole.len() >= most;
        if is_full || !goes && is_behind {
            break;
        }
    }
    if look.pages.iter().any(|page| matches!(page.place, Place::Present { .. })) {
        look.stores = Some(store.inodes.locks().begin_stores(ino, &guard));
    }
    let is_empty =
        look.pages.is_empty() && look.whole.is_empty() && look.failed.is_none() && look.others == 0;
    Ok((!is_empty).then_some(look))
}

/// Adds a page to the look. False: the page is not in PM with the others.
fn take_page(
    look: &mut Look<'_>,
    inode: &Inode,
    copy: DirtyPage,
    (is_gone, all): (bool, bool),
    left: &mut u32,
) -> FsResult<bool> {
    let (store, block) = (look.store, copy.key.block);
    let place = match if is_gone { Ok(None) } else { place_of(store, inode, &copy) } {
        Err(error) if error.concerns_one_file() => {
            look.failed.get_or_insert(error);
            return Ok(false);
        }
        place => place?,
    };
    let Some(place) = place else {
        look.whole.push(block);
        return Ok(false);
    };
    if let Place::Present { pm, stored, .. } = &place {
        *left = left.saturating_sub(stored.0.count_ones());
        match begin_store(store, *pm) {
            Ok(()) => {}
            Err(_) if !store.persistent.wal().is_stopped() => {
                look.whole.push(block);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    if !store.dram.cache().begin_write_back(&copy) {
        return Ok(look.leave(block, all));
    }
    look.pages.push(LazyCopy { copy, place });
    Ok(true)
}

impl Look<'_> {
    /// Leaves a page to the thread that has it in flight; with `all` it goes whole, under the exclusive lock. False.
    fn leave(&mut self, block: FileBlock, all: bool) -> bool {
        match all {
            true => self.whole.push(block),
            false => self.others += 1,
        }
        false
    }

    /// Stores lines that stay in their blocks, and ends the stores. A page whose block cannot be stored to goes whole. Called
    /// without locks.
    ///
    /// # Errors
    /// As a store into PM has, when PM takes no more.
    pub(super) fn store_in_place(&mut self) -> FsResult<()> {
        for page in &mut self.pages {
            let Place::Present { pm, stored, version } = &mut page.place else { continue };
            match store_lines(self.store, *pm, &page.copy, *stored) {
                Ok(now) => *version = now,
                Err(_) if !self.store.persistent.wal().is_stopped() => {
                    self.whole.push(page.copy.key.block);
                    page.place = Place::Unstored;
                }
                Err(error) => return Err(error),
            }
        }
        self.stores = None;
        Ok(())
    }
}

/// The place for the lines of a page; `None`: the block is to be whole, and lacks content in the page.
fn place_of<'s>(store: &Store, inode: &Inode, copy: &DirtyPage) -> FsResult<Option<Place<'s>>> {
    let (block, valid) = (copy.key.block, LineMask(copy.valid.0));
    let start = block.0 * BLOCK_SIZE;
    let end_in = |size: u64| size.saturating_sub(start).min(BLOCK_SIZE) as usize;
    // A raised size shows all bytes behind the durable end.
    let (durable, visible) = (end_in(inode.durable_size()), end_in(inode.size()));
    let shown =
        if durable < visible { LineMask(Lines::touched(durable, visible).0) } else { LineMask::EMPTY };
    let mapping = store.persistent.map().lookup(&inode.map(), block)?;
    if let Some(mapping) = mapping.filter(|mapping| !mapping.unwritten) {
        check_owner(store, inode, block, mapping.block)?;
        let is_full = lines_of(store, inode.ino, block, mapping)?.is_full();
        let can_stay = valid.contains(shown) && !(is_full && store.mode.has_checksums);
        let stored = wrong::forgotten(LineMask(copy.dirty.0)).union(shown);
        return Ok(can_stay.then_some(Place::Present { pm: mapping.block, stored, version: 0 }));
    }
    let is_cold = mapping.is_none() && is_written_below(store, inode, block)?;
    if !is_cold || valid.is_full() {
        return Ok(Some(Place::New { old: mapping, lines: LineMask::FULL, new: None }));
    }
    let has_partial = store.mode.has_partial && !store.mode.no_partial_shadows;
    let place = Place::New { old: None, lines: valid, new: None };
    Ok((has_partial && valid.contains(shown)).then_some(place))
}

/// Readies a block for stores in place. The caller holds the inode's shared lock.
fn begin_store(store: &Store, pm: PmBlock) -> FsResult<()> {
    // The bytes may be named by the checksum of a lane's last record (T4).
    if !planted(Mistake::LazyUnconfirmed) {
        store.persistent.wal().confirm_named(pm.offset(), BLOCK_SIZE)?;
    }
    store.persistent.blocks().descriptor(pm).set_clean(false);
    store.persistent.blocks().bump(pm);
    Ok(())
}

/// Stores lines of a page into a block that stays; gives the version of the block. The caller holds the stores of the inode.
fn store_lines(store: &Store, pm: PmBlock, copy: &DirtyPage, lines: LineMask) -> FsResult<u64> {
    let (at, blocks) = (pm.offset(), store.persistent.blocks());
    if let Some(tick) = store.steering.stamp() {
        blocks.descriptor(pm).touch_written(tick);
    }
    for run in lines.runs() {
        let bytes = &copy.page.bytes()[run.clone()];
        store.persistent.pm().write_streaming(at.plus(run.start as u64), bytes)?;
        store.devices.io().pm.write(bytes.len());
        note_written_back(store, copy.key.ino, bytes.len());
    }
    Ok(blocks.descriptor(pm).version())
}

/// Planted mistakes of this file.
mod wrong {
    use super::{LineMask, Mistake, planted};

    /// `lazy-line-forgotten`: the last line is left out, if it is not the only one.
    pub(super) fn forgotten(lines: LineMask) -> LineMask {
        let last = LineMask(1 << (63 - lines.0.leading_zeros().min(63)));
        match planted(Mistake::LazyLineForgotten) && lines.0.count_ones() > 1 {
            true => LineMask(lines.0 & !last.0),
            false => lines,
        }
    }
}
