//! Write-back while the free space of the device is held by I/O pins of readers.

use std::sync::Arc;
use std::time::Duration;
use terrace_catalog::DeviceRun;
use terrace_engine::Engine;
use terrace_engine::FormatOptions;
use terrace_engine::MountOptions;
use terrace_engine::PolicyKind;
use terrace_engine::PoolMedia;
use terrace_engine::Simulation;
use terrace_engine::format;
use terrace_engine::read_superblock;
use terrace_format::DeviceBlock;
use terrace_format::DeviceId;
use terrace_format::Ino;
use terrace_format::address::ROOT_INO;
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::RecordedPm;
use terrace_placement::Home;
use terrace_runtime::ManualClock;
use terrace_runtime::Next;
use terrace_store::types::Caller;
use terrace_store::types::Wait;
use terrace_store::types::WriteFlags;
use terrace_testkit::format_options;

const W: Wait = Wait::Allowed;

const BLOCKS: u64 = 65;

/// A pool whose writes have their home in DRAM, with one file of ten dirty blocks.
fn with_dirty() -> (Arc<Engine>, Arc<ManualClock>, Ino) {
    let options = FormatOptions { policy: PolicyKind::STATIC, ..format_options(1) };
    let media = PoolMedia {
        pm: Arc::new(RecordedPm::new(2 << 20)),
        block: vec![Arc::new(SimulatedDevice::new(BLOCKS))],
    };
    format(&media, &options).unwrap();
    let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
    let clock = Arc::new(ManualClock::new(1 << 60));
    let mount = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
    let fs = Engine::mount(media, superblock, mount, clock.clone()).unwrap();
    fs.run_background(1000);
    let ino = fs.mknod(ROOT_INO, b"a", 0o100644, 0, Caller { uid: 0, gid: 0 }, W).unwrap().ino;
    fs.write(ino, 0, &[7; 40_960], WriteFlags::default(), W).unwrap();
    (fs, clock, ino)
}

fn pin_all(fs: &Engine) -> terrace_space::Pin {
    fs.store.devices.space().pin(DeviceRun { device: DeviceId(0), start: DeviceBlock(1), length: BLOCKS - 1 })
}

/// fsync failed for lack of space while the free blocks of its space reservation were held by readers of
/// their old content (I9).
#[test]
fn fsync_beside_pinned_free_space_ends_in_pm() {
    let (fs, _, ino) = with_dirty();
    let handle = fs.new_handle();
    let pin = pin_all(&fs);
    fs.fsync_handle(ino, handle, false, W).unwrap();
    assert_eq!(fs.store.dram.cache().dirty_pages(), 0);
    assert_eq!(fs.whereabouts(ino).unwrap().tiers.first(), Some(&(0, 40_960)));
    assert_eq!(fs.store.devices.space().reserved(), 0);
    drop(pin);
}

/// In the background the same wait counted as a failed write-back: the next fsync reported it to every
/// descriptor, although no byte was lost.
#[test]
fn waiting_for_pinned_space_is_no_failure() {
    let (fs, clock, ino) = with_dirty();
    let handle = fs.new_handle();
    let pin = pin_all(&fs);
    let mut steps = fs.background_steps();
    let mut run = |seconds: u64| {
        for _ in 0..seconds {
            clock.advance(Duration::from_secs(1));
            let mut again = 0;
            for (step, _) in steps.iter_mut().filter(|(step, _)| step.name() == "terrace-writeb") {
                while step.step() == Next::Again {
                    again += 1;
                    assert!(again < 100, "spins");
                }
            }
        }
    };
    run(60);
    assert_eq!(fs.store.dram.cache().dirty_pages(), 10);
    drop(pin);
    run(60);
    assert_eq!(fs.store.dram.cache().dirty_pages(), 0);
    fs.fsync_handle(ino, handle, false, W).unwrap();
}
