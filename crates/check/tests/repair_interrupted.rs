//! Repairs that an error of a medium ends half way: what the pool shows afterwards is what it showed before, or what the
//! repair makes of it.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_check::{Code, Devices, Options, check, repair};
use terrace_format::{PmBlock, PmOffset};
use terrace_media::block::{DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::crash::CrashClock;
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, MediaError, PmMedium, Promise};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, Ordering};

const EIO: i32 = 5;

/// PM with lines that cannot be read until they are written whole, which may refuse streaming stores.
struct Healing {
    bytes: Mutex<Vec<u8>>,
    bad: Mutex<BTreeSet<u64>>,
    refuses: AtomicBool,
}

impl PmMedium for Healing {
    fn size(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
    fn promise(&self) -> Promise {
        Promise::None
    }
    fn describe(&self) -> String {
        "healing".into()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        let (length, lines) = (into.len() as u64, lines(offset, into.len()));
        let bytes = self.bytes.lock();
        let from = bytes.get(offset.0 as usize..).and_then(|rest| rest.get(..into.len()));
        let bad = self.bad.lock().range(lines).next().is_some();
        into.copy_from_slice(from.filter(|_| !bad).ok_or(MediaError::Pm { offset, length })?);
        Ok(())
    }
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let whole = offset.0.div_ceil(64)..(offset.0 + bytes.len() as u64) / 64;
        let mut bad = self.bad.lock();
        for line in lines(offset, bytes.len()) {
            if bad.contains(&line) && !whole.contains(&line) {
                return Err(MediaError::Pm { offset, length: bytes.len() as u64 });
            }
            bad.remove(&line);
        }
        self.bytes.lock()[offset.0 as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(MediaError::Pm { offset, length: bytes.len() as u64 });
        }
        self.write(offset, bytes)
    }
    fn write_back(&self, _: PmOffset, _: u64) {}
    fn fence(&self, _: terrace_media::Fence, _: &'static std::panic::Location<'static>) {}
}

fn lines(offset: PmOffset, length: usize) -> std::ops::Range<u64> {
    offset.0 / 64..(offset.0 + length as u64).div_ceil(64)
}

/// A line of the block table cannot be read. A repair that ends before its journal is published must not have put zeros
/// there: a mount would take them for free blocks, and give the blocks of one file to another (I6).
#[test]
fn a_repair_that_fails_early_heals_nothing() {
    let image = Image::full();
    let line = image.geometry.table_entry(PmBlock(image.data[0])).0 / 64;
    let pm = Arc::new(Healing {
        bytes: Mutex::new(image.pm.clone()),
        bad: Mutex::new(BTreeSet::from([line])),
        refuses: AtomicBool::new(true),
    });
    let devices = Devices { pm: pm.clone(), block: image.devices().block };
    assert!(check(&devices, &Options::default()).has(Code::PmUnreadable));
    let result = repair(&devices, &Options::default());
    assert!(result.failure.is_some() && !result.written, "{result:#?}");
    let mut now = [0; 64];
    let seen = pm.read(PmOffset(line * 64), &mut now);
    assert!(
        seen.is_err() || now[..] == image.pm[line as usize * 64..][..64],
        "a repair that failed has made the blocks of four table entries free"
    );
}

/// The flush of a mended device header fails. The next repair finds the header sound in the device's cache: it must not
/// return before the header is in the device.
#[test]
fn a_header_whose_flush_failed_is_flushed_by_the_next_repair() {
    let mut image = Image::full();
    image.device_header(|header| header.index = 1);
    let clock = CrashClock::new();
    let pm = Arc::new(RecordedPm::with_clock(image.pm.clone(), &clock));
    let device =
        Arc::new(SimulatedDevice::with_clock("tier", DeviceImage::from_bytes(&image.device), &clock));
    let medium: Arc<dyn BlockMedium> = device.clone();
    let devices = Devices { pm: pm.clone(), block: vec![Some(medium)] };
    assert_ne!(check(&devices, &Options::default()).exit_status(), 0);
    device.fail_next(Operation::Flush, 0..device.blocks(), EIO, Times::Count(1));
    assert!(repair(&devices, &Options::default()).failure.is_some());
    let next = repair(&devices, &Options::default());
    assert_eq!((next.failure.clone(), next.left.exit_status()), (None, 0), "{next:#?}");
    let after = DeviceImage::from_bytes(&device.snapshot().image_none().to_bytes());
    let after: Arc<dyn BlockMedium> =
        Arc::new(SimulatedDevice::with_clock("tier", after, &CrashClock::new()));
    let left = check(&Devices { pm, block: vec![Some(after)] }, &Options::default());
    assert_eq!(left.exit_status(), 0, "after a loss of power: {:#?}", left.findings);
}
