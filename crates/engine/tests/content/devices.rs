//! Pools with several devices.

use std::sync::Arc;
use terrace_engine::{
    Engine, FsResult, MountOptions, Movements, PoolMedia, Simulation, Wait, WriteFlags, format,
    read_superblock,
};
use terrace_format::checkpoint::Checkpoint;
use terrace_format::device::DeviceHeader;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::{DeviceBlock, Ino};
use terrace_media::block::{AlignedBlock, MissingDevice, Operation, SimulatedDevice, Times};
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, PmMedium};
use terrace_placement::Home;
use terrace_testkit::{CALLER, ROOT, SimulatedPool, format_options};

const W: Wait = Wait::Allowed;

/// Each group goes to the device with the most free space, so both devices get groups. A group is installed
/// only after a flush of its own device (M1), however the flush of the other went.
#[test]
fn each_of_two_devices_is_flushed() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let second = Arc::new(SimulatedDevice::new(1024));
    let media = |first: Arc<SimulatedDevice>, second: Arc<SimulatedDevice>| PoolMedia {
        pm: pool.pm.clone(),
        block: vec![first, second],
    };
    let superblock = format(&media(pool.device.clone(), second.clone()), &format_options(2))?;
    let mount = |media| Engine::mount(media, superblock, MountOptions::default(), pool.clock.clone());
    let fs = mount(media(pool.device.clone(), second.clone()))?;
    // The scan after the mount makes the free space of both devices known.
    fs.run_background(1000);
    let mut files = Vec::new();
    for index in 0..6u8 {
        let ino = fs.mknod(ROOT, &[b'a' + index], 0o100644, 0, CALLER, W)?.ino;
        fs.write(ino, 0, &[index + 1; 100_000], WriteFlags::default(), W)?;
        fs.sync_to(1, &mut |_| {})?;
        files.push(ino);
    }
    drop(fs);
    // Power fails: each device keeps the blocks that were flushed.
    let left =
        |device: &SimulatedDevice| Arc::new(SimulatedDevice::from_image(device.snapshot().image_none()));
    assert!(second.counters().blocks_written > 1 && pool.device.counters().blocks_written > 1);
    let fs = mount(media(left(&pool.device), left(&second)))?;
    for (index, ino) in (1u8..).zip(files) {
        let mut content = vec![0; 100_000];
        assert_eq!(fs.read(ino, 0, &mut content, W)?, content.len());
        assert!(content.iter().all(|byte| *byte == index));
    }
    Ok(())
}

/// A mounted pool with one tier of two devices of the given sizes, the free space of both known.
fn two_devices(
    pool: &SimulatedPool,
    first: &Arc<SimulatedDevice>,
    second: &Arc<SimulatedDevice>,
) -> FsResult<Arc<Engine>> {
    let media = || PoolMedia { pm: pool.pm.clone(), block: vec![first.clone(), second.clone()] };
    let superblock = format(&media(), &format_options(2))?;
    let fs = Engine::mount(media(), superblock, MountOptions::default(), pool.clock.clone())?;
    fs.run_background(1000);
    Ok(fs)
}

/// Writes a file and demotes it.
fn put_down(fs: &Arc<Engine>, name: u8, bytes: usize) -> FsResult<Ino> {
    let ino = fs.mknod(ROOT, &[name], 0o100644, 0, CALLER, W)?.ino;
    assert_eq!(fs.write(ino, 0, &vec![name; bytes], WriteFlags::default(), W)?, bytes);
    fs.sync_to(1, &mut |_| {})?;
    Ok(ino)
}

fn assert_holds(fs: &Engine, ino: Ino, name: u8, bytes: usize) -> FsResult<()> {
    let mut content = vec![0; bytes];
    assert_eq!(fs.read(ino, 0, &mut content, W)?, bytes);
    assert!(content.iter().all(|byte| *byte == name));
    Ok(())
}

