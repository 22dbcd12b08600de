//! Emulated media of a mount: `emulate-pm=` and `emulate-tier=`, for trials on a machine that lacks them.

use crate::failure::{Failure, Outcome};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_engine::PoolMedia;
use terrace_format::superblock::Superblock;
use terrace_media::BlockMedium;
use terrace_media::block::EmulatedBlock;
use terrace_media::pm::{EmulatedPm, PmFloor, PmSpeed};
use terrace_media::speed::ClassedSpeed;
use terrace_runtime::Clock;

/// The emulations that mount options ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Emulation {
    pm: Option<PmSpeed>,
    tiers: BTreeMap<u8, ClassedSpeed>,
}

/// A pool's media with the emulations over them.
pub struct Emulated {
    /// The media, emulated where an option asks for it.
    pub media: PoolMedia,
    /// A sentence for each emulation, for status.
    pub said: Vec<String>,
    /// Warnings about speeds that this machine is too slow to emulate.
    pub warnings: Vec<String>,
}

impl Emulation {
    /// The value of `emulate-pm=`.
    pub fn take_pm(&mut self, value: &str) -> Result<(), String> {
        match self.pm.replace(PmSpeed::parse(value)?) {
            Some(_) => Err("given twice; persistent memory has one speed".to_string()),
            None => Ok(()),
        }
    }

    /// The value of `emulate-tier=`: `N:CLASS`.
    pub fn take_tier(&mut self, value: &str) -> Result<(), String> {
        let split = value.split_once(':').and_then(|(tier, class)| Some((tier.parse().ok()?, class)));
        match split {
            Some((0, _)) => Err("tier 0 is persistent memory; use emulate-pm".to_string()),
            Some((tier, class)) => {
                self.tiers.insert(tier, ClassedSpeed::parse(class)?);
                Ok(())
            }
            None => Err("must be TIER:CLASS, as in 1:sata".to_string()),
        }
    }

    /// Puts the emulations over the media of a pool.
    ///
    /// # Errors
    /// A tier that the pool lacks.
    pub fn apply(
        &self,
        mut media: PoolMedia,
        superblock: &Superblock,
        clock: &Arc<dyn Clock>,
    ) -> Outcome<Emulated> {
        let rows = superblock.device_rows();
        if let Some(tier) = self.tiers.keys().find(|tier| rows.iter().all(|row| row.tier != **tier)) {
            return Err(Failure::new(format!("mount option emulate-tier: the pool has no tier {tier}")));
        }
        let mut said: Vec<String> = Vec::new();
        let mut warnings = Vec::new();
        if let Some(speed) = self.pm {
            let pm = EmulatedPm::new(media.pm, speed, Arc::clone(clock));
            let PmFloor { write_ns, read_ns } = pm.floor();
            said.push(format!(
                "tier 0: {speed}; not below {write_ns} ns for 64 B written, {read_ns} ns for 4 KiB read"
            ));
            warnings = pm.shortfalls();
            media.pm = Arc::new(pm);
        }
        let wrap = |(medium, tier): (Arc<dyn BlockMedium>, u8)| match self.tiers.get(&tier) {
            Some(class) => Arc::new(EmulatedBlock::new(medium, class.speed, Arc::clone(clock))) as Arc<_>,
            None => medium,
        };
        media.block = media.block.into_iter().zip(rows.iter().map(|row| row.tier)).map(wrap).collect();
        let tiers = self.tiers.iter().map(|(tier, class)| match class.name() {
            Some(name) => format!("tier {tier}: {name}, {}", class.speed),
            None => format!("tier {tier}: {}", class.speed),
        });
        said.extend(tiers);
        Ok(Emulated { media, said, warnings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::Geometry;
    use terrace_media::block::SimulatedDevice;
    use terrace_media::pm::RecordedPm;
    use terrace_runtime::ManualClock;

    #[test]
    fn only_the_tiers_asked_for_are_emulated() -> Result<(), String> {
        let mut emulation = Emulation::default();
        emulation.take_pm("run:300:2G:150")?;
        emulation.take_tier("2:disk")?;
        emulation.take_tier("2:nvme")?;
        let geometry = Geometry::choose(16 << 20, 4096)?;
        let mut superblock = Superblock::new(&geometry);
        superblock.device_count = 2;
        (superblock.devices[0].tier, superblock.devices[1].tier) = (2, 1);
        let clock = Arc::new(ManualClock::new(0));
        let device = || Arc::new(SimulatedDevice::new(64)) as Arc<dyn BlockMedium>;
        let media = PoolMedia { pm: Arc::new(RecordedPm::new(4096)), block: vec![device(), device()] };
        let shared: Arc<dyn Clock> = clock.clone();
        let Emulated { media, said, warnings } =
            emulation.apply(media, &superblock, &shared).map_err(|failure| failure.text)?;
        let mut back = [terrace_media::block::AlignedBlock::zeroed()];
        let mut times = Vec::new();
        for device in &media.block {
            let begin = clock.monotonic_ns();
            device.read(terrace_format::DeviceBlock(0), &mut back).map_err(|error| error.to_string())?;
            times.push(clock.monotonic_ns() - begin);
        }
        assert_eq!(times, [120_000 + 2_048, 0]);
        assert!(media.pm.describe().starts_with("emulated: 300 ns a run"));
        assert_eq!(
            said[0],
            "tier 0: 300 ns a run, 2147 MB/s, reads 150 ns; not below 1 ns for 64 B written, 1 ns for 4 KiB read"
        );
        assert!(warnings.is_empty(), "a manual clock stands still");
        assert_eq!(said[1], "tier 2: nvme, read 120 µs 2 GB/s, write 30 µs 500 MB/s");
        emulation.take_tier("3:disk")?;
        let failure = emulation.apply(media, &superblock, &shared).err();
        assert!(failure.is_some_and(|failure| failure.text.contains("no tier 3")));
        Ok(())
    }
}
