//! `terrace mkfs`, mkfs.terrace
//!
//! Everything is checked before anything is changed; files made by a run that fails are removed.

use crate::args::{Data, Map, Mkfs, Policy, Switch};
use crate::failure::{Failure, Outcome, plain};
use crate::measure::{self, Source, Subject};
use crate::output::{self, human, parse_size};
use crate::{ownership, pool, signature, taken};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_format::geometry::MIN_PM_SIZE;
use terrace_format::superblock::{MAX_DEVICES, MAX_PATH, Superblock};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Geometry};
use terrace_fs::{
    DeviceClass, FormatOptions, NewDevice, PolicyKind, PoolMedia, RootDirectory, class_name, speed_of,
};
use terrace_media::block::probe::Access;
use terrace_media::block::{AlignedBlock, FileDevice};
use terrace_media::pm::RamPm;
use terrace_media::speed::{ClassedSpeed, FIGURES};
use terrace_media::{BlockMedium, Found, OpenError, PmMedium, Promise};
use terrace_runtime::{Clock, SystemClock};

/// Blocks of a chunk: 16 MiB.
const CHUNK_BLOCKS: u32 = 4096;
/// Smallest tier: the header and two chunks.
const MIN_TIER: u64 = (1 + 2 * CHUNK_BLOCKS as u64) * BLOCK_SIZE;

/// What the format has no numbers for.
const TOO_LARGE_PM: u64 = 16 << 40;

/// A path that becomes a medium.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    /// `None`: the file is made.
    existing: Option<Existing>,
    /// Bytes it will have, whole blocks.
    size: u64,
    /// Bytes given, or found.
    given: u64,
    /// As the user says.
    speed: Option<ClassedSpeed>,
}

#[derive(Debug)]
struct Existing {
    found: Found,
    size: u64,
}

