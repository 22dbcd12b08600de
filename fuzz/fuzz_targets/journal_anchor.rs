//! Anchor of a journal: a decoded anchor has a layout and possible numbers, and is encoded to the block that was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::checksum::crc32c;
use terrace_format::journal::{ANCHOR_MAGIC, Anchor, MIN_LOG_BYTES};
use terrace_fuzz::patched;

/// Bytes of an anchor; the last four are its CRC.
const ANCHOR_BYTES: usize = 160;

fn judge(block: &[u8]) {
    let Ok(anchor) = Anchor::decode(block) else { return };
    let layout = anchor.layout().expect("a decoded anchor has a layout");
    assert_eq!((layout.image_bytes(), layout.log_bytes()), (anchor.image_bytes, anchor.log_bytes));
    assert!(layout.total_blocks() > layout.log().0 && layout.log().0 >= layout.home().0 + layout.pages());
    assert!(anchor.start <= anchor.acknowledged && anchor.named <= anchor.acknowledged && anchor.table < 2);
    let (place, room) = layout.log_block(anchor.start);
    assert!(place.0 + room == layout.total_blocks());
    assert_eq!(Anchor::decode(&anchor.encode()), Ok(anchor));
}

fn sealed(mut block: Vec<u8>) -> Vec<u8> {
    block[..8].copy_from_slice(&ANCHOR_MAGIC);
    let crc = crc32c(&block[..ANCHOR_BYTES - 4]);
    block[ANCHOR_BYTES - 4..ANCHOR_BYTES].copy_from_slice(&crc.to_le_bytes());
    block
}

fuzz_target!(|input: &[u8]| {
    let anchor = Anchor {
        uuid: [3; 16],
        image_bytes: 1 << 30,
        log_bytes: 2 * MIN_LOG_BYTES,
        number: 9,
        epoch: 4,
        start: 4096,
        sequence: 77,
        previous: 0xdead,
        acknowledged: 1 << 20,
        named: 8192,
        table: 1,
        clean: false,
    };
    let block = anchor.encode();
    judge(input);
    // Half of the changes would otherwise hit the zeros behind the anchor.
    let patched = [patched(&block[..ANCHOR_BYTES], input), block[ANCHOR_BYTES..].to_vec()].concat();
    judge(&patched);
    judge(&sealed(patched));
    if input.len() >= ANCHOR_BYTES {
        judge(&sealed(input.to_vec()));
    }
});
