//! Writes that wait in DRAM until write-back: the file that a mount shows after a crash.
//!
//! The reference holds the versions (`terrace_reference::Unwritten`); this module reads the pool. A file with
//! waiting writes at the loss of power is read block by block, judged, and taken over as the mount shows it.
//! From then on it is compared exactly, as all files are.

use crate::judges::comparison::Comparison;
use terrace_engine::{Seek, Wait};
use terrace_reference::{BLOCK, Id, Shown};

/// Bytes of a file block.
const B: u64 = BLOCK as u64;

impl Comparison<'_> {
    /// Takes over the file that a mount shows after a crash.
    pub(crate) fn take_over_waiting(&mut self, id: Id) {
        if !self.model.has_waiting_writes(id) {
            return;
        }
        let shown = self.shown(id);
        self.counts.taken_over += 1;
        if let Err(error) = self.model.take_over(id, &shown) {
            panic!("{id:?}: {error}");
        }
    }

    /// Reads a file whole.
    fn shown(&self, id: Id) -> Shown {
        let (fs, ino) = (self.pool.fs(), self.known.ino(id));
        let found = fs.getattr(ino).unwrap_or_else(|error| panic!("getattr {id:?}: {error}"));
        let (size, mtime, ctime) = (found.size, found.mtime_ns, found.ctime_ns);
        let mut shown = Shown { size, mtime, ctime, ..Shown::default() };
        let mut at = 0;
        while at < size {
            let Ok(data) = fs.seek(ino, at, Seek::Data) else { break };
            let hole = fs.seek(ino, data, Seek::Hole).unwrap_or_else(|error| panic!("{id:?}: {error}"));
            assert!(hole > data, "{id:?}: no data from {data} to {hole}");
            for block in data / B..hole.div_ceil(B) {
                let mut bytes = vec![0; BLOCK];
                let read = fs.read(ino, block * B, &mut bytes, Wait::Allowed);
                read.unwrap_or_else(|error| panic!("{id:?}: block {block}: {error}"));
                shown.blocks.insert(block, bytes);
            }
            at = hole;
        }
        shown
    }
}
