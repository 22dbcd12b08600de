//! File maps in pools with a cuckoo table of all files (format.md "Cuckoo map").

use crate::checker::Checker;
use crate::code::Code;
use crate::cuckoo_table::{CuckooTable, Found, entries_of};
use crate::inode_record::InodeRecord;
use crate::report::percent;
use std::rc::Rc;
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Buckets, Entry, is_free};

/// Reads the table, once, and reports entries that cannot be, or lie where they may not.
fn table(checker: &mut Checker<'_>) -> Rc<CuckooTable> {
    if let Some(known) = &checker.cuckoo {
        return Rc::clone(known);
    }
    let buckets = Buckets::new(checker.superblock.hash_key, &checker.geometry);
    let mut entries = Vec::new();
    for line in buckets.lines() {
        let mut bytes = [0; 64];
        if !checker.read(buckets.line(line), &mut bytes) {
            continue;
        }
        for words in entries_of(&bytes).filter(|words| !is_free(words)) {
            let entry = Entry::decode(words).filter(|entry| is_in_pm(checker, entry));
            let Some(entry) = entry else {
                let [word, second] = words;
                checker.report(Code::CuckooEntry, || format!("line {line}: {word:#x} {second:#x}"));
                continue;
            };
            if !buckets.is_home(&entry, line) {
                let pair = buckets.pair(entry.ino, entry.block);
                checker.report(Code::CuckooPlace, || {
                    let Entry { ino, block, .. } = entry;
                    format!("inode {ino}: block {block} in line {line}, its buckets are {pair:?}")
                });
                continue;
            }
            entries.push(Found { entry, line });
        }
    }
    let places = buckets.count() * BUCKET_ENTRIES as u64;
    let second = |found: &&Found| buckets.pair(found.entry.ino, found.entry.block)[1] == found.line;
    let summary = &mut checker.summary.map;
    summary.load_percent = percent(entries.len() as u64, places);
    summary.stash_entries =
        Some(entries.iter().filter(|found| buckets.stash().contains(&found.line)).count() as u64);
    summary.second_bucket_entries = Some(entries.iter().filter(second).count() as u64);
    entries.sort_unstable_by_key(|found| (found.entry.ino, found.entry.block, found.line));
    let table = Rc::new(CuckooTable { entries });
    checker.cuckoo = Some(Rc::clone(&table));
    table
}

/// Whether the whole run of an entry lies in the pool.
fn is_in_pm(checker: &Checker<'_>, entry: &Entry) -> bool {
    checker.in_pool(entry.place.0 - u64::from(entry.before))
        && checker.in_pool(entry.place.0 + u64::from(entry.behind))
}

/// Counts the blocks of a file into its record, and judges their runs.
pub(crate) fn walk_cuckoo(checker: &mut Checker<'_>, record: &mut InodeRecord) {
    let ino = record.ino;
    if record.root != 0 || record.direct.iter().any(|pointer| *pointer != 0) {
        let (root, direct) = (record.root, record.direct);
        checker.report(Code::CuckooSlot, || format!("inode {ino}: root {root:#x}, pointers {direct:x?}"));
    }
    let table = table(checker);
    let mut before: Option<Entry> = None;
    let mut found = table.range(u64::from(ino), (0, u64::MAX)).iter().peekable();
    while let Some(Found { entry, line }) = found.next().copied() {
        let block = entry.block;
        assert_eq!(entry.ino.0, u64::from(ino), "an entry of another file in line {line}");
        if before.is_some_and(|before| before.block == block) {
            checker.report(Code::CuckooTwice, || format!("inode {ino}: block {block}, again in line {line}"));
            continue;
        }
        let behind = found.peek().map(|found| found.entry);
        let is_sound = (entry.before == 0 || before.is_some_and(|before| continues(&before, &entry)))
            && (entry.behind == 0 || behind.is_some_and(|behind| continues(&entry, &behind)));
        if !is_sound {
            checker.report(Code::CuckooRun, || {
                format!("inode {ino}: {entry:?} between {before:?} and {behind:?}")
            });
        }
        before = Some(entry);
        checker.file_block(record, block.0, entry.place.0, entry.unwritten);
    }
    if !record.is_regular() && record.content.mapped > 0 {
        let mode = record.mode;
        checker.report(Code::SlotMap, || format!("inode {ino}: mode {mode:#o}"));
    }
}

/// Whether two entries are neighbours in a run, by both.
fn continues(first: &Entry, second: &Entry) -> bool {
    first.block.0 + 1 == second.block.0
        && first.place.0 + 1 == second.place.0
        && first.unwritten == second.unwritten
        && first.before + 1 == second.before
        && first.behind == second.behind + 1
}

/// The places of a file's blocks in a range: block, PM block, and whether it is unwritten.
pub(crate) fn cuckoo_blocks_in(
    checker: &mut Checker<'_>,
    record: &InodeRecord,
    range: (u64, u64),
) -> Vec<(u64, u64, bool)> {
    let table = table(checker);
    let found = table.range(u64::from(record.ino), range).iter();
    found.map(|Found { entry, .. }| (entry.block.0, entry.place.0, entry.unwritten)).collect()
}

impl Checker<'_> {
    /// Reports entries of the cuckoo table whose inode is not in use.
    pub(crate) fn cuckoo_rest(&mut self) {
        if self.geometry.map_buckets() == 0 {
            return;
        }
        for Found { entry, line } in &table(self).entries {
            if self.find(entry.ino.0).is_none() {
                let (ino, block) = (entry.ino, entry.block);
                self.report(Code::CuckooInode, || format!("inode {ino}: block {block} in line {line}"));
            }
        }
    }
}
