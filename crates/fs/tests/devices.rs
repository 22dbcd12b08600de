//! Pools with several devices.

#![allow(clippy::unwrap_used)]

mod common;

use common::{CALLER, Pool, ROOT, format_options};
use std::sync::Arc;
use terrace_fs::{Fs, FsResult, MountOptions, PoolMedia, Wait, WriteFlags, format};
use terrace_media::block::SimulatedDevice;

const W: Wait = Wait::Allowed;

/// Groups go to the device with most free space: to each of two. What its own flush did not cover must not be
/// installed (M1), whatever the other's did.
#[test]
fn each_of_two_devices_is_flushed() -> FsResult<()> {
    let pool = Pool::new(4 << 20, 1024);
    let second = Arc::new(SimulatedDevice::new(1024));
    let media = |first: Arc<SimulatedDevice>, second: Arc<SimulatedDevice>| PoolMedia {
        pm: pool.pm.clone(),
        block: vec![first, second],
    };
    let superblock = format(&media(pool.device.clone(), second.clone()), &format_options(2))?;
    let mount = |media| Fs::mount(media, superblock, MountOptions::default(), Arc::clone(&pool.clock));
    let fs = mount(media(pool.device.clone(), second.clone()))?;
    // The free space of both is known.
    fs.run_background(1000);
    let mut files = Vec::new();
    for index in 0..6u8 {
        let ino = fs.mknod(ROOT, &[b'a' + index], 0o100644, 0, CALLER, W)?.ino;
        fs.write(ino, 0, &[index + 1; 100_000], WriteFlags::default(), W)?;
        fs.sync_to(1, &mut |_| {})?;
        files.push(ino);
    }
    drop(fs);
    // Power fails: of each device is left what was flushed.
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
