//! Opening files to look into them.

use std::fs::File;
use std::io;
use std::path::Path;
use terrace_media::OpenError;

/// Opens a file of a pool to look into it: refuses files whose open would wait or have an effect.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    terrace_media::found::open_to_read(path).map_err(|error| match error {
        OpenError::Io { source, .. } => source,
        OpenError::Unsupported { reason, .. } => io::Error::new(io::ErrorKind::Unsupported, reason),
        other => other.into(),
    })
}
