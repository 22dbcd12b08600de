//! A journaled tier 0 on a simulated device.
//!
//! Invariant: the medium is opened when it is first needed, and again after an orderly close. Dropping a mount leaves it open, as
//! the memory of a daemon that died alone.

use std::cell::RefCell;
use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{DurableWay, JournalOptions, JournaledPm, PmImage};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;

const OPTIONS: JournalOptions =
    JournalOptions { ring_bytes: 8 << 20, durable: DurableWay::Dsync, ..JournalOptions::DEFAULT };

/// A journal device, and the medium over it.
pub struct Journal {
    /// The device.
    pub device: Arc<SimulatedDevice>,
    opened: RefCell<Option<Arc<JournaledPm>>>,
}

impl Journal {
    /// The journal in an image of its device.
    pub fn new(image: DeviceImage, clock: &Arc<CrashClock>) -> Journal {
        let device = Arc::new(SimulatedDevice::with_clock("journal", image, clock).quiet());
        Journal { device, opened: RefCell::default() }
    }

    /// The device of a new journal with this content.
    pub fn image_of(content: &PmImage) -> DeviceImage {
        let bytes = content.to_vec();
        let layout = Layout::new(bytes.len() as u64, MIN_LOG_BYTES).expect("a size of whole blocks");
        let device = Arc::new(SimulatedDevice::new(layout.total_blocks()));
        JournaledPm::create(&*device, layout, [5; 16])
            .unwrap_or_else(|error| panic!("a new journal: {error}"));
        let pm = open(&device);
        pm.write_streaming(PmOffset(0), &bytes).expect("a store");
        pm.close().expect("an orderly end");
        device.visible_image()
    }

    /// The medium, opened.
    pub fn medium(&self) -> Arc<JournaledPm> {
        let mut opened = self.opened.borrow_mut();
        match &*opened {
            Some(pm) if !pm.is_closed() => Arc::clone(pm),
            _ => Arc::clone(opened.insert(open(&self.device))),
        }
    }

    /// All content.
    pub fn content(&self) -> PmImage {
        let pm = self.medium();
        let mut bytes = vec![0; pm.size() as usize];
        pm.read(PmOffset(0), &mut bytes).unwrap_or_else(|error| panic!("a page of tier 0: {error}"));
        bytes.into()
    }
}

fn open(device: &Arc<SimulatedDevice>) -> Arc<JournaledPm> {
    let device = Arc::clone(device) as Arc<dyn BlockMedium>;
    // Another clock than the engine's: attempts after errors leave the history's time alone.
    let clock = Arc::new(ManualClock::new(1));
    let opened =
        JournaledPm::open(device, OPTIONS, clock).unwrap_or_else(|error| panic!("the journal: {error}"));
    assert_eq!(opened.condemned, 0, "pages of tier 0 are damaged");
    Arc::new(opened.pm)
}
