//! Blocks on their way to a device: through a small buffer, between reads of others, with one flush (M1).

use crate::change::new_extent::DeviceCopy;
use crate::error::FsResult;
use crate::moving::device_run::{Part, places};
use crate::parts::devices::device::Device;
use crate::parts::devices::read_priority::ReadPriority;
use crate::parts::pressure::cpu_permits::CpuPermits;
use crate::store::Store;
use terrace_format::DeviceBlock;
use terrace_format::device::{SUMMARY_ENTRIES, SummaryEntry, encode_summary};
use terrace_media::block::{AlignedBlock, Buffer, Run};
use terrace_media::{BlockMedium, Durable, FlushMark, Flushed, MediaError};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::{Clock, pause};

/// Blocks on their way to a device through a small buffer.
struct Outbox<'a> {
    medium: &'a dyn BlockMedium,
    read_priority: Option<&'a ReadPriority>,
    clock: &'a dyn Clock,
    permits: &'a CpuPermits,
    buffer: &'a mut Buffer,
    used: usize,
    /// The device runs to which the buffered blocks go: first device block and length.
    runs: Vec<(DeviceBlock, usize)>,
}

impl Outbox<'_> {
    /// Room for at most `count` blocks that go to `at`: at least one.
    fn room(&mut self, at: DeviceBlock, count: usize) -> Result<&mut [AlignedBlock], MediaError> {
        if self.used == self.buffer.len() {
            self.send()?;
        }
        let count = count.min(self.buffer.len() - self.used);
        match self.runs.last_mut() {
            Some((start, length)) if start.plus(*length as u64) == at => *length += count,
            _ => self.runs.push((at, count)),
        }
        let begin = self.used;
        self.used += count;
        Ok(self.buffer.get_mut(begin..self.used).unwrap_or(&mut []))
    }

    /// Writes what is in the buffer.
    fn send(&mut self) -> Result<(), MediaError> {
        let mut rest = self.buffer.as_slice();
        let mut cut = |(at, count): (DeviceBlock, usize)| {
            let (part, tail) = rest.split_at(count);
            rest = tail;
            (at, part)
        };
        let runs: Vec<Run<'_>> = self.runs.drain(..).map(&mut cut).collect();
        self.used = 0;
        if runs.is_empty() || planted(Mistake::ExtentBeforeData) {
            return Ok(());
        }
        self.permits.while_waiting(|| self.write_between_reads(runs))
    }

    /// All at once, or while the device is being read in pieces one after the other.
    fn write_between_reads(&self, mut runs: Vec<Run<'_>>) -> Result<(), MediaError> {
        let Some(read_priority) = self.read_priority else { return self.medium.write_runs(&runs) };
        runs.reverse();
        let mut now_ns = self.clock.monotonic_ns();
        while let Some(piece) = read_priority.piece(now_ns).filter(|_| !runs.is_empty()) {
            let Some((at, blocks)) = runs.pop() else { break };
            let (now, later) = blocks.split_at(piece.min(blocks.len()));
            if !later.is_empty() {
                runs.push((at.plus(now.len() as u64), later));
            }
            self.medium.write(at, now)?;
            let begin_ns = std::mem::replace(&mut now_ns, self.clock.monotonic_ns());
            read_priority.wrote_piece(now_ns.saturating_sub(begin_ns));
        }
        runs.reverse();
        if runs.is_empty() { Ok(()) } else { self.medium.write_runs(&runs) }
    }
}

/// Copies blocks to their parts of a device through a small buffer, each with its summaries, then flushes (M1). `fill`
/// puts the content of some into the buffer and adds a summary entry for each. Returns the durable copies in order.
/// `careless`: the planted mistake that leaves the flush out.
pub(crate) fn write_items<T>(
    store: &Store,
    items: &mut [T],
    parts: &[Part],
    careless: Mistake,
    fill: impl Fn(&mut [T], &mut [AlignedBlock], &mut Vec<SummaryEntry>),
) -> FsResult<Vec<Durable<DeviceCopy>>> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let device = store.devices.device(first.run.device)?;
    let mark = device.flush_mark();
    let copies = send_parts(store, device, items, parts, fill)?;
    pause::at_unlocked("demotion:copied");
    let flushed = match device.flush_left_out(careless) {
        Some(left_out) => left_out,
        None => flush_run(store, device, mark)?,
    };
    pause::at_unlocked("demotion:flushed");
    Ok(copies.into_iter().map(|copy| flushed.durable(copy)).collect())
}

/// As [`write_items`], without the flush: the copies are not durable yet.
pub fn send_parts<T>(
    store: &Store,
    device: &Device,
    items: &mut [T],
    parts: &[Part],
    fill: impl Fn(&mut [T], &mut [AlignedBlock], &mut Vec<SummaryEntry>),
) -> FsResult<Vec<DeviceCopy>> {
    let first = parts.first();
    // A single flush of the device serves for all of them.
    let is_there = |part: &Part| first.is_some_and(|first| part.run.device == first.run.device);
    assert!(parts.iter().all(is_there), "the {} runs of a group lie on several devices (M1)", parts.len());
    let mut buffer = store.pressure.take_buffer();
    let mut out = Outbox {
        medium: &*device.medium,
        read_priority: first.and_then(|part| store.devices.io().read_priority(part.run.device)),
        clock: &*store.clock,
        permits: store.pressure.permits(),
        buffer: &mut buffer,
        used: 0,
        runs: Vec::new(),
    };
    let sent = send_through(store, &mut out, items, parts, fill);
    store.pressure.put_buffer(buffer);
    sent
}

fn send_through<T>(
    store: &Store,
    out: &mut Outbox<'_>,
    items: &mut [T],
    parts: &[Part],
    fill: impl Fn(&mut [T], &mut [AlignedBlock], &mut Vec<SummaryEntry>),
) -> FsResult<Vec<DeviceCopy>> {
    let count = items.len();
    let mut entries = Vec::with_capacity(count);
    let mut rest = items;
    for part in parts {
        let (mut of_part, tail) = rest.split_at_mut(part.data);
        rest = tail;
        let (mut at, begin) = (part.first(), entries.len());
        while !of_part.is_empty() {
            let into = out.room(at, of_part.len())?;
            let (now, later) = of_part.split_at_mut(into.len());
            fill(now, into, &mut entries);
            at = at.plus(now.len() as u64);
            of_part = later;
        }
        if part.summary_blocks > 0 {
            let (mut at, mut first) = (part.run.start, part.first());
            for of_summary in entries.get(begin..).unwrap_or(&[]).chunks(SUMMARY_ENTRIES) {
                if let [target] = out.room(at, 1)? {
                    let place = (part.run.device, at);
                    target.0.copy_from_slice(&encode_summary(
                        store.persistent.seal_key(),
                        place,
                        first,
                        of_summary,
                    ));
                }
                first = first.plus(of_summary.len() as u64);
                at = at.plus(1);
            }
        }
    }
    out.send()?;
    assert!(rest.is_empty(), "{} of {count} blocks have no place on the device (I7)", rest.len());
    assert_eq!(entries.len(), count, "checksums of the blocks of a group (M4)");
    let copies = entries.into_iter().zip(places(parts));
    Ok(copies.map(|(entry, place)| DeviceCopy { place, crc: entry.crc }).collect())
}

/// Makes the writes to a device since `mark` durable, before anything names them (M1).
pub(crate) fn flush_run(store: &Store, device: &Device, mark: FlushMark) -> FsResult<Flushed> {
    Ok(store.pressure.permits().while_waiting(|| device.flush(mark))?)
}
