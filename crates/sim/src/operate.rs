//! Runs an operation on the engine and on the reference, and compares the answers.
//!
//! The world is borrowed before and after the engine's part, not during it (see `engine`). Operations that
//! ran in the middle of an operation come before it in the reference, because it takes effect in its last
//! attempt, and no other operation runs in that attempt. This holds for operations of one transaction; no
//! operation runs amid a longer one.

use crate::choose::blocks;
use crate::descriptors::Asking;
use crate::engine::{Call, Seen};
use crate::world::{Nesting, Shared, World};
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_engine::{Attributes, BlockRange, DirectoryEntry, Engine, FsError, Wait};
use terrace_format::{FileBlock, Ino};
use terrace_reference::{
    After, Allocate, Answer, BLOCK, Change, CrashRules, CrashState, Id, Node, Op, Outcome, Reference, Stamp,
    data,
};

/// Blocks that DRAM takes at once: half of the limit of dirty bytes in the simulator's pools.
const WAITING_BLOCKS: u64 = crate::world::DIRTY_BYTES / BLOCK as u64 / 2;

/// The state of an operation while the engine runs it.
struct Begun {
    call: Call,
    from: i64,
    nesting: Nesting,
    /// The number of waiting changes of the file when the operation began.
    written: u64,
    /// The asker, if the operation is an fsync.
    asking: Option<Asking>,
    /// Whether a write-back could fail when the operation began.
    may_fail: bool,
    /// The number of inodes that the operation uses.
    involved: usize,
}

/// Runs an operation on both, sometimes first without waiting, and compares. `waits` is false for an
/// operation amid background work that it would have to wait for.
pub fn operate(world: &Shared, op: Op, waits: bool) {
    let Some((fs, begun, first)) = begin(world, op, waits) else { return };
    let mut answer = begun.call.run(&fs, first);
    if let Err(FsError::WouldBlock) = answer {
        world.borrow_mut().counts.would_block += 1;
        if waits {
            answer = begun.call.run(&fs, Wait::Allowed);
        }
    }
    drop(fs);
    world.borrow_mut().finish(begun, answer);
}

fn begin(world: &Shared, op: Op, waits: bool) -> Option<(Arc<Engine>, Begun, Wait)> {
    let mut world = world.borrow_mut();
    if world.crash.is_taken() || !world.can_do(&op) {
        return None;
    }
    world.note(format!("{op:?}"));
    world.durable_start();
    world.counts.operations += 1;
    world.count_cold(&op);
    let from = world.now();
    let first = if waits && !world.rng.random_ratio(1, 8) { Wait::Allowed } else { Wait::Never };
    world.asked_cookie = world.cookie_of(&op);
    let asking = match &op {
        Op::Fsync { id } => Some(world.descriptors.asks(*id)),
        _ => None,
    };
    let call = Call { handle: asking.and_then(|asking| asking.handle), ..world.call(&op) };
    let one_transaction = match &op {
        // A new inode first gets a number from an inode page, and the page may be demoted meanwhile.
        Op::Read { .. } | Op::Make { .. } => true,
        // An fsync waits for the write-back of dirty pages.
        Op::Fsync { .. } => world.config.buffers(),
        // On a full PM the write goes to DRAM and is written back: two steps.
        Op::Write { sync: true, .. } if world.config.buffers() => false,
        // The removal of capabilities comes before the write.
        Op::Write { id, .. } if op.takes_privileges() && world.model.has_capability(*id) => false,
        Op::Write { offset, length, sync, .. } => {
            let most = if world.model.waits(*sync) { WAITING_BLOCKS } else { world.config.atomic_blocks() };
            (*offset as usize % BLOCK + length).div_ceil(BLOCK) <= most as usize
        }
        _ => false,
    };
    let nesting = std::mem::replace(
        &mut world.nesting,
        match (one_transaction && waits, &op) {
            (true, Op::Make { .. }) => Nesting::Background,
            (true, _) => Nesting::Operations,
            (false, _) => Nesting::None,
        },
    );
    let makes = matches!(op, Op::Make { .. });
    let involved: Vec<Id> =
        op.target().into_iter().chain(op.directories().into_iter().filter(|_| makes)).collect();
    world.under_way.extend(&involved);
    if world.depth == 0 {
        world.last_amid = None;
        world.alone = Some((op.clone(), from.max(world.last_end)));
    }
    let fs = world.fs().clone();
    let written = op.target().map_or(0, |id| world.model.waited(id));
    let may_fail = world.may_fail();
    let involved = involved.len();
    Some((fs, Begun { call, from, nesting, written, asking, may_fail, involved }, first))
}

