//! Operations of the YCSB core workloads [Cooper, SOCC 2010]: mix, distribution of the keys, lengths of scans.
//!
//! Constants and formulas are those of YCSB's `CoreWorkload`, `ZipfianGenerator`, `ScrambledZipfianGenerator` and
//! `SkewedLatestGenerator`. Operations depend on the seed alone. Records have numbers from 0; a key is the hash of its
//! number, so neighbours in number are no neighbours in the order of keys.

use terrace_bench::workload::numbers::Picks;

/// Exponent of Zipf's distribution.
const THETA: f64 = 0.99;
/// Items of the scrambled distribution, whatever the number of records.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// Longest scan.
const LONGEST_SCAN: u64 = 100;
/// Terms of ζ that are summed one by one; the formula of Euler and Maclaurin gives the sum of the further terms.
const SUMMED_TERMS: u64 = 1000;

/// An operation on records, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read(u64),
    /// Writes the whole value of a record.
    Update(u64),
    /// Adds the record of the next number.
    Insert(u64),
    /// Reads records in the order of keys.
    Scan {
        first: u64,
        records: u64,
    },
    ReadModifyWrite(u64),
}

/// Distribution of the records of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Zipf's, scattered over all records.
    Scrambled,
    /// Zipf's, the newest record most frequent.
    Latest,
}

/// Kind of the operations beside the reads of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Updates,
    Inserts,
    ReadModifyWrites,
}

/// A core workload.
#[derive(Debug)]
pub(crate) struct Workload {
    /// Its letter.
    pub(crate) name: &'static str,
    /// Operations of a hundred that read or scan.
    reads_percent: u64,
    /// Whether the reads are scans.
    scans: bool,
    beside: Beside,
    keys: Keys,
}

const fn workload(name: &'static str, reads_percent: u64, beside: Beside, keys: Keys) -> Workload {
    Workload { name, reads_percent, scans: false, beside, keys }
}

/// All core workloads in the order that YCSB's page on them recommends: the number of records grows at the end.
pub(crate) const WORKLOADS: [Workload; 6] = [
    workload("A", 50, Beside::Updates, Keys::Scrambled),
    workload("B", 95, Beside::Updates, Keys::Scrambled),
    workload("C", 100, Beside::Updates, Keys::Scrambled),
    workload("F", 50, Beside::ReadModifyWrites, Keys::Scrambled),
    workload("D", 95, Beside::Inserts, Keys::Latest),
    Workload { scans: true, ..workload("E", 95, Beside::Inserts, Keys::Scrambled) },
];

impl Workload {
    /// Draws `count` operations on a database with `records` records. A client must do all operations, in their order:
    /// later operations draw the records of earlier inserts.
    pub(crate) fn draw(&self, mut records: u64, count: u64, seed: u64) -> Vec<Operation> {
        let mut picks = Picks::new(seed);
        let inserts =
            if self.beside == Beside::Inserts { count * (100 - self.reads_percent) / 100 } else { 0 };
        let mut chooser = match self.keys {
            // YCSB doubles the expected number of inserts.
            Keys::Scrambled => {
                Chooser::Scrambled { zipf: Zipf::new(SCRAMBLED_ITEMS), items: records + 2 * inserts }
            }
            Keys::Latest => Chooser::Latest(Zipf::new(records)),
        };
        let mut one = || {
            if picks.below(100) < self.reads_percent {
                let first = chooser.record(&mut picks, records);
                return match self.scans {
                    true => Operation::Scan { first, records: 1 + picks.below(LONGEST_SCAN) },
                    false => Operation::Read(first),
                };
            }
            match self.beside {
                Beside::Updates => Operation::Update(chooser.record(&mut picks, records)),
                Beside::ReadModifyWrites => Operation::ReadModifyWrite(chooser.record(&mut picks, records)),
                Beside::Inserts => {
                    records += 1;
                    Operation::Insert(records - 1)
                }
            }
        };
        (0..count).map(|_| one()).collect()
    }
}

/// Draws records.
enum Chooser {
    Scrambled { zipf: Zipf, items: u64 },
    Latest(Zipf),
}

