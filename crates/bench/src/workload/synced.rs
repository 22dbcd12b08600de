//! Flows of operations that end with a sync, and a writer that streams beside them.

use super::numbers::Picks;
use super::target::FileTarget;
use super::worker::{Tally, Worker};
use serde::{Deserialize, Serialize};
use std::io;

/// A flow of synced operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncedFlow {
    /// A file is created, gets 4 KiB, is synced and removed. Each thread has a directory.
    CreateAndRemove,
    /// O_DSYNC writes of `io_bytes` in ascending order over `file_bytes`, repeated. Threads share the range.
    Sequential {
        /// Bytes of a write.
        io_bytes: u64,
        /// Bytes of the range.
        file_bytes: u64,
    },
    /// Overwrites of 4 KiB with fsync at random places of a file of `file_bytes` for each thread. With `streams` the last thread
    /// instead writes a file of the same size by 1 MiB without a sync, repeatedly, and counts as scanning.
    Overwrite {
        /// Size of a file.
        file_bytes: u64,
        /// Whether the last thread streams.
        streams: bool,
    },
}

const BLOCK_BYTES: u64 = 4096;
/// Requests of the writer that streams.
const PIECE_BYTES: usize = 1 << 20;

fn name(number: u64) -> String {
    format!("synced/{number}")
}

/// Makes the files and directories of a flow with so many threads.
pub(crate) fn populate(flow: &SyncedFlow, threads: u64, target: &dyn FileTarget) -> io::Result<()> {
    match flow {
        SyncedFlow::Sequential { .. } => Ok(()),
        SyncedFlow::CreateAndRemove => {
            target.make_directory("created")?;
            (0..threads).try_for_each(|thread| target.make_directory(&format!("created/{thread}")))
        }
        SyncedFlow::Overwrite { file_bytes, .. } => {
            target.make_directory("synced")?;
            let piece = vec![0x2f; PIECE_BYTES];
            for thread in 0..threads {
                let mut file = target.open(&name(thread), true)?;
                let mut at = file.size()?;
                while at < *file_bytes {
                    let length = (file_bytes - at).min(PIECE_BYTES as u64);
                    file.write_at(&piece[..length as usize], at, false)?;
                    at += length;
                }
                file.sync()?;
            }
            Ok(())
        }
    }
}

/// Runs a flow until the tally ends.
pub(crate) fn run(
    flow: &SyncedFlow,
    target: &dyn FileTarget,
    worker: Worker,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    match flow {
        SyncedFlow::CreateAndRemove => create_and_remove(target, worker, tally),
        SyncedFlow::Sequential { io_bytes, file_bytes } => {
            sequential(*io_bytes, *file_bytes, target, worker, tally)
        }
        SyncedFlow::Overwrite { file_bytes, streams: true } if worker.index + 1 == worker.of => {
            stream(*file_bytes, target, worker, tally)
        }
        SyncedFlow::Overwrite { file_bytes, .. } => overwrite(*file_bytes, target, worker, seed, tally),
    }
}

fn create_and_remove(target: &dyn FileTarget, worker: Worker, tally: &mut Tally) -> io::Result<()> {
    let path = format!("created/{}/file", worker.index);
    let content = vec![0x5e; BLOCK_BYTES as usize];
    while tally.turn(|tally| {
        let mut file = target.open(&path, true)?;
        file.write_at(&content, 0, false)?;
        file.sync()?;
        drop(file);
        target.unlink(&path)?;
        tally.wrote(BLOCK_BYTES);
        Ok(())
    })? {}
    Ok(())
}

fn sequential(
    io_bytes: u64,
    file_bytes: u64,
    target: &dyn FileTarget,
    worker: Worker,
    tally: &mut Tally,
) -> io::Result<()> {
    let turns = file_bytes / worker.of / io_bytes.max(1);
    if io_bytes == 0 || turns == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a range without a write"));
    }
    let content = vec![0x6d; io_bytes as usize];
    let mut file = target.open("sequential", true)?;
    let first = turns * worker.index;
    for turn in (0..turns).cycle() {
        let more = tally.turn(|tally| {
            file.write_at(&content, (first + turn) * io_bytes, true)?;
            tally.wrote(io_bytes);
            Ok(())
        })?;
        if !more {
            break;
        }
    }
    Ok(())
}

fn overwrite(
    file_bytes: u64,
    target: &dyn FileTarget,
    worker: Worker,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut picks = Picks::new(seed);
    let content = vec![0x91; BLOCK_BYTES as usize];
    let mut file = target.open(&name(worker.index), false)?;
    let blocks = (file_bytes / BLOCK_BYTES).max(1);
    while tally.turn(|tally| {
        file.write_at(&content, picks.below(blocks) * BLOCK_BYTES, false)?;
        file.sync()?;
        tally.wrote(BLOCK_BYTES);
        Ok(())
    })? {}
    Ok(())
}

/// Writes without a sync until the tally ends; a single pass if the bound is a number of operations.
fn stream(file_bytes: u64, target: &dyn FileTarget, worker: Worker, tally: &mut Tally) -> io::Result<()> {
    let content = vec![0x33; PIECE_BYTES];
    let mut file = target.open(&name(worker.index), false)?;
    loop {
        for piece in 0..(file_bytes / PIECE_BYTES as u64).max(1) {
            if tally.is_over() {
                return Ok(());
            }
            file.write_at(&content, piece * PIECE_BYTES as u64, false)?;
            tally.scanned(PIECE_BYTES as u64);
        }
        if tally.is_bounded() {
            return Ok(());
        }
    }
}
