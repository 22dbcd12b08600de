//! A damaged pool in a journal, which is damaged too.

use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_format::{BLOCK_SIZE, DeviceBlock, PmOffset};
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::{JournalOptions, JournaledPm, PmImage};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;

/// Writes an image into a new journal, half of it home, damages some blocks, and opens the journal again. `None` if that refuses
/// the journal.
pub fn in_journal(image: &PmImage, random: &mut StdRng) -> Option<Arc<dyn PmMedium>> {
    let bytes = image.len() as u64;
    let layout = Layout::new(bytes, MIN_LOG_BYTES.max(JournaledPm::least_log_bytes(bytes)))?;
    let device = SimulatedDevice::new(layout.total_blocks());
    JournaledPm::create(&device, layout, [5; 16]).ok()?;
    let device: Arc<SimulatedDevice> = Arc::new(device);
    let options = JournalOptions { ring_bytes: 8 << 20, ..Default::default() };
    let pm =
        JournaledPm::open(device.clone() as Arc<dyn BlockMedium>, options, Arc::new(ManualClock::new(1)))
            .ok()?
            .pm;
    for offset in (0..bytes).step_by(BLOCK_SIZE as usize) {
        let mut page = [0; BLOCK_SIZE as usize];
        assert!(image.read(offset, &mut page), "a page of the image");
        if page != [0; BLOCK_SIZE as usize] {
            assert!(pm.write(PmOffset(offset), &page).is_ok(), "a sound journal takes a page");
        }
        if random.random_range(0..64) == 0 {
            assert!(pm.persist().is_ok() && pm.advance(1).is_ok(), "a sound journal commits");
        }
    }
    assert!(pm.persist().is_ok(), "a sound journal commits");
    let mut image = device.snapshot().image_none();
    for _ in 0..random.random_range(0..6) {
        // Home and the beginning of the log.
        let block = DeviceBlock(random.random_range(512..layout.log().0 + layout.pages()));
        let mut content = image.block(block);
        content.0[random.random_range(0..BLOCK_SIZE as usize)] ^= 1 << random.random_range(0..8);
        image.set_block(block, content);
    }
    let device = Arc::new(SimulatedDevice::from_image(image));
    let opened =
        JournaledPm::open(device as Arc<dyn BlockMedium>, options, Arc::new(ManualClock::new(1))).ok()?;
    Some(Arc::new(opened.pm))
}
