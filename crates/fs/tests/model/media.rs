//! The pool's media: recorded PM and a simulated device that share a crash clock, the device behind a
//! gate that lets the test run operations while a migration waits for it.

use crate::old_content;
use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;
use terrace_check::{Devices, Options, Report, check};
use terrace_format::{DeviceBlock, Geometry};
use terrace_fs::PoolMedia;
use terrace_media::block::{AlignedBlock, DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{CrashSnapshot, PmImage, RecordedPm};
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::sync::{Condvar, Mutex};

thread_local! {
    /// True on the thread that runs background work beside the test.
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Test,
    Background,
    /// Background work has ended.
    Done,
    /// The test failed: let background work end.
    Open,
}

/// Lets either the test or the background thread run, never both.
pub struct Gate {
    turn: Mutex<Turn>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, turn: Turn) {
        let mut now = self.turn.lock();
        if *now != Turn::Open {
            *now = turn;
        }
        self.changed.notify_all();
    }

    fn wait(&self, done: impl Fn(Turn) -> bool) -> Turn {
        let mut turn = self.turn.lock();
        while !done(*turn) {
            self.changed.wait(&mut turn);
        }
        *turn
    }

    /// Called by the device: gives the test a turn.
    fn pause(&self) {
        if IN_BACKGROUND.get() {
            self.set(Turn::Test);
            self.wait(|turn| turn == Turn::Background || turn == Turn::Open);
        }
    }

    /// Runs `work` on a thread of its own and `meanwhile` whenever that thread is about to use the device.
    /// Deterministic: only one of them runs at a time.
    pub fn beside(&self, work: impl FnOnce() + Send, mut meanwhile: impl FnMut()) {
        struct OnDrop<'a>(&'a Gate, Turn);
        impl Drop for OnDrop<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        *self.turn.lock() = Turn::Background;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                IN_BACKGROUND.set(true);
                let _done = OnDrop(self, Turn::Done);
                work();
            });
            let open = OnDrop(self, Turn::Open);
            while self.wait(|turn| turn != Turn::Background) == Turn::Test {
                meanwhile();
                self.set(Turn::Background);
            }
            drop(open);
        });
    }
}

/// A simulated device behind a gate.
struct GatedDevice {
    inner: Arc<SimulatedDevice>,
    gate: Arc<Gate>,
}

impl BlockMedium for GatedDevice {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.gate.pause();
        self.inner.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.gate.pause();
        self.inner.write(first, from)
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.gate.pause();
        self.inner.flush_at(at)
    }
    fn discard(&self, first: DeviceBlock, blocks: u64) {
        self.inner.discard(first, blocks);
    }
    fn error_count(&self) -> u64 {
        self.inner.error_count()
    }
}

/// What a crash at one moment can leave.
pub struct Moment {
    pm: CrashSnapshot,
    device: Option<DeviceSnapshot>,
}

/// All media of a pool.
pub struct Media {
    pub clock: Arc<CrashClock>,
    pub pm: Arc<RecordedPm>,
    pub device: Option<Arc<SimulatedDevice>>,
    pub gate: Arc<Gate>,
}

impl Media {
    pub fn new(pm_bytes: u64, device_blocks: u64) -> Media {
        let device = (device_blocks > 0).then(|| DeviceImage::zeroed(device_blocks));
        Media::from_images(vec![0; pm_bytes as usize], device)
    }

    fn from_images(pm: impl Into<PmImage>, device: Option<DeviceImage>) -> Media {
        let clock = CrashClock::new();
        let pm = Arc::new(RecordedPm::with_clock(pm, &clock));
        let device = device.map(|image| Arc::new(SimulatedDevice::with_clock("tier1", image, &clock)));
        let gate = Arc::new(Gate { turn: Mutex::new(Turn::Test), changed: Condvar::new() });
        Media { clock, pm, device, gate }
    }

    pub fn pool(&self) -> PoolMedia {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device = self.device.iter().map(|device| {
            let gated = GatedDevice { inner: device.clone(), gate: self.gate.clone() };
            Arc::new(gated) as Arc<dyn BlockMedium>
        });
        PoolMedia { pm, block: device.collect() }
    }

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
        *self = Media::from_images(pm, device);
    }

    /// The moment kept when the clock reached its target, else now.
    pub fn moment(&self) -> Moment {
        self.clock.set_crash_at(None);
        match self.pm.take_snapshot() {
            Some(pm) => Moment { pm, device: self.device.as_ref().and_then(|d| d.take_snapshot()) },
            None => Moment { pm: self.pm.snapshot(), device: self.device.as_ref().map(|d| d.snapshot()) },
        }
    }

    /// Media as a crash at that moment may leave them.
    pub fn after(moment: &Moment, seed: u64) -> Media {
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
        Media::from_images(pm, device)
    }
}