impl World {
    /// Whether the inodes and references that an operation needs exist: a shortened history may lack them.
    pub fn can_do(&self, op: &Op) -> bool {
        let there = |id: Id| self.model.node(id).is_ok();
        let held = |held: &BTreeMap<Id, u64>, id: &Id, count: u64| held.get(id).is_some_and(|n| *n >= count);
        let ready = match op {
            Op::Make { id, .. } => !there(*id) && !self.numbers.contains_key(id),
            Op::Release { id } => held(&self.opens, id, 1),
            Op::Forget { id, count } => held(&self.lookups, id, *count),
            _ => op.target().is_none_or(there),
        };
        ready && op.directories().into_iter().all(there)
    }

    fn finish(&mut self, begun: Begun, answer: Result<Seen, FsError>) {
        let Begun { call: Call { op, .. }, from, nesting, written, asking, may_fail, involved } = begun;
        self.nesting = nesting;
        self.under_way.truncate(self.under_way.len() - involved);
        if self.depth == 0 {
            self.alone = None;
        }
        if self.crash.is_taken() {
            return; // power failed in work amid this operation, which had not taken effect
        }
        let when = Stamp { from: from.max(self.last_end), to: self.now() };
        if self.take_crash() {
            let rules =
                CrashRules { atomic_blocks: self.config.atomic_blocks(), ordered: self.config.data_ordered };
            let states = self.model.crash_states(&op, rules, when);
            self.power_failed(states);
            return;
        }
        let succeeded = answer.is_ok();
        let told = asking.is_some_and(|asking| self.told(asking, &answer));
        let inside = if self.config.persist_only { self.states_of(&op, when) } else { Vec::new() };
        match told {
            true => self.take_over(&op, when),
            // The operation's flush reported writes that a device lost before it came back.
            false if may_fail && answer.as_ref().is_err_and(|error| error.errno() == libc::EIO) => {
                self.counts.errors += 1;
                assert!(
                    self.may_meet_device(&op),
                    "{op:?}: an error although it needs nothing from the device"
                );
                self.take_over(&op, when);
            }
            false => self.judge(&op, answer, when),
        }
        if let Op::Fsync { id } = op
            && succeeded
        {
            self.model.written_back(id, written);
        }
        self.last_end = self.now();
        self.durable_history(&op, inside, succeeded);
    }

    /// Judges the answer to an fsync (I5). True if the answer is the error of a write-back.
    fn told(&mut self, asking: Asking, answer: &Result<Seen, FsError>) -> bool {
        match answer {
            Ok(_) => self.descriptors.succeeded(asking),
            Err(error) if matches!(error.errno(), libc::EIO | libc::ENOSPC) => {
                let failing = self.may_fail() || self.config.fills;
                let told = self.descriptors.failed(asking, failing);
                self.counts.told += u64::from(told && !self.faulty());
                return told;
            }
            Err(_) => {}
        }
        false
    }

    /// The states that a crash inside an operation may leave.
    pub fn states_of(&self, op: &Op, when: Stamp) -> Vec<CrashState> {
        let rules =
            CrashRules { atomic_blocks: self.config.atomic_blocks(), ordered: self.config.data_ordered };
        self.model.crash_states(op, rules, when)
    }