/// A device that failed every write kept the most free space of its tier, and was chosen again for ever,
/// while the other device would have taken every group.
#[test]
fn a_failed_device_is_passed_over() -> FsResult<()> {
    for operation in [Operation::Write, Operation::Flush] {
        let pool = SimulatedPool::new(4 << 20, 64);
        let (first, second) = (Arc::new(SimulatedDevice::new(2048)), Arc::new(SimulatedDevice::new(1024)));
        let fs = two_devices(&pool, &first, &second)?;
        first.fail_next(operation, 0..2048, libc::EIO, Times::Forever);
        let flushes = first.counters().flushes;
        for name in b'a'..=b'f' {
            let ino = put_down(&fs, name, 100_000)?;
            assert_holds(&fs, ino, name, 100_000)?;
        }
        // The first group met the failure; all later groups went to the other device at once.
        let status = fs.status()?;
        assert_eq!(status.tiers[1].devices[0].errors, 1, "{operation:?}");
        assert_eq!(status.tiers[1].devices[0].health, "degraded");
        assert_eq!(status.migration.reason, None);
        assert!(first.counters().flushes - flushes <= 1);
        assert!(status.tiers[1].devices[1].used_bytes >= 600_000);
        // After a pause the failed device is tried again, and takes its share once it works.
        first.clear_failures();
        pool.clock.advance(std::time::Duration::from_secs(31));
        put_down(&fs, b'g', 100_000)?;
        assert!(fs.status()?.tiers[1].devices[0].used_bytes >= 100_000);
    }
    Ok(())
}

/// With every other device full, a failed device does not make migration spin, and no block is lost.
#[test]
fn a_failed_device_beside_a_full_device_is_tried_with_pauses() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let (first, second) = (Arc::new(SimulatedDevice::new(1024)), Arc::new(SimulatedDevice::new(17)));
    let fs = two_devices(&pool, &first, &second)?;
    first.fail_next(Operation::Write, 0..1024, libc::EIO, Times::Forever);
    let ino = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, W)?.ino;
    fs.write(ino, 0, &vec![b'a'; 400_000], WriteFlags::default(), W)?;
    assert!(fs.sync_to(1, &mut |_| {}).is_err());
    let errors = fs.status()?.tiers[1].devices[0].errors;
    assert!(errors <= 8, "{errors} attempts");
    assert_holds(&fs, ino, b'a', 400_000)?;
    // The failed device works again: everything is demoted.
    first.clear_failures();
    pool.clock.advance(std::time::Duration::from_secs(31));
    fs.sync_to(1, &mut |_| {})?;
    assert_holds(&fs, ino, b'a', 400_000)
}

/// Devices of different sizes fill in proportion, so that both work from the beginning; full ones are passed
/// over.
#[test]
fn devices_of_a_tier_fill_alike() -> FsResult<()> {
    let pool = SimulatedPool::new(8 << 20, 64);
    let (small, large) = (Arc::new(SimulatedDevice::new(257)), Arc::new(SimulatedDevice::new(1025)));
    let fs = two_devices(&pool, &small, &large)?;
    let share = |fs: &Engine| -> FsResult<[u64; 2]> {
        let devices = fs.status()?.tiers.remove(1).devices;
        Ok([0, 1].map(|index: usize| devices[index].used_bytes * 100 / devices[index].capacity_bytes))
    };
    let mut files = Vec::new();
    for name in 0..40u8 {
        files.push((name, put_down(&fs, name + b'0', 65_536)?));
        let [a, b] = share(&fs)?;
        assert!(a.abs_diff(b) <= 10, "after {name}: {a} %, {b} %");
    }
    // The remaining files fill both devices to the last group.
    for name in 40..74u8 {
        files.push((name, put_down(&fs, name + b'0', 65_536)?));
    }
    let [a, b] = share(&fs)?;
    assert!(a >= 85 && b >= 85, "{a} %, {b} %");
    for (name, ino) in files {
        assert_holds(&fs, ino, name + b'0', 65_536)?;
    }
    Ok(())
}

/// Write-back chose a device that had failed again and again, as long as it had the most free space.
#[test]
fn write_back_passes_over_a_failed_device() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let (first, second) = (Arc::new(SimulatedDevice::new(2048)), Arc::new(SimulatedDevice::new(2048)));
    let media = || PoolMedia { pm: pool.pm.clone(), block: vec![first.clone(), second.clone()] };
    let superblock = format(&media(), &format_options(2))?;
    let options = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
    let fs = Engine::mount(media(), superblock, options, pool.clock.clone())?;
    fs.run_background(1000);
    first.fail_next(Operation::Write, 0..2048, libc::EIO, Times::Forever);
    let mut errors = 0;
    for name in b'a'..=b'f' {
        let ino = fs.mknod(ROOT, &[name], 0o100644, 0, CALLER, W)?.ino;
        assert_eq!(fs.write(ino, 0, &[name; 100_000], WriteFlags::default(), W)?, 100_000);
        while fs.fsync(ino, false, W).is_err() {
            errors += 1;
            assert!(errors < 2);
        }
        assert_holds(&fs, ino, name, 100_000)?;
    }
    assert!(errors == 1 && fs.status()?.tiers[1].devices[1].used_bytes >= 600_000);
    Ok(())
}

