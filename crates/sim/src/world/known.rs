//! The engine's numbers of the reference's inodes, and the references that callers hold.

use crate::call::Call;
use crate::world::descriptors::Descriptors;
use std::collections::BTreeMap;
use terrace_engine::Referenced;
use terrace_format::Ino;
use terrace_reference::{After, Id, Op, ROOT, Reference};

/// The knowledge of a world about inodes, beside the reference.
#[derive(Debug)]
pub struct Known {
    /// The engine's number and generation of each inode.
    pub numbers: BTreeMap<Id, (Ino, u32)>,
    /// The newest generation seen of each number.
    pub generations: BTreeMap<u64, u32>,
    /// Lookup references that callers hold.
    pub lookups: BTreeMap<Id, u64>,
    /// Opens without a release.
    pub opens: BTreeMap<Id, u64>,
    /// The cookie of each name that was listed.
    pub cookies: BTreeMap<(Id, Vec<u8>), u64>,
    /// The cookie after which the operation under way reads a directory.
    pub asked_cookie: u64,
    /// Descriptors, and the errors that they must be told.
    pub descriptors: Descriptors,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            numbers: BTreeMap::from([(ROOT, (Ino(1), 1))]),
            generations: BTreeMap::from([(1, 1)]),
            lookups: BTreeMap::new(),
            opens: BTreeMap::new(),
            cookies: BTreeMap::new(),
            asked_cookie: 0,
            descriptors: Descriptors::default(),
        }
    }
}

impl Known {
    /// The part that survives a loss of power: numbers, generations, cookies.
    pub fn durable(&self) -> Known {
        Known {
            numbers: self.numbers.clone(),
            generations: self.generations.clone(),
            cookies: self.cookies.clone(),
            ..Known::default()
        }
    }

    pub fn ino(&self, id: Id) -> Ino {
        self.numbers.get(&id).map_or(Ino(0), |(ino, _)| *ino)
    }

    /// A cookie never changes while the name exists (design C2).
    pub fn assert_cookie(&mut self, id: Id, name: &[u8], cookie: u64) {
        let known = *self.cookies.entry((id, name.to_vec())).or_insert(cookie);
        assert_eq!(known, cookie, "{id:?}: cookie of {name:?} changed");
    }

    /// Whether the inodes and references that an operation needs exist: a shortened history may lack them.
    pub fn can_do(&self, model: &Reference, op: &Op) -> bool {
        let there = |id: Id| model.node(id).is_ok();
        let held = |held: &BTreeMap<Id, u64>, id: &Id, count: u64| held.get(id).is_some_and(|n| *n >= count);
        let ready = match op {
            Op::Make { id, .. } => !there(*id) && !self.numbers.contains_key(id),
            Op::Release { id } => held(&self.opens, id, 1),
            Op::Forget { id, count } => held(&self.lookups, id, *count),
            _ => op.target().is_none_or(there),
        };
        ready && op.directories().into_iter().all(there)
    }

    /// The operation with the engine's inode numbers.
    pub fn call(&self, op: &Op) -> Call {
        let ids = op.target().into_iter().chain(op.directories());
        let numbers = ids.map(|id| (id, self.ino(id))).collect();
        Call { op: op.clone(), numbers, cookie: self.asked_cookie, handle: None }
    }

    /// The cookie after which an operation reads a directory.
    pub fn cookie_of(&self, op: &Op) -> u64 {
        match op {
            Op::ReadDirectory { after: After::Cookie(cookie), .. } => *cookie,
            // The name may be gone: a read must resume after its cookie all the same.
            Op::ReadDirectory { id, after: After::Name(name), .. } => {
                let known = self.cookies.get(&(*id, name.clone())).copied();
                known.or_else(|| self.cookies.values().next().copied()).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// The references that callers hold.
    pub(crate) fn expected_references(&self) -> Vec<Referenced> {
        let mut all: BTreeMap<Ino, Referenced> = BTreeMap::new();
        let mut of = |ino: Ino, lookups: u64, opens: u64| {
            let found = all.entry(ino).or_insert(Referenced { ino, lookups: 0, opens: 0 });
            found.lookups += lookups as u32;
            found.opens += opens as u32;
        };
        self.lookups.iter().for_each(|(id, count)| of(self.ino(*id), *count, 0));
        self.opens.iter().for_each(|(id, count)| of(self.ino(*id), 0, *count));
        all.into_values().collect()
    }

    /// Drops the knowledge of inodes that are gone. `narrow`: names have few hashes.
    pub fn forget_gone(&mut self, model: &Reference, narrow: bool) {
        self.numbers.retain(|id, _| model.node(*id).is_ok());
        // With few hashes a name that is made anew gets another cookie. A removal that a crash completed has
        // no answer, so names are looked up in the reference.
        let is_there = |id: Id, name: &[u8]| match narrow {
            true => model.lookup(id, name).is_ok(),
            false => model.node(id).is_ok(),
        };
        self.cookies.retain(|(id, name), _| is_there(*id, name));
    }

    /// Drops the references that callers hold, as the end of a mount does.
    pub fn drop_references(&mut self) {
        self.lookups.clear();
        self.opens.clear();
        self.descriptors.clear();
    }
}
