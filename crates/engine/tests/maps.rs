//! The same random operations through all file maps: writes, reads, truncations, holes, preallocation, demotion, promotion,
//! requested movements, background work and mounts. After each operation the answers are compared, with those of the first
//! map: bytes, numbers, errors, holes, sizes, and st_blocks once removals have ended.
//!
//! 100,000 operations; `TERRACE_MAP_OPERATIONS=n` takes another number, `TERRACE_SEED=n` other histories. A failure names the
//! history and the operation; `TERRACE_HISTORY=n` repeats this history alone.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use terrace_engine::{
    Allocate, Engine, FormatOptions, FsResult, MAPS, MountOptions, MoveRequest, Movements, PolicyKind, Seek,
    SetAttributes, Simulation, Wait, WriteFlags,
};
use terrace_format::Ino;
use terrace_format::address::MAX_FILE_SIZE;
use terrace_format::map_kind::MapKind;
use terrace_testkit::{ROOT, SimulatedPool, create, format_options, map_under_test};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;
/// Files of a history.
const FILES: usize = 6;
/// Blocks of the part of a file in which a history works.
const PART_BLOCKS: u64 = 200;
/// Operations of a history.
const OPERATIONS: u64 = 2500;

/// An operation on all pools.
#[derive(Debug, Clone, Copy)]
enum Act {
    Write { file: usize, at: u64, length: usize, byte: u8, sync: bool },
    Read { file: usize, at: u64, length: usize },
    Resize { file: usize, size: u64 },
    Allocate { file: usize, at: u64, length: u64, mode: Allocate },
    Seek { file: usize, at: u64, is_data: bool },
    Fsync { file: usize },
    Remake { file: usize },
    Demote,
    Move { file: usize, to: u8 },
    Background { steps: usize },
    Settle,
    Remount,
}

/// A file as programs see it: size, st_blocks, and its data: from, to, and the bytes.
#[derive(Debug, PartialEq, Eq)]
struct File {
    size: u64,
    blocks: u64,
    data: Vec<(u64, u64, Vec<u8>)>,
}

/// The answer of a pool.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    Files(Vec<File>),
    Error(i32),
}

/// A pool with one of the maps.
struct Side {
    name: &'static str,
    pool: SimulatedPool,
    options: MountOptions,
    fs: Option<Arc<Engine>>,
    files: Vec<Ino>,
    made: usize,
}

impl Side {
    fn new(name: &'static str, map: MapKind, options: &MountOptions) -> Side {
        let pool = SimulatedPool::formatted(2 << 20, 4096, &FormatOptions { map, ..format_options(1) });
        let fs = pool.mount_with(options.clone());
        let mut side =
            Side { name, pool, options: options.clone(), fs: Some(fs), files: Vec::new(), made: 0 };
        (0..FILES).for_each(|_| {
            let ino = side.make();
            side.files.push(ino);
        });
        side
    }

    fn fs(&self) -> &Arc<Engine> {
        self.fs.as_ref().unwrap()
    }

    fn make(&mut self) -> Ino {
        self.made += 1;
        create(self.fs(), ROOT, &format!("f{}", self.made))
    }

    fn act(&mut self, act: Act) -> Answer {
        self.try_act(act).unwrap_or_else(|error| Answer::Error(error.errno()))
    }

    fn try_act(&mut self, act: Act) -> FsResult<Answer> {
        let fs = Arc::clone(self.fs());
        let ino = |file: usize| self.files[file];
        match act {
            Act::Write { file, at, length, byte, sync } => {
                let data: Vec<u8> = (0..length).map(|index| byte ^ (index / 512) as u8).collect();
                let flags = WriteFlags { sync, ..WriteFlags::default() };
                return Ok(Answer::Number(fs.write(ino(file), at, &data, flags, W)? as u64));
            }
            Act::Read { file, at, length } => return Ok(Answer::Bytes(read(&fs, ino(file), at, length)?)),
            Act::Resize { file, size } => {
                fs.setattr(ino(file), &SetAttributes { size: Some(size), ..SetAttributes::default() }, W)?;
            }
            Act::Allocate { file, at, length, mode } => fs.fallocate(ino(file), at, length, mode, W)?,
            Act::Seek { file, at, is_data } => {
                let wanted = if is_data { Seek::Data } else { Seek::Hole };
                return Ok(Answer::Number(fs.seek(ino(file), at, wanted)?));
            }
            Act::Fsync { file } => fs.fsync(ino(file), false, W)?,
            Act::Remake { file } => {
                let (old, name) = (ino(file), format!("f{}", self.name_of(file)));
                fs.unlink(ROOT, name.as_bytes(), W)?;
                fs.forget(old, 1);
                self.files[file] = self.make();
                self.files.swap(file, FILES - 1);
            }
            Act::Demote => _ = fs.sync_to(1, &mut |_| {})?,
            Act::Move { file, to } => {
                fs.request_move(ino(file), MoveRequest::Migrate { to })?;
                fs.run_background(200);
            }
            Act::Background { steps } => {
                self.pool.clock.advance(Duration::from_secs(7));
                fs.run_background(steps);
            }
            Act::Settle => {
                fs.run_background(10_000);
                return Ok(Answer::Files(
                    self.files.iter().map(|ino| shown(&fs, *ino)).collect::<FsResult<_>>()?,
                ));
            }
            Act::Remount => {
                drop(fs);
                let fs = self.fs.take().unwrap();
                fs.unmount()?;
                drop(fs);
                self.fs = Some(self.pool.mount_with(self.options.clone()));
            }
        }
        Ok(Answer::Done)
    }

