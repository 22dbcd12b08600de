//! The choice of a moment's images, and the judgement of an image.
//!
//! The images of a moment are those of `terrace_sim::subsets`. A case judges each state once: media with the
//! same bytes (by hash) are one state. So are media from which a mount makes the same bytes, because the rest
//! of the judgement (tree, background, unmount, check) sees only these bytes.

use super::{Allowed, Dump, Shape, World, options};
use std::collections::HashSet;
use std::fmt::{Display, Formatter};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use terrace_engine::Simulation;
use terrace_media::block::{DeviceImage, DeviceSnapshot};
use terrace_media::pm::{CrashSnapshot, PmImage};
use terrace_sim::subsets::{Choice, Random, all_subsets, any_states, some_subsets};

/// The effort of an exploration.
#[derive(Clone, Copy)]
pub struct Effort {
    /// The most undecided lines at which all subsets are taken.
    pub lines: u32,
    /// Images of a moment with more lines, about.
    pub samples: usize,
    /// The distance of the explored moments.
    pub stride: usize,
    /// Shifts them.
    pub first: usize,
    /// Moments of a case after which recovery is crashed too, about.
    pub recoveries: usize,
    /// As `samples`, for a moment inside a recovery.
    pub recovery_samples: usize,
}

impl Effort {
    /// `TERRACE_CRASH_SAMPLES` multiplies the samples; all subsets of up to eight lines are taken as well. If it is less
    /// than one, the least numbers are halved; if it is less than a half, all subsets of up to four lines are taken; if it is
    /// less than a fifth, every second moment is taken, and every third if it is less than a tenth, with each file map others.
    /// `TERRACE_CRASH_FIRST` shifts them.
    pub fn default_times(factor: f64) -> Effort {
        let samples = std::env::var("TERRACE_CRASH_SAMPLES").ok().and_then(|s| s.parse::<f64>().ok());
        let samples = samples.unwrap_or(1.0);
        let first = std::env::var("TERRACE_CRASH_FIRST").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
        let factor = factor * samples;
        let least = |least: f64| if samples < 1.0 { least / 2.0 } else { least };
        Effort {
            lines: if samples < 0.5 { 4 } else { 8 },
            samples: (28.0 * factor).max(least(12.0)) as usize,
            stride: match samples {
                _ if samples < 0.1 => 3,
                _ if samples < 0.2 => 2,
                _ => 1,
            },
            first: first + terrace_sim::kinds::BASE.file_map() as usize,
            recoveries: (4.0 * factor).max(least(2.0)) as usize,
            recovery_samples: (16.0 * factor).max(least(8.0)) as usize,
        }
    }

    /// Whether the moment before an event is explored.
    pub fn takes(&self, event: usize) -> bool {
        (event + self.first).is_multiple_of(self.stride)
    }

    /// Whether the run takes less than half of the samples.
    pub fn is_short(&self) -> bool {
        self.lines < 8
    }
}

/// Counts of an exploration.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Images requested.
    pub images: u64,
    /// Distinct images: each was checked and mounted.
    pub states: u64,
    /// Distinct media after the mount: each was compared, worked off, unmounted and checked.
    pub trees: u64,
    /// The part of `states` that comes from crashes inside recovery.
    pub in_recovery: u64,
    /// Moments explored with all subsets, and moments sampled.
    pub all: u64,
    pub sampled: u64,
    /// The same counts for moments inside recoveries.
    pub recovery_all: u64,
    pub recovery_sampled: u64,
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Counts { images, states, trees, in_recovery, all, sampled, .. } = self;
        write!(
            f,
            "{states} states of {images} images, {in_recovery} of them after a crash inside recovery, "
        )?;
        write!(f, "{trees} after the mount; {all} moments with all subsets, {sampled} sampled; ")?;
        write!(f, "inside recovery {} and {}", self.recovery_all, self.recovery_sampled)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.images += other.images;
        self.states += other.states;
        self.trees += other.trees;
        self.in_recovery += other.in_recovery;
        self.all += other.all;
        self.sampled += other.sampled;
        self.recovery_all += other.recovery_all;
        self.recovery_sampled += other.recovery_sampled;
    }
}

/// A moment at which the media crash together.
pub struct Moment {
    pub pm: CrashSnapshot,
    pub device: DeviceSnapshot,
}

/// Judges the images of a case's moments, each state once.
pub struct Explorer {
    pub shape: Shape,
    pub effort: Effort,
    pub counts: Counts,
    seen: HashSet<u64>,
    mounted: HashSet<u64>,
}

impl Explorer {
    pub fn new(shape: Shape, effort: Effort) -> Explorer {
        let counts = Counts::default();
        Explorer { shape, effort, counts, seen: HashSet::new(), mounted: HashSet::new() }
    }

