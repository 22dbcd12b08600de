//! The speed of a new device, measured before the device becomes part of a pool (design 7).
//!
//! Invariants: writes and reads only the blocks it is given, whose content is lost, and discards them
//! afterwards; a measurement ends within about 200 ms, or with its first request if that takes longer. Load
//! makes a device look slower, never faster. So the fastest measurement counts, as soon as a second
//! measurement confirms it.

use super::{AlignedBlock, BlockMedium};
use crate::speed::Speed;
use crate::{DeviceError, MediaError};
use std::ops::Range;
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_runtime::Clock;

/// Blocks of a sequential request: 1 MiB.
const LARGE_BLOCKS: u64 = 256;
/// Most blocks written: 64 MiB.
const AREA_BLOCKS: u64 = 64 * LARGE_BLOCKS;
/// Time for each of the four measurements.
const LIMIT_NS: u64 = 45_000_000;
/// Requests of 4 KiB at most.
const MAX_SMALL_REQUESTS: usize = 64;

/// The requests that a measurement may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writes and reads.
    Writing,
    /// Reads alone. The figures of reads then stand for writes, too.
    ReadingAlone,
}

/// Tells whether other programs used the disks and processors during a measurement.
pub trait Watch {
    /// A measurement begins.
    fn begin(&mut self);
    /// Whether no other program interfered with the measurement, which transferred `own_bytes`.
    fn is_undisturbed(&mut self, own_bytes: u64) -> bool;
}

/// Measurements of one series.
const SERIES_MEASUREMENTS: usize = 3;
/// Series at most.
const MAX_SERIES: usize = 3;
/// Pause between two series, so that a disturbance may end.
const PAUSE: Duration = Duration::from_millis(200);

/// Measures devices that lie on the same disks together, each in the blocks from `first` on, whose content is lost
/// unless they are only read. `None`: other programs used the disks, or no two measurements agree.
///
/// # Errors
/// As [`probe`].
pub fn probe_together(
    devices: &[(&dyn BlockMedium, Access)],
    first: DeviceBlock,
    clock: &dyn Clock,
    watch: &mut dyn Watch,
) -> Result<Option<Speed>, MediaError> {
    let mut samples = Vec::new();
    for attempt in 0..MAX_SERIES {
        if attempt > 0 {
            clock.sleep(PAUSE);
        }
        // Each device at least once.
        for (device, access) in devices.iter().cycle().take(SERIES_MEASUREMENTS.max(devices.len())) {
            watch.begin();
            let (speed, bytes) = sample(*device, first..DeviceBlock(device.blocks()), *access, clock)?;
            if watch.is_undisturbed(bytes) {
                samples.push(speed);
            }
        }
        if let Some(speed) = confirmed(&samples) {
            return Ok(Some(speed));
        }
    }
    Ok(None)
}

/// The fastest measurement, when another one is similar.
fn confirmed(samples: &[Speed]) -> Option<Speed> {
    let fastest = samples.iter().min_by_key(|speed| speed.cost_ns())?;
    (samples.iter().filter(|other| other.is_similar(fastest)).count() > 1).then_some(*fastest)
}

/// Measures a device in `blocks`, whose content is lost.
///
/// # Errors
/// The device's; also an empty range as `EINVAL`'s.
pub fn probe(
    device: &dyn BlockMedium,
    blocks: Range<DeviceBlock>,
    clock: &dyn Clock,
) -> Result<Speed, MediaError> {
    sample(device, blocks, Access::Writing, clock).map(|(speed, _)| speed)
}

/// A single measurement: the speed, and the bytes transferred for it.
fn sample(
    device: &dyn BlockMedium,
    blocks: Range<DeviceBlock>,
    access: Access,
    clock: &dyn Clock,
) -> Result<(Speed, u64), MediaError> {
    let (first, end) = (blocks.start.0, blocks.end.0.min(blocks.start.0.saturating_add(AREA_BLOCKS)));
    let area = end.saturating_sub(first);
    if area == 0 {
        return Err(MediaError::from(DeviceError {
            device: device.name().to_string(),
            operation: "measure",
            offset: first * BLOCK_SIZE,
            length: 0,
            errno: libc::EINVAL,
        }));
    }
    if access == Access::ReadingAlone {
        return measure_reading(device, first, area, clock);
    }
    let measured = measure(device, first, area, clock);
    device.discard(DeviceBlock(first), area);
    measured
}

/// The transfer rate of large requests. Their time includes the latency, which is subtracted first.
fn rate(blocks: u64, requests: u64, ns: u64, latency_ns: u64) -> u64 {
    let transfer_ns = ns.saturating_sub(latency_ns * requests).max(ns / 4).max(1);
    u64::try_from(u128::from(blocks * BLOCK_SIZE) * 1_000_000_000 / u128::from(transfer_ns))
        .unwrap_or(u64::MAX)
        .max(4096)
}

