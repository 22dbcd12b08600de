//! Comparing the pool with the reference.

use crate::world::World;
use std::collections::BTreeMap;
use std::ops::Range;
use terrace_engine::{Attributes, Seek, Wait};
use terrace_reference::{BLOCK, Id, Kind, ROOT, Stamp};
use terrace_runtime::Clock;

const B: u64 = BLOCK as u64;

impl World {
    /// Blocks of a file that are allocated and were never written.
    pub fn unwritten_blocks(&mut self, id: Id) -> u64 {
        self.unwritten_in(id, 0, u64::MAX / B)
    }

    /// Unwritten blocks of a file inside a range of blocks.
    pub fn unwritten_in(&mut self, id: Id, first: u64, end: u64) -> u64 {
        let content = self.model.node(id).ok().and_then(|node| node.content());
        content.map_or(0, |content| content.unwritten(first, end))
    }

    /// The engine's attributes of an inode against the reference's.
    #[track_caller]
    pub fn assert_attributes(&mut self, id: Id, found: &Attributes) {
        let expected = self.model.attributes(id).unwrap();
        let (ino, generation) = self.numbers[&id];
        let seen = (found.ino, found.generation, found.mode, found.nlink, found.uid, found.gid, found.rdev);
        let wanted =
            (ino, generation, expected.mode, expected.links, expected.uid, expected.gid, expected.rdev);
        // A directory has its parent's number where other inodes have a device number.
        let is_directory = self.model.node(id).unwrap().is_directory();
        let seen = if is_directory { (seen.0, seen.1, seen.2, seen.3, seen.4, seen.5, 0) } else { seen };
        assert_eq!(seen, wanted, "{id:?}: ino, generation, mode, nlink, uid, gid, rdev");
        assert_eq!(found.size, expected.size, "{id:?}: size");
        // Blocks count until background work has finished the removals of an operation or a crash (C12, C20).
        let fewest = expected.blocks - 8 * self.without_place(id);
        let blocks_fit = (fewest..=expected.blocks).contains(&found.blocks)
            || self.lenient && found.blocks > expected.blocks;
        assert!(blocks_fit, "{id:?}: {} units of st_blocks, expected {}", found.blocks, expected.blocks);
        let times = [
            ("atime", found.atime_ns, expected.atime),
            ("mtime", found.mtime_ns, expected.mtime),
            ("ctime", found.ctime_ns, expected.ctime),
            ("btime", found.btime_ns, expected.btime),
        ];
        for (name, ns, stamp) in times {
            assert!(stamp.allows(ns), "{id:?} {name}: {ns}, expected {stamp:?}");
        }
        if expected.mtime == expected.ctime {
            assert_eq!(found.mtime_ns, found.ctime_ns, "{id:?}: mtime and ctime of one change");
        }
    }

    /// As [`Self::assert_attributes`], with the attributes asked from the engine.
    #[track_caller]
    pub fn compare_attributes(&mut self, id: Id) {
        if self.model.node(id).is_err() {
            return;
        }
        match self.fs().getattr(self.ino(id)) {
            Ok(found) => self.assert_attributes(id, &found),
            Err(error) if self.may_lie_below(&error) => {}
            Err(error) => panic!("getattr {id:?}: {error}"),
        }
    }

    pub fn now(&self) -> i64 {
        self.clock.monotonic_ns() as i64
    }

    /// Compares the whole tree from the root: directories, contents, attributes, xattrs, pins, free space.
    pub fn compare_all(&mut self) {
        let mut order = vec![ROOT];
        let mut at = 0;
        // After a mount the names tell the inode numbers; a number must not change.
        while let Some(id) = order.get(at).copied() {
            at += 1;
            self.compare_directory(id);
            let entries = self.model.node(id).unwrap().entries().cloned().unwrap_or_default();
            let directories = entries.values().filter(|id| self.model.node(**id).unwrap().is_directory());
            order.extend(directories.copied());
        }
        let ids: Vec<Id> = self.model.nodes().map(|(id, _)| id).collect();
        for id in ids {
            if self.settling {
                self.take_over_waiting(id);
            }
            self.compare_attributes(id);
            self.compare_xattrs(id);
            self.compare_content(id);
            self.compare_attributes(id);
        }
        self.compare_pins();
        if self.lenient {
            return;
        }
        let space = self.fs().statfs(Wait::Allowed).unwrap();
        let used = space.blocks - space.free;
        let placed = self.model.allocated_blocks() - self.all_without_place();
        assert!(used >= placed, "statfs: {used} blocks used, st_blocks say more");
        assert!(space.available <= space.free && space.free <= space.blocks);
    }

