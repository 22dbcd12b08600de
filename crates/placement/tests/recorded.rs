//! The predictors of write size and read frequency on requests that were recorded from programs: of filebench's personalities
//! (rows tpfs-12, zig-6) and of a copy, a log beside a scan and random writes (demoted-read, scan, sync-write; `bench paper ROW --record`). What was predicted is compared
//! with the next request for the same file.
//!
//! Lines of tests/recorded/*.txt: inode, operation (M made, O opened, C closed, R read, W written, S fsync, T cut to the offset, U removed),
//! offset, bytes.

use std::collections::HashMap;
use terrace_placement::Parameters;
use terrace_placement::read_frequency::ReadFrequency;
use terrace_placement::write_size::{Before, Entry};

const PERSONALITIES: &str = include_str!("recorded/personalities.txt");
const MIX: &str = include_str!("recorded/mix.txt");
const BLOCK: u64 = 4096;

#[derive(Clone, Copy)]
struct Request {
    ino: u64,
    operation: u8,
    offset: u64,
    bytes: u64,
}

fn requests(text: &str) -> Vec<Request> {
    let parsed = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let ino = words.next()?.parse().ok()?;
        let operation = *words.next()?.as_bytes().first()?;
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Some(Request { ino, operation, offset: number(), bytes: number() })
    });
    let parsed: Vec<Request> = parsed.collect();
    assert_eq!(parsed.len(), text.lines().count());
    parsed
}

/// The predictors' state of a file, with exact write entries.
#[derive(Default)]
struct File {
    size: u64,
    reads: ReadFrequency,
    entries: HashMap<u64, Entry>,
    run: (Entry, u64),
    /// Whether the last write was judged large, and its length.
    large: Option<(bool, u64)>,
}

/// Requests, or bytes, that came to a file after each judgement: as expected, and contrary to it.
#[derive(Default, Debug)]
struct Outcome {
    dominated: (u64, u64),
    /// Read since the last write, but too little to be read-dominated.
    barely: (u64, u64),
    others: (u64, u64),
    /// Bytes of writes after a write judged large: long writes, short writes. `small`: the same after a write
    /// not judged large.
    large: (u64, u64),
    small: (u64, u64),
}

impl File {
    fn note(&mut self, request: Request, outcome: &mut Outcome, p: &Parameters) {
        let Request { operation, offset, bytes, .. } = request;
        if self.size > 0 && matches!(operation, b'R' | b'W' | b'T') {
            let counts = match self.reads.is_dominated(self.size, p.read_times) {
                true => &mut outcome.dominated,
                false if self.reads.is_dominated(self.size, 0) => &mut outcome.barely,
                false => &mut outcome.others,
            };
            if operation == b'R' { counts.0 += 1 } else { counts.1 += 1 }
        }
        match operation {
            b'R' => self.reads.read(bytes.min(self.size.saturating_sub(offset))),
            b'W' => {
                let is_long = bytes >= p.large_min;
                if let Some((judged, _)) = self.large {
                    let sums = if judged { &mut outcome.large } else { &mut outcome.small };
                    if is_long { sums.0 += bytes } else { sums.1 += bytes }
                }
                let first = offset / BLOCK;
                let (appends, inside) = (offset + bytes > self.size, offset < self.size);
                let replaced = || self.entries.get(&first).copied();
                let before = Before::of((first, appends, inside), self.run, replaced);
                let entry = Entry::after(before, bytes, p);
                let end = (offset + bytes).div_ceil(BLOCK);
                (first..end).for_each(|block| _ = self.entries.insert(block, entry));
                self.run = (entry, end);
                self.large = Some((entry.is_large(p), bytes));
                self.size = self.size.max(offset + bytes);
                self.reads.wrote();
            }
            b'T' => {
                self.size = offset;
                self.reads.wrote();
            }
            _ => {}
        }
    }
}

fn replay(text: &str) -> Outcome {
    let (mut files, mut outcome, p) =
        (HashMap::<u64, File>::new(), Outcome::default(), Parameters::default());
    for request in requests(text) {
        if matches!(request.operation, b'M' | b'U') {
            files.remove(&request.ino);
        }
        files.entry(request.ino).or_default().note(request, &mut outcome, &p);
    }
    outcome
}

fn percent((right, wrong): (u64, u64)) -> u64 {
    right * 100 / (right + wrong).max(1)
}

#[test]
fn read_dominated_files_are_read_again() {
    let outcome = replay(PERSONALITIES);
    let (dominated, others) = (outcome.dominated, outcome.others);
    assert!(dominated.0 > 100, "{outcome:?}");
    assert!(percent(dominated) >= 90, "{} % of requests were reads: {outcome:?}", percent(dominated));
    assert!(percent(dominated) > percent(others) + 10, "{outcome:?}");
    let barely = outcome.barely;
    assert!(barely.0 + barely.1 > 20 && percent(barely) < percent(dominated), "{outcome:?}");
}

#[test]
fn long_writes_are_followed_by_long_ones_and_short_ones_by_short_ones() {
    let outcome = replay(MIX);
    assert!(outcome.large.0 > 8 << 20, "{outcome:?}");
    assert!(percent(outcome.large) >= 95, "{outcome:?}");
    // No write of a file with small appends is judged large.
    let outcome = replay(PERSONALITIES);
    assert_eq!(outcome.large.1, 0, "{outcome:?}");
}
