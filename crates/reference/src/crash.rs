//! The states that a crash inside an operation may leave (docs/semantics.md; its examples are the tests
//! below).
//!
//! Every operation that returned before the crash is there (C6). The operation under way is there whole or
//! not at all, except for the sequences: a prefix of the pieces of a large write (C15), a size without the
//! attributes given with it (C11), blocks allocated by a prefix of an fallocate (C20), the removal of a
//! file's capabilities before the change that causes it (C14), and, under data=ordered, overwritten bytes
//! torn at aligned 8 bytes (C16). st_blocks is not judged before background work has ended (C12, C20, C23).

use crate::content::{BLOCK, Content};
use crate::op::{Op, data};
use crate::{Allocate, Change, Id, Reference, Stamp};
use std::ops::Range;

/// The properties of a pool on which the promises of docs/semantics.md depend.
#[derive(Debug, Clone, Copy)]
pub struct CrashRules {
    /// The atomic write size, in blocks (C13).
    pub atomic_blocks: u64,
    /// data=ordered.
    pub ordered: bool,
}

/// Bytes of which each aligned 8 may be old or new, with the modification times old or new.
#[derive(Debug, Clone)]
pub struct Torn {
    /// The file.
    pub id: Id,
    /// The range of bytes.
    pub bytes: Range<u64>,
    /// The content before.
    pub old: Content,
    /// The content after.
    pub new: Option<Content>,
}

/// A state that a crash may leave.
#[derive(Debug, Clone)]
pub struct CrashState {
    /// The file system. A mount shows exactly this tree outside `torn`.
    pub tree: Reference,
    /// The bytes that may be torn.
    pub torn: Option<Torn>,
    /// A short description of the state.
    pub name: String,
}