impl Chooser {
    /// A record below `records`, the number of existing records.
    fn record(&mut self, picks: &mut Picks, records: u64) -> u64 {
        match self {
            Chooser::Scrambled { zipf, items } => loop {
                let record = hash(zipf.rank(picks)) % *items;
                if record < records {
                    return record;
                }
            },
            Chooser::Latest(zipf) => {
                zipf.grow(records);
                records - 1 - zipf.rank(picks)
            }
        }
    }
}

/// The key of a record.
pub(crate) fn key(record: u64) -> String {
    format!("user{}", hash(record))
}

/// FNV-1a of the eight bytes of a number, its sign bit taken away as YCSB does.
fn hash(mut number: u64) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    let mut hash = BASIS;
    for _ in 0..8 {
        hash = (hash ^ (number & 0xff)).wrapping_mul(PRIME);
        number >>= 8;
    }
    hash.cast_signed().unsigned_abs()
}

/// ζ(items, θ): the sum of i^-θ for i from 1 to `items`.
fn zeta(items: u64) -> f64 {
    let term = |i: u64| (i as f64).powf(-THETA);
    let summed = items.min(SUMMED_TERMS);
    let sum: f64 = (1..=summed).map(term).sum();
    if items == summed {
        return sum;
    }
    let (from, to) = (summed as f64, items as f64);
    let integral = (to.powf(1.0 - THETA) - from.powf(1.0 - THETA)) / (1.0 - THETA);
    let slope = |x: f64| -THETA * x.powf(-THETA - 1.0);
    sum + integral + (term(items) - term(summed)) / 2.0 + (slope(to) - slope(from)) / 12.0
}

/// Zipf's distribution without a table [Gray, SIGMOD 1994, section 3.2].
struct Zipf {
    items: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(items: u64) -> Zipf {
        let mut zipf = Zipf { items, zeta: zeta(items), eta: 0.0 };
        zipf.set_eta();
        zipf
    }

    fn set_eta(&mut self) {
        let share = (2.0 / self.items as f64).powf(1.0 - THETA);
        self.eta = (1.0 - share) / (1.0 - zeta(2) / self.zeta);
    }

    /// Adds items up to `items`.
    fn grow(&mut self, items: u64) {
        if items > self.items {
            self.zeta += (self.items + 1..=items).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
            self.items = items;
            self.set_eta();
        }
    }

