//! Buckets of the cuckoo map of any content: entries are decoded and encoded again, a search for moves ends, and its moves
//! keep every entry in a bucket of its key.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::convert::Infallible;
use terrace_format::Geometry;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Buckets, Entry, Line, MAX_MOVES, find_moves, is_free};
use terrace_format::map_kind::MapKind;

fuzz_target!(|input: &[u8]| {
    let words: Vec<[u64; 2]> = input
        .as_chunks::<16>()
        .0
        .iter()
        .map(|bytes| [&bytes[..8], &bytes[8..]].map(|word| word.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))))
        .collect();
    for entry in words.iter().filter_map(|words| Some((words, Entry::decode(*words)?))) {
        let (words, entry) = entry;
        assert_eq!(entry.encode(), *words);
        assert!(entry.block.0 + u64::from(entry.behind) <= MAX_FILE_BLOCK.0);
    }
    let geometry = Geometry::choose(2 << 20, 16).and_then(|geometry| geometry.with_map(MapKind::Cuckoo));
    let Ok(geometry) = geometry else { unreachable!("the smallest pool") };
    let buckets = Buckets::new([7; 16], &geometry);
    // Decoded entries go to a bucket of theirs, all other words anywhere: so moves are found, and meet damage.
    let mut lines: BTreeMap<u64, Line> = BTreeMap::new();
    for (number, words) in words.iter().enumerate().skip(1) {
        let line = match Entry::decode(*words) {
            Some(entry) => buckets.pair(entry.ino, entry.block)[number % 2],
            None => number as u64 % buckets.count(),
        };
        if let Some(place) = lines.entry(line).or_default().iter_mut().find(|words| is_free(words)) {
            *place = *words;
        }
    }
    let Some(Some(new)) = words.first().map(|words| Entry::decode(*words)) else { return };
    let pair = buckets.pair(new.ino, new.block);
    let count = |lines: &BTreeMap<u64, Line>| lines.values().flatten().filter(|words| !is_free(words)).count();
    let before = count(&lines);
    let mut read = |line| Ok::<_, Infallible>(lines.get(&line).copied().unwrap_or_default());
    let Ok(Some(moves)) = find_moves(&buckets, pair, &mut read) else { return };
    assert!(moves.len() <= MAX_MOVES);
    for step in &moves {
        assert!(step.from.1 < BUCKET_ENTRIES && step.to.1 < BUCKET_ENTRIES);
        let moved = std::mem::take(&mut lines.entry(step.from.0).or_default()[step.from.1]);
        let entry = Entry::decode(moved).expect("an entry moves");
        assert!(buckets.is_home(&entry, step.to.0) && is_free(&lines.entry(step.to.0).or_default()[step.to.1]));
        lines.entry(step.to.0).or_default()[step.to.1] = moved;
    }
    assert_eq!(count(&lines), before, "an entry was lost");
    assert!(pair.iter().any(|line| lines.entry(*line).or_default().iter().any(is_free)), "no place for {new:?}");
});
