//! The stall test: while a lower tier does not answer, and readers of cold blocks and a `sync` wait for it,
//! writes and syncs of files in PM go on. The calling script stalls the device and says when.

use crate::content::{Numbers, bytes, difference};
use crate::outcome::{Failure, Outcome};
use crate::system;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// The cold file, written once and demoted.
const COLD_BYTES: u64 = 96 * MIB;
/// The hot file, written after the demotion and again and again.
const HOT_BLOCKS: u64 = 1024;
/// The file that is written through a mapping.
const MAPPED_BLOCKS: usize = 256;
/// Longest time of a write or a sync.
const LIMIT: Duration = Duration::from_secs(1);
/// Between two operations of a measuring thread, so that PM does not fill.
const PAUSE: Duration = Duration::from_millis(1);

fn at(path: &Path) -> impl Fn(io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

fn cold_content(block: u64) -> Vec<u8> {
    bytes(block | 1 << 40, BLOCK)
}

fn hot_content(block: u64, round: u64) -> Vec<u8> {
    bytes(block | round << 20 | 1 << 50, BLOCK)
}

/// Makes the cold file.
pub(crate) fn fill(dir: &Path) -> Outcome<()> {
    let path = dir.join("cold");
    let mut file = File::create(&path).map_err(at(&path))?;
    for chunk in 0..COLD_BYTES / MIB {
        let per_chunk = MIB / BLOCK as u64;
        let content: Vec<u8> =
            (0..per_chunk).flat_map(|block| cold_content(chunk * per_chunk + block)).collect();
        file.write_all(&content).map_err(at(&path))?;
    }
    file.sync_all().map_err(at(&path))
}

/// The longest of one kind of operation.
struct Longest {
    kind: &'static str,
    count: u64,
    longest: Duration,
}

impl Longest {
    fn new(kind: &'static str) -> Longest {
        Longest { kind, count: 0, longest: Duration::ZERO }
    }
    fn time<T>(&mut self, clock: &SystemClock, body: impl FnOnce() -> io::Result<T>) -> Outcome<T> {
        let begin = clock.monotonic_ns();
        let result = body();
        let took = Duration::from_nanos(clock.monotonic_ns() - begin);
        self.count += 1;
        self.longest = self.longest.max(took);
        result.map_err(|error| format!("{}: {error}", self.kind))
    }
}

/// Overwrites blocks of the hot file, each with a sync, and reads some back.
fn overwrite(file: File, end: Arc<AtomicBool>) -> Outcome<Vec<Longest>> {
    let clock = SystemClock::default();
    let mut numbers = Numbers::new(7);
    let (mut write, mut sync, mut read) =
        (Longest::new("write"), Longest::new("fsync"), Longest::new("read"));
    let mut rounds = vec![0; HOT_BLOCKS as usize];
    while !end.load(Ordering::Relaxed) {
        let block = numbers.below(HOT_BLOCKS);
        rounds[block as usize] += 1;
        let content = hot_content(block, rounds[block as usize]);
        write.time(&clock, || file.write_all_at(&content, block * BLOCK as u64))?;
        sync.time(&clock, || file.sync_all())?;
        let other = numbers.below(HOT_BLOCKS);
        let mut found = vec![0; BLOCK];
        read.time(&clock, || file.read_exact_at(&mut found, other * BLOCK as u64))?;
        if let Some(difference) = difference(&found, &hot_content(other, rounds[other as usize])) {
            return Err(format!("hot block {other}: {difference}"));
        }
        clock.sleep(PAUSE);
    }
    for (block, round) in rounds.iter().enumerate() {
        let mut found = vec![0; BLOCK];
        let block = block as u64;
        file.read_exact_at(&mut found, block * BLOCK as u64).map_err(|error| format!("hot: {error}"))?;
        if let Some(difference) = difference(&found, &hot_content(block, *round)) {
            return Err(format!("hot block {block} at the end: {difference}"));
        }
    }
    Ok(vec![write, sync, read])
}

/// Appends unaligned records to a small file, and makes, syncs and removes files.
fn append(dir: &Path, end: Arc<AtomicBool>) -> Outcome<Vec<Longest>> {
    let clock = SystemClock::default();
    let (mut append, mut sync) = (Longest::new("append"), Longest::new("fdatasync"));
    let (mut create, mut unlink) = (Longest::new("create"), Longest::new("unlink"));
    let path = dir.join("log");
    let mut log = OpenOptions::new().append(true).create(true).open(&path).map_err(at(&path))?;
    let mut number = 0u64;
    while !end.load(Ordering::Relaxed) {
        number += 1;
        let content = bytes(number, 1 + (number * 379 % 3000) as usize);
        append.time(&clock, || log.write_all(&content))?;
        sync.time(&clock, || log.sync_data())?;
        if number.is_multiple_of(256) {
            log.set_len(0).map_err(at(&path))?;
        }
        let name = dir.join(format!("small-{number}"));
        create.time(&clock, || {
            let mut file = File::create(&name)?;
            file.write_all(&content)?;
            file.sync_all()
        })?;
        unlink.time(&clock, || fs::remove_file(&name))?;
        clock.sleep(PAUSE);
    }
    Ok(vec![append, sync, create, unlink])
}

/// Writes blocks of a file in PM through a mapping and syncs each block. The kernel sends write-back of
/// mappings and read-ahead of cold files as background requests, and limits their number: stalled read-ahead
/// must not use up the limit and hold the write-back.
fn map(file: File, end: Arc<AtomicBool>) -> Outcome<Vec<Longest>> {
    let clock = SystemClock::default();
    let mut sync = Longest::new("msync");
    let length = MAPPED_BLOCKS * BLOCK;
    let mapping = system::Mapping::new(&file, length, libc::MAP_SHARED).map_err(|error| error.to_string())?;
    let mut round = 0;
    while !end.load(Ordering::Relaxed) {
        round += 1;
        let block = round as usize % MAPPED_BLOCKS;
        mapping.write(block * BLOCK, &hot_content(block as u64, round));
        sync.time(&clock, || mapping.sync())?;
        clock.sleep(PAUSE);
    }
    Ok(vec![sync])
}

fn read_cold(path: &Path, block: u64) -> Outcome<()> {
    let file = File::open(path).map_err(at(path))?;
    let mut found = vec![0; BLOCK];
    file.read_exact_at(&mut found, block * BLOCK as u64).map_err(at(path))?;
    difference(&found, &cold_content(block)).map_or(Ok(()), |d| Err(format!("cold block {block}: {d}")))
}

/// Says a word to the script, and waits for its answer.
fn exchange(word: &str) -> Outcome<()> {
    println!("{word}");
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err(format!("no answer to '{word}'")),
        answer => answer.map(|_| ()).map_err(|error| error.to_string()),
    }
}

