//! Serves the null file system until it is unmounted (a process of its own, as the daemon is).

use crate::failure::Outcome;
use std::path::Path;
use terrace_fuse::{NullServer, SessionOptions, Transport, start};

/// Size of the file that the null server has.
pub const FILE_BYTES: u64 = 4 << 20;

/// Serves the null file system in a directory until it is unmounted; requests come by `transport`.
///
/// # Errors
/// When it cannot be mounted.
pub fn serve(directory: &Path, transport: Transport) -> Outcome<()> {
    terrace_fuse::become_io_flusher();
    let server = NullServer { size_bytes: FILE_BYTES };
    let options = SessionOptions { transport, ..SessionOptions::new("null", directory) };
    let running = start(server, &options, |_| {})?;
    Ok(running.join()?)
}
