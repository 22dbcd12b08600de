//! Transactions against a plain array of bytes, and when the checkpoint moves.
#![allow(clippy::unwrap_used)]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use terrace_format::record::MAX_WRITE;
use terrace_format::{Geometry, Lsn, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_runtime::thread::spawn;
use terrace_wal::{Error, Tx, Wal};

const UUID: [u8; 16] = [3; 16];
/// Bytes that the transactions change.
const AREA: usize = 3 * MAX_WRITE;

fn geometry() -> Geometry {
    Geometry::choose(32 << 20, 16).unwrap()
}

fn open(pm: &Arc<RecordedPm>) -> Wal {
    Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap().0
}

fn formatted() -> Arc<RecordedPm> {
    let pm = Arc::new(RecordedPm::new(32 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    pm
}

fn area() -> PmOffset {
    geometry().first_pool_block().offset()
}

/// A random write: mostly short, seldom longer than one write of a record.
fn write(rng: &mut StdRng, tx: &mut Tx, memory: &mut [u8], long: bool) -> (u16, usize) {
    let length = if long { MAX_WRITE + rng.random_range(1..99) } else { rng.random_range(1..40) };
    let at = rng.random_range(0..AREA - length);
    let bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
    tx.write(area().plus(at as u64), &bytes);
    memory[at..at + length].copy_from_slice(&bytes);
    let size = |length: usize| 8 + length.next_multiple_of(8);
    if long { (2, size(MAX_WRITE) + size(length - MAX_WRITE)) } else { (1, size(length)) }
}

#[test]
fn a_transaction_reads_its_own_stores() {
    let mut rng = StdRng::seed_from_u64(4);
    let pm = formatted();
    let mut wal = open(&pm);
    let mut memory = vec![0; AREA];
    for round in 0..60 {
        let (before, mut tx) = (memory.clone(), Tx::new());
        assert!(tx.is_empty());
        let (mut count, mut size) = (0, 32);
        for _ in 0..rng.random_range(1..30) {
            let (writes, bytes) = write(&mut rng, &mut tx, &mut memory, false);
            (count, size) = (count + writes, size + bytes);
            let length = rng.random_range(1..100);
            let at = rng.random_range(0..AREA - length);
            let mut seen = vec![0; length];
            tx.read(&*pm, area().plus(at as u64), &mut seen).unwrap();
            assert_eq!(seen, memory[at..at + length]);
        }
        for word in (0..AREA).step_by(8) {
            let expected = u64::from_le_bytes(memory[word..word + 8].try_into().unwrap());
            assert_eq!(tx.read_u64(&*pm, area().plus(word as u64)).unwrap(), expected);
        }
        assert_eq!((tx.write_count(), tx.record_size(), tx.is_empty()), (count, size, false));
        let mut now = vec![0; AREA];
        pm.read(area(), &mut now).unwrap();
        assert!(now == before, "a write is visible before its commit");
        wal.commit(wal.reserve(tx.record_size()).unwrap(), &tx).unwrap();
        pm.read(area(), &mut now).unwrap();
        assert!(now == memory);
        tx.clear();
        assert_eq!((tx.is_empty(), tx.record_size()), (true, 32));
        if round % 20 == 19 {
            drop(wal);
            wal = open(&pm);
        }
    }
}

#[test]
fn a_long_write_is_split_and_a_record_beyond_the_largest_refused() {
    let mut rng = StdRng::seed_from_u64(5);
    let pm = formatted();
    let wal = open(&pm);
    let (mut memory, mut tx) = (vec![0; AREA], Tx::new());
    let (count, bytes) = write(&mut rng, &mut tx, &mut memory, true);
    assert_eq!((tx.write_count(), tx.record_size()), (count, 32 + bytes));
    let mut seen = vec![0; AREA];
    tx.read(&*pm, area(), &mut seen).unwrap();
    assert!(seen == memory);
    let limit = wal.max_record();
    assert!(wal.reserve(limit).is_ok());
    assert!(matches!(wal.reserve(limit + 1), Err(Error::RecordTooLarge { .. })));
    assert!(wal.try_begin(limit).unwrap().is_some());
    assert!(wal.try_begin(limit + 1).unwrap().is_none());
    // A transaction larger than its reservation is refused and leaves no trace.
    assert!(matches!(wal.commit(wal.reserve(64).unwrap(), &tx), Err(Error::RecordTooLarge { .. })));
    pm.read(area(), &mut seen).unwrap();
    assert!(seen.iter().all(|byte| *byte == 0) && !wal.is_stopped());
    assert_eq!(wal.used_bytes(), 0);
}

fn store(wal: &Wal, value: u64) -> Lsn {
    let mut tx = Tx::new();
    tx.write_u64(area(), value);
    wal.commit(wal.reserve(tx.record_size()).unwrap(), &tx).unwrap()
}

#[test]
fn a_record_uses_lane_space_until_the_checkpoint_passes() {
    let pm = formatted();
    let wal = open(&pm);
    assert_eq!(wal.used_bytes(), 0);
    let mut last = wal.next_lsn();
    for number in 1..=10 {
        assert_eq!(store(&wal, number), last);
        assert_eq!(wal.used_bytes(), 64 * number, "a record of 48 bytes takes 64");
        last = Lsn(last.0 + 1);
        assert_eq!(wal.next_lsn(), last);
    }
    assert!(wal.checkpoint_lsn() < last);
    wal.checkpoint_at_leisure().unwrap();
    assert_eq!((wal.used_bytes(), wal.checkpoint_lsn()), (0, last));
    // A transaction under way holds the checkpoint back.
    let open = wal.try_begin(64).unwrap().unwrap();
    wal.checkpoint_if_idle().unwrap();
    assert_eq!(wal.checkpoint_lsn(), last);
    drop(open);
    assert!(wal.epoch() > 1);
    assert_eq!(wal.pool_uuid(), &UUID);
}

#[test]
fn the_checkpoint_moves_when_a_lane_is_a_quarter_full() {
    let pm = formatted();
    let wal = open(&pm);
    let (mut tops, due) = (Vec::new(), geometry().lane_size / 4);
    for number in 0..3 * geometry().lane_size / 64 {
        let used = wal.used_bytes();
        assert_eq!(wal.try_begin(64).unwrap().unwrap().is_due(), used > due);
        store(&wal, number);
        if wal.used_bytes() < used {
            tops.push(used);
        }
    }
    assert!(tops.len() > 5 && tops.iter().all(|top| *top == due + 64), "{tops:?}, due above {due}");
}

#[test]
fn a_checkpoint_may_wait_until_all_lanes_are_full() {
    let pm = formatted();
    let wal = open(&pm);
    wal.checkpoint_only_when_full();
    let all = geometry().lane_size * u64::from(geometry().lane_count);
    let (mut most, mut moves) = (0, 0);
    for number in 0..all * 3 / 64 {
        let before = wal.checkpoint_lsn();
        store(&wal, number);
        wal.checkpoint_at_leisure().unwrap();
        moves += u64::from(wal.checkpoint_lsn() != before);
        most = most.max(wal.used_bytes());
    }
    // A reservation takes 64 bytes more than its record and leaves 64, for a confirming record.
    assert_eq!(most, all - 128 * u64::from(geometry().lane_count));
    assert!((2..=4).contains(&moves), "{moves} moves");
}

/// A thread that holds a lane, whichever is free, and commits a transaction in it when it is told to.
fn hold_a_lane(wal: &Arc<Wal>, value: u64) -> (Sender<()>, JoinHandle<()>) {
    let ((tell_held, held), (commit, told)) = (channel(), channel());
    let wal = Arc::clone(wal);
    let hold = move || {
        let open = wal.begin(wal.reserve(64).unwrap()).unwrap();
        tell_held.send(()).unwrap();
        told.recv().unwrap();
        let mut tx = Tx::new();
        tx.write_u64(area(), value);
        open.commit(&tx).unwrap();
    };
    let holder = spawn("holder", hold).unwrap();
    held.recv().unwrap();
    (commit, holder)
}

#[test]
fn each_thread_can_take_every_lane_and_leaves_no_reservation() {
    let pm = formatted();
    let wal = Arc::new(open(&pm));
    let lanes = geometry().lane_count;
    // Threads begin their search at different lanes.
    for round in 0..u64::from(lanes) {
        let wal = Arc::clone(&wal);
        let run = move || {
            let holders: Vec<_> = (0..lanes).map(|_| hold_a_lane(&wal, round)).collect();
            assert!(wal.try_begin(64).unwrap().is_none(), "all lanes are taken");
            for (commit, holder) in holders {
                commit.send(()).unwrap();
                holder.join().unwrap();
            }
            wal.try_begin(64).unwrap().unwrap().commit(&Tx::new()).unwrap();
            drop(wal.try_begin(64).unwrap());
            assert_eq!(wal.reserved_bytes(), 0);
        };
        spawn("lanes", run).unwrap().join().unwrap();
    }
    assert_eq!(wal.used_bytes(), 64 * u64::from(lanes) * u64::from(lanes + 1));
}
