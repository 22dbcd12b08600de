//! The cuckoo map: buckets, runs and moves of entries.

use crate::modelled_map::{Model, ModelledMap, UUID};
use rand::Rng;
use std::collections::BTreeMap;
use terrace_format::PmOffset;
use terrace_format::cuckoo_map::{Buckets, Entry, RUN_BLOCKS, is_free};
use zerocopy::IntoBytes;

/// The words of all lines.
pub fn lines(maps: &ModelledMap) -> BTreeMap<u64, [[u64; 2]; 4]> {
    let buckets = Buckets::new(UUID, maps.wal.geometry());
    let read = |line| {
        let mut words = [[0u64; 2]; 4];
        maps.pm.read(buckets.line(line), words.as_mut_bytes()).unwrap();
        (line, words)
    };
    buckets.lines().map(read).collect()
}

/// The table holds the entries of a model, each once, where it may lie, and each run is told by all its entries.
pub fn check(maps: &ModelledMap, content: &Model) {
    let buckets = Buckets::new(UUID, maps.wal.geometry());
    let mut entries: BTreeMap<(u64, u64), Entry> = BTreeMap::new();
    for (line, words) in lines(maps) {
        for words in words.into_iter().filter(|words| !is_free(words)) {
            let entry = Entry::decode(words).unwrap_or_else(|| panic!("line {line}: {words:x?}"));
            assert!(buckets.is_home(&entry, line), "line {line}: {entry:?}");
            let twice = entries.insert((entry.ino.0, entry.block.0), entry);
            assert_eq!(twice, None, "line {line}");
        }
    }
    assert!(entries.keys().eq(content.keys()), "{entries:?}\n{content:?}");
    for ((ino, block), entry) in &entries {
        let mapping = content[&(*ino, *block)];
        assert_eq!((entry.place, entry.unwritten), (mapping.block, mapping.unwritten), "{entry:?}");
        let (start, end) = (block - u64::from(entry.before), block + u64::from(entry.behind));
        assert_eq!(start / RUN_BLOCKS, end / RUN_BLOCKS, "{entry:?}");
        for other in start..=end {
            let member = entries.get(&(*ino, other)).unwrap_or_else(|| panic!("block {other} of {entry:?}"));
            let run = (other - u64::from(member.before), other + u64::from(member.behind));
            assert_eq!(run, (start, end), "{member:?} in the run of {entry:?}");
            assert_eq!(member.place.0 + block, entry.place.0 + other, "{member:?} beside {entry:?}");
            assert_eq!(member.unwritten, entry.unwritten, "{member:?} beside {entry:?}");
        }
    }
}

/// The address of a word of the table: of an entry, where it is found soon.
pub fn random_word(maps: &mut ModelledMap) -> PmOffset {
    let buckets = Buckets::new(UUID, maps.wal.geometry());
    let mut word = || {
        let line = maps.rng.random_range(0..buckets.stash().end);
        buckets.line(line).plus(8 * maps.rng.random_range(0..8))
    };
    let words: Vec<PmOffset> = (0..20).map(|_| word()).collect();
    let is_used = |at: &&PmOffset| maps.pm.load_u64(**at).unwrap() != 0;
    *words.iter().find(is_used).unwrap_or(&words[0])
}
