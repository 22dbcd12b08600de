//! The thresholds, the prior and the packed states by their numbers.

use terrace_placement::Parameters;
use terrace_placement::decision::Room;
use terrace_placement::prior::{Score, family};
use terrace_placement::read_frequency::ReadFrequency;
use terrace_placement::spill::{Spill, last_used};
use terrace_placement::synchronicity::{Judgement, Synchronicity, WRITE_BACK_TICKS};
use terrace_placement::threshold::Idle;
use terrace_placement::threshold::{Dataflow, Flow, Utilisation, Window};
use terrace_placement::write_size::{Before, Entry};

const MB: u64 = 1 << 20;

#[test]
fn a_flow_is_the_difference_of_counters() {
    let flow = |pm_read, pm_written, dram_read| Flow { pm_read, pm_written, dram_read };
    assert_eq!(flow(9, 20, 300).since(&flow(2, 5, 100)), flow(7, 15, 200));
    assert_eq!(flow(1, 1, 1).since(&flow(2, 5, 100)), flow(0, 0, 0));
}

/// Equation (1) with the logarithm of the floating point unit, rounded towards zero as it is.
#[test]
fn the_threshold_follows_the_logarithm_of_the_ratio() {
    let fine =
        Utilisation { even_percent: 100, step_percent: 40, least_percent: 0, most_percent: 250, decay: 8 };
    let numbers = [1, 2, 3, 5, 7, 10, 11, 13, 100, 127, 999, 65_537, 1 << 33];
    for (read, written) in numbers.into_iter().flat_map(|read| numbers.map(|written| (read, written))) {
        let ratio = (read as f64 / written as f64).log2();
        let expected = (100.0 + 40.0 * ratio).clamp(0.0, 250.0);
        let found = f64::from(fine.percent(read * MB, written * MB));
        assert!((found - expected).abs() < 1.4, "{read} to {written}: {found}, not {expected}");
    }
}

#[test]
fn each_sum_of_the_window_decays_by_itself() {
    let mut window = Window::default();
    window.second(Flow { pm_read: 80, pm_written: 800, dram_read: 8000 });
    assert_eq!(window.decayed(), Flow { pm_read: 80, pm_written: 800, dram_read: 8000 });
    window.second(Flow { pm_read: 1, pm_written: 2, dram_read: 3 });
    assert_eq!(window.decayed(), Flow { pm_read: 71, pm_written: 702, dram_read: 7003 });
}

#[test]
fn seconds_with_few_reads_count_for_neither_side() {
    let idle = |pm_read, dram_read| {
        let mut window =
            Window::new(&Utilisation::PUBLISHED, &Dataflow { seconds: 1, ..Dataflow::PUBLISHED });
        window.second(Flow { pm_read, pm_written: 0, dram_read });
        window.idle()
    };
    assert_eq!([idle(MB - 1, 0), idle(MB, 0)], [Idle::Neither, Idle::Dram]);
    assert_eq!([idle(0, MB - 1), idle(0, MB)], [Idle::Neither, Idle::Pm]);
    assert_eq!([idle(2 * MB, MB), idle(2 * MB + 1, MB)], [Idle::Neither, Idle::Dram]);
    assert_eq!([idle(MB, 2 * MB), idle(MB - 1, 2 * MB)], [Idle::Neither, Idle::Pm]);
}

#[test]
fn the_ratio_covers_only_the_last_seconds() {
    let mut window = Window::new(&Utilisation::PUBLISHED, &Dataflow { seconds: 2, ..Dataflow::PUBLISHED });
    let second = |pm_read, dram_read| Flow { pm_read, pm_written: 7, dram_read };
    [second(1000, 1), second(30, 10), second(10, 30)].into_iter().for_each(|flow| window.second(flow));
    assert_eq!(window.dataflow_ratio(), Some(1.0));
    window.second(second(90, 0));
    assert_eq!(window.dataflow_ratio(), Some(100.0 / 30.0));
    window.second(second(90, 0));
    assert_eq!(window.dataflow_ratio(), None);
}

