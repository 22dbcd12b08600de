//! Mount: recovers the log, and makes the parts of a mounted pool.

use crate::engine::Engine;
use crate::memory::most;
use crate::options::{MakeMap, MountOptions, PoolMedia};
use crate::provide::Provider;
use std::sync::{Arc, OnceLock};
use terrace_blocks::BlockPool;
use terrace_cache::BlockCache;
use terrace_catalog::Catalog;
use terrace_format::device::{DeviceHeader, SUMMARY_ENTRIES};
use terrace_format::geometry::{Geometry, ROOTS_BLOCK};
use terrace_format::superblock::Superblock;
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, TierId};
use terrace_map::registry;
use terrace_media::block::AlignedBlock;
use terrace_migration::migration::Migration;
use terrace_migration::requested::queue::RequestQueue;
use terrace_placement::{Parameters, Policy, PolicyKind, Threshold, threshold_of};
use terrace_runtime::Clock;
use terrace_runtime::planted::{Mistake, planted};
use terrace_space::ChunkSpace;
use terrace_store::error::{FsError, FsResult};
use terrace_store::parts::devices::device::{Device, Devices};
use terrace_store::parts::devices::io_count::IoCount;
use terrace_store::parts::dram::Dram;
use terrace_store::parts::dram::lazy_writes::LazyWrites;
use terrace_store::parts::dram::read_ahead::ReadAhead;
use terrace_store::parts::dram::write_back::WriteBack;
use terrace_store::parts::inodes::Inodes;
use terrace_store::parts::inodes::free_numbers::InodeNumbers;
use terrace_store::parts::mode::Mode;
use terrace_store::parts::persistent::metadata_pages::MetadataPages;
use terrace_store::parts::persistent::{Opened, Persistent};
use terrace_store::parts::pressure::Pressure;
use terrace_store::parts::steering::Steering;
use terrace_store::store::Store;
use terrace_wal::{Error, RecoveryReport, Wal};

/// Most blocks of a group: with its group summaries it fits into one chunk, the longest run.
fn group_blocks(group_bytes: u64, geometry: &terrace_format::Geometry) -> u64 {
    let blocks = (group_bytes / BLOCK_SIZE).clamp(1, u64::from(geometry.chunk_blocks));
    blocks - if blocks < 16 { 0 } else { blocks.div_ceil(SUMMARY_ENTRIES as u64 + 1) }
}

/// Writes an epoch, and the tier from the superblock, into the header of a device. The 64 bytes of the header
/// lie in one sector, so a crash leaves the old header or the new one.
fn stamp(device: &Device, epoch: u64) -> FsResult<()> {
    let mark = device.flush_mark();
    let mut block = [AlignedBlock::zeroed()];
    device.medium.read(DeviceBlock(0), &mut block)?;
    let [AlignedBlock(bytes)] = &mut block;
    let mut header = DeviceHeader::decode(bytes)?;
    header.epoch = u32::try_from(epoch).unwrap_or(u32::MAX).into();
    header.tier = device.tier.0;
    bytes.copy_from_slice(&header.encode());
    device.medium.write(DeviceBlock(0), &block)?;
    device.flush(mark)?;
    Ok(())
}

/// Memory for the accounts of blocks that is taken without asking how much is free.
const MODEST_BYTES: u64 = 64 << 20;

/// Bytes of memory for each PM block.
const OF_A_BLOCK: u64 = 25;

/// Refuses media that claim such a size that the accounts of their blocks do not fit into half of the free
/// memory: an image or a sparse file may claim any size.
fn refuse_oversized(geometry: &Geometry, devices: &[(DeviceId, u64)]) -> Result<(), String> {
    let below = ChunkSpace::bytes_needed(geometry.chunk_blocks, devices);
    let needed = below.map(|bytes| bytes.saturating_add(geometry.block_count().saturating_mul(OF_A_BLOCK)));
    // Most pools are modest: the kernel is asked only for others.
    if needed.is_some_and(|needed| needed <= MODEST_BYTES) {
        return Ok(());
    }
    match (needed, terrace_media::memory_available()) {
        (Some(needed), available) if available.is_none_or(|available| needed <= available / 2) => Ok(()),
        (Some(needed), available) => Err(format!(
            "the account of its blocks needs {needed} bytes of memory, {} are available: its media say that they are too large",
            available.unwrap_or(0)
        )),
        (None, _) => Err("a lower tier says that it is larger than a tier can be".to_string()),
    }
}

/// Opens the log, which recovers the pool.
fn open_log(
    media: &PoolMedia,
    superblock: &Superblock,
    options: &MountOptions,
) -> FsResult<(Arc<Wal>, RecoveryReport)> {
    let (wal, recovery) = Wal::open(Arc::clone(&media.pm), superblock.uuid, superblock.geometry())?;
    if options.checkpoint_when_full {
        wal.checkpoint_only_when_full();
    }
    Ok((Arc::new(wal), recovery))
}

