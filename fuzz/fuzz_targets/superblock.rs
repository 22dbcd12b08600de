//! Superblock: what verifies is what was read, its geometry is sound and its rows are in bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::superblock::{MAX_DEVICES, Superblock};
use terrace_fuzz::{golden, patched};
use zerocopy::{FromBytes, IntoBytes};

fn judge(bytes: &[u8]) {
    for write in [false, true] {
        let Ok(superblock) = Superblock::verify(bytes, write) else { continue };
        assert_eq!(superblock.as_bytes(), bytes);
        let geometry = superblock.geometry();
        assert!(geometry.verify().is_ok());
        assert!(geometry.first_pool_block().0 + 16 <= geometry.block_count());
        assert!(superblock.device_rows().len() <= MAX_DEVICES);
        superblock.device_rows().iter().for_each(|row| assert!(row.path().len() <= 255));
    }
}

fuzz_target!(|input: &[u8]| {
    judge(input);
    let bytes = patched(&golden()[0].bytes[..8192], input);
    judge(&bytes);
    if let Ok(mut superblock) = Superblock::read_from_bytes(&bytes) {
        superblock.seal();
        judge(superblock.as_bytes());
    }
});