#[test]
fn scores_are_bounded_and_survive_as_a_byte() {
    let mut score = Score::default();
    let mut shown = Vec::new();
    for _ in 0..5 {
        score = score.told(true);
        shown.push(score.pack());
    }
    assert_eq!(shown, [2, 4, 6, 6, 6]);
    let down: Vec<i8> = (0..14)
        .map(|_| {
            score = score.told(false);
            score.pack() as i8
        })
        .collect();
    assert_eq!(down, [5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -6, -6]);
    assert_eq!([7, 127, 128, 250, 249].map(|byte| Score::unpack(byte).pack() as i8), [6, 6, -6, -6, -6]);
}

#[test]
fn a_directory_above_has_to_lean_further() {
    let expects = |score: i8, level| Score::unpack(score as u8).expects(level);
    for level in [0, 1] {
        assert_eq!([0, 1, -1].map(|score| expects(score, level)), [None, Some(true), Some(false)]);
    }
    for level in [2, 3] {
        assert_eq!([2, 3, -2, -3].map(|score| expects(score, level)), [None, Some(true), None, Some(false)]);
    }
}

/// The hashes are FNV-1a of the part that names have in common, made odd.
#[test]
fn families_are_of_extensions_and_beginnings() {
    let of = |name: &str| family(name.as_bytes());
    let (log, lock, file) = (0x5bc6_1d2d, 0x2cfd_7e03, 0x7ce7_a22b);
    assert_eq!(of("000012.log"), log);
    assert_eq!(of("LOCK"), lock);
    assert_eq!((of("file-1"), of("file-")), (file, file));
    // An extension has at most eight bytes, and a letter; a dot at the beginning makes none.
    assert_ne!(of("abc1.abcdefgh"), of("abc1"));
    assert_eq!(of("abc1.abcdefghi"), of("abc"));
    assert_eq!((of("abc1.7"), of("abc1.7z") == of("abc")), (of("abc"), false));
    assert_eq!(of(".a1b"), 0, "a hidden file");
    assert_eq!(of("x.log"), log);
    // A beginning has at least three bytes, of which sixteen are looked at.
    assert_eq!((of("ab1"), of("abc1")), (0, of("abc2")));
    assert_ne!(of("abc1"), 0);
    assert_eq!(of("abcdefghijklmnopq1"), of("abcdefghijklmnop"));
    assert_ne!(of("abcdefghijklmnop1"), of("abcdefghijklmno1"));
    assert_ne!(of("ab"), 0, "a name without a digit is its own beginning");
}

#[test]
fn synchronicity_survives_as_a_word() {
    let parameters = Parameters::PUBLISHED;
    for (number, judgement) in Judgement::ALL.into_iter().enumerate() {
        for told in [None, Some(false), Some(true)] {
            for blocks in [0, 1, 1023, u32::MAX] {
                let mut state = Synchronicity::default();
                (state.blocks, state.judgement) = (blocks, judgement);
                told.map(|synced| state.tells(synced));
                let word = state.pack();
                let told = told.map_or(0, |synced| if synced { 2 } else { 1 });
                assert_eq!(word, told << 40 | (number as u64) << 32 | u64::from(blocks));
                assert_eq!(Synchronicity::unpack(word), state);
            }
        }
        let own = matches!(judgement, Judgement::Synchronous | Judgement::Asynchronous);
        assert_eq!(judgement.is_own(), own, "{judgement:?}");
    }
    assert_eq!(WRITE_BACK_TICKS, 3000, "half a minute in hundredths of a second");
    assert_eq!(Synchronicity::unpack(0xff << 32).judgement, Judgement::Unjudged);
    let mut state = Synchronicity::default();
    for (expected, judgement) in [
        (Some(true), Judgement::ExpectedSynchronous),
        (Some(false), Judgement::ExpectedAsynchronous),
        (None, Judgement::Unjudged),
    ] {
        state.expect(expected);
        assert_eq!(state.judgement, judgement);
    }
    // An interval of exactly as many blocks is long, whether or not the parameters are the same by the fsync.
    state.wrote(1023, &parameters);
    state.synced(&Parameters { sync_blocks: 1023, ..parameters });
    assert_eq!((state.judgement, state.blocks), (Judgement::Asynchronous, 0));
    state.wrote(u32::MAX, &parameters);
    state.wrote(7, &parameters);
    assert_eq!(state.blocks, u32::MAX);
    state.wrote_durably();
    assert_eq!((state.blocks, state.judgement), (0, Judgement::Synchronous));
}

