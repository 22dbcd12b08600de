//! Content against the reference: bytes, holes, and targets of symbolic links.

use crate::judges::comparison::Comparison;
use std::ops::Range;
use terrace_engine::{Seek, Wait};
use terrace_reference::{BLOCK, Content, Id, Kind, Stamp};

/// Bytes of a file block.
const B: u64 = BLOCK as u64;

impl Comparison<'_> {
    pub(crate) fn compare_content(&mut self, id: Id) {
        let ino = self.known.ino(id);
        match &self.model.node(id).unwrap().kind {
            Kind::Symlink(target) => {
                let target = target.clone();
                let from = self.pool.now();
                assert_eq!(self.pool.fs().readlink(ino).unwrap(), target, "{id:?}: target");
                let when = Stamp { from, to: self.pool.now() };
                self.model.read_link(id, when).unwrap();
            }
            Kind::Regular(content) => {
                let content = content.clone();
                self.compare_holes(id, &content);
                let end = content.size().div_ceil(B);
                // Reads runs of allocated blocks with their edges; SEEK_DATA and SEEK_HOLE have compared the
                // holes.
                let mut blocks = content.allocated(0, end).peekable();
                while let Some(first) = blocks.next() {
                    let mut last = first;
                    while blocks.next_if(|next| *next == last + 1 && next - first < 64).is_some() {
                        last += 1;
                    }
                    let from = first.saturating_sub(1) * B;
                    self.compare_range(id, from, ((last + 2) * B - from) as usize);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn compare_range(&mut self, id: Id, offset: u64, length: usize) {
        let from = self.pool.now();
        let mut found = vec![0xaa; length];
        let count = match self.pool.fs().read(self.known.ino(id), offset, &mut found, Wait::Allowed) {
            Ok(count) => count,
            // Data lost by a lying device is damage that its checksum shows (C8, I8).
            Err(error) if (self.pool.faulty() || self.pool.may_be_damaged) && error.errno() == libc::EIO => {
                return;
            }
            Err(error) => panic!("{id:?}: read at {offset}: {error}"),
        };
        let mut expected = vec![0xaa; length];
        let when = Stamp { from, to: self.pool.now() };
        assert_eq!(self.model.read(id, offset, &mut expected, when), Ok(count), "{id:?}: read at {offset}");
        if found != expected
            && let Some(torn) = self.torn_words(id, offset, &found[..count], &expected[..count])
        {
            for word in torn {
                self.model.adopt(id, offset + word.start as u64, &found[word]).unwrap();
            }
            return;
        }
        if found != expected {
            let differs = found.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(0);
            let many = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
            panic!(
                "{id:?} (size {}) differs at byte {} (block {}): {:#x}, expected {:#x}; {many} bytes differ",
                self.model.size_of(id),
                offset + differs as u64,
                (offset + differs as u64) / B,
                found[differs],
                expected[differs]
            );
        }
    }

    /// The aligned 8 bytes that differ, if a crash may have left each of them old or new (C16).
    fn torn_words(&self, id: Id, offset: u64, found: &[u8], expected: &[u8]) -> Option<Vec<Range<usize>>> {
        let torn = self.tolerance.torn.as_ref().filter(|torn| torn.id == id)?;
        let (mut old, mut new) = (vec![0; found.len()], vec![0; found.len()]);
        torn.old.read(offset, &mut old);
        torn.new.as_ref()?.read(offset, &mut new);
        let mut words = Vec::new();
        let mut at = 0;
        while at < found.len() {
            // The range may cut its first and last aligned 8 bytes.
            let end = found.len().min(at + 8 - (offset as usize + at) % 8);
            let word = &found[at..end];
            if word != &expected[at..end] {
                let inside = torn.bytes.start < offset + end as u64 && offset + (at as u64) < torn.bytes.end;
                if !inside || word != &old[at..end] && word != &new[at..end] {
                    return None;
                }
                words.push(at..end);
            }
            at = end;
        }
        Some(words)
    }

    /// Walks the engine's file and the reference's by SEEK_DATA and SEEK_HOLE.
    fn compare_holes(&mut self, id: Id, content: &Content) {
        let (mut at, ino) = (0, self.known.ino(id));
        while at < content.size() {
            let data = self.pool.fs().seek(ino, at, Seek::Data).map_err(|error| error.errno());
            assert_eq!(data, self.model.seek(id, at, terrace_reference::Seek::Data), "{id:?}: data at {at}");
            let Ok(data) = data else { break };
            let hole = self.pool.fs().seek(ino, data, Seek::Hole).map_err(|error| error.errno());
            assert_eq!(
                hole,
                self.model.seek(id, data, terrace_reference::Seek::Hole),
                "{id:?}: hole at {data}"
            );
            at = hole.unwrap_or(u64::MAX);
        }
    }
}