/// A clean block in PM was dropped although the device of its cold copy had failed since: the PM block was
/// the last readable copy. It stays until a copy is on another device.
#[test]
fn a_promoted_block_stays_in_pm_when_its_cold_device_fails() -> FsResult<()> {
    const BYTES: usize = 5 * 4096;
    let pool = SimulatedPool::new(4 << 20, 64);
    let (first, second) = (Arc::new(SimulatedDevice::new(2048)), Arc::new(SimulatedDevice::new(2048)));
    let media = || PoolMedia { pm: pool.pm.clone(), block: vec![first.clone(), second.clone()] };
    let superblock = format(&media(), &format_options(2))?;
    let options = MountOptions {
        threshold_percent: Some(40),
        promote_first_touch: true,
        prefetch_bytes: 0,
        ..MountOptions::default()
    };
    let fs = Engine::mount(media(), superblock, options, pool.clock.clone())?;
    fs.run_background(1000);
    let written = first.counters().blocks_written;
    let a = put_down(&fs, b'a', BYTES)?;
    let theirs = match first.counters().blocks_written - written {
        0 => &second,
        _ => &first,
    };
    let others = (b'd'..=b'i').map(|name| put_down(&fs, name, BYTES)).collect::<FsResult<Vec<Ino>>>()?;
    assert_holds(&fs, a, b'a', BYTES)?;
    fs.run_background(100);
    let promoted = fs.status()?.migration.promoted_bytes;
    assert!(promoted >= BYTES as u64, "{promoted} bytes promoted");
    for operation in [Operation::Read, Operation::Write, Operation::Flush] {
        theirs.fail_next(operation, 0..2048, libc::EIO, Times::Forever);
    }
    assert!(others.iter().any(|ino| fs.read(*ino, 0, &mut [0; BYTES], W).is_err()));
    let c = fs.mknod(ROOT, b"c", 0o100644, 0, CALLER, W)?.ino;
    for part in 0..8 {
        fs.write(c, part * 400_000, &vec![b'c'; 400_000], WriteFlags::default(), W)?;
        fs.run_background(1000);
    }
    assert_eq!(fs.whereabouts(a)?.tiers.first(), Some(&(0, 0)), "it did not leave PM");
    assert_holds(&fs, a, b'a', BYTES)?;
    assert_holds(&fs, c, b'c', 3_200_000)
}

