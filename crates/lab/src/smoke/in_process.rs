//! Rows a and b: operations through `Engine`, in this process, on one thread, PM on /dev/shm. hot: a file of 4
//! MiB to overwrite, a second file of 1 MiB to read (streaming stores drop the written lines from the
//! processor's cache), a directory of a hundred entries. cold: random blocks of a file of 2 GiB, files and
//! directories picked at random among a million. A sample is the mean of one batch; batches of the operations
//! take turns. Checkpoints, new map nodes and the release of quarantined blocks happen inside the batches and
//! count; truncation of the appended files and background steps happen between batches and do not count.

use super::args::Args;
use super::report::{Must, Report};
use super::series::Series;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_bench::scratch::Scratch;
use terrace_engine::{Caller, Engine, MountOptions, PoolMedia, SetAttributes, Simulation, Wait, WriteFlags};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_media::PmMedium;
use terrace_media::block::FileDevice;
use terrace_media::pm::{PmCounters, RamPm};

const ROOT: Ino = Ino(1);
const CALLER: Caller = Caller { uid: 0, gid: 0 };
const BLOCK_BYTES: usize = BLOCK_SIZE as usize;
/// Blocks of the file that the hot column overwrites.
const HOT_BLOCKS: u64 = 1024;
/// Batches of each operation in a round. Short batches: a busy machine interrupts only a few.
const BATCHES: usize = 60;

/// A pool mounted in this process.
pub(crate) struct Local {
    pub fs: Arc<Engine>,
    pm: Arc<RamPm>,
}

impl Local {
    /// Mounts a pool whose files no other process uses.
    pub fn mount(scratch: &Scratch, pool: &super::pool::Pool) -> Outcome<Local> {
        let pm = Arc::new(RamPm::open(&pool.pm, false)?);
        let device = FileDevice::open(&pool.tier, true, false)?;
        pm.prepare(terrace_format::PmOffset(0), pm.size());
        let (superblock, _) = terrace_engine::read_superblock(&*pm, true)?;
        let media = PoolMedia { pm: pm.clone(), block: vec![Arc::new(device)] };
        let fs = Engine::mount(media, superblock, MountOptions::default(), scratch.clock.clone())?;
        fs.run_background(1 << 20);
        Ok(Local { fs, pm })
    }

    /// Makes `files` empty files, a thousand to a directory; gives the directories.
    pub fn populate(&self, files: usize) -> Outcome<Vec<Ino>> {
        let mut directories = Vec::new();
        for number in 0..files.div_ceil(1000) {
            let name = format!("d{number}");
            let directory = self.fs.mkdir(ROOT, name.as_bytes(), 0o755, CALLER, Wait::Allowed)?.ino;
            for file in 0..1000.min(files - number * 1000) {
                let name = format!("f{file}");
                let made = self.fs.mknod(directory, name.as_bytes(), 0o644, 0, CALLER, Wait::Allowed)?;
                self.fs.forget(made.ino, 1);
            }
            directories.push(directory);
        }
        Ok(directories)
    }
}

/// Numbers that look random, the same in every run.
struct Picks(u64);

impl Picks {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Overwrite,
    Append,
    CreateUnlink,
    Read,
}

impl Operation {
    const ALL: [Operation; 4] =
        [Operation::Overwrite, Operation::Append, Operation::CreateUnlink, Operation::Read];

    fn name(self) -> &'static str {
        match self {
            Operation::Overwrite => "4 KiB overwrite, data=atomic",
            Operation::Append => "4 KiB append",
            Operation::CreateUnlink => "create + unlink",
            Operation::Read => "4 KiB read",
        }
    }
    fn must_us(self) -> f64 {
        match self {
            Operation::Overwrite | Operation::Append => 0.7,
            Operation::CreateUnlink => 3.0,
            Operation::Read => 0.35,
        }
    }
    /// Transactions of the operation; each should cost one fence.
    fn transactions(self) -> u64 {
        match self {
            Operation::Read => 0,
            Operation::CreateUnlink => 2,
            _ => 1,
        }
    }
    fn batch(self) -> u64 {
        match self {
            Operation::CreateUnlink => 150,
            _ => 500,
        }
    }
}

/// The files and names that the operations of one column use.
struct Subject<'a> {
    local: &'a Local,
    file: Ino,
    blocks: u64,
    read: (Ino, u64),
    directories: Vec<Ino>,
    /// Files to append to, picked at random, each with its end.
    appended: Vec<(Ino, u64)>,
    picks: Picks,
    buffer: Vec<u8>,
    names: u64,
}