impl Target {
    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

impl Existing {
    /// Whether it is used as it is. Another file is emptied and made anew.
    fn keeps_size(&self, target: &Target) -> bool {
        self.found.is_block_device() || self.size / BLOCK_SIZE * BLOCK_SIZE == target.size
    }
}

pub fn run(args: &Mkfs) -> Outcome<u8> {
    let options = options(args)?;
    let path = args.pm.as_ref().or(args.pool.as_ref());
    let path = path.ok_or_else(|| Failure::new("no path of a pool given; say --pm PATH"))?;
    let size = args.pm_size.as_deref().or(args.size.as_deref());
    let pm = target(path, size, "--pm-size SIZE", None)?;
    let mut tiers = Vec::new();
    for text in &args.tiers {
        tiers.push(tier(text)?);
    }
    check_shape(&pm, &tiers)?;
    for one in std::iter::once(&pm).chain(&tiers) {
        check_content(one, args.force)?;
    }
    check_space(&pm)?;
    if args.dry_run {
        return dry_run(&pm, &tiers);
    }
    let mut made = Vec::new();
    let result = make(&pm, &tiers, options, args.force, &mut made);
    if result.is_err() {
        for path in &made {
            let _ = fs::remove_file(path);
        }
    }
    let superblock = result?;
    report(&pm, &tiers, &superblock);
    Ok(0)
}

fn options(args: &Mkfs) -> Outcome<FormatOptions> {
    match args.map {
        Map::Radix => {}
        Map::Extent => return Err(Failure::not_built("--map extent")),
        Map::Cuckoo => return Err(Failure::not_built("--map cuckoo")),
        Map::Hashfs => return Err(Failure::not_built("--map hashfs")),
    }
    let policy = match args.policy {
        Policy::Static => PolicyKind::Static,
        Policy::Anticache => PolicyKind::Anticache,
        Policy::Predictive => PolicyKind::Predictive,
        Policy::WriteOnly => PolicyKind::WriteOnly,
    };
    if args.data == Data::Ordered && args.data_checksum == Switch::On {
        return Err(Failure::new(
            "--data-checksum on: --data ordered overwrites in place, which no checksum survives; leave one of the two out"
                .to_string(),
        ));
    }
    if args.label.len() > 64 {
        return Err(Failure::new(format!("--label: {} bytes; use at most 64", args.label.len())));
    }
    Ok(FormatOptions {
        label: args.label.clone(),
        uuid: uuid::Uuid::new_v4().into_bytes(),
        hash_key: uuid::Uuid::new_v4().into_bytes(),
        seal_secret: Some(uuid::Uuid::new_v4().into_bytes()),
        policy,
        data_ordered: args.data == Data::Ordered,
        data_checksums: args.data_checksum == Switch::On,
        chunk_blocks: CHUNK_BLOCKS,
        created_ns: SystemClock::default().wall_ns(),
        // The root directory belongs to the user who makes the pool.
        root: RootDirectory {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            ..RootDirectory::default()
        },
        devices: Vec::new(),
    })
}

/// `PATH[,size=SIZE][,class=CLASS]`
fn tier(text: &OsStr) -> Outcome<Target> {
    let mut words = text.as_bytes().split(|&byte| byte == b',');
    let path = Path::new(OsStr::from_bytes(words.next().unwrap_or(&[])));
    let (mut size, mut speed) = (None, None);
    for word in words {
        let word = String::from_utf8_lossy(word).into_owned();
        match word.split_once('=') {
            Some(("size", value)) => size = Some(value.to_string()),
            Some(("class", value)) => {
                speed = Some(ClassedSpeed::parse(value).map_err(|error| Failure::at(path, error))?);
            }
            _ => return Err(Failure::at(path, format!("'{word}': use size=SIZE or class=CLASS"))),
        }
    }
    target(path, size.as_deref(), "size=SIZE", speed)
}

fn target(path: &Path, size: Option<&str>, option: &str, speed: Option<ClassedSpeed>) -> Outcome<Target> {
    let asked = match size {
        Some(text) => Some(parse_size(text).map_err(|error| Failure::at(path, error))?),
        None => None,
    };
    let path = match fs::canonicalize(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_path(path)?,
        Err(error) => return Err(Failure::at(path, plain(&error))),
    };
    if path.as_os_str().len() > MAX_PATH {
        return Err(Failure::at(&path, format!("longer than {MAX_PATH} bytes; use a shorter path")));
    }
    let existing = examine(&path)?;
    let given = match (&existing, asked) {
        (Some(existing), Some(asked)) if existing.found.is_block_device() && asked > existing.size => {
            let [has, wanted] = output::distinct([existing.size, asked]);
            return Err(Failure::at(&path, format!("has only {has}, not {wanted}")));
        }
        (Some(existing), _) if existing.found.is_block_device() => existing.size,
        (_, Some(asked)) => asked,
        (Some(found), None) if found.size > 0 => found.size,
        (found, None) => {
            let what = if found.is_some() { "is empty" } else { "does not exist" };
            return Err(Failure::at(&path, format!("{what}; say how large to make it with {option}")));
        }
    };
    Ok(Target { path, existing, size: given / BLOCK_SIZE * BLOCK_SIZE, given, speed })
}

/// The absolute path of a file to make.
fn new_path(path: &Path) -> Outcome<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|error| Failure::at(path, plain(&error)))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Failure::at(path, "not a file name"));
    };
    let parent = fs::canonicalize(parent).map_err(|error| Failure::at(parent, plain(&error)))?;
    Ok(parent.join(name))
}

fn examine(path: &Path) -> Outcome<Option<Existing>> {
    let found = match Found::at(path) {
        Ok(found) => found,
        Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(pool::open_failure(&error)),
    };
    ownership::admit_existing(path, found.access())?;
    if let Some(user) = taken::by(&found) {
        return Err(Failure::at(path, format!("mounted or in use: {user}; end that first")));
    }
    let mut file = found.open(false, OFlags::empty()).map_err(|error| cannot_open(&found, &error))?;
    let size =
        io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(|error| Failure::at(path, plain(&error)))?;
    Ok(Some(Existing { found, size }))
}

/// EPERM of a device says that the system does not let anybody open it.
fn cannot_open(found: &Found, error: &OpenError) -> Failure {
    match error {
        OpenError::Io { path, source, .. }
            if found.is_block_device() && source.raw_os_error() == Some(libc::EPERM) =>
        {
            let what = "this system does not let the device be opened: it is in use, write-protected, or not given to this container";
            Failure::at(path, format!("{}: {what}", plain(source)))
        }
        _ => pool::open_failure(error),
    }
}

