//! Threads commit transactions to shared words under locks while another thread moves the checkpoint (design
//! 4.1, T2, T3, T5, T8). Recovery after a crash at any persistence event, and at the end, shows a state that
//! the order of commits allows: each transaction whole or absent, each with the transactions whose values it
//! read, and every durable transaction. So it does after PM failed in the middle of a commit.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_media::PmMedium;
use terrace_media::block::Times;
use terrace_media::crash::{Event, EventKind};
use terrace_media::pm::{Access, CrashSnapshot, RecordedPm};
use terrace_models::{PM_SIZE, Schedules, UUID, below, explore, geometry};
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::spawn;
use terrace_wal::{Result, Tx, Wal};

/// Counters, each under a lock of its own and in two words that change together.
const COUNTERS: usize = 3;
const WORKERS: usize = 3;
const ROUNDS: usize = 3;
/// Bytes of a record at most.
const LARGEST: usize = 3 << 10;
/// The crash comes before one of this many events, order fences or persist fences; in a shorter run it comes
/// at the end.
const EVENTS: [(Option<EventKind>, u64); 3] =
    [(None, 250), (Some(EventKind::Order), 12), (Some(EventKind::Persist), 12)];

type Values = [u64; COUNTERS];

/// The two words of a counter: different lines.
fn words(counter: usize) -> [PmOffset; 2] {
    let first = geometry().first_pool_block().offset().plus(counter as u64 * 8);
    [first, first.plus(4096)]
}

/// The area of a worker's stores that only lengthen its records.
fn padding(worker: usize) -> PmOffset {
    geometry().first_pool_block().offset().plus(8192 + 8192 * worker as u64)
}

/// A line that refuses stores: a record that writes it is applied in part only, and stops the log.
fn trap() -> PmOffset {
    padding(WORKERS + 1)
}

/// Data of a worker that its records name by checksum (T4).
fn data(worker: usize) -> PmOffset {
    padding(worker).plus(4096)
}

/// Begun, returned and durable transactions, as the model knows them.
#[derive(Default, Clone)]
struct Ledger {
    /// Values that a transaction sets together, noted before its commit; 0 leaves a counter as it is.
    begun: Vec<Values>,
    /// The largest values that returned transactions have set.
    returned: Values,
    /// The smallest values that a crash may leave.
    durable: Values,
}

impl Ledger {
    fn raise(into: &mut Values, values: &Values) {
        into.iter_mut().zip(values).for_each(|(into, value)| *into = (*into).max(*value));
    }
}

struct Model {
    pm: Arc<RecordedPm>,
    wal: Wal,
    counters: [Mutex<()>; COUNTERS],
    ledger: Arc<Mutex<Ledger>>,
    /// In this mode `order` makes nothing durable; `persist` does.
    persist_only: bool,
}

