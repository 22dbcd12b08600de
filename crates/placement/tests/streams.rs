//! The predictors on access streams recorded by hand from what programs do: mail server, write-ahead log, SQLite,
//! bulk copy, git. Each line of a stream is one request; `S` is fsync, the rest a write at a block, so many blocks.
//! The predictions before each write are compared with the requests that follow it.

use std::collections::HashMap;
use terrace_placement::Home;
use terrace_placement::Parameters;
use terrace_placement::decision::{Room, WriteSeen, write_home};
use terrace_placement::prior::{Score, family};
use terrace_placement::synchronicity::Synchronicity;
use terrace_placement::write_size::{Before, Entry};

const BLOCK: u64 = 4096;

/// A request on a file.
#[derive(Clone, Copy)]
enum Io {
    /// Write: first block, blocks.
    W(u64, u64),
    /// fsync.
    S,
}
use Io::{S, W};

/// Varmail: two appends of 16 KiB, an fsync after each ([TPFS] section 6.3).
const VARMAIL: &[Io] = &[W(0, 4), S, W(4, 4), S, W(8, 4), S, W(12, 4), S];

/// RocksDB's write-ahead log, synchronous: appends of a few hundred bytes into the last block or across its end.
const ROCKSDB_WAL: &[Io] =
    &[W(0, 1), S, W(0, 1), S, W(0, 1), S, W(0, 2), S, W(1, 1), S, W(1, 1), S, W(1, 1), S, W(1, 2), S];

/// SQLite with a rollback journal, the database file: pages here and there, then an fsync.
const SQLITE: &[Io] =
    &[W(0, 1), W(1, 1), S, W(0, 1), W(7, 1), W(90, 1), S, W(0, 1), W(13, 2), S, W(0, 1), W(7, 1), S];

/// A git clone: a pack written in small pieces, never synced.
const GIT_PACK: &[Io] =
    &[W(0, 1), W(1, 2), W(3, 1), W(4, 8), W(12, 2), W(14, 1), W(15, 30), W(45, 4), W(49, 1)];

/// A bulk copy: 128 KiB at a time to the end; some programs fsync then.
fn bulk_copy(blocks: u64, synced: bool) -> Vec<Io> {
    let mut stream: Vec<Io> = (0..blocks / 32).map(|piece| W(piece * 32, 32)).collect();
    if synced {
        stream.push(S);
    }
    stream
}

/// Files of a clone by name: objects, then what is checked out. Each is written in one or two pieces and closed.
fn clone(files: u64) -> Vec<(String, String, Vec<Io>)> {
    let whole = |number: u64| {
        if number.is_multiple_of(3) { vec![W(0, 1), W(1, 2)] } else { vec![W(0, 1 + number % 4)] }
    };
    let objects = (0..files).map(|number| {
        let hash = format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (format!("clone/.git/objects/{}", &hash[..2]), hash[2..].to_string(), whole(number))
    });
    let work = (0..files).map(|number| {
        let kind = ["c", "h", "md", "txt"][number as usize % 4];
        (format!("clone/d{}/e{}", number % 5, number % 40), format!("file-{number}.{kind}"), whole(number))
    });
    objects.chain(work).collect()
}

/// A table of RocksDB made by a compaction: large pieces, one fsync at the end.
fn compaction() -> Vec<Io> {
    let mut stream: Vec<Io> = (0..64).map(|piece| W(piece * 64, 64)).collect();
    stream.push(S);
    stream
}

/// The predictors' state of one file, with exact write entries.
#[derive(Default)]
struct File {
    sync: Synchronicity,
    entries: HashMap<u64, Entry>,
    run: Option<(Entry, u64)>,
}

/// A write with its prediction and its fate.
struct Judged {
    blocks: u64,
    synchronous: bool,
    home: Home,
    synced: bool,
}

impl File {
    fn replay(&mut self, stream: &[Io], p: &Parameters) -> Vec<Judged> {
        let mut judged = Vec::new();
        for (at, io) in stream.iter().enumerate() {
            let W(first, blocks) = *io else {
                self.sync.synced(p);
                continue;
            };
            let before = match (self.entries.get(&first), self.run) {
                (Some(entry), _) => Before::Replaces(*entry),
                (None, Some((run, end))) if end == first => Before::Continues(run),
                _ => Before::Nothing,
            };
            let entry = Entry::after(before, blocks * BLOCK, p);
            let seen = WriteSeen { durable: false, synchronicity: self.sync, entry, room: Room::Some };
            let synced = synced_soon(&stream[at..], p);
            let synchronous = self.sync.is_synchronous();
            judged.push(Judged { blocks, synchronous, home: write_home(&seen, p), synced });
            self.sync.wrote(blocks as u32, p);
            (first..first + blocks).for_each(|block| {
                self.entries.insert(block, entry);
            });
            self.run = Some((entry, first + blocks));
        }
        judged
    }
}

/// Whether an fsync comes before `sync_blocks` more blocks are written.
fn synced_soon(rest: &[Io], p: &Parameters) -> bool {
    let mut blocks = 0;
    for io in rest {
        match io {
            S => return blocks < u64::from(p.sync_blocks),
            W(_, count) => blocks += count,
        }
    }
    false
}

/// The directory history, by directory and family of names: as in the file system, but without limits.
#[derive(Default)]
struct Relatives(HashMap<(String, u32), Score>);