impl<'a> Subject<'a> {
    fn new(
        local: &'a Local,
        name: &str,
        blocks: u64,
        directories: Vec<Ino>,
        appended: usize,
    ) -> Outcome<Self> {
        let fs = &local.fs;
        let make = |name: String| -> Outcome<Ino> {
            Ok(fs.mknod(ROOT, name.as_bytes(), 0o644, 0, CALLER, Wait::Allowed)?.ino)
        };
        let chunk = vec![0x5a; 256 * BLOCK_BYTES];
        let fill = |file: Ino, blocks: u64| -> Outcome<Ino> {
            for at in (0..blocks).step_by(256) {
                fs.write(file, at * BLOCK_SIZE, &chunk, WriteFlags::default(), Wait::Allowed)?;
            }
            Ok(file)
        };
        let file = fill(make(format!("{name}-data"))?, blocks)?;
        let read = match blocks > HOT_BLOCKS {
            true => (file, blocks),
            false => (fill(make(format!("{name}-read"))?, 256)?, 256),
        };
        let files: Outcome<Vec<_>> =
            (0..appended).map(|number| Ok((make(format!("{name}-append-{number}"))?, 0))).collect();
        Ok(Subject {
            local,
            file,
            blocks,
            read,
            directories,
            appended: files?,
            picks: Picks(7),
            buffer: vec![0xa5; BLOCK_BYTES],
            names: 0,
        })
    }

    fn once(&mut self, operation: Operation) -> Outcome<()> {
        let fs = &self.local.fs;
        match operation {
            Operation::Overwrite => {
                let at = self.picks.below(self.blocks) * BLOCK_SIZE;
                fs.write(self.file, at, &self.buffer, WriteFlags::default(), Wait::Allowed)?;
            }
            Operation::Append => {
                let index = self.picks.below(self.appended.len() as u64) as usize;
                let (file, end) = &mut self.appended[index];
                fs.write(*file, *end, &self.buffer, WriteFlags::default(), Wait::Allowed)?;
                *end += BLOCK_SIZE;
            }
            Operation::CreateUnlink => {
                let directory = self.directories[self.picks.below(self.directories.len() as u64) as usize];
                self.names += 1;
                let mut name = *b"new-00000000";
                let mut number = self.names;
                for digit in name[4..].iter_mut().rev() {
                    *digit = b'0' + (number % 10) as u8;
                    number /= 10;
                }
                let made = fs.mknod(directory, &name, 0o644, 0, CALLER, Wait::Allowed)?;
                fs.forget(made.ino, 1);
                fs.unlink(directory, &name, Wait::Allowed)?;
            }
            Operation::Read => {
                let at = self.picks.below(self.read.1) * BLOCK_SIZE;
                fs.read(self.read.0, at, &mut self.buffer, Wait::Allowed)?;
            }
        }
        Ok(())
    }

    /// Mean nanoseconds of a batch.
    fn batch(&mut self, scratch: &Scratch, operation: Operation) -> Outcome<f64> {
        let count = operation.batch();
        // Not measured: brings the processor's caches into the state that the operation itself leaves.
        for _ in 0..operation.batch() / 2 {
            self.once(operation)?;
        }
        let begin = scratch.now_ns();
        for _ in 0..count {
            self.once(operation)?;
        }
        let spent = scratch.now_ns() - begin;
        self.tidy(operation)?;
        Ok(spent as f64 / count as f64)
    }

    /// Puts the subject back after a batch.
    fn tidy(&mut self, operation: Operation) -> Outcome<()> {
        let fs = &self.local.fs;
        if operation == Operation::Append {
            let empty = SetAttributes { size: Some(0), ..Default::default() };
            for (file, end) in &mut self.appended {
                if *end > 0 {
                    fs.setattr(*file, &empty, Wait::Allowed)?;
                    *end = 0;
                }
            }
        }
        fs.run_background(1 << 16);
        Ok(())
    }

    fn counters(&self) -> PmCounters {
        self.local.pm.counters()
    }

