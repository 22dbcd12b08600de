//! Metadata on lower tiers, for `terrace status`. No count is kept in memory: the words in PM that point to
//! the pages are read.

use crate::engine::Engine;
use crate::status::tiers::TierStatus;
use serde::Serialize;
use terrace_format::below::{Below, is_below};
use terrace_format::{BLOCK_SIZE, TierId};
use terrace_runtime::sync::atomic::Ordering;

/// Metadata pages on lower tiers.
#[derive(Debug, Clone, Serialize)]
pub struct MetadataStatus {
    /// Bytes of catalog leaves and inode pages that lie on lower tiers now.
    pub below_bytes: u64,
    /// Pages demoted since mount.
    pub lowered_pages: u64,
    /// Pages fetched since mount.
    pub fetched_pages: u64,
}

/// The metadata figures of status; fills in the share of each device. Lower tiers follow PM in `tiers`. Pages
/// that cannot be read are not counted, because status must answer beside a failing medium too.
pub(crate) fn metadata_status(engine: &Engine, tiers: &mut [TierStatus]) -> MetadataStatus {
    let below = metadata_below(engine);
    for tier in tiers.iter_mut().skip(1) {
        let ids = engine.store.devices.of_tier(TierId(tier.id));
        for (device, id) in tier.devices.iter_mut().zip(ids) {
            device.metadata_bytes = below.get(usize::from(id.0)).map_or(0, |pages| pages * BLOCK_SIZE);
        }
    }
    MetadataStatus {
        below_bytes: below.iter().sum::<u64>() * BLOCK_SIZE,
        lowered_pages: engine.store.persistent.metadata_pages().lowered.load(Ordering::Relaxed),
        fetched_pages: engine.store.persistent.metadata_pages().fetched.load(Ordering::Relaxed),
    }
}

/// Metadata pages on each device, in the order of the devices. Reads one word in PM for each page.
fn metadata_below(engine: &Engine) -> Vec<u64> {
    let mut pages = vec![0; engine.store.devices.list().len()];
    if !engine.store.persistent.superblock().has_metadata_below() {
        return pages;
    }
    let mut count = |word: u64| {
        let device = Below::decode(word).map_or(usize::MAX, |place| usize::from(place.device.0));
        if let Some(pages) = pages.get_mut(device) {
            *pages += 1;
        }
    };
    for shard in 0..engine.store.persistent.catalog().shard_count() {
        if let Err(error) =
            engine.store.persistent.catalog().read(shard).reader().leaves_below(shard, &mut count)
        {
            tracing::debug!("leaves of shard {shard} below PM are not all counted: {error}");
        }
    }
    let inode_pages = engine.store.inodes.numbers().lock().pages;
    for index in 0..inode_pages {
        let location = engine.store.persistent.inode_map().location(None, index).ok().flatten();
        count(location.filter(|word| is_below(*word)).unwrap_or(0));
    }
    pages
}