impl Reference {
    /// The states that a crash may leave while `op` is under way, the one before it first, the one after it
    /// last. An operation that changes nothing or fails has the state before it alone.
    pub fn crash_states(&self, op: &Op, rules: CrashRules, when: Stamp) -> Vec<CrashState> {
        let state = |tree: Reference, name: &str| CrashState { tree, torn: None, name: name.to_string() };
        let mut states = vec![state(self.clone(), "before")];
        let mut after = self.clone();
        if after.perform(op, when).is_err() {
            return states;
        }
        // The state after the first change of a sequence, when `op` begins with one.
        let mut first = self.clone();
        if op.takes_privileges() && first.drop_capability(op, when) {
            states.push(state(first.clone(), "capabilities gone"));
        }
        match op {
            // A write that finds no room in DRAM overwrites in place, before the record that removes set-id bits (C16).
            Op::Write { id, offset, length, seed, kill_set_id: true, sync }
                if self.waits(*sync) && rules.ordered =>
            {
                let mut torn = first;
                if torn.write_waiting(*id, *offset, &data(*length, *seed), false, when).is_ok() {
                    states.push(state(torn, "overwritten in place"));
                }
            }
            // The written bytes are versions of the state after the write, and its pieces are too.
            Op::Write { sync, .. } if self.waits(*sync) => {}
            Op::Write { id, offset, length, seed, kill_set_id, .. } => {
                let bytes = data(*length, *seed);
                first.pieces(&mut states, *id, *offset, &bytes, *kill_set_id, rules, when);
            }
            Op::SetAttributes { id, change } if change.size.is_some() => {
                let size =
                    Change { size: change.size, kill_set_id: change.kill_set_id, ..Default::default() };
                let mut tree = first;
                if tree.set_attributes(*id, &size, when).is_ok() {
                    states.push(state(tree.clone(), "the size alone"));
                }
                if change.changes_owner() && tree.drop_capability(op, when) {
                    states.push(state(tree, "the size, capabilities gone"));
                }
            }
            Op::Fallocate { id, offset, length, mode, .. } if *mode != Allocate::PunchHole => {
                self.allocations(&mut states, *id, *offset, *length, when);
            }
            Op::Fsync { id } => {
                let waits = |id| self.node(id).is_ok_and(|node| node.unwritten.is_some());
                if !waits(*id) {
                    return states;
                }
                after.written_back(*id, u64::MAX);
            }
            Op::Lookup { .. }
            | Op::GetAttributes { .. }
            | Op::Read { .. }
            | Op::Seek { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::ReadDirectory { .. }
            | Op::ReadLink { .. }
            | Op::Release { .. }
            | Op::Forget { .. } => return states,
            _ => {}
        }
        states.push(state(after, "after"));
        states
    }

    /// Removes the capabilities of the file that an operation names. True if the file had capabilities.
    fn drop_capability(&mut self, op: &Op, when: Stamp) -> bool {
        let node = op.target().map(|id| self.node_mut(id));
        node.is_some_and(|node| node.is_ok_and(|node| node.drop_capability(when)))
    }

    /// Prefixes of the pieces of a write, and the torn piece of each.
    #[allow(clippy::too_many_arguments)]
    fn pieces(
        &self,
        states: &mut Vec<CrashState>,
        id: Id,
        offset: u64,
        bytes: &[u8],
        kill: bool,
        rules: CrashRules,
        when: Stamp,
    ) {
        let (block, mut at) = (BLOCK as u64, 0);
        let mut tree = self.clone();
        while at < bytes.len() {
            let start = offset + at as u64;
            let room = (rules.atomic_blocks * block - start % block) as usize;
            let end = bytes.len().min(at + room);
            let before = tree.clone();
            let piece = bytes.get(at..end).unwrap_or_default();
            if tree.write(id, start, piece, kill, when).is_err() {
                return;
            }
            let old = before.node(id).ok().and_then(|node| node.content()).cloned();
            // Bytes past the old end and new blocks are there with the new size or not at all.
            let waits = before.node(id).ok().and_then(|node| node.unwritten.as_ref());
            if waits.is_some() && rules.ordered {
                // Overwritten bytes have versions, as waiting writes have; all bytes before may be written back.
                let size = old.as_ref().map_or(0, Content::size);
                let most = size.saturating_sub(start).min(piece.len() as u64);
                let mut torn = before.clone();
                if most > 0 && torn.write_waiting(id, start, &piece[..most as usize], false, when).is_ok() {
                    states.push(CrashState { tree: torn, torn: None, name: format!("torn at byte {start}") });
                }
            } else if rules.ordered
                && let Some(old) = old
            {
                let bytes = start..(offset + end as u64).min(old.size());
                if !bytes.is_empty() {
                    let new = tree.node(id).ok().and_then(|node| node.content()).cloned();
                    let torn = Some(Torn { id, bytes, old, new });
                    let name = format!("torn at byte {start}");
                    states.push(CrashState { tree: before, torn: torn.clone(), name: name.clone() });
                    states.push(CrashState { tree: tree.clone(), torn, name: name + ", times and size new" });
                }
            }
            at = end;
            states.push(CrashState { tree: tree.clone(), torn: None, name: format!("{at} bytes written") });
        }
        states.pop();
    }

    /// Blocks allocated from the front, before the size is raised.
    fn allocations(&self, states: &mut Vec<CrashState>, id: Id, offset: u64, length: u64, when: Stamp) {
        let block = BLOCK as u64;
        let mut tree = self.clone();
        let (first, end) = (offset / block, (offset + length).div_ceil(block));
        let Ok(node) = self.node(id) else { return };
        // A waiting write has no location yet; fallocate gives it one too.
        let had: Vec<u64> = match (&node.unwritten, node.content()) {
            (Some(unwritten), _) => unwritten.placed(first, end).collect(),
            (None, Some(content)) => content.allocated(first, end).collect(),
            (None, None) => return,
        };
        for number in (first..end).filter(|number| !had.contains(number)) {
            let Ok(node) = tree.node_mut(id) else { return };
            if node.allocate(number * block, block, when).is_err() {
                return;
            }
            let name = format!("set aside up to block {number}");
            states.push(CrashState { tree: tree.clone(), torn: None, name });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, New, ROOT, SetTime};

    const AT: Stamp = Stamp { from: 1, to: 2 };
    const RULES: CrashRules = CrashRules { atomic_blocks: 56, ordered: false };

    /// A file "f" with `size` bytes of the write of seed 1.
    fn with_file(size: usize) -> (Reference, Id) {
        let mut fs = Reference::new(Limits::default(), true, AT);
        let id = fs.make(ROOT, b"f", &New::Regular(0o644), (0, 0), AT).unwrap_or(ROOT);
        let write = Op::Write { id, offset: 0, length: size, seed: 1, kill_set_id: false, sync: false };
        assert_eq!(fs.perform(&write, AT), Ok(crate::Answer::Number(size as u64)));
        (fs, id)
    }

    fn sizes(states: &[CrashState], id: Id) -> Vec<u64> {
        states.iter().filter_map(|s| s.tree.attributes(id).ok()).map(|found| found.size).collect()
    }

    /// C12: "A file of 300 blocks is cut to 5000 bytes; crash. Left: 300 blocks' worth of old content, or
    /// exactly 5000 bytes. Growing it again shows zeros".
    #[test]
    fn c12_truncation() -> Result<(), i32> {
        let (fs, id) = with_file(300 * BLOCK);
        let cut = Op::SetAttributes { id, change: Change { size: Some(5000), ..Default::default() } };
        let mut states = fs.crash_states(&cut, RULES, AT);
        let mut found = sizes(&states, id);
        found.dedup();
        assert_eq!(found, [300 * BLOCK as u64, 5000]);
        let left = states.last_mut().ok_or(0)?;
        left.tree.truncate(id, 20_000, false, AT)?;
        let mut bytes = vec![1; 20_000];
        left.tree.read(id, 0, &mut bytes, AT)?;
        assert!(bytes[5000..].iter().all(|byte| *byte == 0) && bytes[..5000] == data(5000, 1));
        Ok(())
    }

    /// C15: "16 KiB lanes, pwrite(f, 140 blocks, 0) on a file of 10 000 bytes; crash. Left: the old file; or
    /// 56 new blocks, size 229 376; or 112; or all 140. Never block 70 without block 69."
    #[test]
    fn c15_a_write_of_pieces() -> Result<(), i32> {
        let (fs, id) = with_file(10_000);
        let length = 140 * BLOCK;
        let op = Op::Write { id, offset: 0, length, seed: 9, kill_set_id: false, sync: false };
        let mut states = fs.crash_states(&op, RULES, AT);
        assert_eq!(sizes(&states, id), [10_000, 229_376, 112 * 4096, 140 * 4096]);
        for state in states.iter_mut().skip(1) {
            let mut bytes = vec![0; length];
            let count = state.tree.read(id, 0, &mut bytes, AT)?;
            assert_eq!(bytes[..count], data(length, 9)[..count]);
        }
        Ok(())
    }

    /// C16: "data=ordered, 4 KiB of A overwritten by B; crash. Left: each aligned 8 bytes AAAAAAAA or
    /// BBBBBBBB, size
    /// 4096."
    #[test]
    fn c16_torn_bytes() {
        let (fs, id) = with_file(4096);
        let op = Op::Write { id, offset: 0, length: 4096, seed: 2, kill_set_id: false, sync: false };
        let states = fs.crash_states(&op, CrashRules { ordered: true, ..RULES }, AT);
        assert_eq!(sizes(&states, id), [4096; 4]);
        let torn: Vec<&Torn> = states.iter().filter_map(|state| state.torn.as_ref()).collect();
        let whole = |torn: &&Torn| torn.bytes == (0..4096);
        assert_eq!((torn.len(), torn.iter().all(whole)), (2, true));
        // By default the overwrite is there whole or not at all.
        let states = fs.crash_states(&op, RULES, AT);
        assert_eq!((states.len(), states.iter().any(|state| state.torn.is_some())), (2, false));
    }

    /// C20: "fallocate(f, 0, 0, 1 GiB) on an empty file; crash. Left: size 0 with any prefix allocated, or
    /// size 1 GiB with all of it." (Here 1 MiB.)
    #[test]
    fn c20_allocation() {
        let (fs, id) = with_file(0);
        let op = Op::Fallocate { id, offset: 0, length: 1 << 20, mode: Allocate::Extend };
        let states = fs.crash_states(&op, RULES, AT);
        let found: Vec<(u64, u64)> = states
            .iter()
            .filter_map(|state| state.tree.attributes(id).ok())
            .map(|found| (found.size, found.blocks / 8))
            .collect();
        let mut expected: Vec<(u64, u64)> = (0..=256).map(|blocks| (0, blocks)).collect();
        expected.push((1 << 20, 256));
        assert_eq!(found, expected);
    }

    /// C11: "setattr with a size and other attributes: the size first, then the rest together. Left may be:
    /// nothing, the size alone, all."
    #[test]
    fn c11_a_size_comes_before_the_attributes_given_with_it() {
        let (fs, id) = with_file(100);
        let change = Change { size: Some(5), mtime: Some(SetTime::At(77)), ..Default::default() };
        let states = fs.crash_states(&Op::SetAttributes { id, change }, RULES, Stamp::at(9));
        let found: Vec<(u64, Stamp)> = states
            .iter()
            .filter_map(|state| state.tree.attributes(id).ok())
            .map(|found| (found.size, found.mtime))
            .collect();
        assert_eq!(found, [(100, AT), (5, Stamp::at(9)), (5, Stamp::at(77))]);
    }
}
