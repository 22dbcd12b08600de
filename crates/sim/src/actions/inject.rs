//! Faults of the lower tiers in histories: the choice of devices, and the begin and end of a fault.

use crate::action::Fault;
use crate::world::World;
use rand::Rng;
use std::sync::Arc;
use terrace_media::BlockMedium;
use terrace_media::block::{SimulatedDevice, Times};

impl World {
    /// Puts a fault in force, or ends it. In a pool of several devices it strikes a device, a tier or all
    /// devices.
    pub(crate) fn inject(&mut self, fault: Fault) {
        if self.pool.media.devices.is_empty() {
            return;
        }
        if self.pool.faulty() && fault != Fault::Heals {
            self.inject(Fault::Heals);
        }
        let count = self.pool.media.devices.len();
        if fault != Fault::Heals {
            let all = (0..count).collect();
            self.pool.failing = match if count > 1 { self.rng.random_range(0..8) } else { 7 } {
                0..=4 => vec![self.rng.random_range(0..count)],
                5..=6 => {
                    let (tiers, tier) = (self.config.devices(), self.rng.random_range(1..3));
                    (0..count).filter(|index| tiers[*index].0 == tier).collect()
                }
                _ => all,
            };
            self.known.descriptors.may_fail();
        }
        self.note(format!("{fault:?}, devices {:?}", self.pool.failing));
        self.counts.trouble.faults += 1;
        for index in self.pool.failing.clone() {
            let device = Arc::clone(&self.pool.media.devices[index]);
            self.inject_into(&device, fault);
        }
        self.pool.fault = (fault != Fault::Heals).then_some(fault);
    }

    fn inject_into(&mut self, device: &SimulatedDevice, fault: Fault) {
        match fault {
            Fault::Fails { operation, errno, times } => {
                let times = times.map_or(Times::Forever, Times::Count);
                device.fail_next(operation, 0..device.blocks(), errno, times);
            }
            Fault::Stalls => device.stall_without_waiting(),
            Fault::Vanishes => device.vanish(libc::ENODEV),
            Fault::Lies => {
                device.lie_about_flush(true);
                self.pool.lied = true;
            }
            Fault::Heals => {
                device.clear_failures();
                device.unstall();
                if self.pool.fault == Some(Fault::Vanishes) {
                    let lost_power = self.rng.random::<bool>().then(|| self.rng.random());
                    device.come_back(lost_power);
                    self.pool.may_be_damaged |= self.pool.lied && lost_power.is_some();
                }
                device.lie_about_flush(false);
            }
        }
    }
}