/// A pool was not mounted without one of its devices, even when that device held little or no data (C2).
/// Without the device its blocks read as EIO and can be removed, all other files work, and with the device
/// back every block is readable again.
#[test]
fn a_pool_works_without_a_device_and_with_it_again() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let (first, second) = (Arc::new(SimulatedDevice::new(1024)), Arc::new(SimulatedDevice::new(1024)));
    let fs = two_devices(&pool, &first, &second)?;
    let sound = |fs: &Engine| -> FsResult<_> { Ok(fs.status()?.tiers.remove(1).devices.remove(1)) };
    // Devices fill alike: consecutive files lie on alternate devices.
    let files: Vec<(u8, Ino)> =
        (b'a'..=b'h').map(|name| Ok((name, put_down(&fs, name, 32_768)?))).collect::<FsResult<_>>()?;
    fs.unmount()?;
    drop(fs);
    let mount = |lost: bool| {
        let missing = Arc::new(MissingDevice::new("lost".into(), 1024));
        let one: Arc<dyn BlockMedium> = if lost { missing } else { first.clone() };
        let block: Vec<Arc<dyn BlockMedium>> = vec![one, second.clone()];
        let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
        let media = PoolMedia { pm: pool.pm.clone(), block };
        let fs = Engine::mount(media, superblock, MountOptions::default(), pool.clock.clone())?;
        fs.run_background(1000);
        FsResult::Ok(fs)
    };
    let fs = mount(true)?;
    let is_lost = |fs: &Engine, ino: Ino| match fs.read(ino, 0, &mut [0; 32_768], W) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.errno(), libc::EIO);
            true
        }
    };
    let (lost, kept): (Vec<_>, Vec<_>) = files.iter().partition(|(_, ino)| is_lost(&fs, *ino));
    assert!(lost.len() >= 2 && kept.len() >= 2, "{} of {}", lost.len(), files.len());
    let [removed, overwritten, ..] = lost[..] else { unreachable!("{lost:?}") };
    let status = fs.status()?;
    let device = &status.tiers[1].devices[0];
    assert_eq!((device.health, device.reason.as_deref()), ("degraded", Some("mounted without it")));
    assert!(!status.healthy && status.tiers[1].capacity_bytes == 1023 * 4096);
    for (name, ino) in &kept {
        assert_holds(&fs, *ino, *name, 32_768)?;
    }
    // Files on the missing device can be overwritten and removed, and new data goes to the other device.
    let before = sound(&fs)?.used_bytes;
    assert_eq!(fs.write(overwritten.1, 0, &[b'O'; 32_768], WriteFlags::default(), W)?, 32_768);
    fs.unlink(ROOT, &[removed.0], W)?;
    fs.run_background(1000);
    let new = put_down(&fs, b'N', 32_768)?;
    assert_holds(&fs, overwritten.1, b'O', 32_768)?;
    assert!(sound(&fs)?.used_bytes >= before + 2 * 32_768, "demoted to the device that is there");
    // A sync asks nothing of the missing device.
    fs.sync()?;
    fs.unmount()?;
    drop(fs);
    // The device is back. The blocks of the files removed meanwhile are free again.
    let fs = mount(false)?;
    assert!(fs.status()?.healthy);
    for (name, ino) in files.iter().filter(|(name, _)| ![removed.0, overwritten.0].contains(name)) {
        assert_holds(&fs, *ino, *name, 32_768)?;
    }
    assert_holds(&fs, overwritten.1, b'O', 32_768)?;
    assert_holds(&fs, new, b'N', 32_768)?;
    assert!(fs.lookup(ROOT, &[removed.0]).is_err());
    for (name, _) in files.iter().filter(|(name, _)| *name != removed.0) {
        fs.unlink(ROOT, &[*name], W)?;
    }
    fs.unlink(ROOT, b"N", W)?;
    fs.run_background(1000);
    for device in fs.status()?.tiers.remove(1).devices {
        assert!(device.used_bytes <= 16 * 4096, "{device:?}");
    }
    fs.unmount()?;
    Ok(())
}

/// Without the only device of the lower tier, written data stays in PM, and a full PM means ENOSPC.
#[test]
fn without_its_only_device_a_pool_is_its_persistent_memory() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let superblock = {
        let media = PoolMedia { pm: pool.pm.clone(), block: vec![pool.device.clone()] };
        format(&media, &format_options(1))?
    };
    let block: Vec<Arc<dyn BlockMedium>> = vec![Arc::new(MissingDevice::new("lost".into(), 1024))];
    let media = PoolMedia { pm: pool.pm.clone(), block };
    let fs = Engine::mount(media, superblock, MountOptions::default(), pool.clock.clone())?;
    fs.run_background(1000);
    let space = fs.statfs(W)?;
    assert!(space.free * 4096 < 4 << 20);
    let mut written = Vec::new();
    let error = loop {
        let name = [b'a' + written.len() as u8];
        let ino = match fs.mknod(ROOT, &name, 0o100644, 0, CALLER, W) {
            Ok(made) => made.ino,
            Err(error) => break Some(error),
        };
        match fs.write(ino, 0, &[name[0]; 256 << 10], WriteFlags::default(), W) {
            Ok(bytes) if bytes == 256 << 10 => written.push((name[0], ino)),
            Ok(_) => {}
            Err(error) => break Some(error),
        }
        fs.run_background(100);
        assert!(written.len() < 16);
    };
    assert_eq!(error.map(|error| error.errno()), Some(libc::ENOSPC));
    assert!(written.len() >= 8, "{} files", written.len());
    for (name, ino) in written {
        assert_holds(&fs, ino, name, 256 << 10)?;
    }
    fs.unmount()
}

