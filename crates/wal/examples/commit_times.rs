//! The cost of a commit apart from its medium: 4 KiB of data streamed with a record of four writes.
//! `cargo run --release -p terrace-wal --example commit_times`
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::checksum::crc32c;
use terrace_format::{Geometry, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::RamPm;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Tx, Wal};

const ROUNDS: usize = 400;
const TURNS: u64 = 500;

fn time(clock: &SystemClock, name: &str, mut turn: impl FnMut(u64)) {
    let mut samples: Vec<u64> = Vec::new();
    for round in 0..ROUNDS as u64 {
        let begin = clock.monotonic_ns();
        (0..TURNS).for_each(|index| turn(round * TURNS + index));
        samples.push((clock.monotonic_ns() - begin) / TURNS);
    }
    samples.sort_unstable();
    println!("{name:50} {:4} ns (lowest {})", samples[ROUNDS / 2], samples[0]);
}

fn main() {
    let path = std::env::temp_dir().join(format!("/dev/shm/terrace-wal-times-{}", std::process::id()));
    let pm = Arc::new(RamPm::create(&path, 256 << 20).unwrap());
    std::fs::remove_file(&path).unwrap();
    pm.prepare(PmOffset(0), pm.size());
    println!("{}", pm.describe());
    let geometry = Geometry::choose(pm.size(), 4096).unwrap();
    let medium: Arc<dyn PmMedium> = pm.clone();
    Wal::format(medium.clone(), [1; 16], geometry).unwrap();
    let (wal, _) = Wal::open(medium.clone(), [1; 16], geometry).unwrap();
    let clock = SystemClock::default();
    let data = vec![7; 4096];
    let base = geometry.first_pool_block().0 + 8192;
    let block = |index: u64| PmBlock(base + index * 37 % 1024).offset();
    let table = |index: u64| geometry.table_entry(PmBlock(base + index * 37 % 1024));
    let slot = PmBlock(base - 1).offset();
    let map = |index: u64| PmBlock(base - 2).offset().plus(index * 37 % 512 * 8);
    let fill = |tx: &mut Tx, index: u64| {
        tx.write_u64(map(index), 1);
        tx.write_words(slot.plus(32), [1.into(), 1.into(), 1.into(), 1.into()]);
        tx.write_words(table(index), [1.into(), 1.into()]);
        tx.write_words(table(index + 500), [1.into(), 1.into()]);
    };
    time(&clock, "stream 4 KiB, fence", |index| {
        medium.write_streaming(block(index), &data).unwrap();
        medium.order();
    });
    time(&clock, "stream 4 KiB and 256 B, fence", |index| {
        medium.write_streaming(block(index), &data).unwrap();
        medium.write_streaming(slot.plus(512 + index % 8 * 256), &data[..256]).unwrap();
        medium.order();
    });
    time(&clock, "stream 4 KiB with its checksum and 256 B, fence", |index| {
        std::hint::black_box(medium.write_streaming_checked(block(index), &data).unwrap());
        medium.write_streaming(slot.plus(512 + index % 8 * 256), &data[..256]).unwrap();
        medium.order();
    });
    let lock = terrace_runtime::sync::Mutex::new(0u64);
    time(&clock, "same, locked", |index| {
        let mut g = lock.lock();
        std::hint::black_box(medium.write_streaming_checked(block(index), &data).unwrap());
        medium.write_streaming(slot.plus(512 + index % 8 * 256), &data[..256]).unwrap();
        medium.order();
        *g += 1;
    });
    time(&clock, "try_begin and drop", |_| drop(wal.try_begin(512).unwrap()));
    time(&clock, "try_begin, stream, commit", |index| {
        let mut tx = Tx::new();
        fill(&mut tx, index);
        let Some(open) = wal.try_begin(512).unwrap() else {
            drop(wal.checkpoint());
            return;
        };
        let due = open.is_due();
        open.stream_named(&mut tx, block(index), &data).unwrap();
        open.commit(&tx).unwrap();
        if due {
            wal.checkpoint_if_idle().unwrap();
        }
    });
    time(&clock, "checksum of 4 KiB", |_| {
        std::hint::black_box(crc32c(std::hint::black_box(&data)));
    });
    time(&clock, "reserve and drop", |_| drop(wal.reserve(2048).unwrap()));
    time(&clock, "make a transaction", |index| {
        let mut tx = Tx::new();
        fill(&mut tx, index);
        std::hint::black_box(&tx);
    });
    time(&clock, "commit a transaction", |index| {
        let reservation = wal.reserve(2048).unwrap();
        let mut tx = Tx::new();
        fill(&mut tx, index);
        wal.commit(reservation, &tx).unwrap();
    });
    time(&clock, "commit a transaction with 4 KiB of data", |index| {
        let reservation = wal.reserve(2048).unwrap();
        let mut tx = Tx::new();
        fill(&mut tx, index);
        tx.name_data(block(index), 4096, crc32c(&data));
        wal.commit_with_data(reservation, &tx, &[(block(index), (&data).into())]).unwrap();
    });
}
