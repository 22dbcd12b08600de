//! Lower-tier devices: their media, free space and health.

use crate::error::FsResult;
use crate::parts::devices::io_count::IoCount;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use terrace_catalog::DeviceRun;
use terrace_format::keys::ColdExtent;
use terrace_format::{DeviceBlock, DeviceId, FileBlock, TierId};
use terrace_media::block::{AlignedBlock, BlockRead, Buffer};
use terrace_media::{BlockMedium, DeviceError, FlushMark, Flushed, MediaError, Promise, SharedFlush};
use terrace_runtime::planted::Mistake;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_space::{ChunkSpace, Pin};

/// How long a device that failed a write is passed over while there are others.
const AVOID: Duration = Duration::from_secs(30);

/// A device of a lower tier.
pub struct Device {
    /// The tier it belongs to.
    pub tier: TierId,
    /// Its medium, with counters around it.
    pub medium: Arc<dyn BlockMedium>,
    /// Blocks whose checksum was wrong.
    pub damaged: AtomicU64,
    /// Its flushes, shared by all writers.
    flushes: SharedFlush,
    /// Until when it is chosen last for new data, because a write or flush failed: nanoseconds of the clock; 0 is never.
    avoid_until_ns: AtomicU64,
}

impl Device {
    /// A device of which nothing bad is known.
    pub fn new(tier: TierId, medium: Arc<dyn BlockMedium>) -> Device {
        Device {
            tier,
            medium,
            damaged: AtomicU64::new(0),
            flushes: SharedFlush::default(),
            avoid_until_ns: AtomicU64::new(0),
        }
    }

    /// A mark of this moment. A caller takes it before the first write that its flush covers.
    pub fn flush_mark(&self) -> FlushMark {
        self.flushes.mark()
    }

    /// Makes the writes since `mark` durable (M1).
    ///
    /// # Errors
    /// As of [`SharedFlush::flush`].
    #[track_caller]
    pub fn flush(&self, mark: FlushMark) -> Result<Flushed, MediaError> {
        self.flushes.flush(&*self.medium, mark)
    }

    /// The flush of a planted mistake that leaves it out.
    pub fn flush_left_out(&self, mistake: Mistake) -> Option<Flushed> {
        self.flushes.left_out(mistake)
    }

    /// A write or flush of new data failed.
    pub(crate) fn avoid(&self, now_ns: u64) {
        self.avoid_until_ns.store(now_ns.saturating_add(AVOID.as_nanos() as u64).max(1), Ordering::Relaxed);
    }
    /// Whether a write or flush failed less than [`AVOID`] ago, or the device is not there.
    pub(crate) fn is_avoided(&self, now_ns: u64) -> bool {
        self.medium.is_missing() || now_ns < self.avoid_until_ns.load(Ordering::Relaxed)
    }
    /// False when it is not there or errors were seen: status calls it degraded.
    pub fn is_healthy(&self) -> bool {
        !self.medium.is_missing()
            && self.medium.error_count() == 0
            && self.damaged.load(Ordering::Relaxed) == 0
    }
    /// Why the device is not healthy: it is missing, it had errors (their number, and the last error), or blocks had
    /// wrong checksums.
    pub fn reason(&self) -> Option<String> {
        let (errors, damaged) = (self.medium.error_count(), self.damaged.load(Ordering::Relaxed));
        let mut reasons = Vec::new();
        if self.medium.is_missing() {
            reasons.push("mounted without it".to_string());
        }
        if errors > 0 {
            let last =
                self.medium.last_error().map_or_else(String::new, |error| format!(", the last: {error}"));
            reasons.push(format!("device errors since mount: {errors}{last}"));
        }
        if damaged > 0 {
            reasons.push(format!("wrong checksums since mount: {damaged}"));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
    /// The crashes that flushed data of the device survives.
    pub fn promise(&self) -> Promise {
        self.medium.promise()
    }
}

/// All devices; the index is the [`DeviceId`].
pub struct Devices {
    list: Vec<Device>,
    space: Arc<ChunkSpace>,
    io: IoCount,
}

/// Device, first block there, and the file blocks with their checksums.
type Plan = (DeviceId, DeviceBlock, Vec<(FileBlock, u32)>);

/// Cold blocks that lie side by side on a device, pinned until this is dropped.
pub struct DeviceRead<'a> {
    devices: &'a Devices,
    /// The device.
    pub device: DeviceId,
    /// The first block.
    pub start: DeviceBlock,
    /// File block and expected CRC32C of each.
    pub blocks: Vec<(FileBlock, u32)>,
    _pin: Pin,
}

impl<'a> DeviceRead<'a> {
    /// Reads the run.
    pub fn read(&self) -> Result<Buffer, MediaError> {
        let mut buffer = vec![AlignedBlock::zeroed(); self.blocks.len()];
        self.devices.medium(self.device)?.read(self.start, &mut buffer)?;
        Ok(buffer)
    }
    /// Reads several runs, those of one device together. As many results.
    pub fn read_all(runs: &[DeviceRead<'_>]) -> Vec<Result<Buffer, MediaError>> {
        let as_many = runs.len();
        let mut results = Vec::with_capacity(as_many);
        for runs in runs.chunk_by(|one, next| one.device == next.device) {
            let medium = match runs {
                [] => continue,
                [run] => {
                    results.push(run.read());
                    continue;
                }
                [first, ..] => first.devices.medium(first.device),
            };
            let mut buffers: Vec<Buffer> =
                runs.iter().map(|run| vec![AlignedBlock::zeroed(); run.blocks.len()]).collect();
            let places = runs.iter().zip(&mut buffers);
            let mut reads: Vec<BlockRead<'_>> =
                places.map(|(run, buffer)| BlockRead::new(run.start, buffer)).collect();
            match medium {
                Ok(medium) => medium.read_all(&mut reads),
                Err(error) => reads.iter_mut().for_each(|read| read.result = Err(error.clone())),
            }
            let ends: Vec<_> = reads.into_iter().map(|read| read.result).collect();
            results.extend(ends.into_iter().zip(buffers).map(|(end, buffer)| end.map(|()| buffer)));
        }
        assert_eq!(results.len(), as_many, "results of reads");
        results
    }
    /// The part of the run that a range of its blocks is, `None` when that is empty.
    pub fn part(&self, of: Range<usize>) -> Option<DeviceRead<'a>> {
        let blocks = self.blocks.get(of.clone()).filter(|blocks| !blocks.is_empty())?.to_vec();
        let start = self.start.plus(of.start as u64);
        let run = DeviceRun { device: self.device, start, length: blocks.len() as u64 };
        let _pin = self.devices.space.pin(run);
        Some(DeviceRead { devices: self.devices, device: self.device, start, blocks, _pin })
    }
    /// The device block of one block of the run.
    pub fn place(&self, index: usize) -> DeviceRun {
        let blocks = self.blocks.len();
        assert!(index < blocks, "block {index} of {blocks} that are pinned (S7)");
        DeviceRun { device: self.device, start: self.start.plus(index as u64), length: 1 }
    }
    /// The device's name, for messages.
    pub fn name(&self) -> String {
        self.devices.name(self.device)
    }
}

impl Devices {
    /// The devices in the order of the superblock's rows.
    pub fn new(list: Vec<Device>, space: Arc<ChunkSpace>, io: IoCount) -> Devices {
        Devices { list, space, io }
    }

