//! Repair of damaged keys in tables that all files share: the block table is their second witness.
#![allow(clippy::unwrap_used)]

#[path = "../../check/tests/common/mod.rs"]
mod common;

use common::*;
use terrace_check::Options;
use terrace_engine::{MountOptions, Wait};
use terrace_format::{BLOCK_SIZE, Ino, PmBlock, PmOffset};
use terrace_media::block::DeviceImage;
use terrace_repair::{Repair, repair};
use terrace_testkit::SimulatedPool;

/// An image whose blocks of the file tell which they are.
fn with_content(mut image: Image) -> Image {
    for (at, block) in image.data.into_iter().enumerate() {
        image.put(PmBlock(block).offset(), &[0x20 + at as u8; BLOCK_SIZE as usize]);
    }
    image
}

/// The pool with a cuckoo table, and the entry of a block of the file in the stash.
fn with_stash(block: u64) -> Image {
    let mut image = with_content(Image::with_cuckoo());
    let words = image.cuckoo_entry(block).encode();
    let place = image.cuckoo_place(block);
    image.put(place, &[0; 16]);
    image.cuckoo_add_to(image.buckets().stash().start, words);
    image
}

/// The content of the file after a repair, and what the repair did; `None` when the file cannot be read.
fn repaired(image: &Image) -> (Option<Vec<u8>>, Repair) {
    let pool = SimulatedPool::from_images(image.pm.clone(), DeviceImage::from_bytes(&image.device));
    let options = Options { read_cold: true, ..Options::default() };
    let result = repair(&pool.repair_media(), &options);
    let read = || {
        let fs = pool.try_mount(MountOptions::default()).ok()?;
        let size = fs.getattr(Ino(FILE)).ok()?.size as usize;
        let (mut content, mut done) = (vec![0; size], 0);
        while done < size {
            done += fs.read(Ino(FILE), done as u64, &mut content[done..], Wait::Allowed).ok()?;
        }
        Some(content)
    };
    (read(), result)
}

/// Flips each bit of words, one at a time; gives the flips after which the file had another content, by word and bit, and
/// whether the repair named the file as changed.
fn spoiled(sound: &Image, words: &[PmOffset]) -> Vec<(usize, u32, bool)> {
    let expected = repaired(sound).0;
    assert!(expected.is_some());
    let mut spoiled = Vec::new();
    let all = words.iter().enumerate().flat_map(|(number, at)| (0..64).map(move |bit| (number, *at, bit)));
    for (number, at, bit) in all {
        let mut image = sound.clone();
        image.put_u64(at, sound.word(at) ^ 1 << bit);
        let (content, result) = repaired(&image);
        if content != expected {
            eprintln!("word {number}, bit {bit}: {:?} {:#?}", result.lost, result.actions);
            let named = |line: &String| line.starts_with('/') && line.contains(&format!("(inode {FILE})"));
            spoiled.push((number, bit, result.lost.iter().any(named)));
        }
    }
    spoiled
}

/// The address of the owner word of a block of the file, by its number in the image.
fn owner_word(image: &Image, data: usize) -> PmOffset {
    image.geometry.table_entry(PmBlock(image.data[data]))
}

/// A flipped bit in the key of a line of the clustered table gave the blocks to another inode, although the block table has the
/// owner of each.
#[test]
fn a_damaged_key_of_a_clustered_line_loses_no_content() {
    let image = with_content(Image::with_clustered());
    for block in [8, 21] {
        let key = image.clustered_line(FILE, block, 0);
        assert_eq!(spoiled(&image, &[key]), [], "block {block}");
    }
}

/// The key of an entry in the stash, which no bucket confirms, was believed against the block table: a flipped bit gave the block
/// to another file block.
#[test]
fn a_damaged_entry_in_the_stash_loses_no_content() {
    for block in [0, 8, 21] {
        let image = with_stash(block);
        let place = image.cuckoo_place(block);
        assert_eq!(spoiled(&image, &[place, place.plus(8)]), [], "block {block}");
    }
}

