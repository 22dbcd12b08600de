//! The devices to which a repair writes a header. Paths, UUIDs and catalog come from the PM image, which an
//! attacker may have made: a repair once overwrote block 0 of a foreign device, because the image named bytes
//! of that block as its own UUIDs.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "../../check/tests/common/mod.rs"]
mod common;

use common::*;
use std::sync::Arc;
use terrace_check::{Code, Options};
use terrace_format::device::DEVICE_MAGIC;
use terrace_media::BlockMedium;
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::pm::RecordedPm;
use terrace_repair::{Media, Repair, repair};

/// Repairs; also whether block 0 of the device was written.
fn repaired(image: &Image, given: &[usize]) -> (Repair, bool) {
    let device = Arc::new(SimulatedDevice::from_image(DeviceImage::from_bytes(&image.device)));
    let medium: Arc<dyn BlockMedium> = device.clone();
    let pm = Arc::new(RecordedPm::from_image(image.pm.clone()));
    let media = Media { pm, block: vec![Some(medium)] };
    let result = repair(&media, &Options { given, ..Options::default() });
    let now = device.visible_image().to_bytes();
    assert!(now[4096..] == image.device[4096..], "only headers are written below");
    (result, now[..4096] != image.device[..4096])
}

/// Block 0 of a foreign device. An attacker's image takes as its UUIDs the bytes that stand at the UUIDs'
/// offsets on that device.
fn foreign(image: &mut Image) {
    let mut block: Vec<u8> = (0..4096u32).map(|at| (at * 7 + 3) as u8).collect();
    block[16..32].copy_from_slice(&UUID);
    block[32..48].copy_from_slice(&[9; 16]);
    image.put_device(0, &block);
}

fn other_content(image: &mut Image) {
    for block in 3..7 {
        image.put_device(block, &[0x77; 4096]);
    }
}

fn says_how(result: &Repair) -> bool {
    result.left.has(Code::DeviceHeader) && result.actions.iter().any(|action| action.contains("--tier"))
}

#[test]
fn a_foreign_device_is_not_written() {
    let mut image = Image::full();
    foreign(&mut image);
    let (result, written) = repaired(&image, &[]);
    assert!(!written && says_how(&result), "UUIDs alone: {result:#?}");
    // A file system with zeros where the UUIDs stand.
    let mut image = Image::full();
    image.put_device(0, &[0; 4096]);
    let (result, written) = repaired(&image, &[]);
    assert!(!written && says_how(&result), "zeros: {result:#?}");
    // The rest of a header, on a device without a block that fits the catalog.
    let mut image = Image::full();
    image.put_device(0, b"x");
    other_content(&mut image);
    let (result, written) = repaired(&image, &[]);
    assert!(!written && says_how(&result), "no block fits: {result:#?}");
    // Only one of the two UUIDs is right.
    let mut image = Image::full();
    image.put_device(20, &[0; 1]);
    image.put_device(0, b"x");
    image.device[33] ^= 1;
    let (result, written) = repaired(&image, &[]);
    assert!(!written && says_how(&result), "one UUID: {result:#?}");
}

#[test]
fn a_header_is_mended_where_uuids_and_content_prove_it() {
    // A single damaged word beside the UUIDs: magic, version and place, blocks, checksum.
    for at in [0, 9, 50, 61] {
        let mut image = Image::full();
        image.device[at] ^= 0x40;
        let (result, written) = repaired(&image, &[]);
        assert!(written && result.left.is_clean(), "byte {at}: {result:#?}");
        assert_eq!(result.exit_status(), 1, "byte {at}");
    }
    // Two words are damaged: the block could be anything.
    let mut image = Image::full();
    (image.device[0], image.device[50]) = (0x40, 0x40);
    assert!(!repaired(&image, &[]).1);
}

/// The header is lost whole: the user names the device, and the device's content has to match the catalog.
#[test]
fn a_device_named_by_the_user_gets_its_header_back() {
    let mut image = Image::full();
    image.put_device(0, &[0; 4096]);
    let (result, written) = repaired(&image, &[0]);
    assert!(written && result.left.is_clean(), "{result:#?}");
    other_content(&mut image);
    let (result, written) = repaired(&image, &[0]);
    assert!(!written && result.left.has(Code::DeviceHeader), "{result:#?}");
    let mut image = Image::full();
    image.device_header(|header| (header.magic, header.pool_uuid) = (DEVICE_MAGIC, [1; 16]));
    let (result, written) = repaired(&image, &[0]);
    assert!(!written && result.left.has(Code::DeviceHeader), "another pool's: {result:#?}");
}
