//! Mount and unmount.

use crate::device::{Device, Devices};
use crate::errno::{FsError, FsResult};
use crate::files::Files;
use crate::fs::{ColdVersions, Fs};
use crate::io_count::IoCount;
use crate::locks::InodeLocks;
use crate::memory::{self, MemorySource};
use crate::migration::Migration;
use crate::migration::by_hand::ByHand;
use crate::migration::promote::Promotions;
use crate::migration::to_dram::Kept;
use crate::numbers::InodeNumbers;
use crate::pages::MetadataPages;
use crate::pin::Pins;
use crate::pressure::Pressure;
use crate::read_ahead::ReadAhead;
use crate::reclaim_queue::ReclaimQueue;
use crate::references::References;
use crate::relatives::Relatives;
use crate::slot::InodePages;
use crate::tally::Tally;
use crate::temperature::Flows;
use crate::types::Atime;
use crate::unwritten::Unwritten;
use crate::write_back_step::WriteBack;
use crate::write_entries::WriteEntries;
use std::io;
use std::sync::{Arc, OnceLock};
use terrace_blocks::BlockPool;
use terrace_cache::BlockCache;
use terrace_catalog::Catalog;
use terrace_catalog::ChunkSpace;
use terrace_catalog::dentry::NameHash;
use terrace_format::device::{DeviceHeader, SUMMARY_ENTRIES};
use terrace_format::geometry::{Geometry, ROOTS_BLOCK, SUPERBLOCK_BLOCKS, SUPERBLOCK_COPIES};
use terrace_format::inode::ORPHAN_LISTS;
use terrace_format::superblock::{Refused, Superblock};
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, TierId};
use terrace_map::{InodeFileMap, RadixTree};
use terrace_media::block::AlignedBlock;
use terrace_media::{BlockMedium, PmMedium};
use terrace_placement::{Ablation, Home, Parameters};
use terrace_runtime::Clock;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use terrace_runtime::sync::{Mutex, ReentrantMutex};
use terrace_runtime::thread::Driver;
use terrace_wal::{Error, Wal};
use zerocopy::IntoBytes;

/// The media of a pool. `block[i]` is the device of row `i` of the superblock.
pub struct PoolMedia {
    /// Tier 0.
    pub pm: Arc<dyn PmMedium>,
    /// Lower-tier devices.
    pub block: Vec<Arc<dyn BlockMedium>>,
}

/// Placement policies that can be chosen. The number is the superblock's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// Never migrates.
    Static = 1,
    /// LRU above a threshold.
    Anticache = 2,
    /// Predictors, temperature and adaptive thresholds.
    Predictive = 3,
    /// Its earlier form, for which only writes count.
    WriteOnly = 4,
}

/// When cold metadata moves below PM (design C1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataMoves {
    /// Never by itself. What lies below already makes room for each other in PM.
    Never,
    /// When PM is scarce, and moving data does not help or metadata has more than its share.
    WhenScarce,
    /// As soon as it is cold: for tests.
    Always,
}

/// Which overwrites of demoted blocks are written back over their cold copies (design M5). A few scattered blocks of an
/// extent are; where more has changed they go to free space as groups of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InPlace {
    /// Fewest blocks of an extent that is worth keeping whole.
    pub extent_blocks: u32,
    /// At most one of so many of its blocks.
    pub one_of: u32,
}

impl Default for InPlace {
    fn default() -> InPlace {
        InPlace { extent_blocks: 16, one_of: 8 }
    }
}