#[test]
fn a_write_finds_the_entry_it_replaces_or_the_run_it_goes_on() {
    let (run, old) = (Entry { bytes: 9, counter: 3 }, Entry { bytes: 5, counter: 1 });
    let of = |first, appends, inside| Before::of((first, appends, inside), (run, 10), || Some(old));
    assert_eq!(of(10, true, true), Before::Continues(run), "goes on and appends");
    assert_eq!(of(9, true, true), Before::Continues(run), "into the last block of the run");
    assert_eq!(of(10, false, true), Before::Replaces(old), "goes on within the file");
    assert_eq!(of(8, true, true), Before::Replaces(old));
    assert_eq!(of(11, true, false), Before::Nothing, "beyond the end of the file");
    assert_eq!(of(10, false, false), Before::Continues(run));
    assert_eq!(Before::of((10, false, true), (run, 10), || None), Before::Continues(run));
    assert_eq!(Before::of((4, false, true), (run, 10), || None), Before::Nothing);
    assert_eq!(Before::of((0, true, true), (Entry::default(), 0), || None), Before::Nothing, "no run yet");
}

#[test]
fn counters_rise_exactly_from_the_bounds_on() {
    let p = Parameters::PUBLISHED;
    let large = p.large_min;
    let after = |before, bytes| Entry::after(before, bytes, &p).counter;
    let entry = |bytes, counter| Entry { bytes, counter };
    assert_eq!(
        [after(Before::Replaces(entry(101, 2)), 50), after(Before::Replaces(entry(101, 2)), 51)],
        [0, 3]
    );
    assert_eq!(after(Before::Continues(entry(large, 2)), large), 3);
    assert_eq!(after(Before::Continues(entry(large - 1, 2)), large), 2);
    assert_eq!(after(Before::Continues(entry(large, 2)), large - 1), 2);
    assert_eq!(after(Before::Continues(entry(large, u8::MAX)), large), u8::MAX);
    assert_eq!(Entry::after(Before::Nothing, 77, &p), entry(77, 0));
    assert!(
        entry(large, 5).is_large(&p) && !entry(large, 4).is_large(&p) && !entry(large - 1, 5).is_large(&p)
    );
    assert_eq!(Entry::after_short((entry(0, 3), 9), (9, 77)), entry(77, 0), "no run");
    assert_eq!(Entry::after_short((entry(1, 3), 9), (10, 77)), entry(77, 0), "a gap");
}

#[test]
fn marks_of_huge_tiers_do_not_overflow() {
    let marks = Spill { high_percent: 90, low_percent: 50 };
    let half = u64::MAX / 2;
    assert_eq!(marks.surplus(u64::MAX, u64::MAX), half + 1);
    assert!(marks.is_due(u64::MAX, u64::MAX) && !marks.is_due(u64::MAX, half));
}

#[test]
fn each_bound_belongs_to_its_documented_side() {
    let p = Parameters::PUBLISHED;
    assert_eq!([9, 10].map(|free| Room::of(free, 1000, 10, &p)), [Room::Hardly, Room::Some]);
    let mut reads = ReadFrequency::default();
    reads.read(5);
    assert!(!reads.is_dominated(0, 2), "an empty file is never read-dominated");
    assert_eq!(last_used(1000, 300, 1000, None), 1000, "an atime of this moment");
    let most = |most_percent| Utilisation { most_percent, ..Utilisation::PUBLISHED };
    let check = |utilisation| Parameters { utilisation, ..p }.check().is_ok();
    assert!(check(most(99)) && !check(most(100)));
}