    fn compare_directory(&mut self, id: Id) {
        let from = self.now();
        let mut found = BTreeMap::new();
        let (ino, parent) = (self.ino(id), self.ino(self.model.parent(id).unwrap()));
        let mut cookies = Vec::new();
        let read = self.fs().readdir(ino, 0, &mut |entry| {
            cookies.push(entry.cookie);
            let old = found.insert(entry.name.clone(), (entry.ino, entry.file_type, entry.cookie));
            assert!(old.is_none(), "{id:?}: {:?} twice", entry.name);
            true
        });
        read.unwrap();
        assert!(cookies.is_sorted_by(|a, b| a < b), "{id:?}: cookies {cookies:?}");
        let dots = [found.remove(&b"."[..]), found.remove(&b".."[..])];
        assert_eq!(
            dots.map(|dot| dot.map(|(ino, kind, _)| (ino, kind))),
            [Some((ino, 4)), Some((parent, 4))]
        );
        let expected = self.model.read_directory(id, Stamp { from, to: self.now() }).unwrap();
        for entry in &expected {
            self.learn(entry.id, found.get(&entry.name).map(|(ino, _, _)| *ino));
        }
        assert_eq!(found.len(), expected.len(), "{id:?}: {:?}, expected {expected:?}", found.keys());
        for entry in expected {
            let (ino, kind, cookie) = found[&entry.name];
            assert_eq!((ino, kind), (self.ino(entry.id), entry.file_type), "{id:?}: {:?}", entry.name);
            self.assert_cookie(id, &entry.name, cookie);
        }
    }

    /// Learns the number of an inode whose creation was under way at a crash.
    fn learn(&mut self, id: Id, ino: Option<terrace_format::Ino>) {
        let Some(ino) = ino.filter(|_| !self.numbers.contains_key(&id)) else { return };
        let found = self.fs().getattr(ino).unwrap();
        let newest = self.generations.insert(ino.0, found.generation);
        // A crash of such a PM loses returned operations: a removal, and the inode that got the number after
        // it.
        let lost = self.config.persist_only;
        assert!(newest < Some(found.generation) || lost, "{ino}: generation {newest:?} again");
        self.numbers.insert(id, (ino, found.generation));
    }

    /// A cookie never changes while the name exists (design C2).
    pub fn assert_cookie(&mut self, id: Id, name: &[u8], cookie: u64) {
        let known = *self.cookies.entry((id, name.to_vec())).or_insert(cookie);
        assert_eq!(known, cookie, "{id:?}: cookie of {name:?} changed");
    }

    fn compare_xattrs(&mut self, id: Id) {
        let node = self.model.node(id).unwrap();
        let expected: Vec<(Vec<u8>, Vec<u8>)> =
            node.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let list = self.fs().listxattr(self.ino(id)).unwrap();
        let mut names: Vec<&[u8]> = list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        let wanted: Vec<&[u8]> = expected.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, wanted, "{id:?}: names of attributes");
        for (name, value) in &expected {
            let found = self.fs().getxattr(self.ino(id), name).unwrap();
            assert_eq!(&found, value, "{id:?}: attribute {name:?}");
        }
    }

    fn compare_content(&mut self, id: Id) {
        let ino = self.ino(id);
        match &self.model.node(id).unwrap().kind {
            Kind::Symlink(target) => {
                let target = target.clone();
                let from = self.now();
                assert_eq!(self.fs().readlink(ino).unwrap(), target, "{id:?}: target");
                let when = Stamp { from, to: self.now() };
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

    pub fn compare_range(&mut self, id: Id, offset: u64, length: usize) {
        let from = self.now();
        let mut found = vec![0xaa; length];
        let count = match self.fs().read(self.ino(id), offset, &mut found, Wait::Allowed) {
            Ok(count) => count,
            // Data lost by a lying device is damage that its checksum shows (C8, I8).
            Err(error) if (self.faulty() || self.may_be_damaged) && error.errno() == libc::EIO => return,
            Err(error) => panic!("{id:?}: read at {offset}: {error}"),
        };
        let mut expected = vec![0xaa; length];
        let when = Stamp { from, to: self.now() };
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
                self.size_of(id),
                offset + differs as u64,
                (offset + differs as u64) / B,
                found[differs],
                expected[differs]
            );
        }
    }

    /// The aligned 8 bytes that differ, if a crash may have left each of them old or new (C16).
    fn torn_words(&self, id: Id, offset: u64, found: &[u8], expected: &[u8]) -> Option<Vec<Range<usize>>> {
        let torn = self.torn.as_ref().filter(|torn| torn.id == id)?;
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
    fn compare_holes(&mut self, id: Id, content: &terrace_reference::Content) {
        let (mut at, ino) = (0, self.ino(id));
        while at < content.size() {
            let data = self.fs().seek(ino, at, Seek::Data).map_err(|error| error.errno());
            assert_eq!(data, self.model.seek(id, at, terrace_reference::Seek::Data), "{id:?}: data at {at}");
            let Ok(data) = data else { break };
            let hole = self.fs().seek(ino, data, Seek::Hole).map_err(|error| error.errno());
            assert_eq!(
                hole,
                self.model.seek(id, data, terrace_reference::Seek::Hole),
                "{id:?}: hole at {data}"
            );
            at = hole.unwrap_or(u64::MAX);
        }
    }
}
