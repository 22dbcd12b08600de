//! Threads commit transactions to shared words under locks while another moves the checkpoint (design 4.1, T2, T3,
//! T5, T8). At a crash at any persistence event, and at the end, recovery shows a state that the order of commits
//! allows: each transaction whole or not at all, none without those it read from, all that had to be durable.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_media::PmMedium;
use terrace_media::pm::{CrashSnapshot, RecordedPm};
use terrace_models::{PM_SIZE, Schedules, UUID, below, explore, geometry};
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::spawn;
use terrace_wal::{Tx, Wal};

/// Counters, each under a lock of its own and in two words that change together.
const COUNTERS: usize = 3;
const WORKERS: usize = 3;
const ROUNDS: usize = 3;
/// Crashes come before about so many events; in shorter runs, at their end.
const EVENTS: u64 = 250;

type Values = [u64; COUNTERS];

/// The two words of a counter: different lines.
fn words(counter: usize) -> [PmOffset; 2] {
    let first = geometry().first_pool_block().offset().plus(counter as u64 * 8);
    [first, first.plus(4096)]
}

/// Where transactions put what only makes them long.
fn padding(worker: usize) -> PmOffset {
    geometry().first_pool_block().offset().plus(8192 + 4096 * worker as u64)
}

/// What is known of the transactions.
#[derive(Default, Clone)]
struct Ledger {
    /// Values that transactions set together, noted before their commit: 0 is none.
    begun: Vec<Values>,
    /// What returned transactions set.
    returned: Values,
    /// What a crash must leave.
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
    /// `order` does not make durable, `persist` does.
    persist_only: bool,
}

impl Model {
    fn mount() -> Model {
        let pm = Arc::new(RecordedPm::new(PM_SIZE));
        let persist_only = below(2) == 0;
        pm.set_persist_only(persist_only);
        Wal::format(Arc::clone(&pm) as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
        let (wal, _) = Wal::open(Arc::clone(&pm) as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
        Model { pm, wal, counters: Default::default(), ledger: Arc::default(), persist_only }
    }

    /// Counts one or two counters up.
    fn count(&self, worker: usize) {
        let (first, second) = (below(COUNTERS as u64) as usize, below(COUNTERS as u64) as usize);
        let mut chosen = vec![first.min(second), first.max(second)];
        chosen.dedup();
        let length = 8 * below(256) as usize;
        let reservation = match below(3) {
            0 => None,
            _ => Some(self.wal.reserve(3 << 10).unwrap()),
        };
        let guards: Vec<_> = chosen.iter().map(|counter| self.counters[*counter].lock()).collect();
        let open = match reservation {
            Some(reservation) => self.wal.begin(reservation).unwrap(),
            None => match self.wal.try_begin(3 << 10).unwrap() {
                Some(open) => open,
                None => return,
            },
        };
        let due = open.is_due();
        let mut tx = Tx::new();
        let mut values = Values::default();
        for counter in &chosen {
            let [one, other] = words(*counter).map(|word| self.pm.load_u64(word).unwrap());
            assert_eq!(one, other, "counter {counter} is seen in the middle of a commit");
            values[*counter] = one + 1;
            words(*counter).into_iter().for_each(|word| tx.write_u64(word, one + 1));
        }
        tx.write(padding(worker), &vec![worker as u8; length]);
        self.ledger.lock().begun.push(values);
        open.commit(&tx).unwrap();
        drop(guards);
        self.returned(&values);
        if due {
            self.wal.checkpoint_if_idle().unwrap();
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
            self.pm.persist();
            Ledger::raise(&mut self.ledger.lock().durable, &returned);
        }
    }

    /// Keeps what a crash at one of the coming events leaves, and what it must leave.
    fn crash_sometime(&self) -> Arc<Mutex<Option<(CrashSnapshot, Ledger)>>> {
        let kept = Arc::new(Mutex::new(None));
        let at = self.pm.event_count() + below(EVENTS);
        let (weak, ledger, keep) = (Arc::downgrade(&self.pm), Arc::clone(&self.ledger), Arc::clone(&kept));
        let hook = move |event: terrace_media::crash::Event| {
            if event.number == at {
                // The promises first: no event takes effect between the two.
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

/// Recovers an image and compares. A log that was recovered goes on.
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
        threads.push(spawn("worker", move || (0..ROUNDS).for_each(|_| model.count(worker))).unwrap());
    }
    let checkpoint = Arc::clone(&model);
    let checkpoint = move || (0..ROUNDS).for_each(|_| checkpoint.wal.checkpoint().unwrap());
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
        assert_eq!(model.pm.load_u64(words(counter)[0]).unwrap(), *value);
    }
    model.pm.persist();
    judge(model.pm.snapshot().image_oldest(), &all, &end.begun);
}

#[test]
fn a_crash_leaves_what_the_commits_allow() {
    explore("lanes", Schedules { random: 1000, priorities: 1000 }, model);
}