/// What a mount may override.
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
    /// What migration writes back in place.
    pub in_place: InPlace,
    /// DRAM for clean pages, in bytes.
    pub cache_bytes: u64,
    /// Where to see how much memory there is, for a cache of clean pages that has a share of it, but no less than
    /// `cache_bytes`; without, it has those.
    pub memory: Option<Arc<dyn MemorySource>>,
    /// Most bytes of files in PM that the kernel caches while they are open for reading.
    pub kernel_cache_bytes: u64,
    /// Most dirty pages in DRAM, in bytes; 0: every write goes to PM.
    pub buffer_bytes: u64,
    /// Window read around a missing cold block, in bytes.
    pub prefetch_bytes: u64,
    /// Lifetime of a prefetched page.
    pub prefetch_ms: u64,
    /// Bring every block read from below into PM at once ([AC-BPFS]): `parameters.touches` is 1, whatever it says.
    pub promote_first_touch: bool,
    /// The home of every write that does not ask for durability, instead of what the policy says: for tests.
    pub home: Option<Home>,
    /// Read a cold block before a small write to it, as all the publications do, instead of making a partial shadow:
    /// for measuring the difference. What is partial already stays so.
    pub read_first: bool,
    /// What is left out of the policy: for measuring what it is worth.
    pub ablation: Ablation,
    /// When cold metadata moves below PM. What lies there is fetched in any case.
    pub metadata_moves: MetadataMoves,
    /// Move the checkpoint only when space is short, so that a crash leaves as much to replay as there can be:
    /// for measuring recovery.
    pub checkpoint_when_full: bool,
}

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
            kernel_cache_bytes: 64 << 20,
            buffer_bytes: 64 << 20,
            prefetch_bytes: 128 << 10,
            prefetch_ms: 1000,
            promote_first_touch: false,
            home: None,
            read_first: false,
            ablation: Ablation::Nothing,
            metadata_moves: MetadataMoves::WhenScarce,
            checkpoint_when_full: false,
        }
    }
}

/// Reads the superblock; the second copy when the first is damaged, with a sentence that says so.
///
/// # Errors
/// See [`Refused`].
pub fn read_superblock(pm: &dyn PmMedium, write: bool) -> Result<(Superblock, Option<String>), Refused> {
    let read = |index: usize| -> Result<Superblock, Refused> {
        let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
        let copy = SUPERBLOCK_COPIES[index];
        if pm.read(copy.offset(), &mut bytes).is_err() {
            let expected = "a readable copy";
            return Err(terrace_format::Corrupt::new("superblock", expected, "an unreadable one").into());
        }
        let superblock = Superblock::verify(&bytes, write)?;
        if superblock.geometry().pm_size > pm.size() {
            let found = format!("{} bytes", pm.size());
            let expected = format!("persistent memory of {} bytes", superblock.geometry().pm_size);
            return Err(terrace_format::Corrupt::new("tier 0", expected, found).into());
        }
        Ok(superblock)
    };
    match read(0) {
        Ok(superblock) => Ok((superblock, second_copy_warning(pm, read(1)))),
        Err(first @ (Refused::Corrupt(_) | Refused::NotAPool)) => match read(1) {
            Ok(superblock) => {
                let warning = format!("superblock copy 0 is damaged ({first}); copy 1 is used");
                Ok((superblock, Some(warning)))
            }
            Err(second @ (Refused::Version(_) | Refused::Features(_) | Refused::Repairing)) => Err(second),
            Err(_) => Err(first),
        },
        Err(other) => Err(other),
    }
}

/// What there is to say of copy 1 when copy 0 is used.
fn second_copy_warning(pm: &dyn PmMedium, second: Result<Superblock, Refused>) -> Option<String> {
    let Err(error @ (Refused::Corrupt(_) | Refused::NotAPool)) = second else { return None };
    // A size that does not fit is not damage.
    (!is_sound(pm, 1)).then(|| format!("superblock copy 1 is damaged ({error}); copy 0 is used"))
}

/// Whether a copy of the superblock is one: of whatever version.
pub(crate) fn is_sound(pm: &dyn PmMedium, index: usize) -> bool {
    let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
    let read = pm.read(SUPERBLOCK_COPIES[index].offset(), &mut bytes);
    let damaged = |refused: &Refused| matches!(refused, Refused::Corrupt(_) | Refused::NotAPool);
    read.is_ok() && Superblock::verify(&bytes, false).err().is_none_or(|refused| !damaged(&refused))
}

