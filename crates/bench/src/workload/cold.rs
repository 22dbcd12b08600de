//! Loads over demoted data: commits beside a scan, small synchronous writes, a file read whole.

use super::target::FileTarget;
use super::worker::{Tally, Worker};
use std::io;

const COMMIT_BYTES: usize = 4096;
/// A log of commits is truncated at this size.
const LOG_BYTES: u64 = 4 << 20;
/// Largest file of the cold data.
const FILE_BYTES: u64 = 64 << 20;
/// Requests of scans and of whole files.
const PIECE_BYTES: usize = 1 << 20;
/// Small writes of a run. Each write goes to a block or file that no earlier run has touched.
pub const TURNS: u64 = 100;
/// Runs for which there are untouched blocks or files.
const RUNS: u64 = 12;
/// "512-byte synchronous append and overwrite".
const SMALL_WRITE_BYTES: usize = 512;
const BLOCK_BYTES: u64 = 4096;

fn fill(target: &dyn FileTarget, path: &str, bytes: u64) -> io::Result<()> {
    let piece = vec![0x3c; PIECE_BYTES];
    let mut file = target.open(path, true)?;
    let mut at = file.size()?;
    while at < bytes {
        let length = (bytes - at).min(PIECE_BYTES as u64);
        file.write_at(&piece[..length as usize], at, false)?;
        at += length;
    }
    file.sync()
}

/// The cold data of [`commits`].
pub(crate) fn populate_scan(target: &dyn FileTarget, cold_bytes: u64) -> io::Result<()> {
    target.make_directory("commits")?;
    target.make_directory("scan")?;
    for file in 0..cold_bytes.div_ceil(FILE_BYTES) {
        fill(target, &format!("scan/{file}"), (cold_bytes - file * FILE_BYTES).min(FILE_BYTES))?;
    }
    Ok(())
}

/// Appends of 4 KiB with fsync, a log for each thread. With `scan` the last thread instead reads all the cold
/// data repeatedly, and counts only bytes.
pub(crate) fn commits(
    cold_bytes: u64,
    scan: bool,
    target: &dyn FileTarget,
    worker: Worker,
    tally: &mut Tally,
) -> io::Result<()> {
    if scan && worker.index + 1 == worker.of {
        return read_again_and_again(cold_bytes, target, tally);
    }
    let path = format!("commits/{}", worker.index);
    let mut file = target.open(&path, true)?;
    file.set_size(0)?;
    let block = vec![0x7a; COMMIT_BYTES];
    let mut at = 0;
    while tally.turn(|tally| {
        file.write_at(&block, at, false)?;
        file.sync()?;
        tally.wrote(COMMIT_BYTES as u64);
        at = (at + COMMIT_BYTES as u64) % LOG_BYTES;
        Ok(())
    })? {}
    Ok(())
}

fn read_again_and_again(cold_bytes: u64, target: &dyn FileTarget, tally: &mut Tally) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    // A load bounded by operations must end, so it scans once.
    let mut passes_left = if tally.is_bounded() { 1 } else { u64::MAX };
    while passes_left > 0 && cold_bytes > 0 {
        passes_left -= 1;
        for number in 0..cold_bytes.div_ceil(FILE_BYTES) {
            let mut file = target.open_to_read(&format!("scan/{number}"))?;
            let mut at = 0;
            loop {
                if tally.is_over() {
                    return Ok(());
                }
                let bytes = file.read_at(&mut buffer, at)? as u64;
                tally.scanned(bytes);
                at += bytes;
                if bytes < PIECE_BYTES as u64 {
                    break;
                }
            }
        }
    }
    Ok(())
}

fn name(cold: bool) -> &'static str {
    if cold { "small/cold" } else { "small/warm" }
}

/// Files for [`small`]: a file to overwrite, or a file to append to for each turn of all runs.
pub(crate) fn populate_small(target: &dyn FileTarget, append: bool, cold: bool) -> io::Result<()> {
    target.make_directory("small")?;
    let name = name(cold);
    if !append {
        return fill(target, name, RUNS * TURNS * BLOCK_BYTES);
    }
    for file in 0..RUNS * TURNS {
        let mut tail = target.open(&format!("{name}-{file}"), true)?;
        if tail.size()? == 0 {
            tail.write_at(&[0x3c; BLOCK_BYTES as usize + SMALL_WRITE_BYTES], 0, false)?;
        }
    }
    Ok(())
}

/// Writes 512 bytes with O_DSYNC, over an untouched block or at the end of an untouched file. `run` is the
/// number of the run.
pub(crate) fn small(
    append: bool,
    cold: bool,
    run: u64,
    target: &dyn FileTarget,
    tally: &mut Tally,
) -> io::Result<()> {
    let name = name(cold);
    let mut file = if append { None } else { Some(target.open(name, false)?) };
    for turn in 0..TURNS {
        let place = ((run % RUNS) * TURNS + turn) % (RUNS * TURNS);
        // Consecutive turns are far apart; 1021 is prime to the number of blocks, so each block is visited.
        let mut offset = place * 1021 % (RUNS * TURNS) * BLOCK_BYTES + SMALL_WRITE_BYTES as u64;
        if append {
            let mut tail = target.open(&format!("{name}-{place}"), false)?;
            offset = tail.size()?;
            file = Some(tail);
        }
        let Some(file) = file.as_mut() else { break };
        let more = tally.turn(|tally| {
            file.write_at(&[0xd7; SMALL_WRITE_BYTES], offset, true)?;
            tally.wrote(SMALL_WRITE_BYTES as u64);
            Ok(())
        })?;
        if !more {
            break;
        }
    }
    Ok(())
}

/// The file of [`whole`].
pub(crate) fn populate_whole(target: &dyn FileTarget, bytes: u64) -> io::Result<()> {
    target.make_directory("whole")?;
    fill(target, "whole/0", bytes)
}

/// Reads or writes a file once from begin to end by 1 MiB; several threads take turns. Writes are synced at
/// the end.
pub(crate) fn whole(
    bytes: u64,
    write: bool,
    target: &dyn FileTarget,
    worker: Worker,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut file = if write { target.open("whole/0", false)? } else { target.open_to_read("whole/0")? };
    let mut buffer = vec![0x91; PIECE_BYTES];
    let step = PIECE_BYTES as u64 * worker.of;
    let mut at = PIECE_BYTES as u64 * worker.index;
    while at < bytes
        && tally.turn(|tally| {
            let wanted = (bytes - at).min(PIECE_BYTES as u64);
            let piece = &mut buffer[..wanted as usize];
            at += step;
            if write {
                file.write_at(piece, at - step, false)?;
                tally.wrote(wanted);
            } else if file.read_at(piece, at - step)? as u64 == wanted {
                tally.read(wanted);
            } else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(())
        })?
    {}
    if write { file.sync() } else { Ok(()) }
}
