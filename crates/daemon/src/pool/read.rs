//! Reading files of a pool without opening its media.

use std::fs::File;
use std::io::{self};
use std::path::Path;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::superblock::Superblock;
use terrace_format::{BLOCK_SIZE, PmBlock, PmOffset};
use terrace_media::{OpenError, PmMedium};

use super::tier0::Tier0File;

/// Opens a file of a pool to look into it: refuses files whose open would wait or have an effect.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    terrace_media::found::open_to_read(path).map_err(|error| match error {
        OpenError::Io { source, .. } => source,
        OpenError::Unsupported { reason, .. } => io::Error::new(io::ErrorKind::Unsupported, reason),
        other => other.into(),
    })
}

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