/// Rewrites a damaged copy of the superblock from the one in use; true when there was one. The sound copy
/// is not touched, so a crash meanwhile leaves the pool as usable as before.
///
/// # Errors
/// The medium's; also when the copy does not read back sound.
pub fn mend_superblock(
    pm: &dyn PmMedium,
    superblock: &Superblock,
) -> Result<bool, terrace_media::MediaError> {
    let damaged: Vec<usize> = (0..SUPERBLOCK_COPIES.len()).filter(|index| !is_sound(pm, *index)).collect();
    let &[index] = damaged.as_slice() else { return Ok(false) };
    let place = SUPERBLOCK_COPIES[index].offset();
    pm.write(place, superblock.as_bytes())?;
    pm.persist();
    if !is_sound(pm, index) {
        let length = SUPERBLOCK_BLOCKS * BLOCK_SIZE;
        return Err(terrace_media::MediaError::Pm { offset: place, length });
    }
    Ok(true)
}

/// Blocks of a group: with its summaries it fits one chunk, the largest contiguous allocation.
fn group_blocks(group_bytes: u64, geometry: &terrace_format::Geometry) -> u64 {
    let blocks = (group_bytes / BLOCK_SIZE).clamp(1, u64::from(geometry.chunk_blocks));
    blocks - if blocks < 16 { 0 } else { blocks.div_ceil(SUMMARY_ENTRIES as u64 + 1) }
}

/// Puts an epoch, and the tier that the superblock gives the device, into its header, whose 64 bytes are in one sector: it is the old one or the new one.
fn stamp(device: &Device, epoch: u64) -> FsResult<()> {
    let failed_before = device.failed_flushes();
    let mut block = [AlignedBlock::zeroed()];
    device.medium.read(DeviceBlock(0), &mut block)?;
    let [AlignedBlock(bytes)] = &mut block;
    let mut header = DeviceHeader::decode(bytes)?;
    header.epoch = u32::try_from(epoch).unwrap_or(u32::MAX).into();
    header.tier = device.tier.0;
    bytes.copy_from_slice(&header.encode());
    device.medium.write(DeviceBlock(0), &block)?;
    Ok(device.flush(failed_before)?)
}

/// The threads that drive background work; dropping it stops and joins them.
pub struct Background {
    _drivers: Vec<Driver>,
}

/// Memory for the account of blocks that is taken without a look at what there is.
const MODEST_BYTES: u64 = 64 << 20;
/// Bytes kept of each PM block.
const OF_A_BLOCK: u64 = 25;

/// Refuses media so large, as they say, that the account of their blocks does not fit into half of the memory there is: an
/// image or a sparse file may claim anything.
fn refuse_oversized(geometry: &Geometry, devices: &[(DeviceId, u64)]) -> Result<(), String> {
    let below = ChunkSpace::bytes_needed(geometry.chunk_blocks, devices);
    let needed = below.map(|bytes| bytes.saturating_add(geometry.block_count().saturating_mul(OF_A_BLOCK)));
    match (needed, terrace_media::memory_available()) {
        (Some(needed), _) if needed <= MODEST_BYTES => Ok(()),
        (Some(needed), available) if available.is_none_or(|available| needed <= available / 2) => Ok(()),
        (Some(needed), available) => Err(format!(
            "the account of its blocks needs {needed} bytes of memory, {} are available: its media say that they are too large",
            available.unwrap_or(0)
        )),
        (None, _) => Err("a lower tier says that it is larger than a tier can be".to_string()),
    }
}

