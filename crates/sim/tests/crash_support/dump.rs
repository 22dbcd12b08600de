//! A canonical dump of a tree, and the judgement of the tree that a crash left.

use super::{ROOT, W};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_engine::Engine;
use terrace_format::Ino;

/// Every visible property of a tree except atime, by path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dump(pub BTreeMap<String, Entry>);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub mode: u32,
    pub nlink: u32,
    pub owner: (u32, u32),
    pub rdev: u32,
    pub size: u64,
    pub blocks: u64,
    pub times: (i64, i64, i64),
    pub inode: (u64, u32),
    pub content: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Dump {
    /// Walks the whole tree.
    pub fn of(fs: &Engine) -> Dump {
        let mut dump = Dump::default();
        walk(fs, ROOT, "", &mut dump);
        dump
    }

    /// The dump without st_blocks: pieces of an intent or preallocation change it.
    #[must_use]
    pub fn without_blocks(mut self) -> Dump {
        self.0.values_mut().for_each(|entry| entry.blocks = 0);
        self
    }

    /// The dump also without times, for states that a second run reaches in another way.
    #[must_use]
    pub fn without_times(mut self) -> Dump {
        self.0.values_mut().for_each(|entry| {
            entry.blocks = 0;
            entry.times = (0, 0, 0);
        });
        self
    }

    /// A short description of the difference of two trees.
    pub fn difference(&self, other: &Dump) -> String {
        let mut text = String::new();
        for name in self.0.keys().chain(other.0.keys()) {
            let (a, b) = (self.0.get(name), other.0.get(name));
            if a == b || text.contains(name.as_str()) && !name.is_empty() {
                continue;
            }
            match (a, b) {
                (Some(a), Some(b)) => {
                    let at = a.content.iter().zip(&b.content).position(|(x, y)| x != y);
                    text += &format!(" [{name}: {} / {}, content differs at {at:?}]", a.short(), b.short());
                }
                (a, _) => {
                    text += &format!(" [{name} only in the {}]", if a.is_some() { "first" } else { "second" })
                }
            }
        }
        text
    }
}

impl Entry {
    fn short(&self) -> String {
        format!(
            "mode {:o} nlink {} size {} blocks {} times {:?} ino {:?} xattrs {}",
            self.mode,
            self.nlink,
            self.size,
            self.blocks,
            (self.times.0 % 1_000_000_000, self.times.1 % 1_000_000_000, self.times.2 % 1_000_000_000),
            self.inode,
            self.xattrs.len()
        )
    }
}

fn walk(fs: &Engine, ino: Ino, path: &str, dump: &mut Dump) {
    let a = fs.getattr(ino).unwrap();
    let mut content = Vec::new();
    match a.mode & 0o170000 {
        0o100000 => {
            content = vec![0; a.size as usize];
            let mut done = 0;
            while done < content.len() {
                let count = fs.read(ino, done as u64, &mut content[done..], W);
                let count = count.unwrap_or_else(|error| panic!("reading {path} at {done}: {error}"));
                assert!(count > 0, "{path} ends early");
                done += count;
            }
        }
        0o120000 => content = fs.readlink(ino).unwrap(),
        _ => {}
    }
    let names = fs.listxattr(ino).unwrap();
    let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> =
        names.map(|name| (name.to_vec(), fs.getxattr(ino, name).unwrap())).collect();
    xattrs.sort();
    let entry = Entry {
        mode: a.mode,
        nlink: a.nlink,
        owner: (a.uid, a.gid),
        rdev: a.rdev,
        size: a.size,
        blocks: a.blocks,
        times: (a.mtime_ns, a.ctime_ns, a.btime_ns),
        inode: (a.ino.0, a.generation),
        content,
        xattrs,
    };
    dump.0.insert(path.to_string(), entry);
    if a.mode & 0o170000 != 0o040000 {
        return;
    }
    let mut names = Vec::new();
    fs.readdir(ino, 0, &mut |entry| {
        if entry.cookie > 2 {
            names.push((entry.name.clone(), entry.ino));
        }
        true
    })
    .unwrap();
    for (name, child) in names {
        let found = fs.lookup(ino, &name).unwrap();
        assert_eq!(found.ino, child);
        walk(fs, child, &format!("{path}/{}", String::from_utf8_lossy(&name)), dump);
        fs.forget(child, 1);
    }
}

/// The states that a crash may leave.
#[derive(Clone, Default)]
pub struct Allowed {
    /// Whole states, st_blocks left out.
    pub states: Vec<Dump>,
    /// States without times, of prefixes of a sequence.
    pub prefixes: Vec<Dump>,
    /// A further test of a state (data=ordered).
    pub other: Option<Arc<dyn Fn(&Dump) -> bool + Send + Sync>>,
}

impl Allowed {
    pub fn check(&self, found: &Dump) -> Result<(), String> {
        let plain = found.clone().without_blocks();
        if self.states.contains(&plain) || self.other.as_ref().is_some_and(|other| other(found)) {
            return Ok(());
        }
        let bare = plain.clone().without_times();
        if self.prefixes.contains(&bare) {
            return Ok(());
        }
        let mut text = String::from("a state that is not allowed:");
        for (index, state) in self.states.iter().enumerate() {
            text += &format!("\n  against {index}:{}", plain.difference(state));
        }
        for (index, state) in self.prefixes.iter().enumerate() {
            text += &format!("\n  against prefix {index}:{}", bare.difference(state));
        }
        Err(text)
    }
}
