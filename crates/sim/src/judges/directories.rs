//! Directories against the reference: entries, numbers, cookies, attributes of users.

use crate::judges::comparison::Comparison;
use std::collections::BTreeMap;
use terrace_format::Ino;
use terrace_reference::{Id, Stamp};

impl Comparison<'_> {
    pub(crate) fn compare_directory(&mut self, id: Id) {
        let from = self.pool.now();
        let mut found = BTreeMap::new();
        let (ino, parent) = (self.known.ino(id), self.known.ino(self.model.parent(id).unwrap()));
        let mut cookies = Vec::new();
        let read = self.pool.fs().readdir(ino, 0, &mut |entry| {
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
        let expected = self.model.read_directory(id, Stamp { from, to: self.pool.now() }).unwrap();
        for entry in &expected {
            self.learn(entry.id, found.get(&entry.name).map(|(ino, _, _)| *ino));
        }
        assert_eq!(found.len(), expected.len(), "{id:?}: {:?}, expected {expected:?}", found.keys());
        for entry in expected {
            let (ino, kind, cookie) = found[&entry.name];
            assert_eq!((ino, kind), (self.known.ino(entry.id), entry.file_type), "{id:?}: {:?}", entry.name);
            self.known.assert_cookie(id, &entry.name, cookie);
        }
    }

    /// Learns the number of an inode whose creation was under way at a crash.
    fn learn(&mut self, id: Id, ino: Option<Ino>) {
        let Some(ino) = ino.filter(|_| !self.known.numbers.contains_key(&id)) else { return };
        let found = self.pool.fs().getattr(ino).unwrap();
        let newest = self.known.generations.insert(ino.0, found.generation);
        // A crash of such a PM loses returned operations: a removal, and the inode that got the number after
        // it.
        let lost = self.config.persist_only();
        assert!(newest < Some(found.generation) || lost, "{ino}: generation {newest:?} again");
        self.known.numbers.insert(id, (ino, found.generation));
    }

    pub(crate) fn compare_xattrs(&mut self, id: Id) {
        let node = self.model.node(id).unwrap();
        let expected: Vec<(Vec<u8>, Vec<u8>)> =
            node.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let list = self.pool.fs().listxattr(self.known.ino(id)).unwrap();
        let mut names: Vec<&[u8]> = list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        let wanted: Vec<&[u8]> = expected.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, wanted, "{id:?}: names of attributes");
        for (name, value) in &expected {
            let found = self.pool.fs().getxattr(self.known.ino(id), name).unwrap();
            assert_eq!(&found, value, "{id:?}: attribute {name:?}");
        }
    }
}
