//! The state of all free space of lower tiers: everything that the space lock guards.
//!
//! Invariants:
//! 1. A block is claimed when its bitmap says that it is free, no claim holds it and no I/O pin covers it.
//! 2. A claim is released once, and only while no committed transaction has marked it used.
//! 3. Claims out of no promise leave the promised blocks free.

use crate::device_space::DeviceSpace;
use crate::fill::Filling;
use crate::io_pins::IoPins;
use crate::reservation::{Reservation, Source};
use std::collections::VecDeque;
use terrace_catalog::DeviceRun;
use terrace_format::{DeviceId, Lsn};
use terrace_media::Point;

/// A device, and the chunks of it that are being filled.
pub(crate) struct Device {
    pub space: DeviceSpace,
    pub filling: Filling,
}

/// The free space of all devices.
#[derive(Default)]
pub(crate) struct LowerSpace {
    pub devices: Vec<Device>,
    pub pins: IoPins,
    pub reservation: Reservation,
    /// Frees reported while a load was under way.
    pub early: Vec<(DeviceRun, Lsn)>,
    pub is_loading: bool,
    /// Runs whose freeing records are not known to be durable, in the order of their points (T6).
    pub waiting: VecDeque<(Point, DeviceRun, Lsn)>,
    /// Bitmaps that could not be read.
    pub damaged: u64,
}

impl LowerSpace {
    /// These devices, nothing loaded: number and blocks, header included.
    pub(crate) fn new(devices: &[(DeviceId, u64)], chunk_blocks: u32) -> LowerSpace {
        let device = |(id, blocks): &(DeviceId, u64)| Device {
            space: DeviceSpace::new(*id, *blocks, chunk_blocks),
            filling: Filling::default(),
        };
        LowerSpace { devices: devices.iter().map(device).collect(), ..LowerSpace::default() }
    }

    pub(crate) fn device_mut(&mut self, id: DeviceId) -> Option<&mut DeviceSpace> {
        self.devices.iter_mut().map(|device| &mut device.space).find(|device| device.id == id)
    }

    /// Free blocks that are promised to nobody.
    fn unpromised(&self) -> u64 {
        self.reservation.unpromised(self.devices.iter().map(|device| device.space.free).sum())
    }

    /// The blocks that a claim of `want` may take.
    fn claimable(&self, want: u64, source: Source) -> u64 {
        match source {
            Source::Unpromised => self.unpromised().min(want),
            Source::Reservation => want,
        }
    }

    /// Promises blocks; false when so many are not free.
    pub(crate) fn promise(&mut self, blocks: u64) -> bool {
        let enough = self.unpromised() >= blocks;
        if enough {
            self.reservation.add(blocks);
        }
        enough
    }

    /// Claims one run of `enough` to `want` blocks.
    pub(crate) fn claim_run(
        &mut self,
        devices: &[DeviceId],
        want: u64,
        enough: u64,
        source: Source,
    ) -> Option<DeviceRun> {
        let want = self.claimable(want, source);
        if want < enough {
            return None;
        }
        for Device { space, .. } in by_free_share(&mut self.devices, devices) {
            if let Some(piece) = space.find(want, enough, &self.pins) {
                let free = space.free;
                space.take(piece);
                let run = space.run_of(piece);
                assert_eq!(space.free + run.length, free, "{run:?} was free before it was claimed");
                self.reservation.settle(run.length, source);
                return Some(run);
            }
        }
        None
    }

    /// Claims holes of one device for `want` blocks.
    pub(crate) fn claim_holes(&mut self, devices: &[DeviceId], want: u64, source: Source) -> Vec<DeviceRun> {
        let want = self.claimable(want, source);
        for Device { space, filling } in by_free_share(&mut self.devices, devices) {
            let runs = filling.claim_holes(space, &self.pins, want);
            if !runs.is_empty() {
                self.reservation.settle(runs.iter().map(|run| run.length).sum(), source);
                return runs;
            }
        }
        Vec::new()
    }

    /// Gives back a claim that no committed transaction has marked used.
    pub(crate) fn release(&mut self, run: DeviceRun) {
        let Some(device) = self.device_mut(run.device) else {
            return;
        };
        let before = device.free;
        device.free_run(run, Lsn(u64::MAX));
        debug_assert_eq!(device.free - before, run.length, "claim {run:?} is released twice");
    }

    /// Makes the first waiting runs free, as far as `is_durable` says of their points.
    pub(crate) fn take_over(&mut self, mut is_durable: impl FnMut(Point) -> bool) {
        while let Some((_, run, lsn)) = self.waiting.pop_front_if(|(point, _, _)| is_durable(*point)) {
            self.freed(run, lsn);
        }
    }

    /// Whether a block is in a waiting run.
    pub(crate) fn waits(&self, block: DeviceRun) -> bool {
        self.waiting.iter().any(|(_, run, _)| {
            run.device == block.device
                && block.start.0 < run.start.0 + run.length
                && run.start.0 < block.start.0 + block.length
        })
    }

    /// A durable record freed blocks.
    pub(crate) fn freed(&mut self, run: DeviceRun, lsn: Lsn) {
        if self.is_loading {
            self.early.push((run, lsn));
        } else {
            self.free_run(run, lsn);
        }
    }

    /// Makes blocks free that a record freed.
    pub(crate) fn free_run(&mut self, run: DeviceRun, lsn: Lsn) {
        if let Some(device) = self.device_mut(run.device) {
            device.free_run(run, lsn);
        }
    }
}

/// The given devices, ordered by their free share: so devices of every size fill evenly from the beginning.
pub(crate) fn by_free_share<'a>(all: &'a mut [Device], devices: &[DeviceId]) -> Vec<&'a mut Device> {
    let mut order: Vec<&mut Device> =
        all.iter_mut().filter(|device| devices.contains(&device.space.id)).collect();
    let weight = |of: &Device, by: &Device| u128::from(of.space.free) * u128::from(by.space.blocks);
    order.sort_by(|a, b| weight(b, a).cmp(&weight(a, b)));
    order
}
