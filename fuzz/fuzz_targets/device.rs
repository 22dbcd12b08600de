//! Device header and group summary.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::checksum::crc32c;
use terrace_format::device::{DeviceHeader, SUMMARY_MAGIC, decode_summary, encode_summary};
use terrace_format::seal::SealKey;
use terrace_format::{DeviceBlock, DeviceId};
use terrace_fuzz::{golden, patched};

fuzz_target!(|input: &[u8]| {
    let golden = &golden()[0];
    let header = golden.device.block(DeviceBlock(0));
    for bytes in [input.to_vec(), patched(&header.0, input)] {
        if let Ok(header) = DeviceHeader::decode(&bytes) {
            assert_eq!(DeviceHeader::decode(&header.encode()).as_ref(), Ok(&header));
        }
    }
    let place = (DeviceId(0), DeviceBlock(8));
    for secret in [None, Some([1; 16])] {
        let key = SealKey::new(golden.superblock.uuid, secret);
        let mut block = patched(&encode_summary(&key, place, DeviceBlock(9), &[]), input);
        block[..8].copy_from_slice(&SUMMARY_MAGIC);
        if secret.is_none() {
            let crc = crc32c(&block[..4092]);
            block[4092..].copy_from_slice(&crc.to_le_bytes());
        }
        for bytes in [input, &block] {
            if let Ok((first, entries)) = decode_summary(bytes, &key, place) {
                let again = encode_summary(&key, place, first, &entries);
                assert_eq!(decode_summary(&again, &key, place), Ok((first, entries)));
            }
        }
    }
});