    /// The number in the name of a file.
    fn name_of(&self, file: usize) -> usize {
        let find = |number: &usize| {
            let found = self.fs().lookup(ROOT, format!("f{number}").as_bytes());
            found.is_ok_and(|found| {
                self.fs().forget(found.ino, 1);
                found.ino == self.files[file]
            })
        };
        (1..=self.made).rev().find(find).unwrap()
    }
}

fn read(fs: &Engine, ino: Ino, at: u64, length: usize) -> FsResult<Vec<u8>> {
    let mut bytes = vec![0xee; length];
    let count = fs.read(ino, at, &mut bytes, W)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn shown(fs: &Engine, ino: Ino) -> FsResult<File> {
    let found = fs.getattr(ino)?;
    let (mut at, mut data) = (0, Vec::new());
    while at < found.size {
        let Ok(from) = fs.seek(ino, at, Seek::Data) else { break };
        at = fs.seek(ino, from, Seek::Hole)?;
        data.push((from, at, read(fs, ino, from, (at - from) as usize)?));
    }
    Ok(File { size: found.size, blocks: found.blocks, data })
}

/// A number from a variable.
fn variable<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// The begin of the part of a file: block 0, or an offset at which a tree has all its levels.
fn begin(random: &mut SmallRng, file: usize) -> u64 {
    let places = [0, 0, 0, 1 << 21, 1 << 30, 1 << 42, MAX_FILE_SIZE - PART_BLOCKS * BLOCK / 2];
    let place = if file < 3 { 0 } else { random.random_range(0..places.len()) };
    places[place]
}

fn choose(random: &mut SmallRng) -> Act {
    let file = random.random_range(0..FILES);
    let begin = begin(random, file);
    let block = random.random_range(0..PART_BLOCKS) * BLOCK;
    let at = begin + block + if random.random_bool(0.5) { 0 } else { random.random_range(0..BLOCK) };
    let length = match random.random_range(0..4) {
        0 => BLOCK as usize,
        1 => random.random_range(1..600),
        2 => random.random_range(1..20_000),
        _ => random.random_range(1..90_000),
    };
    let byte = random.random();
    match random.random_range(0..100) {
        0..30 => Act::Write { file, at, length, byte, sync: random.random_bool(0.1) },
        30..58 => Act::Read { file, at, length },
        58..64 => Act::Resize { file, size: at },
        64..70 => Act::Allocate { file, at, length: length as u64, mode: Allocate::PunchHole },
        70..73 => Act::Allocate { file, at, length: length as u64, mode: Allocate::KeepSize },
        73..75 => Act::Allocate { file, at, length: length as u64, mode: Allocate::Extend },
        75..85 => Act::Seek { file, at, is_data: random.random() },
        85..88 => Act::Fsync { file },
        88..90 => Act::Remake { file },
        90 => Act::Demote,
        91..94 => Act::Move { file, to: random.random_range(0..2) },
        94..97 => Act::Background { steps: random.random_range(1..40) },
        97..99 => Act::Settle,
        _ => Act::Remount,
    }
}

/// Runs a history; gives the number of bytes that were read, and the most bytes that lay below PM after a demotion.
fn history(number: u64, operations: u64) -> (u64, u64) {
    let mut random = SmallRng::seed_from_u64(number);
    let policy = [PolicyKind::STATIC, PolicyKind::PREDICTIVE, PolicyKind::ANTICACHE][number as usize % 3];
    let options = MountOptions {
        policy: Some(policy),
        threshold_percent: (policy == PolicyKind::ANTICACHE).then_some(40),
        ..MountOptions::default()
    };
    let mut sides: Vec<Side> = MAPS.iter().map(|row| Side::new(row.name, row.kind, &options)).collect();
    let (mut bytes, mut below) = (0, 0);
    for step in 0..operations {
        let act = if step + 1 == operations { Act::Settle } else { choose(&mut random) };
        let mut answers = sides.iter_mut().map(|side| (side.name, side.act(act)));
        let (first, expected) = answers.next().unwrap();
        for (name, found) in answers {
            assert!(
                found == expected,
                "TERRACE_HISTORY={number}: {name} differs from {first} in operation {step}, {act:?}: {}",
                difference(&expected, &found)
            );
        }
        match expected {
            Answer::Bytes(found) => bytes += found.len() as u64,
            Answer::Error(errno) => {
                assert!(
                    matches!(errno, libc::ENXIO | libc::EFBIG),
                    "{act:?} gives {errno} in history {number}"
                );
            }
            _ => {}
        }
        if matches!(act, Act::Demote) {
            let files = sides[0].files.iter().map(|ino| sides[0].fs().whereabouts(*ino).unwrap());
            below = below.max(files.map(|found| found.tiers[1].1).sum());
        }
    }
    for side in &sides {
        side.fs().unmount().unwrap();
        side.pool.assert_clean();
    }
    (bytes, below)
}

/// The first difference in a few words.
fn difference(expected: &Answer, found: &Answer) -> String {
    match (expected, found) {
        (Answer::Bytes(expected), Answer::Bytes(found)) => {
            let at = expected.iter().zip(found).position(|(expected, found)| expected != found);
            format!("{} and {} bytes, the first difference at {at:?}", expected.len(), found.len())
        }
        (Answer::Files(expected), Answer::Files(found)) => {
            let places = |file: &File| {
                let data: Vec<(u64, u64)> = file.data.iter().map(|(from, to, _)| (*from, *to)).collect();
                (file.size, file.blocks, data)
            };
            let differs = expected.iter().zip(found).find(|(expected, found)| expected != found);
            format!("{:?}", differs.map(|(expected, found)| (places(expected), places(found))))
        }
        (expected, found) => format!("{expected:?}, then {found:?}").chars().take(300).collect(),
    }
}

/// All maps behind one contract: a program cannot tell them apart.
#[test]
fn all_maps_give_the_same_answers() {
    if map_under_test() != MapKind::default() {
        return; // all maps are in already
    }
    if let Some(number) = variable("TERRACE_HISTORY") {
        history(number, OPERATIONS);
        return;
    }
    let (seed, operations) = (variable("TERRACE_SEED").unwrap_or(0), variable("TERRACE_MAP_OPERATIONS"));
    let histories = operations.unwrap_or(100_000_u64).div_ceil(OPERATIONS);
    let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= histories {
                        break;
                    }
                    let (read, below) = history(seed * 1_000_000 + number, OPERATIONS);
                    bytes.fetch_add(read, Ordering::Relaxed);
                    assert!(below > 512 << 10, "{below} bytes were demoted in history {number}");
                }
            });
        }
    });
    let read = bytes.load(Ordering::Relaxed);
    println!("{} operations through {} maps, {read} bytes read", histories * OPERATIONS, MAPS.len());
    assert!(read > histories * OPERATIONS * 100, "{read} bytes were read");
}