/// Sizes, number, and every medium once.
fn check_shape(pm: &Target, tiers: &[Target]) -> Outcome<()> {
    if pm.existing.as_ref().is_some_and(|existing| existing.found.is_block_device()) {
        let what = "a block device cannot be persistent memory; use a file on tmpfs, hugetlbfs or a DAX file system, and give devices with --tier";
        return Err(Failure::at(&pm.path, what));
    }
    check_minimum(pm, "persistent memory", MIN_PM_SIZE)?;
    if pm.size >= TOO_LARGE_PM {
        let (given, limit) = (human(pm.given), human(TOO_LARGE_PM));
        let text = format!("{given} is too large for persistent memory, which must be below {limit}");
        return Err(Failure::at(&pm.path, text));
    }
    Geometry::choose(pm.size, CHUNK_BLOCKS).map_err(|error| Failure::at(&pm.path, error))?;
    if tiers.len() > MAX_DEVICES {
        return Err(Failure::new(format!("{} tiers given; use at most {MAX_DEVICES}", tiers.len())));
    }
    for tier in tiers {
        check_minimum(tier, "a tier", MIN_TIER)?;
    }
    let all: Vec<&Target> = std::iter::once(pm).chain(tiers).collect();
    for (index, one) in all.iter().enumerate() {
        for other in &all[..index] {
            let same_file = match (&one.existing, &other.existing) {
                (Some(one), Some(other)) => one.found.identity() == other.found.identity(),
                _ => false,
            };
            if one.path == other.path || same_file {
                return Err(Failure::at(&one.path, "given twice; every tier needs a device of its own"));
            }
        }
    }
    Ok(())
}

fn check_minimum(target: &Target, what: &str, minimum: u64) -> Outcome<()> {
    if target.size >= minimum {
        return Ok(());
    }
    let [given, least] = output::distinct([target.given, minimum]);
    let text = format!("{given} is below the minimum of {what}, {least} ({minimum} bytes)");
    Err(Failure::at(&target.path, text))
}

/// Nobody uses it, and it holds nothing.
fn check_content(target: &Target, force: bool) -> Outcome<()> {
    let Some(existing) = &target.existing else { return Ok(()) };
    let path = &target.path;
    let exclusive = if existing.found.is_block_device() { OFlags::EXCL } else { OFlags::empty() };
    let file = existing.found.open(true, exclusive).map_err(|error| match &error {
        OpenError::Io { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
            Failure::at(path, "mounted or in use; unmount it first")
        }
        _ => cannot_open(&existing.found, &error),
    })?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Failure::at(path, "in use by another process; is the pool mounted?"));
    }
    if let Some(device) = taken::loop_device(path) {
        let device = device.display();
        return Err(Failure::at(path, format!("in use by {device}; detach it with 'losetup -d' first")));
    }
    if force {
        return Ok(());
    }
    match signature::find(&file, existing.size).map_err(|error| Failure::at(path, plain(&error)))? {
        Some(what) => Err(Failure::at(path, format!("holds {what}; use --force to overwrite it"))),
        None => Ok(()),
    }
}

/// Persistent memory is allocated in full, so it must fit now.
fn check_space(pm: &Target) -> Outcome<()> {
    let directory = pm.path.parent().unwrap_or(Path::new("/"));
    let space =
        rustix::fs::statvfs(directory).map_err(|error| Failure::at(directory, plain(&error.into())))?;
    let freed = pm.existing.as_ref().map_or(0, |existing| existing.found.allocated_bytes());
    let mut room = space.f_bavail * space.f_frsize + freed;
    if rustix::fs::statfs(directory).is_ok_and(|found| found.f_type as u64 == libc::TMPFS_MAGIC as u64) {
        room = room.min(available_memory().unwrap_or(u64::MAX).saturating_add(freed));
    }
    if pm.size > room {
        let [size, room] = output::distinct([pm.size, room]);
        let what = format!("no space for {size}: only {room} is free; use a smaller size");
        return Err(Failure::at(&pm.path, what));
    }
    Ok(())
}

fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Makes and opens the media, locked from here on, and writes the pool. Of an old pool tier 0 goes first (C25): as long as
/// its superblocks are there, nothing of its other tiers is changed.
fn make(
    pm: &Target,
    tiers: &[Target],
    mut options: FormatOptions,
    force: bool,
    made: &mut Vec<PathBuf>,
) -> Outcome<Superblock> {
    let refused = |error: OpenError| pool::open_failure(&error);
    let mut opened = Vec::new();
    for target in tiers {
        opened.push(match &target.existing {
            Some(existing) if existing.keeps_size(target) => {
                Some(FileDevice::open_found(&existing.found, true, false).map_err(refused)?)
            }
            Some(_) => None,
            None => {
                let device = FileDevice::create(&target.path, target.size).map_err(refused)?;
                made.push(target.path.clone());
                Some(device)
            }
        });
    }
    let memory = match &pm.existing {
        Some(existing) => RamPm::remake(&existing.found, pm.size).map_err(refused)?,
        None => {
            let memory = RamPm::create(&pm.path, pm.size).map_err(refused)?;
            made.push(pm.path.clone());
            memory
        }
    };
    let mut block: Vec<Arc<dyn BlockMedium>> = Vec::new();
    for (target, device) in tiers.iter().zip(opened) {
        let device = match (device, &target.existing) {
            (Some(device), _) => device,
            (None, Some(existing)) => FileDevice::remake(&existing.found, target.size).map_err(refused)?,
            (None, None) => FileDevice::create(&target.path, target.size).map_err(refused)?,
        };
        if force && target.existing.is_some() {
            wipe(&device).map_err(|error| Failure::new(error.to_string()))?;
        }
        block.push(Arc::new(device));
    }
    // Last of all, because it writes.
    let subjects: Vec<Subject<'_>> = tiers
        .iter()
        .zip(&block)
        .map(|(target, device)| Subject {
            path: &target.path,
            place: target.path.clone(),
            given: target.speed,
            device: Some((&**device, Access::Writing)),
        })
        .collect();
    for (target, judged) in tiers.iter().zip(measure::judge(&subjects)?) {
        options.devices.push(NewDevice {
            tier: judged.tier,
            class: judged.speed.map_or(DeviceClass::Ssd, DeviceClass::Speed),
            uuid: uuid::Uuid::new_v4().into_bytes(),
            path: target.path.clone(),
        });
    }
    drop(subjects);
    let media = PoolMedia { pm: Arc::new(memory) as Arc<dyn PmMedium>, block };
    terrace_fs::format(&media, &options).map_err(|error| Failure::at(&pm.path, error))
}

/// Most bytes of a file that stands in for a device to make: what a measurement uses.
const STAND_IN_BYTES: u64 = 65 << 20;

/// Shows the tiers that the devices would make, and changes nothing: a block device is only read, and a file without a
/// name stands in for one that is to be made anew.
fn dry_run(pm: &Target, tiers: &[Target]) -> Outcome<u8> {
    let devices: Vec<Option<(FileDevice, Access)>> = tiers.iter().map(stand_in).collect();
    let subjects: Vec<Subject<'_>> = tiers
        .iter()
        .zip(&devices)
        .map(|(target, device)| Subject {
            path: &target.path,
            place: match target.existing {
                Some(_) => target.path.clone(),
                None => target.directory().to_path_buf(),
            },
            given: target.speed,
            device: device.as_ref().map(|(device, access)| (device as &dyn BlockMedium, *access)),
        })
        .collect();
    let mut judged: Vec<_> = tiers.iter().zip(&devices).zip(measure::judge(&subjects)?).collect();
    judged.sort_by_key(|(_, judged)| judged.tier);
    output::print(format!("tier 0: {}, {}", pm.path.display(), human(pm.size)));
    for ((target, device), judged) in judged {
        let name = judged.speed.and_then(|speed| speed.name());
        let figures = judged.speed.map(|speed| speed.speed.to_string()).unwrap_or_default();
        let read_alone = device.as_ref().is_some_and(|(_, access)| *access == Access::ReadingAlone);
        let said = match judged.source {
            Source::Unknown => "the only device, not measured".to_string(),
            Source::Given => format!("as given: {}", name.unwrap_or(&figures)),
            Source::Measured if read_alone => {
                format!("measured by reading alone, mkfs writes too: {figures}")
            }
            Source::Measured => format!("measured: {figures}"),
            Source::Kernel => format!("as the kernel calls it: {}", name.unwrap_or(&figures)),
        };
        let (path, size) = (target.path.display(), human(target.size));
        output::print(format!("tier {}: {path}, {size}: {said}", judged.tier));
    }
    output::print("nothing was made");
    Ok(0)
}

/// What is measured in place of a device that nobody may write to yet.
fn stand_in(target: &Target) -> Option<(FileDevice, Access)> {
    match &target.existing {
        Some(existing) if existing.found.is_block_device() => {
            Some((FileDevice::open_found(&existing.found, true, true).ok()?, Access::ReadingAlone))
        }
        _ => {
            let bytes = target.size.min(STAND_IN_BYTES);
            Some((FileDevice::unnamed(target.directory(), bytes).ok()?, Access::Writing))
        }
    }
}