    pub fn judge(&mut self, op: &Op, answer: Result<Seen, FsError>, when: Stamp) {
        match answer {
            Err(FsError::WouldBlock) => return self.take_over(op, when),
            Err(error) if error.errno() == libc::EIO && (self.faulty() || self.may_be_damaged) => {
                self.counts.errors += 1;
                assert!(
                    self.may_meet_device(op),
                    "{op:?}: {error} although it needs nothing from the device"
                );
                return self.take_over(op, when);
            }
            Err(error) if error.errno() == libc::ENOSPC && !self.too_large(op) => {
                return self.no_space(op, when);
            }
            _ => {}
        }
        let involved = self.model.involved(op);
        let expected = self.model.perform(op, when);
        let succeeds = expected.is_ok();
        self.compare_answers(op, answer, expected);
        if succeeds {
            self.note_names(op);
        }
        for id in involved {
            self.compare_attributes(id);
        }
        self.forget_gone();
    }

    fn compare_answers(&mut self, op: &Op, seen: Result<Seen, FsError>, expected: Outcome<Answer>) {
        match (seen, expected) {
            (Ok(Seen::Inode(found)), Ok(Answer::Inode(id))) => self.note_found(id, &found),
            (Ok(Seen::Bytes(seen)), Ok(Answer::Bytes(expected))) => {
                assert_eq!(seen.len(), expected.len(), "{op:?}: length");
                if let Some(at) = seen.iter().zip(&expected).position(|(a, b)| a != b) {
                    let many = seen.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    panic!(
                        "{op:?}: byte {at} is {:#x}, expected {:#x}; {many} differ",
                        seen[at], expected[at]
                    );
                }
            }
            (Ok(Seen::Number(seen)), Ok(Answer::Number(expected))) => assert_eq!(seen, expected, "{op:?}"),
            (Ok(Seen::Names(seen)), Ok(Answer::Names(expected))) => assert_eq!(seen, expected, "{op:?}"),
            (Ok(Seen::Done), Ok(Answer::Done)) => {}
            (Ok(Seen::Directory { all, part, taken }), Ok(Answer::Entries(expected))) => {
                self.compare_entries(op, &all, part, &taken);
                let mut seen: Vec<(Vec<u8>, Ino, u8)> =
                    all.into_iter().skip(2).map(|entry| (entry.name, entry.ino, entry.file_type)).collect();
                seen.sort();
                let expected: Vec<(Vec<u8>, Ino, u8)> =
                    expected.into_iter().map(|e| (e.name, self.ino(e.id), e.file_type)).collect();
                assert_eq!(seen, expected, "{op:?}");
            }
            (Err(seen), Err(expected)) => assert_eq!(seen.errno(), expected, "{op:?}: errno"),
            (seen, expected) => panic!("{op:?}: {seen:?}, expected {expected:?}"),
        }
    }