impl Fs {
    /// Mounts: recovers the log and prepares volatile state. Its time depends on the size of the lanes,
    /// not on the number of files. Starts no thread.
    ///
    /// # Errors
    /// A pool that cannot be used; the media's.
    pub fn mount(
        mut media: PoolMedia,
        superblock: Superblock,
        options: MountOptions,
        clock: Arc<dyn Clock>,
    ) -> FsResult<Arc<Fs>> {
        let begin = clock.monotonic_ns();
        let refuse = |text: String| FsError::Engine(Error::Refused(text.into()));
        // Before the log is opened, which makes of a clean pool a used one.
        let data_ordered = options.data_ordered.unwrap_or(superblock.data_mode == 2);
        if data_ordered && superblock.has_data_checksums() {
            let text =
                "data=ordered overwrites in place, which checksums of data forbid; mount with data=atomic";
            return Err(refuse(text.into()));
        }
        let rows = superblock.device_rows();
        if rows.len() != media.block.len() {
            return Err(refuse(format!("the pool has {} devices, {} given", rows.len(), media.block.len())));
        }
        let geometry = superblock.geometry();
        let sizes = media.block.iter().enumerate();
        let sizes: Vec<(DeviceId, u64)> =
            sizes.map(|(index, medium)| (DeviceId(index as u8), medium.blocks())).collect();
        refuse_oversized(&geometry, &sizes).map_err(refuse)?;
        let (wal, recovery) = Wal::open(Arc::clone(&media.pm), superblock.uuid, geometry)?;
        if options.checkpoint_when_full {
            wal.checkpoint_only_when_full();
        }
        let wal = Arc::new(wal);
        let blocks = Arc::new(BlockPool::new(Arc::clone(&wal)));
        while planted(Mistake::MountScansPool) && blocks.scan_step()? {}
        let catalog = Arc::new(Catalog::new(Arc::clone(&blocks)));
        let io = IoCount::around(&mut media.block, &clock);
        let list = rows.iter().zip(media.block).map(|(row, medium)| Device {
            tier: TierId(row.tier),
            medium,
            damaged: AtomicU64::new(0),
            failed_flushes: AtomicU64::new(0),
            flushes_begun: AtomicU64::new(0),
            last_good_flush: AtomicU64::new(0),
            avoid_until_ns: AtomicU64::new(0),
            flushing: ReentrantMutex::new(()),
        });
        let devices = Devices { list: list.collect(), space: ChunkSpace::new(Arc::clone(&catalog), &sizes) };
        let missing = sizes.iter().zip(&devices.list).filter(|(_, device)| device.medium.is_missing());
        missing.for_each(|((id, _), _)| devices.space.leave_out(*id));
        let policy_id = options.policy.map_or(superblock.policy, |kind| kind as u8);
        let threshold = options.threshold_percent.unwrap_or(80);
        let mut parameters = options.ablation.parameters(options.parameters);
        parameters.check().map_err(refuse)?;
        if options.promote_first_touch {
            parameters.touches = 1;
        }
        let policy = terrace_placement::make(policy_id, threshold, &parameters)
            .ok_or_else(|| refuse(format!("unknown policy {policy_id}")))?;
        let policy = options.ablation.of(policy);
        let usable = geometry.block_count() - geometry.first_pool_block().0;
        let slow =
            if devices.list.is_empty() || policy_id == PolicyKind::Static as u8 { 0 } else { usable / 16 };
        let steers = policy.steers_writes();
        wal.checksums().ensure(ROOTS_BLOCK)?;
        let numbers = InodeNumbers::new(media.pm.load_u64(geometry.inode_pages())?);
        let has_below = superblock.has_metadata_below();
        let below: u64 = sizes.iter().map(|(_, blocks)| *blocks).sum();
        if numbers.pages > usable + if has_below { below } else { 0 } {
            let found = numbers.pages.to_string();
            return Err(terrace_format::Corrupt::new("inode pages", "fewer than blocks", found).into());
        }
        let memory = options.memory.clone();
        let most_cache_bytes = memory
            .as_ref()
            .map_or(options.cache_bytes, |memory| options.cache_bytes.max(memory::most(&memory.look())));
        let can_lower = has_below && !devices.list.is_empty() && !options.read_only;
        let fs = Fs {
            map: Box::new(RadixTree::new(Arc::clone(&blocks))),
            inode_map: InodeFileMap::new(Arc::clone(&blocks)),
            inode_pages: InodePages::new(),
            metadata: Arc::new(MetadataPages::new(can_lower, options.metadata_moves, usable)),
            catalog,
            name_bytes: Default::default(),
            names: NameHash::new(&superblock.hash_key),
            seal_key: superblock.seal_key(),
            devices,
            io,
            memory,
            least_cache_bytes: options.cache_bytes,
            cache: BlockCache::new(options.cache_bytes, options.prefetch_ms * 1_000_000),
            unwritten: Unwritten::new(),
            write_back: WriteBack::new(options.buffer_bytes),
            cold_versions: ColdVersions::new(most_cache_bytes / BLOCK_SIZE),
            locks: InodeLocks::new(),
            rename_lock: Mutex::new(()),
            orphan_locks: (0..ORPHAN_LISTS).map(|_| Mutex::new(())).collect(),
            numbers: Mutex::new(numbers),
            references: References::new(options.kernel_cache_bytes / BLOCK_SIZE),
            panics: Arc::default(),
            drop_pages: OnceLock::new(),
            reclaim: ReclaimQueue::new(),
            migration: Migration::new(),
            by_hand: ByHand::new(),
            pressure: Pressure::new(usable, slow),
            promotions: Promotions::default(),
            kept_copies: Kept::default(),
            pins: Pins::new(),
            policy,
            parameters,
            threshold_percent: threshold,
            prefetch_ms: options.prefetch_ms,
            steers: AtomicBool::new(steers),
            stamps: AtomicBool::new(true),
            // Nothing is noted: as small as can be.
            files: Files::new(if steers { usable } else { 0 }),
            entries: WriteEntries::new(if steers { usable } else { 0 }),
            flows: Flows::new(&parameters),
            tally: Tally::default(),
            relatives: Relatives::new(if steers { usable } else { 0 }),
            home: options.home,
            mounted_ns: begin,
            tick: AtomicU32::new(1),
            read_only: options.read_only,
            data_ordered,
            has_partial: superblock.has_partial_shadows(),
            has_checksums: superblock.has_data_checksums(),
            damaged_data: AtomicU64::new(0),
            read_first: options.read_first,
            atime: options.atime,
            read_ahead: ReadAhead::new(options.prefetch_bytes / BLOCK_SIZE, options.cache_bytes / BLOCK_SIZE),
            group_blocks: group_blocks(options.group_bytes, &geometry),
            in_place: options.in_place,
            recovery,
            recovery_ns: clock.monotonic_ns() - begin,
            pm: media.pm,
            wal,
            blocks,
            clock,
            superblock,
        };
        Ok(Arc::new(fs))
    }

