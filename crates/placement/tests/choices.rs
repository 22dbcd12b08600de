//! The choice of files to demote, and the answers of each policy, by observations alone.

use terrace_placement::decision::{ReadRule, read_rule};
use terrace_placement::policies::{AntiCache, Predictive, Static, WriteOnly};
use terrace_placement::temperature::{Portion, Times, coldest, word};
use terrace_placement::threshold::Idle;
use terrace_placement::{Ablation, Observation, Parameters, Policy, VictimOrder, make};

fn times(at: &[u32]) -> Times {
    let mut times = Times::default();
    at.iter().for_each(|at| times.add(*at));
    times
}

/// The chosen files in order. `files` are files by number, with the times of their blocks.
fn chosen(files: &[(u64, &[u32])], wanted: u64, now: u32, whole_after: u32) -> Vec<(u64, Portion)> {
    let files: Vec<(u64, Times)> = files.iter().map(|(file, at)| (*file, times(at))).collect();
    coldest(files.iter().map(|(file, times)| (*file, times)), wanted, (now, whole_after))
}

#[test]
fn the_coldest_files_go_first_and_files_of_one_age_by_number() {
    // Averages 1000, 900 and 510 ticks old are of one power of two; 100 and 2000 are of others.
    let files: &[(u64, &[u32])] = &[(8, &[9000]), (3, &[9490]), (5, &[9100]), (1, &[9900]), (9, &[8000])];
    let order =
        |wanted| chosen(files, wanted, 10_000, 1).into_iter().map(|(file, _)| file).collect::<Vec<_>>();
    assert_eq!(order(9), [9, 5, 8, 3, 1]);
    assert_eq!((order(0), order(1), order(2)), (vec![], vec![9], vec![9, 5]));
}

#[test]
fn files_are_chosen_until_enough_blocks_are_found() {
    // A file without recent use gives all its blocks, a recently used file half of its blocks.
    let old: &[u32] = &[10, 20, 30, 40];
    let new: &[u32] = &[10, 20, 9_000, 9_000, 9_000];
    let two: &[u32] = &[8_999, 9_000];
    let files: &[(u64, &[u32])] = &[(1, old), (2, old), (3, new), (4, two), (5, new)];
    let of = |wanted| chosen(files, wanted, 9_100, 5_000);
    let whole = |file| (file, Portion::Whole);
    let part = Portion::OlderThan(5_406);
    assert_eq!(of(4), [whole(1)]);
    assert_eq!(of(5), [whole(1), whole(2)]);
    assert_eq!(of(8), [whole(1), whole(2)]);
    assert_eq!(of(10), [whole(1), whole(2), (3, part)]);
    assert_eq!(of(11), [whole(1), whole(2), (3, part), (5, part)]);
    assert_eq!(of(13).len(), 4, "files whose blocks are all as old as the average have no older part");
    // A recently used file of three blocks counts as giving a single block.
    let three: &[(u64, &[u32])] = &[(1, &[1, 800, 900]), (2, &[1, 800, 900]), (3, &[1, 800, 900])];
    assert_eq!((chosen(three, 1, 1000, 500).len(), chosen(three, 2, 1000, 500).len()), (1, 2));
}

#[test]
fn times_of_no_block_have_no_average() {
    assert_eq!((Times::default().average(), Times::default().newest), (0, 0));
    assert!(times(&[7, 7]).is_even() && !times(&[6, 8]).is_even());
    assert!(times(&[6, 7]).is_even(), "an average is rounded down");
}

#[test]
fn a_file_is_hot_until_exactly_whole_after_ticks_since_its_use() {
    let at = |written, read| word((1000, 100), written, read);
    assert_eq!([at(901, 0), at(900, 0), at(0, 901), at(0, 900)], ["write-hot", "cold", "read-hot", "cold"]);
    assert_eq!(word((50, 100), 0, 0), "cold", "never used");
    assert_eq!([at(950, 951), at(951, 950)], ["read-hot", "write-hot"]);
}

fn seen(free_blocks: u64) -> Observation {
    let (pm_read_bytes, pm_written_bytes) = (800 << 20, 200 << 20);
    Observation { total_blocks: 1000, free_blocks, arriving_blocks: 0, pm_read_bytes, pm_written_bytes }
}

#[test]
fn used_blocks_are_total_minus_free_blocks() {
    assert_eq!([0, 300, 1000, 2000].map(|free| seen(free).used_blocks()), [1000, 700, 0, 0]);
}

#[test]
fn each_victim_order_takes_the_tick_of_its_kind_of_use() {
    let ticks = |order: VictimOrder| [order.tick(5, 9), order.tick(9, 5)];
    assert_eq!(ticks(VictimOrder::WriteColdFiles), [5, 9]);
    assert_eq!(ticks(VictimOrder::ColdFiles), [9, 9]);
    assert_eq!(ticks(VictimOrder::LeastRecentlyUsed), [9, 9]);
}

