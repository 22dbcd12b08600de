//! The media of a pool and the options of a mount.

use crate::memory_source::MemorySource;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_map::FileMap;
use terrace_media::{BlockMedium, PmMedium};
use terrace_placement::{Ablation, Home, Parameters, PolicyKind};
use terrace_store::parts::dram::lazy_writes::BufferOptions;
use terrace_store::parts::mode::{InPlace, MetadataMoves};
use terrace_store::types::Atime;

/// The media of a pool. `block[i]` is the device of row `i` of the superblock.
pub struct PoolMedia {
    /// Tier 0.
    pub pm: Arc<dyn PmMedium>,
    /// Lower-tier devices.
    pub block: Vec<Arc<dyn BlockMedium>>,
}

/// The options of a mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Access times.
    pub atime: Atime,
    /// Refuse changes.
    pub read_only: bool,
    /// Instead of the superblock's.
    pub policy: Option<PolicyKind>,
    /// Instead of the superblock's.
    pub data_ordered: Option<bool>,
    /// Anticache: demote above this PM use.
    pub threshold_percent: Option<u8>,
    /// Parameters of predictors, thresholds and migration.
    pub parameters: Parameters,
    /// Largest group of a migration, in bytes.
    pub group_bytes: u64,
    /// The blocks that demotion writes in place.
    pub in_place: InPlace,
    /// DRAM for clean pages, in bytes.
    pub cache_bytes: u64,
    /// The memory of the machine, for a cache of clean pages that follows it and has at least `cache_bytes`.
    /// Without it the cache has exactly `cache_bytes`.
    pub memory: Option<Arc<dyn MemorySource>>,
    /// Writes that wait in DRAM.
    pub buffer: BufferOptions,
    /// Window read around a missing cold block, in bytes.
    pub prefetch_bytes: u64,
    /// Lifetime of a prefetched page.
    pub prefetch_ms: u64,
    /// Promote every cold block on its first read ([AC-BPFS]), as if `parameters.touches` were 1.
    pub promote_first_touch: bool,
    /// The home of every write without O_SYNC, instead of the choice of the policy: for tests.
    pub home: Option<Home>,
    /// Read a cold block before a small write to it, as all the publications do, instead of making a partial
    /// shadow: for measuring the difference. An existing partial shadow stays partial.
    pub no_partial_shadows: bool,
    /// Parts of the policy that are switched off, to measure their value.
    pub ablation: Ablation,
    /// When cold metadata pages are demoted. Demoted pages are fetched in any case.
    pub metadata_moves: MetadataMoves,
    /// Move the checkpoint only when space is short, so that a crash leaves the most records to replay: for
    /// measuring recovery.
    pub checkpoint_when_full: bool,
    /// References may be given back after the program's call that ended them has returned, as the kernel does: an operation
    /// that finds no space waits for references to files removed lately.
    pub late_references: bool,
}

/// Makes the file map of a mounted pool.
pub type MakeMap = fn(&Arc<BlockPool>) -> terrace_wal::Result<Box<dyn FileMap>>;

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            atime: Atime::Relative,
            read_only: false,
            policy: None,
            data_ordered: None,
            threshold_percent: None,
            parameters: Parameters::default(),
            group_bytes: 16 << 20,
            in_place: InPlace::default(),
            cache_bytes: 64 << 20,
            memory: None,
            buffer: BufferOptions::default(),
            prefetch_bytes: 128 << 10,
            prefetch_ms: 1000,
            promote_first_touch: false,
            home: None,
            no_partial_shadows: false,
            ablation: Ablation::Nothing,
            metadata_moves: MetadataMoves::WhenScarce,
            checkpoint_when_full: false,
            late_references: false,
        }
    }
}