/// Status tells the load of each map, and the figures that the map has: distances and reach, or stash and moves.
#[test]
fn status_tells_the_load_of_each_map() {
    for row in MAPS {
        let mut side = Side::new(row.name, row.kind, &MountOptions::default());
        let ino = side.make();
        let fs = side.fs();
        // A cuckoo table of these makes room by moves.
        for block in 0..440 {
            if fs.write(ino, block * 7 * BLOCK, &[1; BLOCK as usize], WriteFlags::default(), W).is_err() {
                break;
            }
        }
        let table = fs.status().unwrap().table;
        let (is_cuckoo, has_reach) = (row.kind == MapKind::Cuckoo, row.kind.has_reach());
        // A clustered table has a line for two or three of these blocks.
        let least = if row.kind == MapKind::Clustered { 15.0 } else { 50.0 };
        assert!((least..=100.0).contains(&table.load_percent), "{}: {table:?}", row.name);
        let distances = [table.longest_distance, table.reach, table.far_searches];
        assert_eq!(distances.map(|figure| figure.is_some()), [has_reach; 3], "{}: {table:?}", row.name);
        assert!(!has_reach || table.longest_distance > Some(0), "{}: {table:?}", row.name);
        assert!(!has_reach || table.longest_distance < table.reach, "{}: {table:?}", row.name);
        let (stash, moves) = (table.stash_entries, table.moves);
        assert_eq!((stash.is_some(), moves.is_some()), (is_cuckoo, is_cuckoo), "{table:?}");
        assert!(!is_cuckoo || stash <= Some(2) && moves >= Some(1), "{table:?}");
        fs.unmount().unwrap();
        // Check tells the same load but for the blocks of the mount, and no smaller distance.
        let found = side.pool.check().summary.map;
        let difference = table.load_percent - found.load_percent as f64;
        assert!((-1.0..12.0).contains(&difference), "{}: {table:?}, {found:?}", row.name);
        assert!(found.name == row.name && found.longest_distance.is_some() == has_reach, "{found:?}");
        assert_eq!((found.stash_entries, found.reach), (stash, table.reach), "{}", row.name);
    }
}
