//! How fast a new device is, measured before it becomes part of a pool (design 7).
//!
//! Invariants: writes and reads only the blocks it is given, whose content is lost, and discards them afterwards;
//! ends within about 200 ms, or one request after it on a device that takes longer for one.

use super::{AlignedBlock, BlockMedium};
use crate::speed::Speed;
use crate::{DeviceError, MediaError};
use std::ops::Range;
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_runtime::Clock;

/// Blocks of a sequential request: 1 MiB.
const LARGE: u64 = 256;
/// Most blocks written: 64 MiB.
const AREA: u64 = 64 * LARGE;
/// Time for each of the four measurements.
const LIMIT_NS: u64 = 45_000_000;
/// Requests of 4 KiB at most.
const SMALL: usize = 64;

/// Measures a device in `blocks`, whose content is lost.
///
/// # Errors
/// The device's; also an empty range as `EINVAL`'s.
pub fn probe(
    device: &dyn BlockMedium,
    blocks: Range<DeviceBlock>,
    clock: &dyn Clock,
) -> Result<Speed, MediaError> {
    let (first, end) = (blocks.start.0, blocks.end.0.min(blocks.start.0.saturating_add(AREA)));
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
    let measured = measure(device, first, area, clock);
    device.discard(DeviceBlock(first), area);
    measured
}

fn measure(device: &dyn BlockMedium, first: u64, area: u64, clock: &dyn Clock) -> Result<Speed, MediaError> {
    let mut buffer = vec![AlignedBlock::zeroed(); LARGE.min(area) as usize];
    for (index, block) in buffer.iter_mut().enumerate() {
        // Not zeros, which some devices do not store.
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
    // Of large requests the latency is a part: what is left of it is the transfer.
    let rate = |blocks: u64, ns: u64, latency_ns: u64| {
        let requests = blocks / LARGE.min(area);
        let transfer_ns = ns.saturating_sub(latency_ns * requests).max(ns / 4).max(1);
        u64::try_from(u128::from(blocks * BLOCK_SIZE) * 1_000_000_000 / u128::from(transfer_ns))
            .unwrap_or(u64::MAX)
            .max(4096)
    };
    Ok(Speed {
        read_latency_ns,
        write_latency_ns,
        read_bytes_per_s: rate(read, read_ns, read_latency_ns),
        write_bytes_per_s: rate(written, write_ns, write_latency_ns),
    })
}

/// Requests one behind the other; the time, and how many blocks.
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

/// Requests of one block here and there; the median of their times.
fn small(
    area: u64,
    clock: &dyn Clock,
    mut request: impl FnMut(u64) -> Result<(), MediaError>,
) -> Result<u64, MediaError> {
    let begin = clock.monotonic_ns();
    let mut times = Vec::with_capacity(SMALL);
    let mut at = 0;
    loop {
        let before = clock.monotonic_ns();
        request(at)?;
        let after = clock.monotonic_ns();
        times.push(after - before);
        if times.len() == SMALL || after - begin > LIMIT_NS {
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
            let touched = 1 + AREA;
            assert_eq!(below.visible_image().block(DeviceBlock(touched)).0, [0; 4096]);
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
