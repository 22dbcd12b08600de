//! The cache over a file in memory: flushes, losses of power, the limit.

use super::*;
use rustix::fs::{MemfdFlags, memfd_create};

const SIZE: u64 = 64 * SECTOR + 100;

fn file() -> File {
    let made = memfd_create("write-cache", MemfdFlags::CLOEXEC).map(File::from);
    let file = made.unwrap_or_else(|error| unreachable!("{error}"));
    assert!(file.set_len(SIZE).is_ok());
    file
}

fn cache(limit_bytes: u64, seed: u64) -> WriteCache {
    WriteCache::new(file(), SIZE, limit_bytes, seed)
}

/// Writes with the handle of a file that was opened before any loss.
fn write(cache: &WriteCache, sector: u64, sectors: usize, byte: u8) -> Mark {
    let data = vec![byte; sectors * SECTOR as usize];
    cache.write(0, sector * SECTOR, &data).unwrap_or_else(|error| unreachable!("{error}"))
}

/// First byte of each sector in the backing file; all bytes of the sector have to be the same.
fn stored(cache: &WriteCache, sectors: Range<u64>) -> Vec<u8> {
    let first_of = |sector: u64| {
        let mut bytes = [0; SECTOR as usize];
        assert!(cache.file.read_exact_at(&mut bytes, sector * SECTOR).is_ok());
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is torn: {bytes:?}");
        bytes[0]
    };
    sectors.map(first_of).collect()
}

fn read(cache: &WriteCache, offset: u64, length: usize) -> Vec<u8> {
    let mut data = vec![0xee; length];
    assert!(cache.read(cache.losses(), offset, &mut data).is_ok());
    data
}

fn lose(cache: &WriteCache) -> Loss {
    cache.lose_power().unwrap_or_else(|error| unreachable!("{error}"))
}

#[test]
fn a_read_sees_unflushed_writes_and_a_flush_moves_writes_to_the_file() {
    let cache = cache(LIMIT_BYTES, 1);
    write(&cache, 1, 3, 7);
    write(&cache, 2, 1, 8);
    assert_eq!(stored(&cache, 0..5), [0; 5]);
    let first_bytes: Vec<u8> = read(&cache, 0, 5 * 512).chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(first_bytes, [0, 7, 8, 7, 0]);
    let mark = cache.begin_flush(0);
    assert!(mark.is_ok_and(|mark| cache.flush(mark).is_ok()));
    assert_eq!(stored(&cache, 0..5), [0, 7, 8, 7, 0]);
    assert_eq!(cache.state.lock().versions, 0);
    assert_eq!(lose(&cache), Loss { number: 1, unflushed: 0, lost: 0, intermediate: 0 });
}

#[test]
fn a_flush_covers_writes_before_its_begin_and_no_later_ones() {
    let cache = cache(LIMIT_BYTES, 1);
    write(&cache, 0, 4, 1);
    let Ok(mark) = cache.begin_flush(0) else { unreachable!("no loss yet") };
    write(&cache, 2, 4, 2);
    assert!(cache.flush(mark).is_ok());
    assert_eq!(stored(&cache, 0..6), [1, 1, 1, 1, 0, 0]);
    assert_eq!(read(&cache, 2 * 512, 1), [2], "the later write is still there");
    assert_eq!(cache.state.lock().versions, 4);
}

#[test]
fn a_durable_write_moves_its_own_sectors_only() {
    let cache = cache(LIMIT_BYTES, 1);
    write(&cache, 0, 4, 1);
    let mark = write(&cache, 2, 1, 2);
    assert!(cache.flush_sectors(mark, 2..3).is_ok());
    assert_eq!(stored(&cache, 0..4), [0, 0, 2, 0]);
    assert_eq!(cache.state.lock().sectors.keys().copied().collect::<Vec<_>>(), [0, 1, 3]);
}

