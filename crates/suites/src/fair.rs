//! The fairness test: attackers keep the daemon busy with long requests, while a victim writes and syncs 4
//! KiB at a time.
//!
//! Every attacker checks the results of its calls. The victim prints the times of its writes; the script
//! judges.

use crate::content::{Numbers, bytes, difference};
use crate::outcome::{Failure, Outcome};
use crate::system;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// Bytes of one fallocate.
const LONG: u64 = 8 << 30;
/// Blocks that the victim overwrites.
const VICTIM_BLOCKS: u64 = 256;
/// Threads that write at the same time, and the file region of each.
const WRITERS: u64 = 350;
const REGION: u64 = 2 * MIB;
/// Extended attributes that the attacker tries to give a file.
const ATTRIBUTES: u64 = 40_000;
/// The kernel lists at most this many bytes of attribute names (XATTR_LIST_MAX).
const LIST_MAX: usize = 64 << 10;
/// Distance and number of the written blocks in the file that the seek attack walks through.
const SPARSE_STEP: u64 = 2;
const SPARSE_BLOCKS: u64 = 4096;

fn at(path: &Path) -> impl Fn(io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

/// When an attack ends.
struct End {
    clock: SystemClock,
    at_ns: u64,
}

impl End {
    fn after(seconds: u64) -> End {
        let clock = SystemClock::default();
        let at_ns = clock.monotonic_ns() + seconds * 1_000_000_000;
        End { clock, at_ns }
    }
    fn is_over(&self) -> bool {
        self.clock.monotonic_ns() >= self.at_ns
    }
}

fn make(path: &Path) -> Outcome<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
    file.map_err(at(path))
}

/// Allocates 8 GiB with fallocate and frees the space again, repeatedly, whole and from the middle.
fn allocate(dir: &Path, seconds: u64) -> Outcome<String> {
    let (path, end) = (dir.join("long"), End::after(seconds));
    let file = make(&path)?;
    let mut rounds = 0;
    while !end.is_over() {
        system::fallocate(&file, 0, 0, LONG).map_err(at(&path))?;
        let metadata = file.metadata().map_err(at(&path))?;
        let laid_out = std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
        if metadata.len() != LONG || laid_out < LONG {
            return Err(format!("fallocate of {LONG} bytes: size {}, allocated {laid_out}", metadata.len()));
        }
        system::punch(&file, LONG / 4, LONG / 2).map_err(at(&path))?;
        file.set_len(0).map_err(at(&path))?;
        rounds += 1;
    }
    Ok(format!("{rounds} times 8 GiB laid out and cut off"))
}

/// Seeks data and holes in a file of 8 GiB: first all of it is unwritten, then every second block of a part
/// is written.
fn seek(dir: &Path, seconds: u64) -> Outcome<String> {
    let (path, end) = (dir.join("holes"), End::after(seconds));
    let file = make(&path)?;
    system::fallocate(&file, 0, 0, LONG).map_err(at(&path))?;
    for number in 0..SPARSE_BLOCKS {
        let offset = LONG + number * SPARSE_STEP * BLOCK as u64;
        file.write_all_at(&[7; BLOCK], offset).map_err(at(&path))?;
    }
    let last = LONG + (SPARSE_BLOCKS - 1) * SPARSE_STEP * BLOCK as u64;
    let mut calls = 0;
    while !end.is_over() {
        let data = system::seek(&file, 0, libc::SEEK_DATA).map_err(at(&path))?;
        let hole = system::seek(&file, last, libc::SEEK_HOLE).map_err(at(&path))?;
        if (data, hole) != (LONG, last + BLOCK as u64) {
            return Err(format!("SEEK_DATA gave {data} instead of {LONG}, SEEK_HOLE {hole} behind {last}"));
        }
        calls += 2;
    }
    Ok(format!("{calls} looks for data and holes"))
}

/// Gives a file attributes until the file system refuses more, then lists the attributes repeatedly.
fn attributes(dir: &Path, seconds: u64) -> Outcome<String> {
    let (path, end) = (dir.join("attributes"), End::after(seconds));
    let file = make(&path)?;
    let (mut taken, mut bytes) = (0, 0);
    for number in 0..ATTRIBUTES {
        let name = format!("user.{number:x}");
        match system::set_attribute(&file, &name, b"1") {
            Ok(()) => bytes += name.len() + 1,
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => break,
            Err(error) => return Err(at(&path)(error)),
        }
        taken += 1;
        if end.is_over() {
            break;
        }
    }
    let mut lists = 0;
    while !end.is_over() {
        let length = system::list_attributes(&file).map_err(at(&path))?;
        if length != bytes || length > LIST_MAX {
            return Err(format!("listxattr gave {length} bytes of the {bytes} of {taken} names"));
        }
        lists += 1;
    }
    Ok(format!("{taken} attributes with {bytes} bytes of names, {lists} lists"))
}

