//! An error of a medium ends a repair half way: afterwards the pool is as before the repair, or as the repair
//! makes it.

#[path = "../../check/tests/common/mod.rs"]
mod common;

use common::healing::Healing;
use common::*;
use std::sync::Arc;
use terrace_check::{Code, Options, PoolView, check};
use terrace_format::{PmBlock, PmOffset};
use terrace_media::block::{DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::crash::CrashClock;
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, PmMedium};
use terrace_repair::{Media, repair};

const EIO: i32 = 5;

/// A line of the block table cannot be read. A repair that ends before its journal is published must not have
/// put zeros there: a mount would take them for free blocks, and give the blocks of one file to another (I6).
#[test]
fn a_failed_repair_leaves_unreadable_table_lines_unwritten() {
    let image = Image::full();
    let line = image.geometry.table_entry(PmBlock(image.data[0])).0 / 64;
    let pm = Arc::new(Healing::new(&image.pm, line, true));
    let media = Media { pm: pm.clone(), block: image.devices() };
    assert!(check(&media.view(), &Options::default()).has(Code::PmUnreadable));
    let result = repair(&media, &Options::default());
    assert!(result.failure.is_some() && !result.written, "{result:#?}");
    let mut now = [0; 64];
    let seen = pm.read(PmOffset(line * 64), &mut now);
    assert!(
        seen.is_err() || now[..] == image.pm[line as usize * 64..][..64],
        "a repair that failed has made the blocks of four table entries free"
    );
}

/// The flush of a mended device header fails. The next repair finds the header sound in the device's cache:
/// it must not return before the header is in the device.
#[test]
fn a_header_with_a_failed_flush_is_flushed_by_the_next_repair() {
    let mut image = Image::full();
    image.device_header(|header| header.index = 1);
    let clock = CrashClock::new();
    let pm = Arc::new(RecordedPm::with_clock(image.pm.clone(), &clock));
    let device =
        Arc::new(SimulatedDevice::with_clock("tier", DeviceImage::from_bytes(&image.device), &clock));
    let medium: Arc<dyn BlockMedium> = device.clone();
    let media = Media { pm: pm.clone(), block: vec![Some(medium)] };
    assert_ne!(check(&media.view(), &Options::default()).exit_status(), 0);
    device.fail_next(Operation::Flush, 0..device.blocks(), EIO, Times::Count(1));
    assert!(repair(&media, &Options::default()).failure.is_some());
    let next = repair(&media, &Options::default());
    assert_eq!((next.failure.clone(), next.left.exit_status()), (None, 0), "{next:#?}");
    let after = DeviceImage::from_bytes(&device.snapshot().image_none().to_bytes());
    let after: Arc<dyn BlockMedium> =
        Arc::new(SimulatedDevice::with_clock("tier", after, &CrashClock::new()));
    let left = check(&PoolView::new(pm, vec![Some(after)]), &Options::default());
    assert_eq!(left.exit_status(), 0, "after a loss of power: {:#?}", left.findings);
}