#[test]
fn a_loss_keeps_flushed_sectors_and_tears_writes_at_sectors() {
    let (mut torn, mut intermediate, mut none, mut all) = (0, 0, 0, 0);
    for seed in 0..300 {
        let cache = cache(LIMIT_BYTES, seed);
        let mark = write(&cache, 0, 32, 1);
        assert!(cache.flush(mark).is_ok());
        write(&cache, 8, 8, 2);
        write(&cache, 8, 8, 3);
        write(&cache, 8, 8, 4);
        let loss = lose(&cache);
        assert_eq!((loss.number, loss.unflushed), (1, 8));
        let left = stored(&cache, 0..32);
        assert_eq!([&left[..8], &left[16..]].concat(), [1; 24], "flushed sectors changed, seed {seed}");
        let count = |bytes: &[u8]| left[8..16].iter().filter(|byte| bytes.contains(byte)).count() as u64;
        assert_eq!((count(&[1, 2, 3, 4]), count(&[1]), count(&[2, 3])), (8, loss.lost, loss.intermediate));
        assert_eq!(
            read(&cache, 8 * 512, 8 * 512).chunks(512).map(|at| at[0]).collect::<Vec<_>>(),
            left[8..16]
        );
        torn += u32::from(count(&[1]) > 0 && count(&[4]) > 0);
        intermediate += u32::from(loss.intermediate > 0);
        none += u32::from(count(&[1]) == 8);
        all += u32::from(count(&[1]) == 0);
    }
    assert!(torn > 100 && intermediate > 100, "{torn} torn, {intermediate} intermediate");
    assert!(none > 20 && all > 20, "{none} lost everything, {all} lost no sector");
}

#[test]
fn a_seed_repeats_a_loss() {
    let left = |seed| {
        let cache = cache(LIMIT_BYTES, seed);
        write(&cache, 0, 64, 1);
        lose(&cache);
        stored(&cache, 0..64)
    };
    assert_eq!(left(5), left(5));
    assert!((0..20).any(|seed| left(seed) != left(seed + 1)));
}

#[test]
fn files_opened_before_a_loss_give_eio_and_new_ones_see_the_survivors() {
    let cache = cache(LIMIT_BYTES, 1);
    let Ok(mark) = cache.begin_flush(0) else { unreachable!("no loss yet") };
    lose(&cache);
    let is_eio = |result: io::Result<()>| result.is_err_and(|error| error.raw_os_error() == Some(libc::EIO));
    assert!(is_eio(cache.flush(mark)), "a flush during which power was lost");
    assert!(is_eio(cache.begin_flush(0).map(drop)));
    assert!(is_eio(cache.write(0, 0, &[1; 512]).map(drop)));
    assert!(is_eio(cache.read(0, 0, &mut [0; 512])));
    assert!(cache.write(cache.losses(), 0, &[2; 512]).is_ok());
    assert_eq!(read(&cache, 0, 1), [2]);
}

#[test]
fn above_the_limit_sectors_are_written_through() {
    let cache = cache(16 * SECTOR, 1);
    for sector in 0..64 {
        write(&cache, sector, 1, sector as u8 + 1);
        assert!(cache.state.lock().versions <= 16);
    }
    assert!(stored(&cache, 0..64).iter().filter(|byte| **byte > 0).count() >= 48);
    let first_bytes: Vec<u8> = read(&cache, 0, 64 * 512).chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(first_bytes, (1..=64).collect::<Vec<u8>>());
}

#[test]
fn a_write_beside_the_borders_of_sectors_keeps_the_bytes_around_it() {
    let cache = cache(LIMIT_BYTES, 1);
    let mark = write(&cache, 0, 4, 1);
    assert!(cache.flush(mark).is_ok());
    write(&cache, 1, 1, 2);
    assert!(cache.write(0, 700, &[9; 400]).is_ok());
    assert!(cache.write(0, SIZE - 30, &[8; 30]).is_ok());
    let bytes = read(&cache, 0, 2048);
    let runs: Vec<(usize, u8)> = bytes.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect();
    assert_eq!(runs, [(512, 1), (188, 2), (400, 9), (948, 1)]);
    assert!(cache.begin_flush(0).is_ok_and(|mark| cache.flush(mark).is_ok()));
    assert_eq!(cache.file.metadata().map(|found| found.len()).ok(), Some(SIZE));
    assert_eq!(read(&cache, SIZE - 31, 31)[..2], [0, 8]);
}

#[test]
fn a_discard_takes_unflushed_writes_with_it_and_keeps_bytes_beside_it() {
    let cache = cache(LIMIT_BYTES, 1);
    write(&cache, 0, 8, 5);
    let (offset, length) = (SECTOR + 100, 3 * SECTOR);
    let zeros = vec![0; length as usize];
    let discard = |file: &File| file.write_all_at(&zeros, offset).map_err(|_| Errno::IO);
    assert_eq!(cache.discard((offset, length), discard), Ok(()));
    let bytes = read(&cache, 0, 8 * 512);
    let runs: Vec<(usize, u8)> = bytes.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect();
    assert_eq!(runs, [(612, 5), (1536, 0), (1948, 5)]);
}