impl Model {
    fn mount() -> Model {
        let pm = Arc::new(RecordedPm::new(PM_SIZE));
        let persist_only = below(2) == 0;
        pm.set_persist_only(persist_only);
        Wal::format(Arc::clone(&pm) as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
        let (wal, _) = Wal::open(Arc::clone(&pm) as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
        if below(2) == 0 {
            // Full lanes: a commit has to move the checkpoint and to use ring space again.
            wal.checkpoint_only_when_full();
            let all = u64::from(geometry().lane_count) * geometry().lane_size;
            for size in [LARGEST, 500] {
                let mut tx = Tx::new();
                tx.write(padding(WORKERS), &vec![1; size - 64]);
                while wal.used_bytes() + 2 * (size as u64 + 192) <= all {
                    wal.commit(wal.reserve(size).unwrap(), &tx).unwrap();
                }
            }
        }
        pm.poison_for(trap().0..trap().0 + 8, Access::Stores, Times::Forever);
        Model { pm, wal, counters: Default::default(), ledger: Arc::default(), persist_only }
    }

    /// Increments one or two counters.
    fn count(&self, worker: usize) -> Result<()> {
        let (first, second) = (below(COUNTERS as u64) as usize, below(COUNTERS as u64) as usize);
        let mut chosen = vec![first.min(second), first.max(second)];
        chosen.dedup();
        let length = 8 * below(320) as usize;
        let named = below(3) == 0;
        if named {
            // The last record of a lane may name bytes that this round stores over.
            self.wal.confirm_named(data(worker), 64)?;
        }
        let reservation = match below(3) {
            0 => None,
            _ => Some(self.wal.reserve(LARGEST)?),
        };
        let guards: Vec<_> = chosen.iter().map(|counter| self.counters[*counter].lock()).collect();
        let open = match reservation {
            Some(reservation) => self.wal.begin(reservation)?,
            None => match self.wal.try_begin(LARGEST)? {
                Some(open) => open,
                None => return Ok(()),
            },
        };
        let (due, fails) = (open.is_due(), below(16) == 0);
        let mut tx = Tx::new();
        let mut values = Values::default();
        for counter in &chosen {
            let [one, other] = words(*counter).map(|word| self.pm.load_u64(word).unwrap());
            assert_eq!(one, other, "counter {counter} is seen in the middle of a commit");
            values[*counter] = one + 1;
            tx.write_u64(words(*counter)[0], one + 1);
            if fails {
                tx.write_u64(trap(), 1);
            }
            tx.write_u64(words(*counter)[1], one + 1);
        }
        tx.write(padding(worker), &vec![worker as u8; length]);
        if named {
            open.stream_named(&mut tx, data(worker), &[values.iter().max().map_or(0, |v| *v as u8); 64])
                .unwrap();
        }
        self.ledger.lock().begun.push(values);
        open.commit(&tx)?;
        drop(guards);
        self.returned(&values);
        if due {
            self.wal.checkpoint_if_idle()?;
        }
        Ok(())
    }

    /// Repeats a round, until PM fails.
    fn until_stopped(&self, round: impl Fn(&Model) -> Result<()>) {
        for _ in 0..ROUNDS {
            if let Err(error) = round(self) {
                assert!(self.wal.is_stopped(), "{error}");
                return;
            }
        }
    }

    fn returned(&self, values: &Values) {
        let mut ledger = self.ledger.lock();
        Ledger::raise(&mut ledger.returned, values);
        if !self.persist_only {
            return Ledger::raise(&mut ledger.durable, values);
        }
        let returned = ledger.returned;
        drop(ledger);
        if below(2) == 0 {
            self.pm.persist().unwrap();
            Ledger::raise(&mut self.ledger.lock().durable, &returned);
        }
    }

    /// Keeps the image that a crash at a coming event leaves, and the values that it must leave.
    fn crash_sometime(&self) -> Arc<Mutex<Option<(CrashSnapshot, Ledger)>>> {
        let kept = Arc::new(Mutex::new(None));
        let (kind, count) = EVENTS[below(EVENTS.len() as u64) as usize];
        let mut left = below(count);
        let (weak, ledger, keep) = (Arc::downgrade(&self.pm), Arc::clone(&self.ledger), Arc::clone(&kept));
        let hook = move |event: Event| {
            if kind.is_some_and(|kind| kind != event.kind) || keep.lock().is_some() {
                return;
            }
            left = left.saturating_sub(1);
            if left == 0 {
                // The ledger first: no event takes effect between the two copies.
                let mut ledger = ledger.lock().clone();
                let snapshot = weak.upgrade().unwrap().snapshot();
                ledger.begun.clear();
                *keep.lock() = Some((snapshot, ledger));
            }
        };
        self.pm.clock().on_event(Some(Box::new(hook)));
        kept
    }
}

/// Recovers an image, compares it with the ledger, and commits to the recovered log.
fn judge(image: impl Into<terrace_media::pm::PmImage>, ledger: &Ledger, begun: &[Values]) {
    let pm = Arc::new(RecordedPm::from_image(image));
    let (wal, _) = Wal::open(Arc::clone(&pm) as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    let mut found = Values::default();
    for (counter, found) in found.iter_mut().enumerate() {
        let [one, other] = words(counter).map(|word| pm.load_u64(word).unwrap());
        assert_eq!(one, other, "counter {counter} is torn");
        assert!(one >= ledger.durable[counter], "counter {counter} is {one}: {:?}", ledger.durable);
        *found = one;
    }
    for values in begun {
        let mut there = values.iter().zip(&found).filter(|(value, _)| **value > 0);
        let first = there.next().is_some_and(|(value, found)| value <= found);
        assert!(there.all(|(value, found)| (value <= found) == first), "{values:?} is torn: {found:?}");
    }
    let mut tx = Tx::new();
    tx.write_u64(words(0)[0], 0);
    wal.commit(wal.reserve(64).unwrap(), &tx).unwrap();
    wal.close().unwrap();
}

fn model() {
    let model = Arc::new(Model::mount());
    let kept = model.crash_sometime();
    let mut threads = Vec::new();
    for worker in 0..WORKERS {
        let model = Arc::clone(&model);
        let body = move || model.until_stopped(|model| model.count(worker));
        threads.push(spawn("worker", body).unwrap());
    }
    let checkpoint = Arc::clone(&model);
    let checkpoint = move || checkpoint.until_stopped(|model| model.wal.checkpoint());
    threads.push(spawn("checkpoint", checkpoint).unwrap());
    for thread in threads {
        thread.join().unwrap();
    }
    model.pm.clock().on_event(None);
    let end = model.ledger.lock().clone();
    let (snapshot, ledger) = kept.lock().take().unwrap_or_else(|| (model.pm.snapshot(), end.clone()));
    for image in snapshot.images(2, 2, below(u64::MAX)) {
        judge(image, &ledger, &end.begun);
    }
    let all = Ledger { durable: end.returned, ..Ledger::default() };
    for (counter, value) in end.returned.iter().enumerate() {
        // The target of a failed commit is not read until the next mount.
        let Ok(found) = model.pm.load_u64(words(counter)[0]) else {
            assert!(model.wal.is_stopped(), "counter {counter} cannot be read");
            continue;
        };
        assert!(
            found == *value || (found > *value && model.wal.is_stopped()),
            "counter {counter} is {found}"
        );
    }
    model.pm.persist().unwrap();
    judge(model.pm.snapshot().image_oldest(), &all, &end.begun);
}

#[test]
fn a_crash_leaves_a_state_allowed_by_the_order_of_commits() {
    explore("lanes", Schedules { random: 3000, priorities: 3000 }, model);
}
