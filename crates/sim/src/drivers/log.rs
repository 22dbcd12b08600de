//! The log alone, with lanes that fill up before the checkpoint moves, so that ring space is used again at
//! once (T3, T5). Crashes come anywhere, also in recovery, and recovery also starts with one checkpoint copy
//! damaged (C5).

use crate::config::Tier0;
use crate::drivers::run::Wrong;
use crate::drivers::systematic::{Effort, Explored, judged};
use crate::media::{Media, Moment, Setup, soon_after_change};
use crate::subsets::{Random, all_subsets, any_states, some_subsets};
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use terrace_format::checksum::crc32c;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::{BLOCK_SIZE, Geometry, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::PmImage;
use terrace_runtime::thread;
use terrace_wal::recovery::read_checkpoint;
use terrace_wal::{Tx, Wal};

const UUID: [u8; 16] = [3; 16];
const PM_BYTES: u64 = 2 << 20;
/// Transactions of a history: both lanes fill up more than once.
const TRANSACTIONS: u64 = 40;
/// Words that each record names by checksum: long records fill the lanes soon. The words never change.
const NAMED: u64 = 90;

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

/// The words into which each transaction stores its number, in lines of their own.
fn words() -> [PmOffset; 2] {
    let first = geometry().first_pool_block().offset();
    [first, first.plus(256)]
}

/// Words, in lines of their own, into which one transaction alone stores: the replay of another does not mend
/// them.
fn own_words(number: u64) -> [PmOffset; 2] {
    let first = words()[1].plus(2 * BLOCK_SIZE + number * 128);
    [first, first.plus(64)]
}

/// Explores histories of the log.
pub fn explore(effort: Effort, persist_only: bool, wrong: Wrong) -> Explored {
    let setup = Setup { tier0: Tier0::of_mode(persist_only), change: wrong.ordering, ..Setup::default() };
    judged(|explored| {
        for seed in 1..=3 {
            run(effort, seed, &setup, explored);
        }
    })
}

/// The states that a crash may leave.
struct Expected {
    /// The number of the last transaction that is there.
    numbers: RangeInclusive<u64>,
    /// The checkpoint copies to damage, one at a time.
    damaged: &'static [Option<usize>],
    what: String,
}

fn run(effort: Effort, seed: u64, setup: &Setup, explored: &mut Explored) {
    let media = Media::new(PM_BYTES, [], &Setup::default());
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
        let oldest = if setup.tier0.persist_only() { 0 } else { number - 1 };
        for index in chosen(&moments, setup, effort) {
            let oldest =
                if index + 1 == moments.len() && !setup.tier0.persist_only() { number } else { oldest };
            let what = format!("the log, crash before event {index} of transaction {number}");
            let expected = Expected { numbers: oldest..=number, damaged: &[None, Some(0), Some(1)], what };
            judge_moment(&moments[index], &expected, effort, &mut seen, explored);
            if number % 8 == 0 && effort.recoveries > 0 {
                crash_recovery(&moments[index], oldest..=number, effort, setup, explored);
            }
        }
    }
    thread::set_index(0);
    explored.points.extend(media.clock.ordering().points());
    explored.passed = explored.points.clone();
}

fn chosen(moments: &[Moment], setup: &Setup, effort: Effort) -> Vec<usize> {
    match setup.change {
        Some(_) if effort.soon > 0 => soon_after_change(moments, effort.soon),
        _ => (0..moments.len()).collect(),
    }
}

fn store(wal: &Wal, number: u64) {
    let mut tx = Tx::new();
    let all = words().into_iter().chain(own_words(number));
    all.for_each(|word| tx.write_u64(word, number));
    (0..NAMED).for_each(|word| tx.name_data(words()[1].plus(BLOCK_SIZE + 8 * word), 8, crc32c(&[0; 8])));
    wal.commit(wal.reserve(tx.record_size()).unwrap(), &tx).unwrap();
}

/// After a loss of power at `moment`, and after the death of the daemon alone: crashes inside the recovery.
fn crash_recovery(
    moment: &Moment,
    numbers: RangeInclusive<u64>,
    effort: Effort,
    setup: &Setup,
    explored: &mut Explored,
) {
    let after = [
        ("loss of power", Media::from_images(moment.pm.image_newest(), None, setup)),
        ("the death of the daemon", Media::resumed(moment, setup)),
    ];
    for (why, media) in after {
        let (moments, ()) = media.camera().film(|| drop(open(&media)));
        let mut seen = HashSet::new();
        for index in chosen(&moments, setup, effort) {
            let what = format!("the log, crash before event {index} of the recovery from {why}");
            let expected = Expected { numbers: numbers.clone(), damaged: &[None], what };
            judge_moment(&moments[index], &expected, effort, &mut seen, explored);
        }
    }
}

fn judge_moment(
    moment: &Moment,
    expected: &Expected,
    effort: Effort,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) {
    if effort.samples == 0 {
        return;
    }
    let mut random = Random(moment.pm.event);
    let epochs = moment.pm.epoch_count();
    let some = [u64::MAX, 0, random.below(epochs as usize) as u64];
    for epoch in some.into_iter().take(epochs.min(3) as usize) {
        let pm = moment.pm.in_epoch(epoch);
        let few = all_subsets(&pm, effort.lines);
        let mut choices = few.unwrap_or_else(|| some_subsets(&pm, effort.samples, moment.pm.event));
        choices.extend((0..4).map(|_| any_states(&pm, &mut random)));
        for choice in choices {
            let image = pm.image_here(&|line| choice[line]);
            if seen.insert(image.hash()) {
                judge(&image, expected, explored);
            }
        }
    }
}

fn judge(image: &PmImage, expected: &Expected, explored: &mut Explored) {
    let Expected { numbers, what, .. } = expected;
    for damaged in expected.damaged {
        explored.states += 1;
        let media = Media::from_images(damage(image, *damaged), None, &Setup::default());
        // With one copy torn by the crash and the other damaged no checkpoint is left, and recovery must not
        // invent one.
        if damaged.is_some() && read_checkpoint(&*media.pm, &UUID, &geometry()).is_err() {
            continue;
        }
        drop(open(&media));
        let wrong = format!("(copy {damaged:?} of the checkpoint damaged)");
        let [one, other] = words().map(|word| media.pm.load_u64(word).unwrap());
        assert_eq!(one, other, "{what}: half a transaction {wrong}");
        assert!(numbers.contains(&one), "{what}: transaction {one}, not {numbers:?} {wrong}");
        for number in 1..=TRANSACTIONS {
            let expected = if number <= one { number } else { 0 };
            let own = own_words(number).map(|word| media.pm.load_u64(word).unwrap());
            assert_eq!(own, [expected; 2], "{what}: transaction {number}, the last is {one} {wrong}");
        }
    }
}

fn damage(image: &PmImage, copy: Option<usize>) -> PmImage {
    let mut image = image.clone();
    if let Some(copy) = copy {
        assert!(image.write(CHECKPOINT_COPIES[copy].offset().0, &[0xff; 64]));
    }
    image
}
