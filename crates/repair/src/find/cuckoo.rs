//! Reads the cuckoo table of all files as it was found.
//!
//! Invariant: only an entry in a bucket of its block, or in the stash, is believed, and of two for a block that which the
//! block table confirms. A bucket confirms the key of an entry, the stash does not.

use super::shared_table::{Doubt, break_all, note};
use crate::state::Round;
use crate::state::maps::Mapped;
use terrace_check::cuckoo_table::entries_of;
use terrace_format::cuckoo_map::{Buckets, Entry, Line, is_free};

/// The entries of a line; `None` when it cannot be read.
pub(crate) fn line_of(round: &Round<'_>, buckets: &Buckets, line: u64) -> Option<Line> {
    let mut bytes = [0; 64];
    if !round.pool.read(buckets.line(line), &mut bytes) {
        return None;
    }
    let mut entries = Line::default();
    entries.iter_mut().zip(entries_of(&bytes)).for_each(|(entry, words)| *entry = words);
    Some(entries)
}

/// Notes the entries of all files.
pub(crate) fn salvage_cuckoo(round: &mut Round<'_>) {
    let buckets = Buckets::new(round.pool.superblock.hash_key, &round.pool.geometry);
    let (mut is_damaged, mut doubts) = (false, Vec::new());
    for number in buckets.lines() {
        let Some(line) = line_of(round, &buckets, number) else {
            is_damaged = true;
            continue;
        };
        for words in line.iter().filter(|words| !is_free(words)) {
            let entry = Entry::decode(*words).filter(|entry| buckets.is_home(entry, number));
            let Some(entry) = entry.filter(|entry| round.pool.in_pool(entry.place.0)) else {
                is_damaged = true;
                continue;
            };
            let key = (entry.ino, entry.block);
            let mapped = Mapped { block: entry.place.0, unwritten: entry.unwritten };
            match Doubt::of(round, key, mapped).filter(|_| buckets.stash().contains(&number)) {
                Some(doubt) => doubts.push(doubt),
                None => note(round, key, mapped),
            }
        }
    }
    for doubt in doubts {
        is_damaged |= doubt.settle(round, true);
    }
    if is_damaged {
        break_all(round);
    }
}