/// The choices of the mount that stay as they are.
fn mode_of(superblock: &Superblock, options: &MountOptions, data_ordered: bool) -> Mode {
    Mode {
        read_only: options.read_only,
        data_ordered,
        has_partial: superblock.has_partial_shadows(),
        has_checksums: superblock.has_data_checksums(),
        no_partial_shadows: options.no_partial_shadows,
        atime: options.atime,
        group_blocks: group_blocks(options.group_bytes, &superblock.geometry()),
        in_place: options.in_place,
        threshold_percent: options.threshold_percent.unwrap_or(THRESHOLD_PERCENT),
        prefetch_ms: options.prefetch_ms,
        late_references: options.late_references,
    }
}

/// Mounts: recovers the log and prepares volatile state. Its time depends on the size of the lanes,
/// not on the number of files. Starts no thread.
///
/// # Errors
/// A pool that cannot be used; the media's.
pub fn mount(
    media: PoolMedia,
    superblock: Superblock,
    options: MountOptions,
    clock: Arc<dyn Clock>,
) -> FsResult<Arc<Engine>> {
    let make_map = registry::row_of(superblock.map_kind()).make;
    mount_with_map(media, superblock, options, clock, make_map)
}

/// As [`Engine::mount`], with another file map than the superblock's: for measurements on a new pool, which is not mounted
/// again.
///
/// # Errors
/// As there.
pub fn mount_with_map(
    mut media: PoolMedia,
    superblock: Superblock,
    options: MountOptions,
    clock: Arc<dyn Clock>,
    make_map: MakeMap,
) -> FsResult<Arc<Engine>> {
    let begin = clock.monotonic_ns();
    // Options are refused before the log is opened, because opening marks a clean pool as used.
    let data_ordered = data_ordered(&superblock, &options)?;
    let (policy, parameters) = open_policy(&superblock, &options, media.pm.journal_status().is_some())?;
    let sizes = device_sizes(&media, &superblock)?;
    let (wal, recovery) = open_log(&media, &superblock, &options)?;
    let locks = wal.locks();
    let blocks = Arc::new(BlockPool::of_map(Arc::clone(&wal), superblock.hash_key));
    while planted(Mistake::MountScansPool) && blocks.scan_step()? {}
    let catalog = Arc::new(Catalog::new(Arc::clone(&blocks)));
    let devices = open_devices(&mut media, &superblock, &sizes, &catalog, &clock);
    let map = make_map(&blocks)?;
    let geometry = superblock.geometry();
    let usable = geometry.block_count() - geometry.first_pool_block().0;
    let never_demotes = threshold_of(policy_id(&superblock, &options)) == Some(Threshold::None);
    let throttle_below = if devices.list().is_empty() || never_demotes { 0 } else { usable / 16 };
    wal.checksums().ensure(ROOTS_BLOCK)?;
    let numbers = open_numbers(&media, &superblock, &sizes, usable)?;
    let can_lower = superblock.has_metadata_below() && !devices.list().is_empty() && !options.read_only;
    let mode = mode_of(&superblock, &options, data_ordered);
    let persistent = Persistent::new(Opened {
        superblock,
        pm: media.pm,
        wal,
        map,
        blocks,
        catalog,
        metadata_pages: MetadataPages::new(can_lower, options.metadata_moves, usable),
    });
    let store = Arc::new(Store {
        persistent,
        inodes: Inodes::new(numbers, locks),
        dram: open_dram(&options, usable),
        devices,
        steering: Steering::new(policy, parameters, options.home, usable, begin),
        pressure: Pressure::new(usable, throttle_below),
        mode,
        clock: Arc::clone(&clock),
        provider: OnceLock::new(),
    });
    let migration = Arc::new(Migration::new(Arc::clone(&store)));
    let _ = store.provider.set(Box::new(Provider::new(&migration)));
    Ok(Arc::new(Engine {
        store,
        migration,
        requests: RequestQueue::default(),
        panics: Arc::default(),
        memory: options.memory,
        least_cache_bytes: options.cache_bytes,
        recovery,
        recovery_ns: clock.monotonic_ns() - begin,
    }))
}

/// The PM use above which the policy `anticache` demotes, unless a mount option gives another.
const THRESHOLD_PERCENT: u8 = 80;

fn refuse(text: String) -> FsError {
    FsError::Engine(Error::Refused(text.into()))
}

/// Whether overwrites in PM are done in place.
fn data_ordered(superblock: &Superblock, options: &MountOptions) -> FsResult<bool> {
    let data_ordered = options.data_ordered.unwrap_or(superblock.data_mode == 2);
    if data_ordered && superblock.has_data_checksums() {
        let text = "data=ordered overwrites in place, which checksums of data forbid; mount with data=atomic";
        return Err(refuse(text.into()));
    }
    Ok(data_ordered)
}

/// Blocks of each device, as its medium says. Refuses devices that do not fit the superblock or the free
/// memory.
fn device_sizes(media: &PoolMedia, superblock: &Superblock) -> FsResult<Vec<(DeviceId, u64)>> {
    let rows = superblock.device_rows();
    if rows.len() != media.block.len() {
        return Err(refuse(format!("the pool has {} devices, {} given", rows.len(), media.block.len())));
    }
    let sizes = media.block.iter().enumerate();
    let sizes: Vec<(DeviceId, u64)> =
        sizes.map(|(index, medium)| (DeviceId(index as u8), medium.blocks())).collect();
    refuse_oversized(&superblock.geometry(), &sizes).map_err(refuse)?;
    Ok(sizes)
}