/// Runs something in a thread of its own; its result comes from the receiver.
fn begin<T: Send + 'static>(
    body: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<Receiver<Outcome<T>>> {
    let (tell, result) = channel();
    let thread = spawn("suites", move || {
        let _ = tell.send(body());
    });
    thread.map(|_| result).map_err(|error| format!("thread: {error}"))
}

fn result<T>(thread: &Receiver<Outcome<T>>) -> Outcome<T> {
    thread.recv().map_err(|_| "a thread panicked".to_string())?
}

/// A file of `blocks` blocks with the content of round 0.
fn make_hot(dir: &Path, name: &str, blocks: u64) -> Outcome<File> {
    let path = dir.join(name);
    let hot = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let hot = hot.map_err(at(&path))?;
    for block in 0..blocks {
        hot.write_all_at(&hot_content(block, 0), block * BLOCK as u64).map_err(at(&path))?;
    }
    hot.sync_all().map_err(at(&path))?;
    Ok(hot)
}

/// The measurement. Words to the script: `ready` (stall the device now, then answer), `reading` (readers
/// wait; start the sync, then answer), `measured` (end the stall, then answer).
pub(crate) fn run(dir: &Path, seconds: u64, readers: u64) -> Outcome<()> {
    let clock = SystemClock::default();
    let hot = make_hot(dir, "hot", HOT_BLOCKS)?;
    let mapped = make_hot(dir, "mapped", MAPPED_BLOCKS as u64)?;
    let cold = dir.join("cold");
    system::drop_cache(&File::open(&cold).map_err(at(&cold))?).map_err(at(&cold))?;
    exchange("ready")?;
    // Readers are far apart, so no read-ahead serves two readers.
    let distance = COLD_BYTES / BLOCK as u64 / readers.max(1);
    let mut waiting = Vec::new();
    for reader in 0..readers {
        let path = cold.clone();
        waiting.push(begin(move || read_cold(&path, reader * distance + reader % distance))?);
    }
    clock.sleep(Duration::from_millis(500));
    exchange("reading")?;
    let end = Arc::new(AtomicBool::new(false));
    let stop = || Arc::clone(&end);
    let (overwriting, appending, mapping, log_dir) = (stop(), stop(), stop(), dir.to_path_buf());
    let measured = [
        begin(move || overwrite(hot, overwriting))?,
        begin(move || append(&log_dir, appending))?,
        begin(move || map(mapped, mapping))?,
    ];
    clock.sleep(Duration::from_secs(seconds));
    let still_waiting = waiting.iter().filter(|reader| reader.try_recv().is_err()).count();
    end.store(true, Ordering::Relaxed);
    let mut failures = Vec::new();
    for thread in &measured {
        // Longer than every limit of the test: tells a hanging thread from a slow thread.
        match thread.recv_timeout(Duration::from_secs(20)) {
            Ok(Ok(figures)) => {
                for Longest { kind, count, longest } in figures {
                    println!("{kind}: {count}, longest {:.1} ms", longest.as_secs_f64() * 1e3);
                    if longest > LIMIT {
                        failures.push(format!("a {kind} took {:.1} s", longest.as_secs_f64()));
                    }
                    if count == 0 {
                        failures.push(format!("no {kind} was done"));
                    }
                }
            }
            Ok(Err(failure)) => failures.push(failure),
            Err(_) => failures.push("writes to files in PM hang".to_string()),
        }
    }
    println!("{still_waiting} of {readers} readers were waiting");
    if still_waiting as u64 != readers {
        failures
            .push(format!("only {still_waiting} of {readers} readers waited: the device was not stalled"));
    }
    exchange("measured")?;
    for reader in &waiting {
        result(reader)?;
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}