/// The content of one request of a writer: its number and the round stand at the beginning of each block.
fn stamp(content: &mut [u8], number: u64, round: u64) {
    for block in content.chunks_mut(BLOCK) {
        block[..8].copy_from_slice(&number.to_le_bytes());
        block[8..16].copy_from_slice(&round.to_le_bytes());
    }
}

/// Writes a region in requests of 1 MiB, round after round; then reads it back. Gives the number of requests
/// and of short writes.
fn write_region(file: &File, number: u64, seconds: u64) -> Outcome<(u64, u64)> {
    let failed = |error: io::Error| format!("writer {number}: {error}");
    let end = End::after(seconds);
    let (mut content, mut requests, mut short) = (bytes(number, MIB as usize), 0, 0);
    let pieces = REGION / MIB;
    while !end.is_over() || requests < pieces {
        stamp(&mut content, number, requests);
        let mut done = 0;
        while done < content.len() {
            let offset = number * REGION + requests % pieces * MIB + done as u64;
            let count = file.write_at(&content[done..], offset).map_err(failed)?;
            if count == 0 {
                return Err(format!("writer {number}: a write took nothing"));
            }
            short += u64::from(done + count < content.len());
            done += count;
        }
        requests += 1;
    }
    let mut found = vec![0; MIB as usize];
    for round in requests - pieces..requests {
        file.read_exact_at(&mut found, number * REGION + round % pieces * MIB).map_err(failed)?;
        stamp(&mut content, number, round);
        if let Some(difference) = difference(&found, &content) {
            return Err(format!("writer {number}, round {round}: {difference}"));
        }
    }
    Ok((requests, short))
}

/// Writes 1 MiB at a time from many threads, faster than the lower tier takes the data.
fn write(dir: &Path, seconds: u64) -> Outcome<String> {
    let path = dir.join("many");
    let file = Arc::new(make(&path)?);
    // The file has its full size before the writes: the kernel sends writes that extend a file one by one.
    file.set_len(WRITERS * REGION).map_err(at(&path))?;
    let (tell, told) = channel();
    for number in 0..WRITERS {
        let (file, tell) = (Arc::clone(&file), tell.clone());
        let body = move || {
            let _ = tell.send(write_region(&file, number, seconds));
        };
        spawn("suites", body).map_err(|error| format!("thread: {error}"))?;
    }
    drop(tell);
    let (mut requests, mut short) = (0, 0);
    for of_thread in told {
        let of_thread = of_thread?;
        requests += of_thread.0;
        short += of_thread.1;
    }
    Ok(format!("{requests} writes of 1 MiB from {WRITERS} threads, {short} taken in part"))
}

/// Runs one attack.
pub(crate) fn attack(dir: &Path, kind: &str, seconds: u64) -> Outcome<()> {
    let done = match kind {
        "allocate" => allocate(dir, seconds)?,
        "seek" => seek(dir, seconds)?,
        "attributes" => attributes(dir, seconds)?,
        "write" => write(dir, seconds)?,
        other => return Err(format!("'{other}' is no attack")),
    };
    println!("{kind}: {done}");
    Ok(())
}

/// Overwrites blocks of 4 KiB, each with an fsync, and prints the time of write and fsync together, in
/// microseconds: `pairs COUNT p50 US p99 US longest US`. Reads all blocks back.
pub(crate) fn victim(dir: &Path, seconds: u64) -> Outcome<()> {
    let (path, end) = (dir.join("victim"), End::after(seconds));
    let file = make(&path)?;
    let content = |block: u64, round: u64| bytes(block | round << 20, BLOCK);
    for block in 0..VICTIM_BLOCKS {
        file.write_all_at(&content(block, 0), block * BLOCK as u64).map_err(at(&path))?;
    }
    file.sync_all().map_err(at(&path))?;
    let (mut numbers, mut rounds) = (Numbers::new(11), vec![0; VICTIM_BLOCKS as usize]);
    let mut took_ns = Vec::new();
    while !end.is_over() {
        let block = numbers.below(VICTIM_BLOCKS);
        rounds[block as usize] += 1;
        let bytes = content(block, rounds[block as usize]);
        let begin_ns = end.clock.monotonic_ns();
        file.write_all_at(&bytes, block * BLOCK as u64).map_err(at(&path))?;
        file.sync_all().map_err(at(&path))?;
        took_ns.push(end.clock.monotonic_ns() - begin_ns);
    }
    for (block, round) in (0..).zip(&rounds) {
        let mut found = vec![0; BLOCK];
        file.read_exact_at(&mut found, block * BLOCK as u64).map_err(at(&path))?;
        if let Some(difference) = difference(&found, &content(block, *round)) {
            return Err(format!("block {block} of the victim: {difference}"));
        }
    }
    took_ns.sort_unstable();
    let percentile =
        |percent: usize| took_ns.get((took_ns.len() - 1) * percent / 100).map_or(0, |ns| ns / 1000);
    println!(
        "pairs {} p50 {} p99 {} longest {}",
        took_ns.len(),
        percentile(50),
        percentile(99),
        percentile(100)
    );
    Ok(())
}
