//! The worth of a clean copy, compared with its definition computed in a different way: the moment to give a
//! copy up is the moment with the most reads for the time waited.

use terrace_placement::density::{Class, Density};

const LATENCY_NS: u64 = 80_000;
const TRANSFER_NS: u64 = 8_192;
const BUCKETS: usize = 96;

/// The least age of each bucket: four of the same width in each power of two.
fn begin(bucket: usize) -> f64 {
    let power = 2f64.powi((bucket / 4) as i32);
    power + power / 4.0 * (bucket % 4) as f64
}

fn bucket(age: u64) -> usize {
    (0..BUCKETS).rfind(|at| begin(*at) <= age as f64).unwrap_or(0)
}

/// Blocks that reached an age: `reads` were then read, `ends` ended, and `waiting` still wait.
#[derive(Clone, Copy)]
struct Lives {
    age: u64,
    reads: u32,
    ends: u32,
    waiting: u32,
}

/// Reads and ends for each unit of time, by bucket; `None` where no block ever was.
fn rates(lives: &[Lives]) -> Vec<Option<(f64, f64)>> {
    let of = |at: usize| {
        let (mut spent, mut reads, mut ends) = (0.0, 0.0, 0.0);
        for life in lives {
            let all = f64::from(life.reads + life.ends + life.waiting);
            let last = bucket(life.age);
            if at < last {
                spent += all * (begin(at + 1) - begin(at));
            } else if at == last {
                // A use at the beginning of a bucket takes some time too.
                spent += all * (life.age as f64 - begin(at)).max(0.5);
                reads += f64::from(life.reads);
                ends += f64::from(life.ends);
            }
        }
        (spent > 0.0).then(|| (reads / spent, ends / spent))
    };
    (0..BUCKETS).map(of).collect()
}

/// Reads for the time until the best moment to give up, of a block of this age.
fn index(rates: &[Option<(f64, f64)>], from: usize) -> f64 {
    let until = |stop: usize| {
        let (mut alive, mut reads, mut time) = (1.0, 0.0, 0.0);
        for (at, rate) in rates.iter().enumerate().take(stop).skip(from) {
            let Some((read, end)) = rate else { break };
            let (width, rate) = (begin(at + 1) - begin(at), read + end);
            // The integral of what is still alive over the bucket.
            let area = if rate > 0.0 { alive * (1.0 - (-rate * width).exp()) / rate } else { alive * width };
            time += area;
            reads += area * read;
            alive *= (-rate * width).exp();
        }
        if time > 0.0 { reads / time } else { 0.0 }
    };
    (from + 1..BUCKETS).map(until).fold(0.0, f64::max)
}

fn weight(blocks: u64) -> f64 {
    // Requests of one block, of up to 6, of up to 24, and of more.
    let shared = [(1, 1), (6, 3), (24, 10), (u64::MAX, 160)].into_iter().find(|(most, _)| blocks <= *most);
    (LATENCY_NS / shared.map_or(160, |(_, blocks)| blocks) + TRANSFER_NS) as f64
}

fn taught(class: Class, lives: &[Lives]) -> Density {
    let mut density = Density::new(LATENCY_NS, TRANSFER_NS);
    for life in lives {
        (0..life.reads).for_each(|_| density.used(class, life.age, true));
        (0..life.ends).for_each(|_| density.used(class, life.age, false));
    }
    // Every second waiting block is in the sample.
    let waiting = lives.iter().flat_map(|life| (0..life.waiting / 2).map(|_| (class, life.age)));
    density.learn(waiting, 2.0);
    density
}

fn compare(class: Class, blocks: u64, lives: &[Lives], aging: &str) {
    let (density, rates) = (taught(class, lives), rates(lives));
    for at in 0..BUCKETS {
        let age = begin(at).ceil() as u64;
        let at = bucket(age);
        let expected = index(&rates, at) * weight(blocks) + 1e-6 / begin(at);
        let found = f64::from(density.of(class, age));
        assert!((found - expected).abs() <= 2e-3 * expected, "{aging}, age {age}: {found}, not {expected}");
    }
}