impl Relatives {
    /// The levels of a file, the nearest first.
    fn levels(directory: &str, name: &str) -> Vec<(String, u32)> {
        let mut levels = vec![(directory.to_string(), 1 | family(name.as_bytes()))];
        let mut above = directory;
        while levels.len() < terrace_placement::prior::LEVELS {
            levels.push((above.to_string(), 0));
            let Some(at) = above.rfind('/') else { break };
            above = &above[..at];
        }
        levels
    }

    /// A file is made, written and closed.
    fn file(&mut self, directory: &str, name: &str, stream: &[Io]) -> Vec<Judged> {
        let levels = Self::levels(directory, name);
        let score = |level| self.0.get(level).copied().unwrap_or_default();
        let expected = levels.iter().enumerate().find_map(|(at, level)| score(level).expects(at));
        let mut file = File::default();
        file.sync.expect(expected);
        let judged = file.replay(stream, &Parameters::default());
        let synced = matches!(stream.last(), Some(S)) && file.sync.is_synchronous();
        for level in levels {
            let score = self.0.entry(level).or_default();
            *score = score.told(synced);
        }
        judged
    }
}

fn replay(stream: &[Io]) -> Vec<Judged> {
    File::default().replay(stream, &Parameters::default())
}

fn sum(judged: &[Judged], of: impl Fn(&Judged) -> bool) -> u64 {
    judged.iter().filter(|judged| of(judged)).map(|judged| judged.blocks).sum()
}

#[test]
fn files_synced_at_short_intervals_are_written_to_pm() {
    for (name, stream) in [("varmail", VARMAIL), ("wal", ROCKSDB_WAL), ("sqlite", SQLITE)] {
        let judged = replay(stream);
        assert!(
            judged.iter().all(|write| write.synchronous && write.synced && write.home == Home::Pm),
            "{name}"
        );
    }
}

#[test]
fn a_bulk_copy_goes_below_after_four_megabytes() {
    for synced in [false, true] {
        let judged = replay(&bulk_copy(32_768, synced));
        assert_eq!(sum(&judged, |write| write.home == Home::Pm), 1024, "what it takes to judge");
        assert!(judged.iter().skip(32).all(|write| !write.synchronous && write.home == Home::Block));
    }
    // A copy again over the file: every entry is replaced by one as long, so it is large at once.
    let (mut file, p) = (File::default(), Parameters::default());
    file.replay(&bulk_copy(32_768, true), &p);
    assert_eq!(
        sum(&file.replay(&bulk_copy(32_768, true), &p), |write| write.home == Home::Block),
        32_768 - 4 * 32
    );
}

#[test]
fn tables_of_a_compaction_go_below_and_small_writes_never_do() {
    let judged = replay(&compaction());
    assert_eq!(sum(&judged, |write| write.home == Home::Block), 64 * 64 - 1024);
    let judged = replay(GIT_PACK);
    assert!(judged.iter().all(|write| write.home == Home::Pm && !write.synced));
    // Nor do they when the file is known to be asynchronous.
    let (mut file, p) = (File::default(), Parameters::default());
    file.replay(&bulk_copy(2048, false), &p);
    assert!(file.replay(VARMAIL, &p)[0].home == Home::Pm);
    let after_first_sync = &file.replay(VARMAIL, &p)[0];
    assert!(after_first_sync.synchronous, "one short interval is enough");
}

/// Of a class, the share in percent that was predicted as it.
fn recall(all: &[Judged], class: bool) -> u64 {
    let right = sum(all, |write| write.synced == class && write.synchronous == class);
    right * 100 / sum(all, |write| write.synced == class)
}

#[test]
fn recall_on_a_mix_weighted_by_bytes() {
    // Equal shares of each class: 200 mails and logs, and four copies of 128 MiB. The first four megabytes of
    // each copy cannot be predicted.
    let mut all = Vec::new();
    for _ in 0..200 {
        all.extend([VARMAIL, ROCKSDB_WAL, SQLITE].into_iter().flat_map(replay));
    }
    (0..4).for_each(|_| all.extend(replay(&bulk_copy(32_768, false))));
    assert_eq!((recall(&all, true), recall(&all, false)), (100, 96));
}

#[test]
fn small_files_of_a_clone_are_predicted_by_directory_history() {
    let (mut relatives, mut all, mut alone) = (Relatives::default(), Vec::new(), Vec::new());
    for (turn, (directory, name, stream)) in clone(2000).into_iter().enumerate() {
        all.extend(relatives.file(&directory, &name, &stream));
        alone.extend(replay(&stream));
        // Mails, tables and journals are made meanwhile.
        let turn = turn.to_string();
        for (directory, name, stream) in [
            ("mail", turn.as_str(), VARMAIL),
            ("db", &format!("{turn}.log"), ROCKSDB_WAL),
            ("db", &format!("{turn}.sqlite"), SQLITE),
            ("db", "LOG", &[W(0, 1)]),
        ] {
            all.extend(relatives.file(directory, name, stream));
        }
    }
    assert_eq!(recall(&alone, false), 0, "nothing is known of a file alone");
    assert_eq!((recall(&all, true), recall(&all, false)), (100, 99));
}

#[test]
fn copies_of_four_megabytes_are_predicted_by_directory_history() {
    let mut relatives = Relatives::default();
    let copies =
        (0..50).flat_map(|number| relatives.file("copies", &number.to_string(), &bulk_copy(1000, false)));
    let copies: Vec<Judged> = copies.collect();
    assert_eq!(recall(&copies, false), 98, "all but the first");
    // A database that comes to live there: a file or two go wrong.
    let logs = (0..200).flat_map(|number| relatives.file("copies", &format!("{number}.log"), ROCKSDB_WAL));
    assert_eq!(recall(&logs.collect::<Vec<Judged>>(), true), 99);
}
