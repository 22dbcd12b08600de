//! `terrace mkfs`, mkfs.terrace
//!
//! All checks come before the first change; a failed run removes the files that it made.

use crate::args::{Data, Mkfs, Switch};
use crate::measure::{self, Source, Subject};
use crate::signature;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_daemon::failure::{Failure, Outcome};
use terrace_daemon::output::{self, human};
use terrace_daemon::pool;
use terrace_engine::{DeviceClass, FormatOptions, NewDevice, PoolMedia, RootDirectory};
use terrace_format::superblock::Superblock;
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_media::block::probe::Access;
use terrace_media::block::{AlignedBlock, FileDevice};
use terrace_media::{BlockMedium, OpenError};
use terrace_runtime::{Clock, SystemClock};

mod old;
mod report;
mod take_over;
mod target;
mod tier0;

use report::report;
use target::{CHUNK_BLOCKS, Target, check_content, check_space, tier};
use tier0::{Tier0, check_shape};

pub fn run(args: &Mkfs) -> Outcome<u8> {
    if let Some(from) = &args.from {
        let old = old::Old::at(from)?;
        let tier0 = Tier0::of(args, Some(&old))?;
        return take_over::run(&tier0, &old, (args.force, args.dry_run));
    }
    let options = options(args)?;
    let tier0 = Tier0::of(args, None)?;
    let mut tiers = Vec::new();
    for text in &args.tiers {
        tiers.push(tier(text)?);
    }
    check_shape(&tier0, &tiers)?;
    for one in std::iter::once(tier0.target()).chain(&tiers) {
        check_content(one, args.force)?;
    }
    tier0.check_memory(0)?;
    check_space(tier0.target())?;
    if args.dry_run {
        return dry_run(&tier0, &tiers);
    }
    let mut made = Vec::new();
    let result = make(&tier0, &tiers, options, args.force, &mut made);
    if result.is_err() {
        for path in &made {
            let _ = fs::remove_file(path);
        }
    }
    let superblock = result?;
    report(&tier0, &tiers, &superblock);
    Ok(0)
}

fn options(args: &Mkfs) -> Outcome<FormatOptions> {
    let policy = args.policy;
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
        map: args.map,
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

/// Makes and opens the media, locked from here on, and writes the pool. Tier 0 of an old pool is emptied
/// first (C25): no lower tier is changed while the old superblocks exist.
fn make(
    tier0: &Tier0,
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
    let pm = tier0.make(made)?;
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
    // The measurement comes last, because it writes to the devices.
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
    let media = PoolMedia { pm, block };
    terrace_engine::format(&media, &options).map_err(|error| Failure::at(&tier0.target().path, error))
}

/// Bytes that a measurement uses: the size of a file that stands in for a device that does not exist yet.
const STAND_IN_BYTES: u64 = 65 << 20;

/// Shows the tiers that the devices would make, and changes nothing: a block device is only read, and a
/// nameless file stands in for a file that a real run would make.
fn dry_run(tier0: &Tier0, tiers: &[Target]) -> Outcome<u8> {
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
    output::print(format!("tier 0: {}, {}", tier0.target().path.display(), human(tier0.bytes())));
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

/// The device or file that is measured in place of a device that must not be written yet.
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

/// Overwrites both ends, so that no program recognises the old content.
fn wipe(device: &FileDevice) -> Result<(), terrace_media::MediaError> {
    let ends = (signature::END_BYTES / BLOCK_SIZE).min(device.blocks());
    let zeros = vec![AlignedBlock::zeroed(); ends as usize];
    device.write(DeviceBlock(0), &zeros)?;
    device.write(DeviceBlock(device.blocks() - ends), &zeros)
}