    /// Forgets the judged states, because other states are allowed from this moment.
    pub fn forget(&mut self) {
        self.seen.clear();
        self.mounted.clear();
    }

    /// Judges the images that a crash at this moment may leave.
    pub fn moment(&mut self, moment: &Moment, seed: u64, allowed: &Allowed) -> Result<(), String> {
        let newest = moment.pm.in_epoch(u64::MAX);
        let all = all_subsets(&newest, self.effort.lines);
        *(if all.is_some() { &mut self.counts.all } else { &mut self.counts.sampled }) += 1;
        let mut random = Random(seed);
        let choices = match all {
            Some(mut all) => {
                // Besides old and newest lines also lines in states between.
                all.extend((0..4).map(|_| any_states(&newest, &mut random)));
                all
            }
            None => some_subsets(&newest, self.effort.samples, seed),
        };
        self.images(&newest, &moment.device, &choices, seed, allowed)?;
        // On PM where only `persist` makes durable the crash may fall into an earlier epoch. Its images were
        // judged when it was the newest epoch, apart from the chance of the samples.
        for _ in 0..(moment.pm.epoch_count() - 1).min(4) {
            let epoch = random.below(moment.pm.epoch_count() as usize) as u64;
            let narrow = moment.pm.in_epoch(epoch);
            let choices: Vec<Choice> = (0..2).map(|_| any_states(&narrow, &mut random)).collect();
            self.images(&narrow, &moment.device, &choices, seed, allowed)?;
        }
        Ok(())
    }

    fn images(
        &mut self,
        pm: &CrashSnapshot,
        device: &DeviceSnapshot,
        choices: &[Choice],
        seed: u64,
        allowed: &Allowed,
    ) -> Result<(), String> {
        let mut devices = vec![device.image_none()];
        if device.unflushed_count() > 0 {
            devices.push(device.image_all());
            devices.extend((0..2).map(|i| device.image_random(seed + i)));
        }
        let hashes: Vec<u64> = devices.iter().map(DeviceImage::hash).collect();
        for (index, choice) in choices.iter().enumerate() {
            let states = |line: usize| choice[line];
            let hash = pm.hash_here(&states);
            for (turn, device) in devices.iter().enumerate() {
                // The first two choices meet every device image, later choices two of them.
                if index >= 2 && turn != 0 && turn != 1 + index % (devices.len() - 1) {
                    continue;
                }
                self.counts.images += 1;
                if !self.seen.insert(hash ^ hashes[turn]) {
                    continue;
                }
                let image = pm.image_here(&states);
                debug_assert_eq!(image.hash(), hash);
                self.judge(image, device.clone(), hashes[turn], allowed)
                    .map_err(|error| format!("image {index} (device {turn}): {error}"))?;
            }
        }
        Ok(())
    }

    /// Judges one image; a panic counts as an error.
    fn judge(
        &mut self,
        pm: PmImage,
        device: DeviceImage,
        device_hash: u64,
        allowed: &Allowed,
    ) -> Result<(), String> {
        self.counts.states += 1;
        let world = World::from_images(self.shape, pm, device);
        let judged = AssertUnwindSafe(|| judge(&world, device_hash, &mut self.mounted, allowed));
        match catch_unwind(judged) {
            Ok(Ok(new)) => {
                self.counts.trees += u64::from(new);
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
                Err(format!("panic: {}", text.unwrap_or_default()))
            }
        }
    }
}

/// Checks and mounts. If no mount of the case made the same bytes before, also compares, works off the
/// background, unmounts and checks, and answers true.
fn judge(
    world: &World,
    device_hash: u64,
    mounted: &mut HashSet<u64>,
    allowed: &Allowed,
) -> Result<bool, String> {
    let findings = world.findings();
    if !findings.is_empty() {
        return Err(format!("check before the mount: {findings:#?}"));
    }
    let fs = world.mount_with(options()).map_err(|error| format!("mount: {error}"))?;
    let now = world.pm.snapshot();
    let untouched = now.pending_count() == 0 && world.device.counters().writes == 0;
    if untouched && !mounted.insert(now.durable.hash() ^ device_hash) {
        return Ok(false);
    }
    let found = Dump::of(&fs);
    allowed.check(&found)?;
    fs.run_background(10_000);
    let later = Dump::of(&fs);
    if later.clone().without_blocks() != found.clone().without_blocks() {
        return Err(format!("background work changed the tree:{}", found.difference(&later)));
    }
    fs.unmount().map_err(|error| format!("unmount: {error}"))?;
    drop(fs);
    let findings = world.findings();
    if !findings.is_empty() {
        return Err(format!("check after the unmount: {findings:#?}"));
    }
    Ok(true)
}