/// An older image of PM would take the writes of later mounts for free space. So the header of each device
/// names the last mount that could write to it.
#[test]
fn device_headers_name_the_last_writable_mount() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let devices = [Arc::new(SimulatedDevice::new(256)), Arc::new(SimulatedDevice::new(256))];
    drop(two_devices(&pool, &devices[0], &devices[1])?);
    let header = |device: &SimulatedDevice| {
        let mut block = [AlignedBlock::zeroed()];
        device.read(DeviceBlock(0), &mut block).unwrap();
        DeviceHeader::decode(&block[0].0).unwrap()
    };
    let mount = |read_only: bool, lost: bool| {
        let missing = Arc::new(MissingDevice::new("lost".into(), 256));
        let second: Arc<dyn BlockMedium> = if lost { missing } else { devices[1].clone() };
        let media = PoolMedia { pm: pool.pm.clone(), block: vec![devices[0].clone(), second] };
        let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
        let options = MountOptions { read_only, ..MountOptions::default() };
        Engine::mount(media, superblock, options, pool.clock.clone())
    };
    let before = [header(&devices[0]), header(&devices[1])];
    assert_eq!(before.map(|header| header.epoch.get()), [0, 0], "nobody said so");
    mount(false, false)?.stamp_devices()?;
    let first = [header(&devices[0]), header(&devices[1])];
    assert!(first[0].epoch.get() > 1 && first[0].epoch == first[1].epoch);
    for (old, new) in before.iter().zip(&first) {
        assert_eq!(DeviceHeader { epoch: new.epoch, crc: new.crc, ..*old }, *new, "nothing else");
    }
    // The epoch in the header survives a loss of power.
    let left = SimulatedDevice::from_image(devices[0].snapshot().image_none());
    assert_eq!(header(&left), first[0]);
    // Power that fails during the write leaves the old header or the new one, never a torn one.
    devices[0].fail_next(Operation::Flush, 0..1, libc::EIO, Times::Forever);
    let torn = mount(false, false)?.stamp_devices();
    devices[0].clear_failures();
    assert!(torn.is_err());
    let second = header(&devices[0]);
    assert!(second.epoch.get() > first[0].epoch.get());
    let left: Vec<_> =
        (0..32).map(|seed| SimulatedDevice::from_image(devices[0].snapshot().image_random(seed))).collect();
    let left: Vec<_> = left.iter().map(header).collect();
    assert!(left.iter().all(|left| [first[0], second].contains(left)), "{left:?}");
    assert!(left.contains(&first[0]) && left.contains(&second), "{left:?}");
    mount(false, false)?.stamp_devices()?;
    let first = [header(&devices[0]), header(&devices[1])];
    mount(true, false)?.stamp_devices()?;
    assert_eq!(header(&devices[0]), first[0], "a mount that only reads");
    mount(false, true)?.stamp_devices()?;
    assert!(header(&devices[0]).epoch.get() > first[0].epoch.get());
    assert_eq!(header(&devices[1]), first[1], "one that was not there");
    // A device that fails does not keep the other from its new epoch.
    devices[0].fail_next(Operation::Write, 0..1, libc::EIO, Times::Forever);
    let fs = mount(false, false)?;
    assert!(fs.stamp_devices().is_err());
    assert!(header(&devices[1]).epoch.get() > header(&devices[0]).epoch.get());
    Ok(())
}

/// Device headers once had the epoch of a mount before PM had persisted the epoch: PM came back as an older copy of the pool.
#[test]
fn epochs_in_device_headers_are_durable_in_pm_before() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    pool.pm.set_persist_only(true);
    let fs = pool.mount();
    fs.stamp_devices()?;
    let epoch = fs.store.persistent.wal().epoch();
    drop(fs);
    let left = RecordedPm::from_image(pool.pm.snapshot().image_oldest());
    let (superblock, _) = read_superblock(&left, true).unwrap();
    let newest = CHECKPOINT_COPIES.into_iter().filter_map(|copy| {
        let mut bytes = vec![0; 4096];
        left.read(copy.offset(), &mut bytes).unwrap();
        Checkpoint::decode(&bytes, &superblock.uuid, superblock.geometry().lane_count).ok()
    });
    assert_eq!(newest.map(|checkpoint| checkpoint.epoch).max(), Some(epoch));
    Ok(())
}