    /// All of them; the index is the [`DeviceId`].
    pub fn list(&self) -> &[Device] {
        &self.list
    }

    /// Their free space.
    pub fn space(&self) -> &Arc<ChunkSpace> {
        &self.space
    }

    /// Counts of I/O of all tiers.
    pub fn io(&self) -> &IoCount {
        &self.io
    }

    /// A device's medium.
    pub fn medium(&self, device: DeviceId) -> Result<&Arc<dyn BlockMedium>, MediaError> {
        Ok(&self.device(device)?.medium)
    }

    /// A device.
    pub fn device(&self, device: DeviceId) -> Result<&Device, MediaError> {
        let missing = || {
            MediaError::from(DeviceError {
                device: format!("device {device}"),
                operation: "find",
                offset: 0,
                length: 0,
                errno: libc::ENODEV,
            })
        };
        self.list.get(usize::from(device.0)).ok_or_else(missing)
    }

    /// A device's name.
    pub fn name(&self, device: DeviceId) -> String {
        let found = self.list.get(usize::from(device.0));
        found.map_or_else(|| format!("device {device}"), |d| d.medium.name().to_string())
    }

    /// Notes that the checksum of a block of a device is wrong, and whose block it is.
    pub(crate) fn note_damage(&self, device: DeviceId, block: DeviceBlock, whose: impl Display) {
        if let Some(device) = self.list.get(usize::from(device.0)) {
            let times = 1 + device.damaged.fetch_add(1, Ordering::Relaxed);
            // Logged at powers of two only, or a reader of the file could fill the log.
            if times.is_power_of_two() {
                let name = device.medium.name();
                tracing::error!(
                    "{name} block {block}, {whose}: wrong checksum of a cold block ({times} times since mount)"
                );
            }
        }
    }

    /// The devices of a tier.
    pub fn of_tier(&self, tier: TierId) -> Vec<DeviceId> {
        let matching = self.list.iter().enumerate().filter(|(_, device)| device.tier == tier);
        matching.map(|(index, _)| DeviceId(index as u8)).collect()
    }

    /// Whether another device than one that just failed can take new data.
    pub(crate) fn is_any_sound(&self, now_ns: u64) -> bool {
        self.list.iter().any(|device| !device.is_avoided(now_ns))
    }

    /// Lower tiers, fastest first.
    pub fn tiers(&self) -> Vec<TierId> {
        let mut tiers: Vec<TierId> = self.list.iter().map(|device| device.tier).collect();
        tiers.sort_unstable();
        tiers.dedup();
        tiers
    }

    /// Groups written extents into runs of a single device read each, under I/O pins. The caller holds the
    /// lock of the inode that owns the extents.
    pub fn plan_reads(&self, extents: Vec<ColdExtent>) -> Vec<DeviceRead<'_>> {
        let mut plans: Vec<Plan> = Vec::new();
        for extent in extents.into_iter().filter(|extent| !extent.unwritten) {
            let blocks = extent.crcs.iter().enumerate();
            let blocks = blocks.map(|(index, crc)| (extent.first.plus(index as u64), *crc));
            match plans.last_mut() {
                Some((device, start, list))
                    if *device == extent.device && start.plus(list.len() as u64) == extent.start =>
                {
                    list.extend(blocks);
                }
                _ => plans.push((extent.device, extent.start, blocks.collect())),
            }
        }
        let pinned = plans.into_iter().map(|(device, start, blocks)| {
            let run = DeviceRun { device, start, length: blocks.len() as u64 };
            DeviceRead { devices: self, device, start, blocks, _pin: self.space.pin(run) }
        });
        pinned.collect()
    }

    /// Flushes every device.
    #[track_caller]
    pub fn flush_all(&self) -> FsResult<()> {
        for device in &self.list {
            device.flush(device.flush_mark())?;
        }
        Ok(())
    }
}
