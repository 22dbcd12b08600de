//! The log alone, with lanes that fill up before the checkpoint moves, so that ring space is used again at once (T3, T5):
//! crashes anywhere, also in recovery, also with one copy of the checkpoint damaged (C5).

use crate::media::{Media, Moment, Setup, soon_after_change};
use crate::run::Wrong;
use crate::subsets::{Random, all_subsets, any_states, some_subsets};
use crate::systematic::{Effort, Explored, judged};
use std::collections::HashSet;
use std::sync::Arc;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::{Geometry, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::{CrashSnapshot, PmImage};
use terrace_runtime::thread;
use terrace_wal::recovery::read_checkpoint;
use terrace_wal::{Tx, Wal};

const UUID: [u8; 16] = [3; 16];
const PM_BYTES: u64 = 2 << 20;
/// Transactions of a history: both lanes fill up more than once.
const TRANSACTIONS: u64 = 40;
/// Writes of a transaction, of 16 bytes in the record each.
const WRITES: u64 = 100;

fn geometry() -> Geometry {
    Geometry::choose(PM_BYTES, 16).unwrap()
}

fn pm_of(media: &Media) -> Arc<dyn PmMedium> {
    media.pm.clone()
}

fn open(media: &Media) -> Wal {
    let opened = Wal::open(pm_of(media), UUID, geometry());
    opened.unwrap_or_else(|error| panic!("mount: {error}")).0
}

/// The words that each transaction stores its number to, in lines of their own.
fn words() -> [PmOffset; 2] {
    let first = geometry().first_pool_block().offset();
    [first, first.plus(256)]
}

/// Explores histories of the log.
pub fn explore(effort: Effort, persist_only: bool, wrong: Wrong) -> Explored {
    let setup = Setup { persist_only, change: wrong.ordering, ..Setup::default() };
    judged(|explored| {
        for seed in 1..=4 {
            run(effort, seed, &setup, explored);
        }
    })
}

fn run(effort: Effort, seed: u64, setup: &Setup, explored: &mut Explored) {
    let media = Media::new(PM_BYTES, 0, &Setup::default());
    Wal::format(pm_of(&media), UUID, geometry()).unwrap();
    let media = Media::from_images(media.pm.visible_image(), None, setup);
    let wal = open(&media);
    wal.checkpoint_only_when_full();
    let mut random = Random(seed);
    let mut seen = HashSet::new();
    for number in 1..=TRANSACTIONS {
        thread::set_index(random.below(2));
        let (moments, ()) = media.camera().film(|| store(&wal, number));
        explored.events += moments.len() as u64;
        let oldest = if setup.persist_only { 0 } else { number - 1 };
        let chosen = match setup.change {
            Some(_) if effort.soon > 0 => soon_after_change(&moments, effort.soon),
            _ => (0..moments.len()).collect(),
        };
        for index in chosen {
            let oldest = if index + 1 == moments.len() && !setup.persist_only { number } else { oldest };
            let what = format!("the log, crash before event {index} of transaction {number}");
            judge_moment(&moments[index], oldest..=number, effort, &mut seen, explored, &what);
            if index + 1 == moments.len() && number % 8 == 0 && effort.recoveries > 0 {
                crash_recovery(&moments[index], oldest..=number, effort, setup, explored);
            }
        }
    }
    thread::set_index(0);
    explored.points.extend(media.clock.ordering().points());
    explored.passed = explored.points.clone();
}

fn store(wal: &Wal, number: u64) {
    let mut tx = Tx::new();
    for turn in 0..WRITES {
        tx.write_u64(words()[turn as usize % 2], number);
    }
    wal.commit(wal.reserve(tx.record_size()).unwrap(), &tx).unwrap();
}

fn crash_recovery(
    moment: &Moment,
    numbers: std::ops::RangeInclusive<u64>,
    effort: Effort,
    setup: &Setup,
    explored: &mut Explored,
) {
    let media = Media::from_images(moment.pm.image_newest(), None, setup);
    let (moments, ()) = media.camera().film(|| drop(open(&media)));
    let mut seen = HashSet::new();
    for (index, inside) in moments.iter().enumerate() {
        let what = format!("the log, crash before event {index} of recovery");
        judge_moment(inside, numbers.clone(), effort, &mut seen, explored, &what);
    }
}

fn judge_moment(
    moment: &Moment,
    numbers: std::ops::RangeInclusive<u64>,
    effort: Effort,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
    what: &str,
) {
    if effort.samples == 0 {
        return;
    }
    let mut random = Random(moment.pm.event);
    let epochs = moment.pm.epoch_count();
    for epoch in [u64::MAX, 0, random.below(epochs as usize) as u64] {
        let pm = moment.pm.in_epoch(epoch);
        let few = all_subsets(&pm, effort.lines);
        let mut choices = few.unwrap_or_else(|| some_subsets(&pm, effort.samples, moment.pm.event));
        choices.extend((0..4).map(|_| any_states(&pm, &mut random)));
        for choice in choices {
            judge(&pm, &choice, numbers.clone(), seen, explored, what);
        }
    }
}

fn judge(
    pm: &CrashSnapshot,
    choice: &[usize],
    numbers: std::ops::RangeInclusive<u64>,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
    what: &str,
) {
    let image = pm.image_here(&|line| choice[line]);
    if !seen.insert(image.hash()) {
        return;
    }
    for damaged in [None, Some(0), Some(1)] {
        explored.states += 1;
        let media = Media::from_images(damage(&image, damaged), None, &Setup::default());
        // A torn copy and a damaged one: nothing is left, and nothing is invented.
        if damaged.is_some() && read_checkpoint(&*media.pm, &UUID, &geometry()).is_err() {
            continue;
        }
        drop(open(&media));
        let found = words().map(|word| media.pm.load_u64(word).unwrap());
        let [one, other] = found;
        assert_eq!(one, other, "{what}: half a transaction (copy {damaged:?} of the checkpoint damaged)");
        assert!(
            numbers.contains(&one),
            "{what}: transaction {one}, not {numbers:?} (copy {damaged:?} damaged)"
        );
    }
}

fn damage(image: &PmImage, copy: Option<usize>) -> PmImage {
    let mut image = image.clone();
    if let Some(copy) = copy {
        assert!(image.write(CHECKPOINT_COPIES[copy].offset().0, &[0xff; 64]));
    }
    image
}
