//! Serves the null file system until it is unmounted (a process of its own, as the daemon is).

use crate::Outcome;
use std::path::Path;
use terrace_fuse::{NullServer, SessionOptions, start};

pub(crate) fn serve(directory: &Path) -> Outcome<()> {
    terrace_fuse::become_io_flusher();
    let server = NullServer { size_bytes: crate::io_loop::FILE_BYTES };
    let options = SessionOptions::new("null", directory);
    let running = start(server, &options, |_| {})?;
    Ok(running.join()?)
}
