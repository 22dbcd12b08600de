//! Nanoseconds of reads, overwrites and appends of 4 KiB in a large file, through `Engine` in this process, by file map.
//!
//! The pool has PM alone, so each request asks the map. "in order": the file as it was written. "scattered": after each
//! block was overwritten once, in an order that looks random. A figure is the median of the rounds; a round takes each row
//! in turn.

use super::fixture::{CALLER, ROOT, number, prepared_pm};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    Engine, FormatOptions, MountOptions, PolicyKind, PoolMedia, SetAttributes, Simulation, Wait, WriteFlags,
    format, read_superblock,
};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_map::{MAPS, MapRow};
use terrace_runtime::{Clock, SystemClock};

/// Requests of a row in a round, and between two looks at the time.
const REQUESTS: u64 = 20_000;

struct Subject {
    fs: Arc<Engine>,
    file: Ino,
    appended: Ino,
    blocks: u64,
    buffer: Vec<u8>,
    clock: Arc<dyn Clock>,
}

#[derive(Clone, Copy)]
enum Request {
    Read,
    Overwrite,
    Append,
}

/// Rows: name, request, and whether the blocks look random.
const ROWS: [(&str, Request, bool); 5] = [
    ("read, in order", Request::Read, false),
    ("read, random", Request::Read, true),
    ("overwrite, in order", Request::Overwrite, false),
    ("overwrite, random", Request::Overwrite, true),
    ("append", Request::Append, false),
];

impl Subject {
    fn new(map: &MapRow, bytes: u64) -> Outcome<Subject> {
        let media = PoolMedia { pm: prepared_pm(bytes + bytes / 4 + (64 << 20))?, block: Vec::new() };
        let options = FormatOptions {
            map: map.kind,
            label: String::new(),
            uuid: [1; 16],
            hash_key: [2; 16],
            seal_secret: Some([3; 16]),
            policy: PolicyKind::STATIC,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 4096,
            created_ns: 1,
            root: Default::default(),
            devices: Vec::new(),
        };
        format(&media, &options)?;
        let (superblock, _) = read_superblock(&*media.pm, true)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let fs = Engine::mount(media, superblock, MountOptions::default(), Arc::clone(&clock))?;
        fs.run_background(1 << 20);
        let file = fs.mknod(ROOT, b"file", 0o644, 0, CALLER, Wait::Allowed)?.ino;
        let appended = fs.mknod(ROOT, b"appended", 0o644, 0, CALLER, Wait::Allowed)?.ino;
        let chunk = vec![0x5a; 1 << 20];
        for at in (0..bytes).step_by(chunk.len()) {
            fs.write(file, at, &chunk, WriteFlags::default(), Wait::Allowed)?;
        }
        let buffer = vec![0xa5; BLOCK_SIZE as usize];
        Ok(Subject { fs, file, appended, blocks: bytes / BLOCK_SIZE, buffer, clock })
    }

    /// A number that visits each block once, in an order that looks random.
    fn scattered(&self, number: u64) -> u64 {
        // An odd factor: the blocks are a power of two.
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15 | 1) % self.blocks
    }

    fn once(&mut self, request: Request, block: u64) -> Outcome<()> {
        let (fs, at) = (&self.fs, block * BLOCK_SIZE);
        match request {
            Request::Read => {
                fs.read(self.file, at, &mut self.buffer, Wait::Allowed)?;
            }
            Request::Overwrite => {
                fs.write(self.file, at, &self.buffer, WriteFlags::default(), Wait::Allowed)?;
            }
            Request::Append => {
                fs.write(self.appended, at, &self.buffer, WriteFlags::default(), Wait::Allowed)?;
            }
        }
        Ok(())
    }

    /// Nanoseconds of a request, from the `start`-th block of the row's order on.
    fn row(&mut self, request: Request, random: bool, start: u64) -> Outcome<f64> {
        let begin = self.clock.monotonic_ns();
        for number in start..start + REQUESTS {
            let block = match (request, random) {
                (Request::Append, _) => number - start,
                (_, true) => self.scattered(number),
                (_, false) => number % self.blocks,
            };
            self.once(request, block)?;
        }
        let spent = (self.clock.monotonic_ns() - begin) as f64 / REQUESTS as f64;
        if matches!(request, Request::Append) {
            let empty = SetAttributes { size: Some(0), ..Default::default() };
            self.fs.setattr(self.appended, &empty, Wait::Allowed)?;
        }
        self.fs.run_background(1 << 16);
        Ok(spent)
    }

    /// Measures the rows that leave the file in its layout.
    fn rounds(&mut self, title: &str, is_scattered: bool, rounds: u64) -> Outcome<()> {
        let rows =
            ROWS.iter().filter(|(_, request, _)| is_scattered || !matches!(request, Request::Overwrite));
        let mut rows: Vec<_> = rows.map(|row| (row, Vec::new())).collect();
        for round in 0..rounds {
            for ((_, request, random), samples) in &mut rows {
                samples.push(self.row(*request, *random, round * REQUESTS)?);
            }
        }
        for ((name, ..), samples) in &mut rows {
            samples.sort_by(f64::total_cmp);
            println!("{title:<28} {name:<20} {:>8.1} ns", samples[samples.len() / 2]);
        }
        Ok(())
    }
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let only = args.first();
    if only.is_some_and(|only| MAPS.iter().all(|row| row.name != only)) {
        return Err("no such map".into());
    }
    let bytes = number(args, 1, 1024).next_power_of_two() << 20;
    let rounds = number(args, 2, 9);
    for map in MAPS.iter().filter(|row| only.is_none_or(|only| only == row.name)) {
        let mut subject = Subject::new(map, bytes)?;
        subject.rounds(&format!("{}, in order", map.name), false, rounds)?;
        for number in 0..subject.blocks {
            let block = subject.scattered(number);
            subject.once(Request::Overwrite, block)?;
        }
        subject.rounds(&format!("{}, scattered", map.name), true, rounds)?;
    }
    Ok(())
}
