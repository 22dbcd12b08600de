//! The cost of a commit apart from its medium: 4 KiB of data streamed with a record of four writes.

use super::fixture::prepared_pm;
use std::hint::black_box;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_format::checksum::crc32c;
use terrace_format::{Geometry, PmBlock, PmOffset};
use terrace_media::PmMedium;
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

/// The places that the measured transactions write to.
struct Places {
    geometry: Geometry,
    base: u64,
}

impl Places {
    fn block(&self, index: u64) -> PmOffset {
        PmBlock(self.base + index * 37 % 1024).offset()
    }

    fn slot(&self) -> PmOffset {
        PmBlock(self.base - 1).offset()
    }

    /// Adds the four writes of a record.
    fn fill(&self, tx: &mut Tx, index: u64) {
        let table = |index: u64| self.geometry.table_entry(PmBlock(self.base + index * 37 % 1024));
        tx.write_u64(PmBlock(self.base - 2).offset().plus(index * 37 % 512 * 8), 1);
        tx.write_words(self.slot().plus(32), [1.into(), 1.into(), 1.into(), 1.into()]);
        tx.write_words(table(index), [1.into(), 1.into()]);
        tx.write_words(table(index + 500), [1.into(), 1.into()]);
    }
}

pub(super) fn run(_: &[String]) -> Outcome<()> {
    let medium: Arc<dyn PmMedium> = prepared_pm(256 << 20)?;
    println!("{}", medium.describe());
    let geometry = Geometry::choose(medium.size(), 4096)?;
    Wal::format(medium.clone(), [1; 16], geometry)?;
    let (wal, _) = Wal::open(medium.clone(), [1; 16], geometry)?;
    let places = Places { geometry, base: geometry.first_pool_block().0 + 8192 };
    let clock = SystemClock::default();
    let data = vec![7; 4096];
    time_medium(&clock, &*medium, &places, &data);
    time_commits(&clock, &wal, &places, &data);
    Ok(())
}

/// The stores of a commit, without the log.
fn time_medium(clock: &SystemClock, medium: &dyn PmMedium, places: &Places, data: &[u8]) {
    let record = |index: u64| places.slot().plus(512 + index % 8 * 256);
    time(clock, "stream 4 KiB, fence", |index| {
        medium.write_streaming(places.block(index), data).unwrap();
        medium.order();
    });
    time(clock, "stream 4 KiB and 256 B, fence", |index| {
        medium.write_streaming(places.block(index), data).unwrap();
        medium.write_streaming(record(index), &data[..256]).unwrap();
        medium.order();
    });
    let checked = |index: u64| {
        black_box(medium.write_streaming_checked(places.block(index), data).unwrap());
        medium.write_streaming(record(index), &data[..256]).unwrap();
        medium.order();
    };
    time(clock, "stream 4 KiB with its checksum and 256 B, fence", checked);
    let lock = terrace_runtime::sync::Mutex::new(0u64);
    time(clock, "same, locked", |index| {
        let mut count = lock.lock();
        checked(index);
        *count += 1;
    });
    time(clock, "checksum of 4 KiB", |_| {
        black_box(crc32c(black_box(data)));
    });
}

/// The steps of a commit, and whole commits.
fn time_commits(clock: &SystemClock, wal: &Wal, places: &Places, data: &[u8]) {
    time(clock, "try_begin and drop", |_| drop(wal.try_begin(512).unwrap()));
    time(clock, "try_begin, stream, commit", |index| {
        let mut tx = Tx::new();
        places.fill(&mut tx, index);
        let Some(open) = wal.try_begin(512).unwrap() else {
            drop(wal.checkpoint());
            return;
        };
        let due = open.is_due();
        open.stream_named(&mut tx, places.block(index), data).unwrap();
        open.commit(&tx).unwrap();
        if due {
            wal.checkpoint_if_idle().unwrap();
        }
    });
    time(clock, "reserve and drop", |_| drop(wal.reserve(2048).unwrap()));
    time(clock, "make a transaction", |index| {
        let mut tx = Tx::new();
        places.fill(&mut tx, index);
        black_box(&tx);
    });
    time(clock, "commit a transaction", |index| {
        let reservation = wal.reserve(2048).unwrap();
        let mut tx = Tx::new();
        places.fill(&mut tx, index);
        wal.commit(reservation, &tx).unwrap();
    });
    time(clock, "commit a transaction with 4 KiB of data", |index| {
        let reservation = wal.reserve(2048).unwrap();
        let mut tx = Tx::new();
        places.fill(&mut tx, index);
        let block = places.block(index);
        tx.name_data(block, 4096, crc32c(data));
        wal.commit_with_data(reservation, &tx, &[(block, data.into())]).unwrap();
    });
}
