//! Checkpoint: an input that decodes is encoded again, and decodes to the same checkpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::checksum::crc32c;
use terrace_fuzz::{golden, patched};

fn judge(bytes: &[u8], uuid: &[u8; 16], lanes: u32) {
    let Ok(point) = Checkpoint::decode(bytes, uuid, lanes) else { return };
    assert_eq!(point.tails.len(), lanes as usize);
    let again = point.encode(uuid);
    assert_eq!(Checkpoint::decode(&again, uuid, lanes).as_ref(), Ok(&point));
    let _ = (point.has_possible_numbers(), point.impossible_tail());
}

fuzz_target!(|input: &[u8]| {
    let golden = &golden()[0];
    let (uuid, lanes) = (&golden.superblock.uuid, golden.superblock.geometry().lane_count);
    judge(input, uuid, lanes);
    let mut bytes = patched(&golden.checkpoint.encode(uuid), input);
    judge(&bytes, uuid, lanes);
    let covered = bytes.len() - 8;
    let crc = u64::from(crc32c(&bytes[..covered]));
    bytes[covered..].copy_from_slice(&crc.to_le_bytes());
    let lanes = u32::from_le_bytes(*bytes[52..].first_chunk().unwrap_or(&[0; 4]));
    judge(&bytes, uuid, lanes);
});
