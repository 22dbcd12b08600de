//! A look at victims under their inode's shared lock: location, version and pin together (S6, S7).

use crate::error::{FsError, FsResult};
use crate::inode::slot::load;
use crate::inode::tier_pin::{keeps, pin_of};
use crate::lookup::intents::intents_of;
use crate::lookup::lines::lines_of;
use crate::lookup::newest::{mapped_to, stays_for_write_back};
use crate::moving::candidate::Candidate;
use crate::moving::unmap::is_clean;
use crate::moving::victim::{LEAVING, Victim};
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use terrace_format::{BLOCK_SIZE, FileBlock, LineMask, PmBlock};
use terrace_map::Mapping;
use terrace_wal::Error;

/// How long after its last change a file counts as being written.
const WRITE_HOT_NS: i64 = 30_000_000_000;

/// Last blocks of such files stay while the free PM blocks are at least `ROOM_FOR_TAILS` times the throttle
/// mark: half of PM.
const ROOM_FOR_TAILS: u64 = 8;

/// Whether a block is the partly filled last one of a file that is open or was written a moment ago: it stays
/// in PM, where the next append finds it, unless PM is to be emptied or is short. Last blocks of closed files
/// stay while half of PM is free, and are then demoted in the order of all victims, which spares blocks
/// written lately. Otherwise thousands of new small files would fill PM with last blocks: writers would wait,
/// and migration would look at the same blocks again and again.
pub(crate) fn is_tail_in_use(store: &Store, inode: &Inode, block: FileBlock) -> bool {
    let size = inode.durable_size();
    if size.is_multiple_of(BLOCK_SIZE) || block.0 != size / BLOCK_SIZE {
        return false;
    }
    let (free, low) = (store.persistent.blocks().free_hint(), store.pressure.throttle_below());
    if store.pressure.is_draining() || store.pressure.is_pressed() || free < low {
        return false;
    }
    let age_ns = store.clock.wall_coarse_ns().saturating_sub(inode.slot.mtime.get());
    let is_hot = free >= low.saturating_mul(ROOM_FOR_TAILS) && (0..WRITE_HOT_NS).contains(&age_ns);
    is_hot || store.inodes.open_files().is_open(inode.ino)
}

/// Makes a victim young, so that the next choice finds different blocks.
pub fn refuse(store: &Store, pm: PmBlock) {
    let young = store.steering.tick().saturating_add(1).min(LEAVING - 1);
    store.persistent.blocks().descriptor(pm).touch_written(young);
}

/// Takes location, version and I/O pin of each victim together under its inode's shared lock (S6, S7). A
/// victim is left out if it moved or vanished, lies under an intent, or belongs to a damaged file. A victim
/// that is left out counts as just used, so that the next choice finds different blocks. Candidates come in the order of
/// files and blocks, each once, which installations rely on, however the victims come.
pub fn look_at<'s>(
    store: &'s Store,
    victims: &[Victim],
    trouble: &mut Option<FsError>,
) -> Vec<Candidate<'s>> {
    let mut victims = victims.to_vec();
    victims.sort_unstable();
    // A search finds a block again that was used meanwhile.
    victims.dedup();
    let mut candidates = Vec::with_capacity(victims.len());
    for group in victims.chunk_by(|a, b| a.ino == b.ino) {
        let ino = group[0].ino;
        let _guard = store.inodes.locks().read(ino);
        let loaded = match load(store, ino) {
            Ok(inode) => intents_of(store, &inode).map(|intents| (inode, intents)),
            Err(error) => Err(error),
        };
        let (inode, intents) = match loaded {
            Ok(found) => found,
            Err(error) => {
                // `PageBelow`: the intents of the inode lie on a lower tier. Its blocks are left out now,
                // without an error.
                if !matches!(error, FsError::Stale | FsError::Engine(Error::PageBelow(_))) {
                    trouble.get_or_insert(error);
                }
                group.iter().for_each(|victim| refuse(store, victim.pm));
                continue;
            }
        };
        let pinned_tier = pin_of(store, &inode).unwrap_or(None);
        for victim in group {
            let found = victim_lines(store, &inode, &intents, victim).unwrap_or_else(|error| {
                trouble.get_or_insert(error);
                None
            });
            let Some((mapping, lines)) = found else {
                refuse(store, victim.pm);
                continue;
            };
            if pinned_tier == Some(0) && keeps(store, victim.pm) {
                refuse(store, victim.pm);
                continue;
            }
            let descriptor = store.persistent.blocks().descriptor(victim.pm);
            descriptor.pin();
            candidates.push(Candidate {
                store,
                ino,
                generation: inode.slot.generation.get(),
                block: victim.block,
                pm: victim.pm,
                version: descriptor.version(),
                clean: lines.is_full() && is_clean(store, &inode, victim.block, victim.pm),
                unwritten: mapping.unwritten,
                lines,
                below: None,
                valid: inode.durable_size().saturating_sub(victim.block.0 * BLOCK_SIZE).min(BLOCK_SIZE)
                    as usize,
                read_error: None,
                pinned_tier,
                pinned: true,
            });
        }
    }
    candidates
}

/// A victim's mapping, and the lines that it holds, when it can leave now.
fn victim_lines(
    store: &Store,
    inode: &Inode,
    intents: &[BlockRange],
    victim: &Victim,
) -> FsResult<Option<(Mapping, LineMask)>> {
    let Some(mapping) = mapped_to(store, inode, intents, victim.block, victim.pm)? else {
        return Ok(None);
    };
    if is_tail_in_use(store, inode, victim.block) || stays_for_write_back(store, inode, victim.block) {
        return Ok(None);
    }
    Ok(Some((mapping, lines_of(store, inode.ino, victim.block, mapping)?)))
}
