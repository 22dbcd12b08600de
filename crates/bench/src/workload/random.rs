//! fio's random reads and writes [TPFS 6.2, Ziggurat 4.2]: every thread works on a private file, at
//! Zipf-distributed blocks of the request's size. Files are filled by writes of 2 MiB.

use super::numbers::{Picks, Zipf};
use super::target::FileTarget;
use super::worker::{Sync, Tally, Worker};
use std::io;

/// Blocks drawn before the clock runs; the thread cycles through them.
const DRAWN_BLOCKS: usize = 1 << 16;
/// "The files are initialized with 2 MB writes."
const FILL_BYTES: u64 = 2 << 20;

/// The parameters of a run.
pub struct Plan<'a> {
    pub write: bool,
    pub sync: Sync,
    pub files: u64,
    pub file_bytes: u64,
    pub io_bytes: u64,
    pub theta: f64,
    /// A file of all threads, instead of the private files.
    pub single: Option<&'a str>,
}

fn name(file: u64) -> String {
    format!("random/{file}")
}

/// Makes the files; leaves a file of full size unchanged. `durable`: each write with O_DSYNC.
pub fn populate(target: &dyn FileTarget, files: u64, file_bytes: u64, durable: bool) -> io::Result<()> {
    target.make_directory("random")?;
    let piece = vec![0x6b; FILL_BYTES.min(file_bytes) as usize];
    for number in 0..files {
        let mut file = target.open(&name(number), true)?;
        let mut at = file.size()?;
        while at < file_bytes {
            let bytes = (file_bytes - at).min(piece.len() as u64);
            file.write_at(&piece[..bytes as usize], at, durable)?;
            at += bytes;
        }
        file.sync()?;
    }
    Ok(())
}

/// Reads or writes until the tally ends the run.
pub fn run(
    plan: &Plan<'_>,
    target: &dyn FileTarget,
    worker: Worker,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut picks = Picks::new(seed);
    let blocks = plan.file_bytes.checked_div(plan.io_bytes).unwrap_or(0);
    let places = Zipf::new(blocks, plan.theta)?.draw(&mut picks, DRAWN_BLOCKS);
    let path = plan.single.map_or_else(|| name(worker.index % plan.files.max(1)), ToString::to_string);
    let mut file = if plan.write { target.open(&path, false)? } else { target.open_to_read(&path)? };
    let mut buffer = vec![0xd4; plan.io_bytes as usize];
    for place in places.iter().cycle() {
        let offset = place * plan.io_bytes;
        let more = tally.turn(|tally| {
            if plan.write {
                file.write_at(&buffer, offset, plan.sync == Sync::Flag)?;
                if plan.sync == Sync::Fsync {
                    file.sync()?;
                }
                tally.wrote(plan.io_bytes);
            } else {
                let bytes = file.read_at(&mut buffer, offset)? as u64;
                if bytes != plan.io_bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                tally.read(bytes);
            }
            Ok(())
        })?;
        if !more {
            break;
        }
    }
    Ok(())
}