    /// Fences and lines of single operations: median and mean.
    fn count(&mut self, report: &mut Report, column: &str, operation: Operation) -> Outcome<()> {
        const SAMPLES: usize = 2000;
        let (mut fences, mut lines) = (Series::default(), Series::default());
        let begin = self.counters();
        for _ in 0..SAMPLES {
            let before = self.counters();
            self.once(operation)?;
            let after = self.counters();
            fences.push((after.fences - before.fences) as f64);
            lines.push((after.lines - before.lines) as f64);
        }
        let end = self.counters();
        let mean = |from: u64, to: u64| (to - from) as f64 / SAMPLES as f64;
        let name = format!("{}, {column}", operation.name());
        let must = Must::AtMost(operation.transactions() as f64);
        report.figure('b', format!("{name}: fences"), "", &fences, must);
        report.figure('b', format!("{name}: PM lines"), "", &lines, Must::Nothing);
        report.note(format!(
            "{name}: {:.3} fences and {:.2} lines on average, checkpoints and map nodes included.",
            mean(begin.fences, end.fences),
            mean(begin.lines, end.lines)
        ));
        self.tidy(operation)
    }
}

fn column(
    args: &Args,
    scratch: &Scratch,
    report: &mut Report,
    subject: &mut Subject<'_>,
    column: &str,
) -> Outcome<()> {
    let mut series: [Series; 4] = Default::default();
    for _ in 0..args.rounds * BATCHES {
        for (operation, samples) in Operation::ALL.into_iter().zip(&mut series) {
            if !operation.name().contains(&args.only) {
                continue;
            }
            samples.push(subject.batch(scratch, operation)? / 1000.0);
        }
    }
    for (operation, samples) in Operation::ALL.into_iter().zip(&series) {
        let must = if column == "hot" { Must::AtMost(operation.must_us()) } else { Must::Nothing };
        if args.wants("a") && !samples.is_empty() {
            report.figure('a', format!("{}, {column}", operation.name()), "µs", samples, must);
        }
    }
    if args.wants("b") {
        for operation in Operation::ALL {
            subject.count(report, column, operation)?;
        }
    }
    Ok(())
}

/// Times of the bare PM medium, the floor for the times of the operations.
fn floor(args: &Args, scratch: &Scratch, report: &mut Report, local: &Local) -> Outcome<()> {
    let (mut block, mut record) = (Series::default(), Series::default());
    let path = scratch.memory.join("floor");
    let pm = RamPm::create(&path, 16 << 20)?;
    pm.prepare(terrace_format::PmOffset(0), pm.size());
    let (data, small) = (vec![1; BLOCK_BYTES], [2; 256]);
    let mut picks = Picks(3);
    for _ in 0..args.rounds * BATCHES {
        for (samples, bytes) in [(&mut block, data.as_slice()), (&mut record, small.as_slice())] {
            let begin = scratch.now_ns();
            for _ in 0..2000 {
                let place = terrace_format::PmOffset(picks.below(1024) * BLOCK_SIZE);
                pm.write_streaming(place, bytes)?;
                pm.order();
            }
            samples.push((scratch.now_ns() - begin) as f64 / 2000.0 / 1000.0);
        }
    }
    drop(pm);
    std::fs::remove_file(&path)?;
    report.note(format!("PM of rows a and b: {}.", local.pm.describe()));
    report.figure('a', "floor: 4 KiB streamed, one fence", "µs", &block, Must::Nothing);
    report.figure('a', "floor: 256 B streamed, one fence", "µs", &record, Must::Nothing);
    Ok(())
}

/// Rows a and b.
pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    let cores = terrace_bench::affinity::all()?;
    terrace_bench::affinity::pin_self(&terrace_bench::affinity::last(&cores))?;
    let done = hot(args, scratch, report).and_then(|()| match args.hot_only {
        true => {
            report.skip('a', "the cold column, not asked for");
            Ok(())
        }
        false => cold(args, scratch, report),
    });
    terrace_bench::affinity::pin_self(&cores)?;
    done
}

fn hot(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need(256 << 20, 0)?;
    let pool = super::pool::Pool::make(args, scratch, "hot", 256 << 20, 1 << 30)?;
    let local = Local::mount(scratch, &pool)?;
    if args.only.is_empty() {
        floor(args, scratch, report, &local)?;
    }
    let directories = local.populate(100)?;
    let mut subject = Subject::new(&local, "hot", HOT_BLOCKS, directories, 1)?;
    column(args, scratch, report, &mut subject, "hot")
}

fn cold(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need(4 << 30, 0)?;
    let pool = super::pool::Pool::make(args, scratch, "cold", 4 << 30, 8 << 30)?;
    let local = Local::mount(scratch, &pool)?;
    let directories = local.populate(1_000_000)?;
    let mut subject = Subject::new(&local, "cold", 2 << 18, directories, 1000)?;
    column(args, scratch, report, &mut subject, "cold")
}
