//! Checkpoints of a pool, in the file of tier 0 or on the opened medium.

use std::path::Path;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::superblock::Superblock;
use terrace_format::{BLOCK_SIZE, PmBlock, PmOffset};
use terrace_media::PmMedium;

use super::tier0_file::Tier0File;

/// The newest readable checkpoint in the file of tier 0. The log of a journal may have a newer one.
pub fn checkpoint(pool: &Path, superblock: &Superblock) -> Option<Checkpoint> {
    let file = Tier0File::open(pool).ok()?;
    newest_checkpoint(superblock, |bytes, offset| file.read_at(bytes, offset).is_ok())
}

/// As [`checkpoint`], of an opened tier 0.
pub fn checkpoint_of(pm: &dyn PmMedium, superblock: &Superblock) -> Option<Checkpoint> {
    newest_checkpoint(superblock, |bytes, offset| pm.read(PmOffset(offset), bytes).is_ok())
}

fn newest_checkpoint(
    superblock: &Superblock,
    read_at: impl Fn(&mut [u8], u64) -> bool,
) -> Option<Checkpoint> {
    let read = |copy: PmBlock| {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        read_at(&mut bytes, copy.offset().0).then_some(())?;
        Checkpoint::decode(&bytes, &superblock.uuid, superblock.geometry().lane_count).ok()
    };
    CHECKPOINT_COPIES.into_iter().filter_map(read).max_by_key(|checkpoint| checkpoint.sequence)
}
