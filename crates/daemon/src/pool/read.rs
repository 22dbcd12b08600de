//! Reading files of a pool without opening its media.

use std::fs::File;
use std::io::{self};
use std::os::unix::fs::FileExt;
use std::path::Path;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::superblock::Superblock;
use terrace_format::{BLOCK_SIZE, PmBlock};
use terrace_media::OpenError;

/// Opens a file of a pool to look into it: refuses files whose open would wait or have an effect.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    terrace_media::found::open_to_read(path).map_err(|error| match error {
        OpenError::Io { source, .. } => source,
        OpenError::Unsupported { reason, .. } => io::Error::new(io::ErrorKind::Unsupported, reason),
        other => other.into(),
    })
}

/// The newest readable checkpoint.
pub fn checkpoint(pool: &Path, superblock: &Superblock) -> Option<Checkpoint> {
    let file = open_to_read(pool).ok()?;
    let read = |copy: PmBlock| {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        file.read_exact_at(&mut bytes, copy.offset().0).ok()?;
        Checkpoint::decode(&bytes, &superblock.uuid, superblock.geometry().lane_count).ok()
    };
    CHECKPOINT_COPIES.into_iter().filter_map(read).max_by_key(|checkpoint| checkpoint.sequence)
}
