//! Reads the cuckoo table of all files as it was found.
//!
//! Invariant: only an entry in a bucket of its block, or in the stash, is believed, and of two for a block that which the
//! block table confirms.

use crate::state::Round;
use crate::state::maps::{FileMap, Mapped};
use terrace_check::cuckoo_table::entries_of;
use terrace_format::cuckoo_map::{Buckets, Entry, Line, is_free};
use terrace_format::table::Owner;

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
    // Entries of any file may have been in a damaged line.
    let mut is_damaged = false;
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
            note(round, &entry);
        }
    }
    let inodes = &round.inodes;
    let files: Vec<u32> = inodes.slots.keys().chain(inodes.residues.keys()).copied().collect();
    if is_damaged {
        files.into_iter().for_each(|ino| round.maps.entry(ino).or_default().broken = true);
    }
}

fn note(round: &mut Round<'_>, entry: &Entry) {
    let Ok(ino) = u32::try_from(entry.ino.0) else { return };
    let owner = Owner::File { ino: entry.ino, block: entry.block, unwritten: entry.unwritten };
    let is_confirmed = round.owners.owner(entry.place.0) == Some(owner);
    round.owners.see(entry.place.0);
    let map: &mut FileMap = round.maps.entry(ino).or_default();
    let is_first = !map.found.contains_key(&entry.block.0);
    map.broken |= !is_first;
    if is_first || is_confirmed {
        map.found.insert(entry.block.0, Mapped { block: entry.place.0, unwritten: entry.unwritten });
    }
}