    /// A rank, 0 the most frequent.
    fn rank(&self, picks: &mut Picks) -> u64 {
        let share = (picks.draw() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = share * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * share - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u64).min(self.items - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const RECORDS: u64 = 10_000;
    const COUNT: u64 = 100_000;

    fn of(name: &str) -> Vec<Operation> {
        WORKLOADS.iter().find(|workload| workload.name == name).unwrap().draw(RECORDS, COUNT, 7)
    }

    fn share(operations: &[Operation], of: impl Fn(&Operation) -> bool) -> f64 {
        operations.iter().filter(|operation| of(operation)).count() as f64 / operations.len() as f64
    }

    #[test]
    fn each_workload_has_its_mix() {
        let read = |operation: &Operation| matches!(operation, Operation::Read(_));
        let update = |operation: &Operation| matches!(operation, Operation::Update(_));
        let insert = |operation: &Operation| matches!(operation, Operation::Insert(_));
        let scan = |operation: &Operation| matches!(operation, Operation::Scan { .. });
        let modify = |operation: &Operation| matches!(operation, Operation::ReadModifyWrite(_));
        for (name, reads, updates, inserts, scans, modifies) in [
            ("A", 0.5, 0.5, 0.0, 0.0, 0.0),
            ("B", 0.95, 0.05, 0.0, 0.0, 0.0),
            ("C", 1.0, 0.0, 0.0, 0.0, 0.0),
            ("D", 0.95, 0.0, 0.05, 0.0, 0.0),
            ("E", 0.0, 0.0, 0.05, 0.95, 0.0),
            ("F", 0.5, 0.0, 0.0, 0.0, 0.5),
        ] {
            let all = of(name);
            let found = [share(&all, read), share(&all, update), share(&all, insert), share(&all, scan)];
            for (found, wanted) in found.into_iter().zip([reads, updates, inserts, scans]) {
                assert!((found - wanted).abs() < 0.01, "{name}: {found} instead of {wanted}");
            }
            assert!((share(&all, modify) - modifies).abs() < 0.01, "{name}");
        }
    }

    #[test]
    fn operations_repeat_and_draw_existing_records_only() {
        for workload in &WORKLOADS {
            for records in [1, 10, RECORDS] {
                let all = workload.draw(records, 5000, 3);
                assert_eq!(all, workload.draw(records, 5000, 3), "{}", workload.name);
                let mut there = records;
                for operation in all {
                    let record = match operation {
                        Operation::Insert(record) => {
                            assert_eq!(record, there, "{}", workload.name);
                            there += 1;
                            continue;
                        }
                        Operation::Scan { first, records } => {
                            assert!((1..=LONGEST_SCAN).contains(&records), "{records}");
                            first
                        }
                        Operation::Read(record)
                        | Operation::Update(record)
                        | Operation::ReadModifyWrite(record) => record,
                    };
                    assert!(record < there, "{}: {record} of {there}", workload.name);
                }
            }
        }
    }

    #[test]
    fn lengths_of_scans_are_uniform() {
        let lengths = of("E").into_iter().filter_map(|operation| match operation {
            Operation::Scan { records, .. } => Some(records as f64),
            _ => None,
        });
        let lengths: Vec<f64> = lengths.collect();
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        assert!((mean - 50.5).abs() < 0.5, "{mean}");
    }

    /// The constant of YCSB's ScrambledZipfianGenerator, and a sum term by term.
    #[test]
    fn zeta_equals_the_constant_of_ycsb() {
        assert!((zeta(SCRAMBLED_ITEMS) - 26.469_028_201_783_02).abs() < 1e-6, "{}", zeta(SCRAMBLED_ITEMS));
        let slow: f64 = (1..=50_000u64).map(|i| (i as f64).powf(-THETA)).sum();
        assert!((zeta(50_000) - slow).abs() < 1e-10);
        let mut grown = Zipf::new(40_000);
        grown.grow(50_000);
        assert!((grown.zeta - slow).abs() < 1e-10 && (grown.eta - Zipf::new(50_000).eta).abs() < 1e-12);
    }

    /// Ranks 0 and 1 are drawn with exact shares, further ranks by an approximation.
    #[test]
    fn the_head_has_its_share() {
        for items in [RECORDS, SCRAMBLED_ITEMS] {
            let (zipf, mut picks) = (Zipf::new(items), Picks::new(5));
            let ranks: Vec<u64> = (0..1_000_000).map(|_| zipf.rank(&mut picks)).collect();
            for (head, tolerance) in [(1, 0.001), (2, 0.001), (100, 0.02), (RECORDS, 0.02)] {
                let found = ranks.iter().filter(|rank| **rank < head).count() as f64 / ranks.len() as f64;
                let wanted = zeta(head) / zeta(items);
                assert!((found - wanted).abs() < tolerance, "{head} of {items}: {found}, {wanted}");
            }
        }
    }

    /// In workload C the record of rank 0 is drawn most; in D the newest records are.
    #[test]
    fn hot_records_are_scattered_or_the_latest() {
        let mut found = BTreeMap::<u64, u64>::new();
        for operation in of("C") {
            if let Operation::Read(record) = operation {
                *found.entry(record).or_default() += 1;
            }
        }
        let (hottest, drawn) = found.iter().max_by_key(|(_, drawn)| **drawn).unwrap();
        assert_eq!(*hottest, hash(0) % RECORDS);
        let wanted = COUNT as f64 / zeta(SCRAMBLED_ITEMS);
        assert!((*drawn as f64 / wanted - 1.0).abs() < 0.1, "{drawn}, {wanted}");
        let (mut newest, mut reads, mut there) = (0, 0, RECORDS);
        for operation in of("D") {
            match operation {
                Operation::Insert(_) => there += 1,
                Operation::Read(record) => {
                    reads += 1;
                    newest += u64::from(record >= there - 10);
                }
                _ => {}
            }
        }
        let wanted = zeta(10) / zeta(RECORDS);
        assert!((newest as f64 / reads as f64 - wanted).abs() < 0.02, "{newest} of {reads}, {wanted}");
    }

    /// Values of YCSB's `Utils.fnvhash64`, computed by an independent program.
    #[test]
    fn keys_equal_the_keys_of_ycsb() {
        assert_eq!(key(0), "user6284781860667377211");
        assert_eq!(key(1), "user8517097267634966620");
    }
}