fn measure_reading(
    device: &dyn BlockMedium,
    first: u64,
    area: u64,
    clock: &dyn Clock,
) -> Result<(Speed, u64), MediaError> {
    let mut buffer = vec![AlignedBlock::zeroed(); LARGE_BLOCKS.min(area) as usize];
    let step = buffer.len() as u64;
    let (ns, read) = sequential(area, step, clock, |at| device.read(DeviceBlock(first + at), &mut buffer))?;
    let mut one = [AlignedBlock::zeroed()];
    let latency_ns = small(area, clock, |at| device.read(DeviceBlock(first + at), &mut one))?;
    let bytes_per_s = rate(read, read / step, ns, latency_ns);
    let speed = Speed {
        read_latency_ns: latency_ns,
        write_latency_ns: latency_ns,
        read_bytes_per_s: bytes_per_s,
        write_bytes_per_s: bytes_per_s,
    };
    Ok((speed, (read + MAX_SMALL_REQUESTS as u64) * BLOCK_SIZE))
}

fn measure(
    device: &dyn BlockMedium,
    first: u64,
    area: u64,
    clock: &dyn Clock,
) -> Result<(Speed, u64), MediaError> {
    let mut buffer = vec![AlignedBlock::zeroed(); LARGE_BLOCKS.min(area) as usize];
    for (index, block) in buffer.iter_mut().enumerate() {
        // The blocks are not zeros, because some devices do not store zeros.
        block.0.chunks_exact_mut(8).zip(0u64..).for_each(|(word, at)| {
            let value = (at + 512 * index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&value.to_le_bytes());
        });
    }
    let (write_ns, written) = sequential(area, buffer.len() as u64, clock, |at| {
        device.write(DeviceBlock(first + at), &buffer)?;
        Ok(())
    })?;
    let begin = clock.monotonic_ns();
    device.flush()?;
    let write_ns = write_ns + (clock.monotonic_ns() - begin);
    let (read_ns, read) = sequential(written, buffer.len() as u64, clock, |at| {
        device.read(DeviceBlock(first + at), &mut buffer)?;
        Ok(())
    })?;
    let mut one = [AlignedBlock::zeroed()];
    let read_latency_ns = small(written, clock, |at| device.read(DeviceBlock(first + at), &mut one))?;
    let write_latency_ns = small(written, clock, |at| device.write(DeviceBlock(first + at), &buffer[..1]))?;
    let requests = |blocks: u64| blocks / LARGE_BLOCKS.min(area);
    let speed = Speed {
        read_latency_ns,
        write_latency_ns,
        read_bytes_per_s: rate(read, requests(read), read_ns, read_latency_ns),
        write_bytes_per_s: rate(written, requests(written), write_ns, write_latency_ns),
    };
    Ok((speed, (read + written + 2 * MAX_SMALL_REQUESTS as u64) * BLOCK_SIZE))
}

/// Requests on consecutive blocks: their time, and the number of blocks.
fn sequential(
    area: u64,
    step: u64,
    clock: &dyn Clock,
    mut request: impl FnMut(u64) -> Result<(), MediaError>,
) -> Result<(u64, u64), MediaError> {
    let begin = clock.monotonic_ns();
    let mut at = 0;
    while at == 0 || (at + step <= area && clock.monotonic_ns() - begin < LIMIT_NS) {
        request(at)?;
        at += step;
    }
    Ok((clock.monotonic_ns() - begin, at))
}

