//! Shared by the targets: the golden images, and changes of sound bytes that an input describes.

#[path = "../../crates/engine/tests/golden/text.rs"]
#[allow(dead_code)]
mod text;

use std::sync::{Arc, OnceLock};
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::superblock::Superblock;
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, SimulatedDevice};
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};

pub use terrace_format::Ino;
/// The root directory, for the code shared with the damaged pools.
pub const ROOT: Ino = Ino(1);

/// A golden image.
pub struct Golden {
    pub pm: PmImage,
    pub bytes: Vec<u8>,
    pub device: DeviceImage,
    pub superblock: Superblock,
    pub checkpoint: Checkpoint,
}

fn read(image: &str) -> Golden {
    let media = text::decode(image).expect("a golden image reads");
    let [(_, pm), (_, device)] = media.as_slice() else { panic!("two media") };
    let superblock = Superblock::verify(&pm[..8192], true).expect("its superblock is sound");
    let at = CHECKPOINT_COPIES[0].offset().0 as usize;
    let lanes = superblock.geometry().lane_count;
    let checkpoint =
        Checkpoint::decode(&pm[at..at + 4096], &superblock.uuid, lanes).expect("and its checkpoint");
    let device = DeviceImage::from_bytes(device);
    Golden { pm: PmImage::from(pm.clone()), bytes: pm.clone(), device, superblock, checkpoint }
}

/// The golden images: unmounted in order, killed, and of each further file map.
pub fn golden() -> &'static [Golden; 7] {
    static IMAGES: OnceLock<[Golden; 7]> = OnceLock::new();
    IMAGES.get_or_init(|| {
        [
            read(include_str!("../../crates/engine/tests/golden/v1/clean.txt")),
            read(include_str!("../../crates/engine/tests/golden/v1/killed.txt")),
            read(include_str!("../../crates/engine/tests/golden/v1/extents.txt")),
            read(include_str!("../../crates/engine/tests/golden/v1/cuckoo.txt")),
            read(include_str!("../../crates/engine/tests/golden/v1/hashfs-linear.txt")),
            read(include_str!("../../crates/engine/tests/golden/v1/hashfs.txt")),
            read(include_str!("../../crates/engine/tests/golden/v1/clustered.txt")),
        ]
    })
}

/// Sound bytes with those replaced that an input names: two bytes of offset, how many, and they.
pub fn patched(sound: &[u8], input: &[u8]) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    let mut rest = input;
    while let Some(([low, high, count], tail)) = rest.split_first_chunk::<3>() {
        let at = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len();
        let (part, tail) = tail.split_at(tail.len().min(usize::from(count % 9)));
        for (place, byte) in bytes[at..].iter_mut().zip(part) {
            *place = *byte;
        }
        rest = tail;
    }
    bytes
}

/// A golden pool damaged as an input says: bytes of blocks in use, words that look like pointers, device blocks.
pub fn damaged(input: &[u8]) -> (Arc<dyn PmMedium>, Arc<dyn BlockMedium>) {
    let (kind, mut rest) = input.split_first().map_or((0, input), |(kind, rest)| (*kind, rest));
    // Bit 1 leaves checksums wrong; the others number the image.
    let images = golden();
    let golden = &images[usize::from(kind >> 2 << 1 | kind & 1) % images.len()];
    let (mut pm, mut device) = (golden.pm.clone(), golden.device.clone());
    while let Some(([block, line, how, value], tail)) = rest.split_first_chunk::<4>() {
        rest = tail;
        let at = u64::from(*block) * 4096 + u64::from(*line) * 16 + u64::from(how & 8);
        let _ = match how % 8 {
            0 => pm.write(at, &u64::from(*value).to_le_bytes()),
            1 => pm.write(at, &[*value]),
            2 => pm.write(at, &(u64::from(*value) | u64::from(how >> 4) << 56).to_le_bytes()),
            3 => pm.write(at, &(!u64::from(*value)).to_le_bytes()),
            4 => {
                let mut other = [0; 64];
                pm.read(u64::from(*value) * 4096 + u64::from(*line) * 16 / 64 * 64, &mut other)
                    && pm.write(at / 64 * 64, &other)
            }
            5 => {
                let (word, tail) = rest.split_at(rest.len().min(8));
                rest = tail;
                pm.write(at, word)
            }
            6 => pm.write(at / 64 * 64, &[*value; 64]),
            _ => {
                let place = DeviceBlock(u64::from(*block));
                let mut content: AlignedBlock = device.block(place);
                content.0[usize::from(*line) * 16] ^= *value;
                device.set_block(place, content);
                true
            }
        };
    }
    mend(&mut pm, golden, kind);
    (Arc::new(RecordedPm::from_image(pm)), Arc::new(SimulatedDevice::from_image(device)))
}

/// Makes the checksums of superblock and checkpoint right again, unless the input wants them wrong.
fn mend(pm: &mut PmImage, golden: &Golden, kind: u8) {
    if kind & 2 != 0 {
        return;
    }
    let mut bytes = vec![0; 8192];
    if pm.read(0, &mut bytes)
        && let Ok(mut superblock) = <Superblock as zerocopy::FromBytes>::read_from_bytes(&bytes)
    {
        superblock.seal();
        let _ = pm.write(0, zerocopy::IntoBytes::as_bytes(&superblock));
    }
    let lanes = golden.superblock.geometry().lane_count as usize;
    let PmOffset(at) = CHECKPOINT_COPIES[0].offset();
    let mut point = vec![0; 56 + 8 * lanes];
    if pm.read(at, &mut point) {
        let crc = u64::from(terrace_format::checksum::crc32c(&point));
        let _ = pm.write(at + point.len() as u64, &crc.to_le_bytes());
    }
}
