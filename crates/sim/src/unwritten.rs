//! Writes that wait in DRAM until write-back: the file that a mount shows after a crash, and the progress of
//! their durability.
//!
//! The reference holds the versions (`terrace_reference::Unwritten`); this module reads the pool. A file with
//! waiting writes at the loss of power is read block by block, judged, and taken over as the mount shows it.
//! From then on it is compared exactly, as all files are.

use crate::world::World;
use terrace_engine::{Seek, Wait};
use terrace_reference::{BLOCK, Id, Shown};

const B: u64 = BLOCK as u64;

impl World {
    /// Whether a file may have bytes in DRAM alone.
    pub fn waits(&self, id: Id) -> bool {
        self.model.node(id).is_ok_and(|node| node.unwritten.is_some())
    }

    /// Blocks of a file that may have no location yet; st_blocks need not count them.
    pub fn without_place(&self, id: Id) -> u64 {
        let unwritten = self.model.node(id).ok().and_then(|node| node.unwritten.as_ref());
        unwritten.map_or(0, |unwritten| unwritten.without_place())
    }

    /// The same number for all files together.
    pub fn all_without_place(&self) -> u64 {
        let waiting = self.model.nodes().filter_map(|(_, node)| node.unwritten.as_ref());
        waiting.map(|unwritten| unwritten.without_place()).sum()
    }

    /// The number of waiting changes of each file with waiting writes, at this moment.
    pub fn written(&self) -> Vec<(Id, u64)> {
        let waiting = self.model.nodes().filter(|(_, node)| node.unwritten.is_some());
        waiting.map(|(id, _)| (id, self.model.waited(id))).collect()
    }

    /// Makes the waiting changes up to these numbers durable.
    pub fn written_back(&mut self, written: &[(Id, u64)]) {
        written.iter().for_each(|(id, waited)| self.model.written_back(*id, *waited));
    }

    /// Takes over the file that a mount shows after a crash.
    pub fn take_over_waiting(&mut self, id: Id) {
        if !self.waits(id) {
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
        let (fs, ino) = (self.fs(), self.ino(id));
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
