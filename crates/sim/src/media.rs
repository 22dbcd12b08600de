//! The pool's media: recorded PM and simulated devices that share a crash clock.

use crate::config::Tier0;
use crate::journal::Journal;
use crate::old_content;
use crate::subsets::{NEWEST, Random};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak, mpsc};
use terrace_check::{Options, PoolView, Report, check};
use terrace_engine::{PoolMedia, read_superblock};
use terrace_format::Geometry;
use terrace_media::block::{DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::crash::{CrashClock, EventKind};
use terrace_media::ordering::{Change, OrderingPoint};
use terrace_media::pm::{CrashSnapshot, PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};

/// The states that a crash at one moment can leave.
#[derive(Clone)]
pub struct Moment {
    /// Persistent memory; empty of a journaled tier 0.
    pub pm: CrashSnapshot,
    /// The journal device of a journaled tier 0.
    pub journal: Option<DeviceSnapshot>,
    /// The devices of the lower tiers.
    pub devices: Vec<DeviceSnapshot>,
    /// Passes of the changed ordering point so far.
    pub changed: u64,
    /// A `persist` comes next: this is when the most stores are volatile.
    pub before_persist: bool,
}

impl Moment {
    /// An image of each device.
    pub fn device_images(&self, image: impl FnMut(&DeviceSnapshot) -> DeviceImage) -> Vec<DeviceImage> {
        self.devices.iter().map(image).collect()
    }
}

/// The mode of new media, and the ordering points that they passed.
#[derive(Clone, Default)]
pub struct Setup {
    /// The kind of tier 0.
    pub tier0: Tier0,
    /// An ordering point that is left out or weakened.
    pub change: Option<(OrderingPoint, Change)>,
    /// The ordering points passed, and the number of passes.
    pub points: Rc<RefCell<BTreeMap<OrderingPoint, u64>>>,
}

/// All media of a pool.
pub struct Media {
    /// Numbers the persistence events of all media.
    pub clock: Arc<CrashClock>,
    /// Persistent memory; without bytes where tier 0 is journaled.
    pub pm: Arc<RecordedPm>,
    /// The journaled tier 0.
    pub journal: Option<Journal>,
    /// The devices of the lower tiers.
    pub devices: Vec<Arc<SimulatedDevice>>,
    setup: Setup,
}

impl Drop for Media {
    fn drop(&mut self) {
        let mut all = self.setup.points.borrow_mut();
        for (point, count) in self.clock.ordering().points() {
            *all.entry(point).or_default() += count;
        }
    }
}

impl Media {
    /// Media of zeros; `devices` gives the blocks of each device.
    pub fn new(pm_bytes: u64, devices: impl IntoIterator<Item = u64>, setup: &Setup) -> Media {
        let devices = devices.into_iter().map(DeviceImage::zeroed);
        Media::from_images(vec![0; pm_bytes as usize], devices, setup)
    }

    /// Media whose durable content is these images.
    pub fn from_images(
        pm: impl Into<PmImage>,
        devices: impl IntoIterator<Item = DeviceImage>,
        setup: &Setup,
    ) -> Media {
        let clock = CrashClock::new();
        let pm: PmImage = pm.into();
        if setup.tier0 == Tier0::Journaled {
            return Media::from_journal(Journal::image_of(&pm), devices, setup);
        }
        let pm = RecordedPm::with_clock(pm, &clock);
        Media::with(clock, (pm, None), devices, setup)
    }

    /// Media with a journaled tier 0 whose device has this content.
    pub fn from_journal(
        journal: DeviceImage,
        devices: impl IntoIterator<Item = DeviceImage>,
        setup: &Setup,
    ) -> Media {
        let clock = CrashClock::new();
        let pm = RecordedPm::with_clock(vec![], &clock);
        let journal = Journal::new(journal, &clock);
        Media::with(clock, (pm, Some(journal)), devices, setup)
    }

    /// The media at a moment when the daemon has died and the machine runs on.
    pub fn resumed(moment: &Moment, setup: &Setup) -> Media {
        let devices = moment.device_images(DeviceSnapshot::image_all);
        // Stores that no commit has written go with the daemon's memory.
        if let Some(journal) = &moment.journal {
            return Media::from_journal(journal.image_all(), devices, setup);
        }
        let clock = CrashClock::new();
        let pm = RecordedPm::resumed(&moment.pm, &clock);
        Media::with(clock, (pm, None), devices, setup)
    }

    fn with(
        clock: Arc<CrashClock>,
        (pm, journal): (RecordedPm, Option<Journal>),
        devices: impl IntoIterator<Item = DeviceImage>,
        setup: &Setup,
    ) -> Media {
        clock.ordering().change(setup.change);
        pm.set_persist_only(setup.tier0.persist_only());
        let pm = Arc::new(pm);
        let name = |index: usize| format!("device{index}");
        let device = |(index, image)| Arc::new(SimulatedDevice::with_clock(&name(index), image, &clock));
        let devices = devices.into_iter().enumerate().map(device).collect();
        Media { clock, pm, journal, devices, setup: setup.clone() }
    }

    /// Tier 0.
    pub fn tier0(&self) -> Arc<dyn PmMedium> {
        match &self.journal {
            Some(journal) => journal.medium(),
            None => self.pm.clone(),
        }
    }

    /// The content of tier 0 that programs see.
    pub fn tier0_content(&self) -> PmImage {
        self.journal.as_ref().map_or_else(|| self.pm.visible_image(), Journal::content)
    }

    /// The media in the form that the engine takes.
    pub fn pool(&self) -> PoolMedia {
        let pm = self.tier0();
        let devices = self.devices.iter().map(|device| device.clone() as Arc<dyn BlockMedium>);
        PoolMedia { pm, block: devices.collect() }
    }

    /// `terrace check --data` of the pool as it is.
    pub fn check(&self) -> Report {
        let pm = self.tier0();
        let device = self.devices.iter().map(|device| Some(device.clone() as Arc<dyn BlockMedium>));
        let options = Options { read_cold: true, ..Default::default() };
        check(&PoolView::new(pm, device.collect()), &options)
    }

    /// Fills every block that the new pool does not use with old content.
    pub fn grow_old(&mut self, geometry: &Geometry) {
        let mut pm = self.tier0_content();
        let mut devices = self.device_images();
        old_content::fill(geometry, &mut pm, &mut devices);
        *self = Media::from_images(pm, devices, &self.setup.clone());
    }

    /// The visible content of the devices.
    pub fn device_images(&self) -> Vec<DeviceImage> {
        self.devices.iter().map(|device| device.visible_image()).collect()
    }

    /// A snapshot of this moment.
    pub fn now(&self) -> Moment {
        self.camera().now()
    }

    /// A camera for these media.
    pub fn camera(&self) -> Camera {
        let journal = self.journal.as_ref().map(|journal| Arc::clone(&journal.device));
        Camera {
            clock: Arc::clone(&self.clock),
            pm: Arc::clone(&self.pm),
            journal,
            devices: self.devices.clone(),
        }
    }

    /// The moment at which power failed, if it has failed.
    pub fn take_moment(&self) -> Option<Moment> {
        let pm = self.pm.take_snapshot()?;
        let changed = self.clock.ordering().changed_count();
        let journal = self.journal.as_ref().and_then(|journal| journal.device.take_snapshot());
        let devices = self.devices.iter().filter_map(|device| device.take_snapshot()).collect();
        Some(Moment { pm, journal, devices, changed, before_persist: false })
    }

    /// A hash of all content.
    pub fn hash(&self) -> u64 {
        let mut turn = 0;
        let journal = self.journal.as_ref().map_or(0, |journal| journal.device.visible_image().hash());
        self.device_images().iter().fold(self.pm.visible_image().hash() ^ journal, |hash, image| {
            turn += 17;
            hash ^ image.hash().rotate_left(turn)
        })
    }

    /// The media that a crash at a moment may leave; small seeds give the extremes.
    pub fn after(moment: &Moment, seed: u64, setup: &Setup) -> Media {
        let pm = match seed % 4 {
            0 => moment.pm.image_oldest(),
            1 => moment.pm.image_newest(),
            _ => moment.pm.image_random(seed),
        };
        // Several devices are in the same extreme, or each in a state of its own.
        let mut turn = 0;
        let devices = moment.device_images(|device| {
            turn += 1;
            match seed / 4 % 4 {
                0 => device.image_none(),
                1 => device.image_all(),
                _ if turn > 1 && (seed / 16).is_multiple_of(2) => match seed / 32 / turn % 3 {
                    0 => device.image_none(),
                    1 => device.image_all(),
                    _ => device.image_random(seed + turn),
                },
                _ => device.image_random(seed),
            }
        });
        if let Some(journal) = &moment.journal {
            let journal = match seed % 4 {
                0 => journal.image_none(),
                1 => journal.image_all(),
                _ => journal.image_random(seed),
            };
            return Media::from_journal(journal, devices, setup);
        }
        Media::from_images(pm, devices, setup)
    }

    /// The media that a crash may leave in which the log is ahead of the data: all lines before the pool of PM blocks are newest,
    /// and of the lines in these blocks none are, or all but few, by seed. A record that is durable before its data shows.
    pub fn with_record_ahead(moment: &Moment, seed: u64, setup: &Setup) -> Media {
        if moment.journal.is_some() {
            return Media::after(moment, seed, setup);
        }
        let (newest, mut random) = (moment.pm.in_epoch(u64::MAX), Random(seed));
        let medium = RecordedPm::from_image(newest.durable.clone());
        let superblock = read_superblock(&medium, true).map(|(superblock, _)| superblock);
        let superblock = superblock.unwrap_or_else(|refused| panic!("no superblock: {refused}"));
        let pool = superblock.geometry().first_pool_block().offset();
        let keeps_most = random.below(2) == 1;
        let states: Vec<usize> = newest
            .pending
            .iter()
            .map(|line| {
                let is_kept = line.offset() < pool || keeps_most && random.below(8) > 0;
                if is_kept { NEWEST } else { 0 }
            })
            .collect();
        let devices = moment.device_images(DeviceSnapshot::image_all);
        Media::from_images(newest.image_here(&|line| states[line]), devices, setup)
    }

    /// The setup of these media.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }
}

/// Takes snapshots of media while work runs on them.
pub struct Camera {
    clock: Arc<CrashClock>,
    pm: Arc<RecordedPm>,
    journal: Option<Arc<SimulatedDevice>>,
    devices: Vec<Arc<SimulatedDevice>>,
}

impl Camera {
    /// A snapshot of this moment.
    pub fn now(&self) -> Moment {
        let changed = self.clock.ordering().changed_count();
        let devices = self.devices.iter().map(|device| device.snapshot()).collect();
        let journal = self.journal.as_ref().map(|device| device.snapshot());
        Moment { pm: self.pm.snapshot(), journal, devices, changed, before_persist: false }
    }

    /// The moments before each event of `run`, and the moment after the last event.
    pub fn film<R>(self, run: impl FnOnce() -> R) -> (Vec<Moment>, R) {
        let (sender, receiver) = mpsc::channel();
        let (clock, pm) = (Arc::downgrade(&self.clock), Arc::downgrade(&self.pm));
        let devices: Vec<_> = self.devices.iter().map(Arc::downgrade).collect();
        let journal = self.journal.as_ref().map(Arc::downgrade);
        self.clock.on_event(Some(Box::new(move |event| {
            let (Some(clock), Some(pm)) = (clock.upgrade(), pm.upgrade()) else { return };
            let devices = devices.iter().filter_map(Weak::upgrade).collect();
            let journal = journal.as_ref().and_then(Weak::upgrade);
            let before_persist = event.kind == EventKind::Persist;
            let _ = sender.send(Moment { before_persist, ..Camera { clock, pm, journal, devices }.now() });
        })));
        let result = run();
        self.clock.on_event(None);
        let mut moments: Vec<Moment> = receiver.try_iter().collect();
        moments.push(self.now());
        (moments, result)
    }
}

/// The indices of the moments that show most of a changed ordering point's effect: `most` moments soon after
/// a pass of it, half as many spread evenly over the rest, a few before a `persist`, and the last moment.
pub fn soon_after_change(moments: &[Moment], most: usize) -> Vec<usize> {
    let mut since = 0;
    let mut before = 0;
    let mut indices: Vec<(usize, usize)> = Vec::new();
    for (index, moment) in moments.iter().enumerate() {
        since = if moment.changed == before { since + 1 } else { 0 };
        before = moment.changed;
        if moment.changed > 0 && index + 1 < moments.len() {
            indices.push((since, index));
        }
    }
    indices.sort_unstable();
    let rest = indices.split_off(most.min(indices.len()));
    let step = rest.len().div_ceil(most.div_ceil(2).max(1)).max(1);
    let persists = rest.iter().rev().filter(|(_, index)| moments[*index].before_persist).take(4);
    indices.extend(persists);
    indices.extend(
        rest.iter().skip(step / 2).step_by(step).filter(|(_, index)| !moments[*index].before_persist),
    );
    indices.into_iter().map(|(_, index)| index).chain(moments.len().checked_sub(1)).collect()
}