/// The devices, with counters around their media. Missing devices are left out of the free space, so no new
/// data goes to them.
fn open_devices(
    media: &mut PoolMedia,
    superblock: &Superblock,
    sizes: &[(DeviceId, u64)],
    catalog: &Arc<Catalog>,
    clock: &Arc<dyn Clock>,
) -> Devices {
    let io = IoCount::around(&mut media.block, clock);
    let rows = superblock.device_rows().iter().zip(std::mem::take(&mut media.block));
    let list: Vec<Device> = rows.map(|(row, medium)| Device::new(TierId(row.tier), medium)).collect();
    let space = ChunkSpace::new(Arc::clone(catalog), sizes);
    let missing = sizes.iter().zip(&list).filter(|(_, device)| device.medium.is_missing());
    missing.for_each(|((id, _), _)| space.leave_out(*id));
    Devices::new(list, space, io)
}

fn policy_id(superblock: &Superblock, options: &MountOptions) -> u8 {
    options.policy.map_or(superblock.policy, PolicyKind::id)
}

/// The policy of the mount options, or else of the superblock, and its parameters.
fn open_policy(
    superblock: &Superblock,
    options: &MountOptions,
    is_journaled: bool,
) -> FsResult<(Box<dyn Policy>, Parameters)> {
    let id = policy_id(superblock, options);
    let threshold = options.threshold_percent.unwrap_or(THRESHOLD_PERCENT);
    let mut parameters = options.ablation.parameters(options.parameters).for_medium(is_journaled);
    parameters.check().map_err(refuse)?;
    if options.promote_first_touch {
        parameters.touches = 1;
    }
    let policy = terrace_placement::make(id, threshold, &parameters)
        .ok_or_else(|| refuse(format!("unknown policy {id}")))?;
    Ok((options.ablation.of(policy), parameters))
}

/// The table of free inode numbers, still empty. Refuses an inode file larger than any medium.
fn open_numbers(
    media: &PoolMedia,
    superblock: &Superblock,
    sizes: &[(DeviceId, u64)],
    usable: u64,
) -> FsResult<InodeNumbers> {
    let numbers = InodeNumbers::new(media.pm.load_u64(superblock.geometry().inode_pages())?);
    let below: u64 = sizes.iter().map(|(_, blocks)| *blocks).sum();
    if numbers.pages > usable + if superblock.has_metadata_below() { below } else { 0 } {
        let found = numbers.pages.to_string();
        return Err(terrace_format::Corrupt::new("inode pages", "fewer than blocks", found).into());
    }
    Ok(numbers)
}

/// Cache and buffer in DRAM, in front of PM with so many blocks.
fn open_dram(options: &MountOptions, pm_blocks: u64) -> Dram {
    let memory = options.memory.as_ref();
    let lazy_writes = LazyWrites::new(&options.buffer);
    let cache = BlockCache::new(options.cache_bytes, options.prefetch_ms * 1_000_000);
    cache.limit_sync_states(if options.read_only { 0 } else { lazy_writes.most_states() });
    let most_cache_bytes =
        memory.map_or(options.cache_bytes, |memory| options.cache_bytes.max(most(&memory.look())));
    Dram::new(
        cache,
        most_cache_bytes / BLOCK_SIZE,
        ReadAhead::new(options.prefetch_bytes / BLOCK_SIZE, options.cache_bytes / BLOCK_SIZE),
        WriteBack::new(&options.buffer, pm_blocks),
        lazy_writes,
    )
}

/// Writes the epoch of this mount into the header of each device, before any other write to a device. So a
/// later mount can tell that its PM is an older copy than the one its devices were last used with.
///
/// # Errors
/// The first error of a device; all other headers are written.
pub fn stamp_devices(engine: &Engine) -> FsResult<()> {
    if engine.store.mode.read_only {
        return Ok(());
    }
    let mut first_error = None;
    // A device must not name an epoch that a loss of power takes from PM: PM would be taken for an older copy.
    if !planted(Mistake::StampBeforePersist) {
        engine.store.persistent.persist()?;
    }
    for device in engine.store.devices.list().iter().filter(|device| !device.medium.is_missing()) {
        if let Err(error) = stamp(device, engine.store.persistent.wal().epoch()) {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

impl Engine {
    /// Mounts: recovers the log and prepares volatile state. Its time depends on the size of the lanes,
    /// not on the number of files. Starts no thread.
    ///
    /// # Errors
    /// A pool that cannot be used; the media's.
    pub fn mount(
        media: PoolMedia,
        superblock: Superblock,
        options: MountOptions,
        clock: Arc<dyn Clock>,
    ) -> FsResult<Arc<Engine>> {
        mount(media, superblock, options, clock)
    }
}
