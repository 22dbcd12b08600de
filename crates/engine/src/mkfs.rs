//! Making a pool: superblocks, checkpoint, block table, roots, root directory, device headers.
//!
//! The superblocks of an old pool are cleared first and the new ones written last. So an interrupted mkfs
//! leaves the old pool, media that no mount accepts, or the new pool.

use crate::options::PoolMedia;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_format::device::{DEVICE_MAGIC, DeviceHeader};
use terrace_format::geometry::{ROOTS_BLOCK, SUPERBLOCK_BLOCKS, SUPERBLOCK_COPIES};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, pack_root};
use terrace_format::map_kind::MapKind;
use terrace_format::superblock::{DeviceRow, MAX_DEVICES, Superblock};
use terrace_format::table::{MASK_FULL, Owner, PageKind, TABLE_ENTRY_SIZE};
use terrace_format::version::{DATA_CHECKSUMS, DEVICE_SPEEDS, METADATA_BELOW};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Geometry, PmBlock, PmOffset};
use terrace_media::block::AlignedBlock;
use terrace_media::speed::{ClassedSpeed, FIGURES, HDD, SSD};
use terrace_placement::PolicyKind;
use terrace_store::error::{FsError, FsResult};
use terrace_store::parts::devices::speeds::row_speed;
use terrace_wal::{Error, Wal};
use zerocopy::{FromZeros, IntoBytes};

/// Class of a lower-tier device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceClass {
    /// Solid state.
    Ssd,
    /// Hard disk.
    Hdd,
    /// A class of speed, or measured or given figures.
    Speed(ClassedSpeed),
}

/// A device with at least this read latency, in nanoseconds, counts as a hard disk.
const ROTATES_NS: u64 = 1_000_000;

impl DeviceClass {
    /// The fields of the superblock: kind, class of its speed, figures.
    fn encode(self) -> (u8, u8, [u8; 4]) {
        match self {
            DeviceClass::Ssd => (SSD, 0, [0; 4]),
            DeviceClass::Hdd => (HDD, 0, [0; 4]),
            DeviceClass::Speed(ClassedSpeed { number, speed }) => {
                let kind = if speed.read_latency_ns < ROTATES_NS { SSD } else { HDD };
                let figures = if number == FIGURES { row_speed(&speed).encode() } else { [0; 4] };
                (kind, number, figures)
            }
        }
    }
}

/// A lower-tier device of a new pool.
#[derive(Debug, Clone)]
pub struct NewDevice {
    /// The tier; 1 is the fastest.
    pub tier: u8,
    /// Its class.
    pub class: DeviceClass,
    /// Its identity.
    pub uuid: [u8; 16],
    /// Absolute path, where a mount looks first.
    pub path: PathBuf,
}

/// The root directory of a new pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootDirectory {
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Permission bits (07777).
    pub mode: u32,
}

impl Default for RootDirectory {
    /// Owned by root, and writable by root alone.
    fn default() -> Self {
        RootDirectory { uid: 0, gid: 0, mode: 0o755 }
    }
}

/// The choices of mkfs.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Label, at most 64 bytes.
    pub label: String,
    /// Identity of the pool.
    pub uuid: [u8; 16],
    /// Key of the directory hash, random.
    pub hash_key: [u8; 16],
    /// Secret of the seals on lower tiers, random and not zero. Without one the pool is as older programs
    /// made it.
    pub seal_secret: Option<[u8; 16]>,
    /// The file map.
    pub map: MapKind,
    /// Default policy of mounts.
    pub policy: PolicyKind,
    /// Default data mode of mounts.
    pub data_ordered: bool,
    /// Whether data of files in PM gets checksums. Not with `data_ordered`, which overwrites in place.
    pub data_checksums: bool,
    /// Blocks of a chunk of a lower tier.
    pub chunk_blocks: u32,
    /// Creation time, nanoseconds since the epoch.
    pub created_ns: i64,
    /// The root directory.
    pub root: RootDirectory,
    /// Devices, in the order of [`PoolMedia::block`].
    pub devices: Vec<NewDevice>,
}

