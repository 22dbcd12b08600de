//! Data that waits in DRAM until it is written back: what a mount after a crash shows of it, and what of it
//! became durable when.
//!
//! The versions are the reference's (`terrace_reference::Unwritten`); here the pool is read. A file that had
//! anything waiting when power failed is read block by block, judged, and taken over as it is found; from
//! then on it is compared exactly, like all others.

use crate::world::World;
use terrace_engine::{Seek, Wait};
use terrace_reference::{BLOCK, Id, Shown};

const B: u64 = BLOCK as u64;

impl World {
    /// Whether something of a file may be in DRAM alone.
    pub fn waits(&self, id: Id) -> bool {
        self.model.node(id).is_ok_and(|node| node.unwritten.is_some())
    }

    /// Blocks of a file that may have no place yet; st_blocks need not count them.
    pub fn without_place(&self, id: Id) -> u64 {
        let unwritten = self.model.node(id).ok().and_then(|node| node.unwritten.as_ref());
        unwritten.map_or(0, |unwritten| unwritten.without_place())
    }

    /// Of all files.
    pub fn all_without_place(&self) -> u64 {
        let waiting = self.model.nodes().filter_map(|(_, node)| node.unwritten.as_ref());
        waiting.map(|unwritten| unwritten.without_place()).sum()
    }

    /// How far each file has come: what is written until now.
    pub fn written(&self) -> Vec<(Id, u64)> {
        let waiting = self.model.nodes().filter(|(_, node)| node.unwritten.is_some());
        waiting.map(|(id, _)| (id, self.model.waited(id))).collect()
    }

    /// All that was written until then is durable.
    pub fn written_back(&mut self, written: &[(Id, u64)]) {
        written.iter().for_each(|(id, waited)| self.model.written_back(*id, *waited));
    }

    /// Takes over what a crash left of a file.
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
