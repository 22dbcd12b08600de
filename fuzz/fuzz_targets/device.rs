//! Device header and group summary.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::DeviceBlock;
use terrace_format::checksum::crc32c;
use terrace_format::device::{DeviceHeader, SUMMARY_MAGIC, decode_summary, encode_summary};
use terrace_fuzz::{golden, patched};

fuzz_target!(|input: &[u8]| {
    let golden = &golden()[0];
    let header = golden.device.block(DeviceBlock(0));
    for bytes in [input.to_vec(), patched(&header.0, input)] {
        if let Ok(header) = DeviceHeader::decode(&bytes) {
            assert_eq!(DeviceHeader::decode(&header.encode()).as_ref(), Ok(&header));
        }
    }
    let uuid = &golden.superblock.uuid;
    let mut block = patched(&encode_summary(uuid, DeviceBlock(9), &[]), input);
    block[..8].copy_from_slice(&SUMMARY_MAGIC);
    let crc = crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&crc.to_le_bytes());
    for bytes in [input, &block] {
        if let Ok((first, entries)) = decode_summary(bytes, uuid) {
            let again = encode_summary(uuid, first, &entries);
            assert_eq!(decode_summary(&again, uuid), Ok((first, entries)));
        }
    }
});