type Said = (&'static str, u64, [bool; 2], Option<u8>, VictimOrder, bool, bool);

fn said(policy: &dyn Policy, free: u64) -> Said {
    let (name, seen) = (policy.name(), seen(free));
    let promotes = [1, 2].map(|touches| policy.promotes(touches));
    let (demoted, threshold) = (policy.blocks_to_demote(&seen), policy.threshold_percent(&seen));
    (name, demoted, promotes, threshold, policy.victims(), policy.steers_writes(), policy.follows_reads())
}

#[test]
fn each_policy_says_this_of_a_nearly_full_pm() {
    let p = Parameters::PUBLISHED;
    let (lru, second) = (VictimOrder::LeastRecentlyUsed, [false, true]);
    let fixed = said(&Static, 0);
    assert_eq!(fixed, ("static", 0, [false, false], None, lru, false, false));
    let anticache = AntiCache { threshold_percent: 75, touches: 2 };
    assert_eq!(said(&anticache, 50), ("anticache", 200, second, Some(75), lru, false, false));
    let predictive = said(&Predictive::new(&p), 50);
    let cold = VictimOrder::ColdFiles;
    assert_eq!(predictive, ("predictive", 150, second, Some(80), cold, true, true));
    let write_only = said(&WriteOnly::new(&p), 50);
    assert_eq!(write_only, ("write-only", 150, second, Some(80), VictimOrder::WriteColdFiles, true, false));
    assert!(make(4, 0, &Parameters { touches: 9, ..p }).is_some_and(|it| !it.promotes(8) && it.promotes(9)));
}

#[test]
fn a_policy_without_one_part_says_the_rest_as_before() {
    for id in 1..=4 {
        let policy = || make(id, 75, &Parameters::PUBLISHED).into_iter();
        for ablation in [
            Ablation::Nothing,
            Ablation::SynchronicityAsync,
            Ablation::SynchronicitySync,
            Ablation::WriteSize,
            Ablation::ReadFrequency,
            Ablation::Temperature,
        ] {
            for (policy, whole) in policy().map(|it| ablation.of(it)).zip(policy()) {
                let mut expected = said(&*whole, 100);
                if ablation == Ablation::Temperature {
                    expected.4 = VictimOrder::LeastRecentlyUsed;
                }
                expected.6 &= ablation != Ablation::ReadFrequency;
                assert_eq!(said(&*policy, 100), expected, "{ablation:?}");
            }
        }
    }
}

#[test]
fn a_group_on_its_way_pushes_out_only_blocks_in_its_way() {
    let demoted = |total_blocks, free_blocks, arriving_blocks| {
        let seen = Observation { total_blocks, free_blocks, arriving_blocks, ..Observation::default() };
        AntiCache { threshold_percent: 80, touches: 1 }.blocks_to_demote(&seen)
    };
    // An eighth of 800 stays free beside what arrives; a fifth would be 160.
    assert_eq!([demoted(800, 300, 200), demoted(800, 300, 201), demoted(800, 300, 300)], [0, 1, 100]);
    // Above the threshold by 40, and 60 more are in the way.
    assert_eq!([demoted(800, 120, 0), demoted(800, 120, 120)], [40, 100]);
    // A quarter of the threshold stays.
    assert_eq!([demoted(800, 640, 5000), demoted(800, 630, 5000)], [0, 10]);
    // A threshold of 95 leaves less than an eighth free.
    let seen =
        Observation { total_blocks: 800, free_blocks: 100, arriving_blocks: 70, ..Observation::default() };
    assert_eq!(AntiCache { threshold_percent: 95, touches: 1 }.blocks_to_demote(&seen), 10);
}

#[test]
fn reads_move_files_only_to_an_idle_side() {
    for read_dominated in [false, true] {
        for in_pm in [false, true] {
            for idle in [Idle::Neither, Idle::Dram, Idle::Pm] {
                let expected = match (read_dominated, in_pm, idle) {
                    (true, true, Idle::Dram) => ReadRule::ToDram,
                    (true, false, Idle::Pm) => ReadRule::ToPm,
                    _ => ReadRule::InPlace,
                };
                assert_eq!(read_rule(read_dominated, in_pm, idle), expected);
            }
        }
    }
}

#[test]
fn impossible_parameters_are_named_by_mount_option() {
    let p = Parameters::PUBLISHED;
    assert_eq!((p.check(), p, p.whole_after()), (Ok(()), Parameters::default(), 3000));
    assert_eq!(Parameters { whole_after_s: u32::MAX, ..p }.whole_after(), u32::MAX);
    let mut wrong = [p; 3];
    wrong[0].utilisation.decay = 0;
    wrong[1].dataflow.seconds = 0;
    wrong[2].spill.low_percent = 99;
    for (parameters, name) in wrong.iter().zip(["threshold_decay", "dataflow_s", "spill_low"]) {
        assert!(parameters.check().is_err_and(|error| error.contains(name)), "{name}");
    }
}
