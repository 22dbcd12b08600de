//! Bitmaps of chunks on the medium: marks, refusals and log records.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{apply, pool_of_chunks};
use terrace_catalog::{Catalog, DeviceRun, Edit, chunks};
use terrace_format::keys::Key;
use terrace_format::{DeviceBlock, DeviceId};
use terrace_wal::{Error, Tx};

/// Blocks of a chunk: four words, and one that is half used.
const CHUNK: u64 = 288;
const BYTES: usize = 40;

fn run(start: u64, length: u64) -> DeviceRun {
    DeviceRun { device: DeviceId(2), start: DeviceBlock(start), length }
}

fn mark(catalog: &Catalog, run: DeviceRun, used: bool) -> Result<(), Edit> {
    apply(catalog, &chunks::shards(catalog, run), |guard, tx| chunks::mark(guard, tx, run, used))
}

fn bitmap(catalog: &Catalog, chunk: u64) -> Option<Vec<u8>> {
    catalog.read(catalog.shard_of(chunk)).reader().get(&Key::chunk(chunk, DeviceId(2))).unwrap()
}

/// A bitmap with these bits, and no others.
fn bits(set: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    set.for_each(|bit| bytes[bit / 8] |= 1 << (bit % 8));
    bytes
}

/// The text of a refused mark's error, with the expected and the found value.
fn refused(result: Result<(), Edit>) -> String {
    match result {
        Err(Edit::Failed(Error::Corrupt(corrupt))) => corrupt.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bitmap_has_whole_words() {
    let sizes = [1, 16, 64, 65, 128, 288].map(chunks::bitmap_size);
    assert_eq!(sizes, [8, 8, 8, 16, 16, BYTES]);
}

#[test]
fn a_run_has_the_puts_and_shards_of_its_chunks() {
    let (_pm, catalog) = pool_of_chunks(CHUNK as u32);
    let of = |start, length| {
        let puts = chunks::mark_puts(&catalog, run(start, length));
        let shards = chunks::shards(&catalog, run(start, length)).to_vec();
        let numbers: Vec<u64> = (0..9).filter(|at| puts.iter().any(|put| put.0 == key(*at))).collect();
        assert_eq!(puts, numbers.iter().map(|at| (key(*at), BYTES)).collect::<Vec<_>>());
        assert_eq!(shards, numbers.iter().map(|at| catalog.shard_of(*at)).collect::<Vec<_>>());
        numbers
    };
    fn key(chunk: u64) -> Key {
        Key::chunk(chunk, DeviceId(2))
    }
    assert_eq!((of(1, CHUNK), of(1, CHUNK + 1), of(CHUNK, 2)), (vec![0], vec![0, 1], vec![0, 1]));
    assert_eq!((of(CHUNK + 1, 1), of(CHUNK, 2 * CHUNK)), (vec![1], vec![0, 1, 2]));
    assert_eq!((of(0, 1), of(0, 2), of(5, 0)), (vec![], vec![0], vec![]), "block 0 belongs to none");
}

#[test]
fn a_mark_changes_only_the_bits_of_its_run_in_each_chunk() {
    let (_pm, catalog) = pool_of_chunks(CHUNK as u32);
    mark(&catalog, run(CHUNK - 9, 10 + CHUNK + 4), true).unwrap();
    let all = |chunk| bitmap(&catalog, chunk);
    assert_eq!((all(0), all(1), all(2)), (Some(bits(278..288)), Some(bits(0..288)), Some(bits(0..4))));
    mark(&catalog, run(1 + 70, 140), true).unwrap();
    let expected: Vec<u8> = bits(70..210).iter().zip(bits(278..288)).map(|(a, b)| a | b).collect();
    assert_eq!(all(0), Some(expected));
    mark(&catalog, run(1 + 128, 82), false).unwrap();
    let expected: Vec<u8> = bits(70..128).iter().zip(bits(278..288)).map(|(a, b)| a | b).collect();
    assert_eq!(all(0), Some(expected.clone()));
    // A chunk that became wholly free has no key.
    mark(&catalog, run(1 + 2 * CHUNK, 3), false).unwrap();
    assert_eq!(all(2), Some(bits(3..4)));
    mark(&catalog, run(1 + 2 * CHUNK + 3, 1), false).unwrap();
    assert_eq!((all(2), all(0), all(1)), (None, Some(expected), Some(bits(0..288))));
}

#[test]
fn only_changed_words_are_logged() {
    let (_pm, catalog) = pool_of_chunks(CHUNK as u32);
    mark(&catalog, run(1, 3), true).unwrap();
    let logged = |run: DeviceRun, used| {
        let mut guard = catalog.write(&chunks::shards(&catalog, run));
        let mut tx = Tx::new();
        chunks::mark(&mut guard, &mut tx, run, used).unwrap();
        (tx.record_size() - Tx::new().record_size(), tx.write_count())
    };
    // A word for each of the bitmap, and one that says where.
    assert_eq!(logged(run(1 + 70, 3), true), (16, 1));
    assert_eq!(logged(run(1 + 64, 64), true), (16, 1));
    assert_eq!(logged(run(1 + 127, 2), true), (24, 1));
    assert_eq!(logged(run(1 + 127, 160), true), (40, 1));
    assert_eq!(logged(run(2, 1), false), (16, 1));
}

#[test]
fn marks_of_impossible_runs_are_refused() {
    let (_pm, catalog) = pool_of_chunks(CHUNK as u32);
    let impossible = [run(0, 5), run(7, 0), run(u64::MAX - 3, 4), run(u64::MAX, u64::MAX)];
    for run in impossible {
        for used in [true, false] {
            let error = refused(mark(&catalog, run, used));
            assert!(error.contains("blocks behind the header"), "{run:?}: {error}");
        }
    }
    assert_eq!(bitmap(&catalog, 0), None);
    // The last number of a chunk, and the one behind.
    let last = u64::from(u32::MAX);
    mark(&catalog, run(1 + last * CHUNK, CHUNK), true).unwrap();
    assert_eq!(bitmap(&catalog, last), Some(bits(0..288)));
    let error = refused(mark(&catalog, run(1 + (last + 1) * CHUNK, 1), true));
    assert!(error.contains("a chunk number of 32 bits"), "{error}");
    assert_eq!(bitmap(&catalog, 0), None, "its number ends in zeros");
}

#[test]
fn marks_of_already_marked_blocks_and_bitmaps_of_wrong_length_are_refused() {
    let (_pm, catalog) = pool_of_chunks(CHUNK as u32);
    mark(&catalog, run(1 + 130, 10), true).unwrap();
    let tries = [(130, 1, true), (139, 2, true), (120, 11, true), (129, 2, false), (139, 2, false)];
    for (bit, length, used) in tries {
        let error = refused(mark(&catalog, run(1 + bit, length), used));
        let at = if used {
            bit.max(130)
        } else if bit == 129 {
            129
        } else {
            140
        };
        assert!(error.contains(&format!(" bit {at} of chunk 0")), "{error}");
        assert_eq!(bitmap(&catalog, 0), Some(bits(130..140)));
    }
    let error = refused(mark(&catalog, run(1 + CHUNK, 1), false));
    assert!(error.contains("free bit 0 of chunk 1"), "a chunk without a key is free: {error}");
    for length in [BYTES - 8, BYTES + 8] {
        let key = Key::chunk(5, DeviceId(2));
        apply(&catalog, &[catalog.shard_of(5)], |guard, tx| guard.put(tx, &key, &vec![0; length])).unwrap();
        let error = refused(mark(&catalog, run(1 + 5 * CHUNK, 1), true));
        assert!(error.contains("a bitmap of 40 bytes"), "{error}");
    }
}

#[test]
fn marking_a_chunk_of_an_unlocked_shard_is_refused() {
    let (_pm, catalog) = pool_of_chunks(CHUNK as u32);
    assert!(catalog.shard_count() > 1);
    let mut guard = catalog.write(&[catalog.shard_of(0)]);
    let mut tx = Tx::new();
    let error = refused(chunks::mark(&mut guard, &mut tx, run(1 + CHUNK, 1), true));
    assert!(error.contains("flag"), "{error}");
    assert!(tx.is_empty());
}