/// Writes a new pool over the old content of the media.
///
/// # Errors
/// `Refused` for sizes that cannot be; the media's.
pub fn format(media: &PoolMedia, options: &FormatOptions) -> FsResult<Superblock> {
    let refuse = |text: String| FsError::Engine(Error::Refused(text.into()));
    let geometry = Geometry::choose(media.pm.size(), options.chunk_blocks)
        .and_then(|geometry| geometry.with_map(options.map))
        .map_err(refuse)?;
    if options.devices.len() != media.block.len() || options.devices.len() > MAX_DEVICES {
        return Err(refuse(format!(
            "{} devices given, at most {MAX_DEVICES} can be used",
            media.block.len()
        )));
    }
    let superblock = make_superblock(media, options, &geometry)?;
    let pm = &*media.pm;
    let zeros = [0; BLOCK_SIZE as usize];
    // The superblocks of an old pool go first: a crash below must not leave one over a half cleared table,
    // nor over devices with headers of the new pool. Headers lie on other media, so the cleared superblocks
    // are persisted before them.
    let is_superblock = |block: &u64| {
        SUPERBLOCK_COPIES.iter().any(|copy| (copy.0..copy.0 + SUPERBLOCK_BLOCKS).contains(block))
    };
    for block in (0..geometry.first_pool_block().0).filter(is_superblock) {
        pm.write_streaming(PmBlock(block).offset(), &zeros)?;
    }
    pm.persist()?;
    for block in (0..geometry.first_pool_block().0).filter(|block| !is_superblock(block)) {
        pm.write_streaming(PmBlock(block).offset(), &zeros)?;
    }
    // Prepares large pages and a populated mapping for the first mount.
    pm.prepare(PmOffset(0), pm.size());
    Wal::format(Arc::clone(&media.pm), options.uuid, geometry)?;
    let root = root_pages(media, &geometry, options)?;
    write_table(media, &geometry, root)?;
    for (index, (device, medium)) in options.devices.iter().zip(&media.block).enumerate() {
        let mut header = DeviceHeader::new_zeroed();
        header.magic = DEVICE_MAGIC;
        header.version = 1.into();
        header.tier = device.tier;
        header.role = 1;
        header.index = index as u8;
        header.pool_uuid = options.uuid;
        header.device_uuid = device.uuid;
        header.blocks = medium.blocks().into();
        let mut block = AlignedBlock::zeroed();
        block.0.copy_from_slice(&header.encode());
        medium.write(DeviceBlock(0), &[block])?;
        medium.flush()?;
    }
    // The superblock is stored last, after the structures that it describes, so a crash before leaves no
    // valid pool. A torn superblock fails its checksum.
    pm.order();
    for copy in SUPERBLOCK_COPIES {
        pm.write(copy.offset(), superblock.as_bytes())?;
    }
    pm.persist()?;
    pm.close()?;
    Ok(superblock)
}