/// A line with one block was not believed where the owner word of the block was damaged: the block went to another file block,
/// and mostly behind the end of the file.
#[test]
fn a_damaged_owner_word_loses_no_content_where_the_table_is_clustered() {
    let image = with_content(Image::with_clustered());
    for data in [2, 3] {
        assert_eq!(spoiled(&image, &[owner_word(&image, data)]), [], "block {data}");
    }
}

/// An entry in the stash and the block table are two witnesses without a third. A block goes by the second where both are
/// possible, and then both files are named.
#[test]
fn a_damaged_owner_word_of_a_block_in_the_stash_names_the_file() {
    for (data, block) in [(2, 8), (3, 21)] {
        let image = with_stash(block);
        let found = spoiled(&image, &[owner_word(&image, data)]);
        assert!(found.len() <= 6 && found.iter().all(|(.., is_named)| *is_named), "block {block}: {found:?}");
    }
}

/// A flipped bit in an owner word may name a free inode: the block was given to this inode, and then back as no file's, although
/// the map of a file has it.
#[test]
fn a_damaged_owner_word_loses_no_content_where_the_map_has_the_block() {
    let images = [Image::full(), Image::full().with_extents(), Image::with_cuckoo()];
    for (map, image) in images.into_iter().map(with_content).enumerate() {
        for data in [2, 3] {
            assert_eq!(spoiled(&image, &[owner_word(&image, data)]), [], "map {map}, block {data}");
        }
    }
}

/// Entry and block table gave a block to two files that both may have it: the block table was believed, although the block counts
/// tell which file lacks a block.
#[test]
fn block_counts_decide_between_the_stash_and_the_block_table() {
    let sound = with_stash(8);
    let expected = repaired(&sound).0;
    let with_sparse_child = |blocks: u64| {
        let mut image = sound.clone();
        image.slot(CHILD, |slot| {
            slot.size = (9 * BLOCK_SIZE).into();
            slot.blocks = blocks.into();
        });
        image
    };
    let named =
        |result: &Repair| result.lost.iter().filter(|line| line.contains(" by the map, block ")).count();
    // The block table is damaged: the child has as many blocks as its slot counts.
    let mut image = with_sparse_child(0);
    image.own(image.data[2], file(CHILD, 3, false));
    let (content, result) = repaired(&image);
    assert_eq!((content == expected, named(&result)), (true, 0), "{:#?} {:#?}", result.lost, result.actions);
    // The counts of both files are wrong: nothing decides.
    let mut image = with_sparse_child(1);
    image.own(image.data[2], file(CHILD, 3, false));
    assert_eq!(named(&repaired(&image).1), 2);
}

/// The block table named a block behind the end of a file, and the maps of all files were in doubt: no file got the block.
#[test]
fn an_impossible_owner_takes_no_block_from_its_file_where_maps_are_in_doubt() {
    let sound = with_content(Image::with_cuckoo());
    let expected = repaired(&sound).0;
    let mut image = sound;
    image.cuckoo_add_to(image.buckets().stash().start, [2, 5]);
    image.own(image.data[2], file(CHILD, 500, false));
    let (content, result) = repaired(&image);
    assert!(content == expected, "{:#?} {:#?}", result.lost, result.actions);
}

/// The line mask of an entry of the block table was not asked: a mask that confirms no owner took the block from its file.
#[test]
fn an_owner_without_its_line_mask_takes_no_block_from_the_stash() {
    let sound = with_stash(8);
    let expected = repaired(&sound).0;
    let mut image = sound;
    image.slot(CHILD, |slot| slot.size = (9 * BLOCK_SIZE).into());
    let at = image.geometry.table_entry(PmBlock(image.data[2]));
    image.put_u64(at, file(CHILD, 3, false).encode());
    image.put_u64(at.plus(8), 1);
    let (content, result) = repaired(&image);
    assert!(content == expected, "{:#?} {:#?}", result.lost, result.actions);
}