/// Requests of single scattered blocks: the median of their times.
fn small(
    area: u64,
    clock: &dyn Clock,
    mut request: impl FnMut(u64) -> Result<(), MediaError>,
) -> Result<u64, MediaError> {
    let begin = clock.monotonic_ns();
    let mut times = Vec::with_capacity(MAX_SMALL_REQUESTS);
    let mut at = 0;
    loop {
        let before = clock.monotonic_ns();
        request(at)?;
        let after = clock.monotonic_ns();
        times.push(after - before);
        if times.len() == MAX_SMALL_REQUESTS || after - begin > LIMIT_NS {
            break;
        }
        // Steps through the area in an order that no read-ahead follows.
        at = (at + area * 13 / 21 + 1) % area;
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{EmulatedBlock, SimulatedDevice};
    use crate::speed::named;
    use std::sync::Arc;
    use terrace_runtime::ManualClock;

    const BLOCKS: u64 = 40_000;

    #[test]
    fn an_emulated_device_has_the_speed_of_its_class() -> Result<(), MediaError> {
        for name in ["optane", "nvme", "sata", "disk"] {
            let asked = named(name).map(|row| row.speed).unwrap_or_else(|| unreachable!("{name}"));
            let clock = Arc::new(ManualClock::new(0));
            let below = Arc::new(SimulatedDevice::new(BLOCKS));
            let device = EmulatedBlock::new(below.clone(), asked, clock.clone());
            let found = probe(&device, DeviceBlock(1)..DeviceBlock(BLOCKS), &*clock)?;
            assert!(found.is_similar(&asked), "{name}: {found}");
            assert!(clock.monotonic_ns() < 300_000_000, "{name}: {} ns", clock.monotonic_ns());
            let touched = 1 + AREA_BLOCKS;
            assert_eq!(below.visible_image().block(DeviceBlock(touched)).0, [0; 4096]);
        }
        Ok(())
    }

    /// Prepared answers: whether each measurement was undisturbed.
    struct Told(Vec<bool>);

    impl Watch for Told {
        fn begin(&mut self) {}
        fn is_undisturbed(&mut self, own_bytes: u64) -> bool {
            assert!(own_bytes > 0);
            if self.0.is_empty() { true } else { self.0.remove(0) }
        }
    }

    fn emulated(name: &str, clock: &Arc<ManualClock>) -> EmulatedBlock {
        let speed = named(name).map(|row| row.speed).unwrap_or_else(|| unreachable!("{name}"));
        EmulatedBlock::new(Arc::new(SimulatedDevice::new(BLOCKS)), speed, clock.clone())
    }

    /// A single measurement beside a busy program used to decide the tier of a device for ever: a loop device
    /// counted as slower than a hard disk.
    #[test]
    fn a_measurement_counts_when_another_one_confirms_it() -> Result<(), MediaError> {
        let [fast, slow] =
            ["sata", "disk"].map(|name| named(name).map(|row| row.speed).unwrap_or_else(|| unreachable!()));
        assert_eq!(confirmed(&[]), None);
        assert_eq!(confirmed(&[fast]), None);
        assert_eq!(confirmed(&[fast, slow, slow]), None, "the fastest, not the most");
        assert_eq!(confirmed(&[slow, fast, slow, fast]), Some(fast));
        let clock = Arc::new(ManualClock::new(0));
        let device = emulated("sata", &clock);
        let measured = |told: Vec<bool>| {
            let mut told = Told(told);
            let devices: [(&dyn BlockMedium, Access); 1] = [(&device, Access::Writing)];
            let found = probe_together(&devices, DeviceBlock(1), &*clock, &mut told)?;
            Ok::<_, MediaError>((found.map(|found| found.is_similar(&fast)), told.0.len()))
        };
        assert_eq!(measured(vec![true; 9])?, (Some(true), 6), "one series is enough");
        assert_eq!(measured([vec![false; 4], vec![true; 5]].concat())?, (Some(true), 3), "it is repeated");
        assert_eq!(measured(vec![false; 9])?, (None, 0), "never alone");
        assert_eq!(measured([vec![false; 8], vec![true]].concat())?, (None, 0), "alone once, not confirmed");
        Ok(())
    }

    #[test]
    fn devices_of_one_disk_have_one_speed() -> Result<(), MediaError> {
        let clock = Arc::new(ManualClock::new(0));
        let devices = ["sata", "sata", "sata", "sata"].map(|name| emulated(name, &clock));
        let together: Vec<(&dyn BlockMedium, Access)> =
            devices.iter().map(|device| (device as &dyn BlockMedium, Access::Writing)).collect();
        let mut told = Told(vec![true; 5]);
        let found = probe_together(&together, DeviceBlock(1), &*clock, &mut told)?;
        assert!(found.is_some_and(|found| found.is_similar(&emulated_speed())), "{found:?}");
        assert_eq!(told.0.len(), 1, "each was measured");
        Ok(())
    }

    fn emulated_speed() -> Speed {
        named("sata").map(|row| row.speed).unwrap_or_else(|| unreachable!())
    }

    #[test]
    fn a_read_only_probe_leaves_the_device_unchanged() -> Result<(), MediaError> {
        let clock = Arc::new(ManualClock::new(0));
        let below = Arc::new(SimulatedDevice::new(BLOCKS));
        below.write(DeviceBlock(1), &vec![AlignedBlock([7; 4096]); 600])?;
        let before = below.visible_image();
        let device = EmulatedBlock::new(below.clone(), emulated_speed(), clock.clone());
        let devices: [(&dyn BlockMedium, Access); 1] = [(&device, Access::ReadingAlone)];
        let found = probe_together(&devices, DeviceBlock(1), &*clock, &mut Told(Vec::new()))?;
        assert!(found.is_some_and(|found| found.is_similar(&emulated_speed())), "{found:?}");
        let after = below.visible_image();
        for block in (1..BLOCKS).map(DeviceBlock) {
            assert_eq!(before.block(block).0, after.block(block).0);
        }
        Ok(())
    }

    #[test]
    fn a_small_area_is_enough_and_an_empty_one_an_error() -> Result<(), MediaError> {
        let clock = ManualClock::new(0);
        let device = SimulatedDevice::new(8);
        let before = AlignedBlock([9; 4096]);
        device.write(DeviceBlock(0), std::slice::from_ref(&before))?;
        probe(&device, DeviceBlock(1)..DeviceBlock(8), &clock)?;
        let mut back = [AlignedBlock::zeroed()];
        device.read(DeviceBlock(0), &mut back)?;
        assert_eq!(back[0].0, before.0);
        assert!(probe(&device, DeviceBlock(8)..DeviceBlock(8), &clock).is_err());
        Ok(())
    }
}