    /// Compares the requested part of a directory with the whole.
    fn compare_entries(
        &mut self,
        op: &Op,
        all: &[DirectoryEntry],
        part: Vec<DirectoryEntry>,
        taken: &[Attributes],
    ) {
        let Op::ReadDirectory { id, limit, .. } = op else { return };
        for entry in all.iter().skip(2) {
            self.assert_cookie(*id, &entry.name, entry.cookie);
        }
        let cookie = self.asked_cookie;
        let expected: Vec<_> =
            all.iter().filter(|entry| entry.cookie > cookie).take(*limit).cloned().collect();
        // The parent of a removed directory may be gone; then ".." has no attributes.
        let removed = self.model.node(*id).is_ok_and(|node| node.links == 0);
        let named = |entries: Vec<DirectoryEntry>| -> Vec<_> {
            entries.into_iter().filter(|entry| !removed || entry.cookie > 2).collect()
        };
        assert_eq!(named(part), named(expected), "{id:?}: entries after {cookie}");
        let by_ino: BTreeMap<Ino, Id> = self.numbers.iter().map(|(id, (ino, _))| (*ino, *id)).collect();
        for found in taken {
            self.note_found(by_ino[&found.ino], found);
        }
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

    /// Updates the cookies, references and descriptors that the world keeps besides the reference.
    fn note_names(&mut self, op: &Op) {
        match op {
            Op::Remove { directory, name, .. } if self.model.lookup(*directory, name).is_err() => {
                self.cookies.remove(&(*directory, name.clone()));
            }
            Op::Rename { from, .. } if self.model.lookup(from.0, &from.1).is_err() => {
                self.cookies.remove(&(from.0, from.1.clone()));
            }
            Op::Open { id, .. } if self.model.node(*id).is_ok() => {
                *self.opens.entry(*id).or_default() += 1;
                let handle = self.fs().new_handle();
                let failing = self.may_fail() || self.config.fills;
                self.descriptors.open(*id, handle, failing);
            }
            Op::Release { id } => {
                if let Some(count) = self.opens.get_mut(id) {
                    *count -= 1;
                }
                self.opens.retain(|_, count| *count > 0);
                self.descriptors.close(*id);
            }
            Op::Forget { id, count } => {
                if let Some(left) = self.lookups.get_mut(id) {
                    *left -= count;
                }
                self.lookups.retain(|_, count| *count > 0);
            }
            _ => {}
        }
    }

    /// Notes an inode that the engine returned with a lookup reference.
    fn note_found(&mut self, id: Id, found: &Attributes) {
        if !self.numbers.contains_key(&id) {
            let other = self.numbers.iter().find(|(_, (ino, _))| *ino == found.ino);
            assert!(other.is_none(), "{:?} got the number of {other:?}", id);
            let newest = self.generations.insert(found.ino.0, found.generation);
            assert!(newest < Some(found.generation), "{}: generation {newest:?} again", found.ino);
            self.numbers.insert(id, (found.ino, found.generation));
        }
        self.assert_attributes(id, found);
        self.model.refer(id).unwrap();
        *self.lookups.entry(id).or_default() += 1;
        if self.rng.random_ratio(2, 3) {
            self.fs().forget(self.ino(id), 1);
            self.model.release(id, 1).unwrap();
            self.note_names(&Op::Forget { id, count: 1 });
        }
    }

    /// Counts operations on contents, and those that meet cold or shadowed blocks.
    fn count_cold(&mut self, op: &Op) {
        let Some((id, first, end)) = blocks(op, self) else { return };
        let Some(content) = self.model.node(id).ok().and_then(|node| node.content()) else { return };
        let end = end.min(content.size().div_ceil(BLOCK as u64));
        self.counts.file_operations += 1;
        if first >= end {
            return;
        }
        let range = BlockRange::new(FileBlock(first), FileBlock(end));
        let Ok(found) = self.fs().whereabouts_in(self.ino(id), range) else { return };
        let below: u64 = found.tiers[1..].iter().map(|(_, bytes)| bytes).sum();
        // Unwritten extents on a lower tier were not demoted.
        let unwritten = self.unwritten_in(id, first, end) * BLOCK as u64;
        self.counts.met_cold += u64::from(below + found.clean_bytes > unwritten);
    }

    /// Whether an operation may have to read or write the device: its content is not all in PM, or it needs
    /// space in a full PM.
    fn may_meet_device(&self, op: &Op) -> bool {
        if self.config.has_metadata_below() {
            return !matches!(op, Op::Release { .. } | Op::Forget { .. });
        }
        if matches!(op, Op::Fsync { .. }) {
            return self.config.buffers();
        }
        !matches!(
            op,
            Op::GetAttributes { .. }
                | Op::Lookup { .. }
                | Op::GetXattr { .. }
                | Op::ListXattr { .. }
                | Op::ReadDirectory { .. }
                | Op::ReadLink { .. }
                | Op::Seek { .. }
                | Op::Release { .. }
                | Op::Forget { .. }
        )
    }

    /// Whether an operation never changes content or attributes, apart from access times.
    fn only_reads(&self, op: &Op) -> bool {
        matches!(
            op,
            Op::Read { .. }
                | Op::GetAttributes { .. }
                | Op::Lookup { .. }
                | Op::GetXattr { .. }
                | Op::ListXattr { .. }
                | Op::ReadDirectory { .. }
                | Op::ReadLink { .. }
                | Op::Seek { .. }
                | Op::Open { truncate: false, .. }
        )
    }

    /// Whether a value exceeds the limit of the pool, so that ENOSPC is the right answer.
    fn too_large(&self, op: &Op) -> bool {
        matches!(op, Op::SetXattr { length, .. } if *length > 2048)
    }

    /// Judges a request that failed for lack of space or by a device, or that would have waited: it changed
    /// nothing, except that a request of several transactions (large write, fallocate, truncation, punch) may
    /// have done a part.
    fn take_over(&mut self, op: &Op, when: Stamp) {
        for id in self.model.involved(op) {
            self.accept_part(op, id, when);
            self.compare_attributes(id);
        }
    }

    /// Judges an ENOSPC: the pool must be nearly full, and the request changed nothing, except that whole
    /// pieces of a large request may be there.
    fn no_space(&mut self, op: &Op, when: Stamp) {
        self.counts.no_space += 1;
        let status = self.fs().status().unwrap();
        let full = status.tiers.iter().map(|tier| tier.used_bytes * 100 / tier.capacity_bytes.max(1));
        let full: Vec<u64> = full.collect();
        let pm_full = full[0] >= 80;
        let tier_full = full[1..].iter().all(|percent| *percent >= 90);
        assert!(pm_full || tier_full || self.faulty(), "{op:?}: ENOSPC with {full:?} percent in use");
        let frees = match op {
            Op::Remove { .. } | Op::Release { .. } | Op::Forget { .. } | Op::RemoveXattr { .. } => true,
            Op::Fallocate { mode, .. } => *mode == Allocate::PunchHole,
            Op::Open { truncate, .. } => *truncate,
            Op::SetAttributes { id, change } => change.size.is_none_or(|size| size <= self.size_of(*id)),
            _ => false,
        };
        assert!(!frees, "{op:?}: ENOSPC although it gives space back (I9)");
        assert!(!self.only_reads(op), "{op:?}: ENOSPC although it needs no space (P1)");
        self.take_over(op, when);
    }

    /// Takes over the part of a failed request of several transactions that was done.
    fn accept_part(&mut self, op: &Op, id: Id, when: Stamp) {
        let Ok(old) = self.model.node(id).cloned() else { return };
        if old.content().is_none() {
            return;
        }
        let found = match self.fs().getattr(self.ino(id)) {
            // An operation that failed just now has not changed an inode on a lower tier.
            Err(error) if self.may_lie_below(&error) => return,
            found => found.unwrap(),
        };
        // Times do not always tell: two changes may have the same time.
        let capability = b"security.capability";
        let kept = match self.model.has_capability(id).then(|| self.fs().getxattr(self.ino(id), capability)) {
            Some(Ok(_)) => Some(true),
            Some(Err(FsError::NoAttribute)) => Some(false),
            _ => None,
        };
        let same = |node: &Node| {
            let expected = node.attributes();
            if kept.is_some_and(|kept| kept != node.xattrs.contains_key(&capability[..])) {
                return false;
            }
            let without = node.unwritten.as_ref().map_or(0, |unwritten| unwritten.without_place());
            let blocks = expected.blocks - 8 * without..=expected.blocks;
            found.size == expected.size
                && blocks.contains(&found.blocks)
                && expected.mtime.allows(found.mtime_ns)
                && expected.ctime.allows(found.ctime_ns)
        };
        let mut states = partial(&self.model, op, id, old.clone(), self.config.atomic_blocks(), when);
        // Attributes do not tell how far an overwrite came, but readable bytes do.
        let from = self.now();
        let several = states.iter().filter(|node| same(node)).count() > 1;
        let shown = match *op {
            Op::Write { offset, length, .. } if several && self.may_fail() => {
                self.readable(id, offset, length)
            }
            _ => Vec::new(),
        };
        let shows = |node: &Node| {
            shown.iter().all(|(offset, bytes)| {
                let mut expected = vec![0; bytes.len()];
                let count = node.content().map_or(0, |content| content.read(*offset, &mut expected));
                count == bytes.len() && expected == *bytes
            })
        };
        let Some(state) = states.iter().position(|node| same(node) && shows(node)) else {
            panic!("{op:?}: failed and left {found:?}; before: {:?}", old.attributes());
        };
        self.model.put_node(id, states.swap_remove(state));
        if let Some((offset, bytes)) = shown.first() {
            let when = Stamp { from, to: self.now() };
            self.model.read(id, *offset, &mut vec![0; bytes.len()], when).unwrap();
        } else if let Op::Write { offset, length, .. } = *op {
            self.compare_range(id, offset, length);
        }
    }

    /// The blocks of a range that a failing device lets be read: offset and bytes of each.
    fn readable(&self, id: Id, offset: u64, length: usize) -> Vec<(u64, Vec<u8>)> {
        let (mut at, end) = (offset, offset + length as u64);
        let mut blocks = Vec::new();
        while at < end {
            let next = end.min((at / BLOCK as u64 + 1) * BLOCK as u64);
            let mut bytes = vec![0; (next - at) as usize];
            match self.fs().read(self.ino(id), at, &mut bytes, Wait::Allowed) {
                Ok(count) => {
                    bytes.truncate(count);
                    blocks.extend((count > 0).then_some((at, bytes)));
                }
                Err(error) => {
                    let told = (self.may_fail() || self.may_be_damaged) && error.errno() == libc::EIO;
                    assert!(told, "{id:?}: read at {at}: {error}");
                }
            }
            at = next;
        }
        blocks
    }
}

/// The states in which a failed request of several transactions may leave an inode, the old state first (C9).
fn partial(model: &Reference, op: &Op, id: Id, old: Node, atomic_blocks: u64, when: Stamp) -> Vec<Node> {
    let mut states = vec![old.clone()];
    let b = BLOCK as u64;
    let mut node = old;
    if op.takes_privileges() && node.drop_capability(when) {
        states.push(node.clone());
    }
    match *op {
        Op::Write { offset, length, seed, kill_set_id, sync, .. } => {
            let bytes = data(length, seed);
            let waits = model.waits(sync);
            let mut at = 0;
            while at < length {
                // A waiting write is accepted in pieces of as many blocks as DRAM has room for.
                let most = if waits { 1 } else { atomic_blocks };
                let room = (most * b - (offset + at as u64) % b) as usize;
                let end = length.min(at + room);
                let (start, piece) = (offset + at as u64, &bytes[at..end]);
                let written = if waits { Node::write_waiting } else { Node::write };
                written(&mut node, start, piece, kill_set_id, when).unwrap();
                states.push(node.clone());
                at = end;
            }
            if states.len() > 1 {
                states.pop();
            }
        }
        Op::Fallocate { offset, length, mode, .. } if mode != Allocate::PunchHole => {
            for block in offset / b..(offset + length).div_ceil(b) {
                node.allocate(block * b, b, when).unwrap();
                states.push(node.clone());
            }
        }
        _ => {}
    }
    // Truncation and punch commit first, and may then have to wait.
    let mut whole = model.clone();
    let truncated = match *op {
        Op::Open { truncate: true, .. } => whole.truncate(id, 0, true, when),
        Op::SetAttributes { change: Change { size: Some(size), kill_set_id, .. }, .. } => {
            whole.truncate(id, size, kill_set_id, when)
        }
        Op::Fallocate { offset, length, mode, .. } if mode == Allocate::PunchHole => {
            whole.fallocate(id, offset, length, mode, when)
        }
        _ => Err(0),
    };
    if truncated.is_ok() {
        states.extend(whole.node(id).ok().cloned());
        if let Op::SetAttributes { change, .. } = op
            && change.changes_owner()
            && let Some(mut node) = states.last().cloned()
            && node.drop_capability(when)
        {
            states.push(node);
        }
    }
    states
}
