//! Damage to media that is more than a flipped byte.

use terrace_engine::read_superblock;
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::{DeviceId, PmOffset};
use terrace_media::PmMedium;
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::RecordedPm;

/// Marks the device block with `content` as free in its bitmap: damage that concerns one file alone.
pub fn clear_used_bit(pm: &RecordedPm, device: &SimulatedDevice, id: u8, content: &[u8]) {
    let (superblock, _) = read_superblock(pm, false).unwrap();
    let chunk_blocks = u64::from(superblock.layout.chunk_blocks.get());
    let on_device = device.visible_image().to_bytes();
    let at = on_device.chunks(4096).position(|block| block == content).unwrap() as u64 - FIRST_CHUNK_BLOCK.0;
    let key = Key::chunk(at / chunk_blocks, DeviceId(id));
    let mut image = vec![0; pm.size() as usize];
    pm.read(PmOffset(0), &mut image).unwrap();
    let place = image.chunks_exact(4096).enumerate().find_map(|(number, bytes)| {
        let page = Page(Box::new(bytes.try_into().unwrap()));
        page.verify_header("").ok()?;
        let index = page.search(&key.0).ok()?.ok().filter(|_| page.level() == 0)?;
        Some(number * 4096 + page.value_place(index).ok()?.0)
    });
    let bit = (at % chunk_blocks) as usize;
    let offset = place.unwrap() + bit / 8;
    pm.write(PmOffset(offset as u64), &[image[offset] & !(1 << (bit % 8))]).unwrap();
}