    /// Tells the devices that this mount may write to them: their headers get its epoch, before anything else is written.
    /// By it a mount knows that its persistent memory is an older copy than what its devices were used with.
    ///
    /// # Errors
    /// The first device's that failed; all others were told.
    pub fn stamp_devices(&self) -> FsResult<()> {
        if self.read_only {
            return Ok(());
        }
        let mut first_error = None;
        for device in self.devices.list.iter().filter(|device| !device.medium.is_missing()) {
            if let Err(error) = stamp(device, self.wal.epoch()) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Starts the threads of migration, reclaiming and scanning.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start_background(self: &Arc<Fs>) -> io::Result<Background> {
        let mut drivers = Vec::new();
        let by_hand = (!self.read_only).then(|| self.hand_background());
        for (step, waker) in self.background_steps().into_iter().chain(by_hand) {
            drivers.push(Driver::start(step, waker, Arc::clone(&self.panics))?);
        }
        Ok(Background { _drivers: drivers })
    }

    /// Ends the scan of the block table: what it has not met, pages that are open since a crash among them, the last
    /// checkpoint would leave without checksums.
    fn meet_all_pages(&self) {
        if self.read_only {
            return;
        }
        let end = std::iter::repeat_with(|| self.blocks.scan_step()).find(|step| !matches!(step, Ok(true)));
        if let Some(Err(error)) = end {
            tracing::warn!("some metadata pages may be left without checksums: {error}");
        }
    }

    /// Ends a mount: dirty pages written back (into PM, what no lower tier takes), the last checkpoint written, the pool
    /// marked clean, all of it durable. Devices need no flush: what a record names was flushed before (M1). Drop
    /// [`Background`] first; no operation may follow.
    ///
    /// # Errors
    /// The media's; the pool then is not marked clean and recovers at the next mount. Also when some dirty pages could
    /// be kept nowhere: all others were.
    pub fn unmount(&self) -> FsResult<()> {
        let kept = self.keep_all();
        self.meet_all_pages();
        self.wal.close()?;
        kept
    }
}
