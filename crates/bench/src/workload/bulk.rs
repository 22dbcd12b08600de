//! Bulk copies: whole files, written by 1 MiB and never synced; some copies overwrite older files.

use super::numbers::Picks;
use super::target::FileTarget;
use super::worker::{Tally, Worker};
use std::io;

const PIECE_BYTES: usize = 1 << 20;
/// Files of a thread; a copy overwrites or makes a file.
const FILES: u64 = 4;

/// A turn is the copy of a file.
pub fn run(
    file_bytes: u64,
    target: &dyn FileTarget,
    worker: Worker,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut picks = Picks::new(seed);
    let piece = vec![0x11; PIECE_BYTES];
    let mut turn = |tally: &mut Tally| -> io::Result<()> {
        let mut file = target.open(&format!("bulk/{}-{}", worker.index, picks.below(FILES)), true)?;
        file.set_size(0)?;
        let mut at = 0;
        while at < file_bytes {
            let bytes = (file_bytes - at).min(PIECE_BYTES as u64);
            file.write_at(&piece[..bytes as usize], at, false)?;
            at += bytes;
        }
        tally.wrote(file_bytes);
        Ok(())
    };
    while tally.turn(&mut turn)? {}
    Ok(())
}