#[test]
fn a_copy_is_worth_the_reads_of_the_best_moment_to_give_up() {
    let lives = |age, reads, ends, waiting| Lives { age, reads, ends, waiting };
    let kinds: [(&str, Vec<Lives>); 7] = [
        ("a loop", vec![lives(1000, 50, 0, 0)]),
        ("locality", vec![lives(3, 40, 0, 0), lives(90, 4, 1, 0), lives(6000, 1, 20, 0)]),
        ("two rounds", vec![lives(20, 9, 2, 0), lives(5000, 30, 1, 4), lives(70_000, 0, 3, 10)]),
        ("ends alone", vec![lives(64, 0, 10, 0), lives(65, 0, 3, 2)]),
        ("waiting alone", vec![lives(300, 0, 0, 8)]),
        ("two uses that are worth waiting for", vec![lives(8, 5, 3, 0), lives(14, 20, 0, 0)]),
        ("reads in the last bucket", vec![lives(1 << 25, 5, 0, 0)]),
    ];
    for (name, lives) in &kinds {
        for blocks in [1, 2, 6, 7, 24, 25, 256] {
            compare(Class::of(true, blocks, Some(64)), blocks, lives, name);
        }
    }
}

#[test]
fn a_copy_of_unknown_class_is_worth_less_with_each_bucket_of_age() {
    let mut density = Density::new(LATENCY_NS, TRANSFER_NS);
    // Uses of a different class do not change the worth of this class.
    density.used(Class::of(true, 9, None), 100, true);
    density.learn(std::iter::empty(), 1.0);
    for at in 0..BUCKETS {
        let age = begin(at).ceil() as u64;
        let expected = 1.0 / begin(bucket(age));
        let found = f64::from(density.of(Class::of(false, 9, None), age));
        assert!((found - expected).abs() <= 1e-6 * expected, "age {age}: {found}");
    }
}

#[test]
fn classes_are_by_kind_of_use_size_and_interval() {
    let all = |blocks, since| [false, true].map(|read| Class::of(read, blocks, since));
    for (same, other) in [(2, 1), (6, 7), (24, 25)] {
        assert_ne!(all(same, None), all(other, None), "{same} and {other} blocks");
    }
    for (a, b) in [(0, 1), (2, 6), (7, 24), (25, 1 << 40)] {
        assert_eq!(all(a, None), all(b, None), "{a} and {b} blocks");
    }
    // Six buckets are an interval; the last has no end.
    let interval = |since: u64| all(1, Some(since));
    let first = |number: usize| begin(6 * number).ceil() as u64;
    for number in 1..11 {
        assert_ne!(interval(first(number) - 1), interval(first(number)), "before interval {number}");
        assert_eq!(interval(first(number)), interval(first(number + 1) - 1), "within interval {number}");
    }
    assert_eq!(interval(first(10)), interval(u64::MAX));
    assert_ne!(all(1, None), interval(0), "no use before is an interval of its own");
}

/// Each call of `learn` forgets a twentieth of the counts. Uses since the last call lose their twentieth
/// after they have counted in full.
#[test]
fn old_uses_count_less_after_each_call_of_learn() {
    let class = Class::of(true, 1, None);
    let mut density = Density::new(LATENCY_NS, TRANSFER_NS);
    (0..1000).for_each(|_| density.used(class, 1, true));
    let mut kept = 1000.0;
    for _ in 0..40 {
        density.learn(std::iter::empty(), 1.0);
        kept *= 0.95;
    }
    (0..1000).for_each(|_| density.used(class, 1, false));
    density.learn(std::iter::empty(), 1.0);
    // All blocks were used at age 1: half a unit of time each, in a bucket of a quarter unit.
    let spent = (kept + 1000.0) * 0.5;
    let expected = kept / spent * weight(1);
    let found = f64::from(density.of(class, 1));
    assert!((found - expected).abs() <= 2e-2 * expected, "{found}, not {expected}");
}