/// So that nothing recognises what was there before.
fn wipe(device: &FileDevice) -> Result<(), terrace_media::MediaError> {
    let ends = (signature::END_BYTES / BLOCK_SIZE).min(device.blocks());
    let zeros = vec![AlignedBlock::zeroed(); ends as usize];
    device.write(DeviceBlock(0), &zeros)?;
    device.write(DeviceBlock(device.blocks() - ends), &zeros)
}

fn report(pm: &Target, tiers: &[Target], superblock: &Superblock) {
    let geometry = superblock.geometry();
    let table = geometry.block_count() * 16;
    output::print(format!("pool {} made, uuid {}", pm.path.display(), pool::uuid_text(superblock)));
    output::print(format!(
        "tier 0: {}, {}: {} lanes of {}, block table {}, {} blocks of 4 KiB to use; promise {}",
        pm.path.display(),
        human(geometry.pm_size),
        geometry.lane_count,
        human(geometry.lane_size),
        human(table),
        geometry.block_count() - geometry.first_pool_block().0,
        Promise::ProcessCrash.name(),
    ));
    if superblock.has_data_checksums() {
        output::print("file data in persistent memory has checksums");
    }
    if !is_memory(&pm.path) {
        output::warn(ordinary(&pm.path));
    }
    for target in std::iter::once(pm).chain(tiers) {
        let Some(existing) = &target.existing else { continue };
        let access = existing.found.access();
        let user = rustix::process::geteuid().as_raw();
        let changeable = ownership::changeable(access, user);
        let changeable = changeable.map(|why| format!("{}: {why}", target.path.display()));
        if let Some(text) = changeable.or_else(|| ownership::readable(&target.path, access)) {
            output::warn(text);
        }
    }
    let mut rows: Vec<_> = tiers.iter().zip(superblock.device_rows()).collect();
    rows.sort_by_key(|(_, row)| row.tier);
    for (tier, row) in rows {
        let chunks = (tier.size / BLOCK_SIZE - 1).div_ceil(u64::from(CHUNK_BLOCKS));
        let speed = match (speed_of(row), row.speed_class) {
            (Some(_), FIGURES) if tier.speed.is_none() => ", measured: ",
            (Some(_), _) => ", ",
            (None, _) => "",
        };
        let figures = speed_of(row).map(|figures| figures.to_string()).unwrap_or_default();
        output::print(format!(
            "tier {}: {}, {}: {}{speed}{figures}, {chunks} chunks of 16 MiB; promise {}",
            row.tier,
            tier.path.display(),
            human(tier.size),
            class_name(row),
            Promise::PowerFail.name(),
        ));
        if tier.existing.is_none() {
            output::warn(sparse(tier));
        }
        if tier.existing.as_ref().is_some_and(|existing| existing.found.is_block_device()) {
            output::warn(disguise(&tier.path));
        }
    }
}

/// Whether a file is memory: on tmpfs, ramfs, hugetlbfs, or mapped without a page cache (DAX).
fn is_memory(path: &Path) -> bool {
    const MEMORY: [u64; 3] =
        [libc::TMPFS_MAGIC as u64, libc::HUGETLBFS_MAGIC as u64, 0x8584_58f6 /* ramfs */];
    let kind = rustix::fs::statfs(path).map(|found| found.f_type as u64 & 0xffff_ffff);
    let flags = rustix::fs::AtFlags::empty();
    let dax = rustix::fs::statx(rustix::fs::CWD, path, flags, rustix::fs::StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(rustix::fs::StatxAttributes::DAX));
    dax || kind.is_ok_and(|kind| MEMORY.contains(&kind))
}

/// Persistent memory in a page cache.
fn ordinary(path: &Path) -> String {
    let what = "not on tmpfs, hugetlbfs or DAX: its file system writes pages back in an order of its own";
    format!(
        "{}: {what}, so the pool survives the end of the daemon (process-crash), not of the machine",
        path.display()
    )
}

/// What other programs see of a device.
fn disguise(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path}: other programs see no more than an empty partition table (blkid: dos); do not partition or format it"
    )
}

/// A sparse file can meet a full host later.
fn sparse(tier: &Target) -> String {
    let directory = tier.path.parent().unwrap_or(Path::new("/"));
    let free = rustix::fs::statvfs(directory).map_or(0, |space| space.f_bavail * space.f_frsize);
    let path = tier.path.display();
    format!("{path}: sparse file; its file system has {} free and must not run full", human(free))
}
