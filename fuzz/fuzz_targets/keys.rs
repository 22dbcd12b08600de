//! Catalog keys and cold extents.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::keys::{ColdExtent, Key, MAX_EXTENT_BLOCKS};
use terrace_format::{FileBlock, Ino};

fuzz_target!(|input: &[u8]| {
    if let Some((ino, kind, sub)) = Key::split(input) {
        assert!(ino <= u64::from(u32::MAX));
        assert_eq!(Key::sub_number(input).is_some(), sub.len() <= 8);
        let mut again = (ino as u32).to_be_bytes().to_vec();
        again.push(kind);
        again.extend_from_slice(sub);
        assert_eq!(again, input);
    }
    let (key, value) = input.split_at(input.len().min(9));
    let first = FileBlock(u64::from(u32::from_be_bytes(*key.first_chunk().unwrap_or(&[1; 4]))) >> 1);
    for key in [key, &Key::cold(Ino(3), first).0] {
        let Ok(extent) = ColdExtent::decode(key, value) else { continue };
        assert!((1..=MAX_EXTENT_BLOCKS).contains(&extent.length));
        assert_eq!(ColdExtent::decode(key, &extent.encode()).as_ref(), Ok(&extent));
        assert_eq!(extent.slice(extent.first, extent.end()).as_ref(), Some(&extent));
        let middle = extent.first.plus(u64::from(extent.length / 2));
        if let Some(half) = extent.slice(middle, FileBlock(u64::MAX)) {
            assert_eq!((half.first, half.end()), (middle, extent.end()));
            assert_eq!(half.crcs.len(), if half.unwritten { 0 } else { half.length as usize });
        }
    }
});