fn make_superblock(media: &PoolMedia, options: &FormatOptions, geometry: &Geometry) -> FsResult<Superblock> {
    let refuse = |text: String| FsError::Engine(Error::Refused(text.into()));
    let mut superblock = Superblock::new(geometry);
    superblock.uuid = options.uuid;
    superblock.hash_key = options.hash_key;
    if let Some(secret) = options.seal_secret {
        superblock.set_seal_secret(secret);
    }
    let label = options.label.as_bytes();
    let place = superblock.label.get_mut(..label.len());
    place.ok_or_else(|| refuse("the label is longer than 64 bytes".into()))?.copy_from_slice(label);
    superblock.policy = options.policy.id();
    superblock.data_mode = if options.data_ordered { 2 } else { 1 };
    if options.data_checksums {
        if options.data_ordered {
            return Err(refuse(
                "checksums of data need data=atomic: data=ordered overwrites in place".into(),
            ));
        }
        superblock.features.incompatible |= DATA_CHECKSUMS;
    }
    superblock.created_ns = (options.created_ns as u64).into();
    superblock.device_count = options.devices.len() as u8;
    let rows = superblock.devices.iter_mut().zip(&options.devices).zip(&media.block);
    for ((row, device), medium) in rows {
        *row = DeviceRow::new_zeroed();
        row.tier = device.tier;
        (row.class, row.speed_class, row.speed) = device.class.encode();
        if row.speed_class != 0 {
            superblock.features.compatible = (superblock.features.compatible.get() | DEVICE_SPEEDS).into();
        }
        row.uuid = device.uuid;
        row.blocks = medium.blocks().into();
        let path = std::os::unix::ffi::OsStrExt::as_bytes(device.path.as_os_str());
        if !row.set_path(path) {
            return Err(refuse(format!("{}: path longer than 255 bytes", device.path.display())));
        }
    }
    if !options.devices.is_empty() {
        superblock.features.incompatible |= METADATA_BELOW;
    }
    superblock.seal();
    Ok(superblock)
}

/// Writes the first map node of the inode file, and its first page with the root directory: (node, page).
fn root_pages(
    media: &PoolMedia,
    geometry: &Geometry,
    options: &FormatOptions,
) -> FsResult<(PmBlock, PmBlock)> {
    let node = geometry.first_pool_block();
    let page = PmBlock(node.0 + 1);
    let pm = &*media.pm;
    let mut bytes = [0; BLOCK_SIZE as usize];
    bytes[..8].copy_from_slice(&page.0.to_le_bytes());
    pm.write_streaming(node.offset(), &bytes)?;
    let mut root = InodeSlot::zeroed();
    root.mode = (0o040000 | (options.root.mode & 0o7777)).into();
    root.uid = options.root.uid.into();
    root.gid = options.root.gid.into();
    root.nlink = 2.into();
    root.generation = 1.into();
    root.parent_or_rdev = 1.into();
    for time in [&mut root.atime, &mut root.mtime, &mut root.ctime, &mut root.btime] {
        *time = options.created_ns.into();
    }
    bytes.fill(0);
    bytes[SLOT_SIZE as usize..2 * SLOT_SIZE as usize].copy_from_slice(root.as_bytes());
    pm.write_streaming(page.offset(), &bytes)?;
    pm.write(geometry.inode_root(), &pack_root(1, node.0).to_le_bytes())?;
    pm.write(geometry.inode_pages(), &1u64.to_le_bytes())?;
    debug_assert_eq!(geometry.inode_root().block(), ROOTS_BLOCK);
    Ok((node, page))
}

/// The reach of searches in a new pool whose block table is the file map.
const FIRST_REACH: u64 = 64;

fn write_table(media: &PoolMedia, geometry: &Geometry, root: (PmBlock, PmBlock)) -> FsResult<()> {
    let entry = |owner: Owner| {
        let mut bytes = [0; TABLE_ENTRY_SIZE as usize];
        bytes[..8].copy_from_slice(&owner.encode().to_le_bytes());
        bytes[8..].copy_from_slice(&MASK_FULL.to_le_bytes());
        bytes
    };
    let fixed = entry(Owner::Page { kind: PageKind::Fixed, datum: 0 });
    for block in 0..geometry.first_pool_block().0 {
        media.pm.write(geometry.table_entry(PmBlock(block)), &fixed)?;
    }
    let node = entry(Owner::Page { kind: PageKind::InodeNode, datum: 0 });
    media.pm.write(geometry.table_entry(root.0), &node)?;
    let page = entry(Owner::Page { kind: PageKind::InodePage, datum: 0 });
    media.pm.write(geometry.table_entry(root.1), &page)?;
    if geometry.map.has_reach() {
        media.pm.write(geometry.map_reach(), &FIRST_REACH.to_le_bytes())?;
    }
    Ok(())
}
