//! The pool's media: recorded PM and a simulated device that share a crash clock.

use crate::old_content;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use terrace_check::{Devices, Options, Report, check};
use terrace_format::Geometry;
use terrace_fs::PoolMedia;
use terrace_media::block::{DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::ordering::{Change, OrderingPoint};
use terrace_media::pm::{CrashSnapshot, PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};

/// What a crash at one moment can leave.
#[derive(Clone)]
pub struct Moment {
    /// Persistent memory.
    pub pm: CrashSnapshot,
    /// The lower tier.
    pub device: Option<DeviceSnapshot>,
}

/// How media are made, and what was seen of all that were.
#[derive(Clone, Default)]
pub struct Setup {
    /// On PM `order` only orders, `persist` alone makes durable.
    pub persist_only: bool,
    /// An ordering point that is made wrong on purpose.
    pub change: Option<(OrderingPoint, Change)>,
    /// The ordering points met, and how often.
    pub points: Rc<RefCell<BTreeMap<OrderingPoint, u64>>>,
}

/// All media of a pool.
pub struct Media {
    /// Numbers the persistence events of all media.
    pub clock: Arc<CrashClock>,
    /// Persistent memory.
    pub pm: Arc<RecordedPm>,
    /// The lower tier.
    pub device: Option<Arc<SimulatedDevice>>,
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
    /// Media of zeros.
    pub fn new(pm_bytes: u64, device_blocks: u64, setup: &Setup) -> Media {
        let device = (device_blocks > 0).then(|| DeviceImage::zeroed(device_blocks));
        Media::from_images(vec![0; pm_bytes as usize], device, setup)
    }

    /// Media that hold these images, durably.
    pub fn from_images(pm: impl Into<PmImage>, device: Option<DeviceImage>, setup: &Setup) -> Media {
        let clock = CrashClock::new();
        clock.ordering().change(setup.change);
        let pm = Arc::new(RecordedPm::with_clock(pm, &clock));
        pm.set_persist_only(setup.persist_only);
        let device = device.map(|image| Arc::new(SimulatedDevice::with_clock("tier1", image, &clock)));
        Media { clock, pm, device, setup: setup.clone() }
    }

    /// As the engine takes them.
    pub fn pool(&self) -> PoolMedia {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device = self.device.iter().map(|device| device.clone() as Arc<dyn BlockMedium>);
        PoolMedia { pm, block: device.collect() }
    }

    /// `terrace check --data` of the pool as it is.
    pub fn check(&self) -> Report {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device = self.device.iter().map(|device| Some(device.clone() as Arc<dyn BlockMedium>));
        let options = Options { read_cold: true, ..Default::default() };
        check(&Devices { pm, block: device.collect() }, &options)
    }

    /// Puts old content into everything that the new pool does not use.
    pub fn grow_old(&mut self, geometry: &Geometry) {
        let mut pm = self.pm.visible_image();
        let mut device = self.device.as_ref().map(|device| device.visible_image());
        old_content::fill(geometry, &mut pm, device.as_mut());
        *self = Media::from_images(pm, device, &self.setup.clone());
    }

    /// This moment.
    pub fn now(&self) -> Moment {
        Moment { pm: self.pm.snapshot(), device: self.device.as_ref().map(|device| device.snapshot()) }
    }

    /// The moment at which power failed, when it has.
    pub fn take_moment(&self) -> Option<Moment> {
        let pm = self.pm.take_snapshot()?;
        Some(Moment { pm, device: self.device.as_ref().and_then(|device| device.take_snapshot()) })
    }

    /// A hash of all content.
    pub fn hash(&self) -> u64 {
        let device = self.device.as_ref().map_or(0, |device| device.visible_image().hash());
        self.pm.visible_image().hash() ^ device.rotate_left(17)
    }

    /// Media as a crash at a moment may leave them; the first four seeds are the extremes.
    pub fn after(moment: &Moment, seed: u64, setup: &Setup) -> Media {
        let pm = match seed % 4 {
            0 => moment.pm.image_oldest(),
            1 => moment.pm.image_newest(),
            _ => moment.pm.image_random(seed),
        };
        let device = moment.device.as_ref().map(|device| match seed / 4 % 4 {
            0 => device.image_none(),
            1 => device.image_all(),
            _ => device.image_random(seed),
        });
        Media::from_images(pm, device, setup)
    }

    /// How these were made.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }
}
