//! Requests that failed: the part that was done must be one of the parts that a failure may leave (C9).

use crate::judges::comparison::Comparison;
use crate::world::World;
use terrace_engine::{FsError, Wait};
use terrace_reference::{Allocate, BLOCK, Change, Id, Node, Op, Reference, Stamp, data};

impl World {
    /// Judges a request that failed for lack of space or by a device, or that would have waited: it changed
    /// nothing, except that a request of several transactions (large write, fallocate, truncation, punch) may
    /// have done a part.
    pub(crate) fn take_over(&mut self, op: &Op, when: Stamp) {
        for id in self.model.involved(op) {
            self.accept_part(op, id, when);
            Comparison::of(self).compare_attributes(id);
        }
    }

    /// Takes over the part of a failed request of several transactions that was done.
    fn accept_part(&mut self, op: &Op, id: Id, when: Stamp) {
        let Ok(old) = self.model.node(id).cloned() else { return };
        if old.content().is_none() {
            return;
        }
        let found = match self.pool.fs().getattr(self.known.ino(id)) {
            // An operation that failed just now has not changed an inode on a lower tier.
            Err(error) if self.pool.may_lie_below(&error) => return,
            found => found.unwrap(),
        };
        // Times do not always tell: two changes may have the same time.
        let capability = b"security.capability";
        let kept = match self
            .model
            .has_capability(id)
            .then(|| self.pool.fs().getxattr(self.known.ino(id), capability))
        {
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
        let from = self.pool.now();
        let several = states.iter().filter(|node| same(node)).count() > 1;
        let shown = match *op {
            Op::Write { offset, length, .. } if several => self.readable(id, offset, length),
            _ => Vec::new(),
        };
        let shows = |node: &Node| {
            shown.iter().all(|(offset, bytes)| {
                let mut expected = vec![0; bytes.len()];
                let count = node.content().map_or(0, |content| content.read(*offset, &mut expected));
                count == bytes.len() && expected == *bytes
            })
        };
        let shown_state = states.iter().position(|node| same(node) && shows(node));
        // Bytes that a crash before has torn are judged below.
        let state = shown_state.or_else(|| states.iter().position(same).filter(|_| !self.pool.may_fail()));
        let Some(state) = state else {
            panic!("{op:?}: failed and left {found:?}; before: {:?}", old.attributes());
        };
        self.model.put_node(id, states.swap_remove(state));
        if let Some((offset, bytes)) = shown.first() {
            let when = Stamp { from, to: self.pool.now() };
            self.model.read(id, *offset, &mut vec![0; bytes.len()], when).unwrap();
        }
        if let Op::Write { offset, length, .. } = *op
            && (shown.is_empty() || !self.pool.may_fail())
        {
            Comparison::of(self).compare_range(id, offset, length);
        }
    }

    /// The blocks of a range that a failing device lets be read: offset and bytes of each.
    fn readable(&self, id: Id, offset: u64, length: usize) -> Vec<(u64, Vec<u8>)> {
        let (mut at, end) = (offset, offset + length as u64);
        let mut blocks = Vec::new();
        while at < end {
            let next = end.min((at / BLOCK as u64 + 1) * BLOCK as u64);
            let mut bytes = vec![0; (next - at) as usize];
            match self.pool.fs().read(self.known.ino(id), at, &mut bytes, Wait::Allowed) {
                Ok(count) => {
                    bytes.truncate(count);
                    blocks.extend((count > 0).then_some((at, bytes)));
                }
                Err(error) => {
                    let told =
                        (self.pool.may_fail() || self.pool.may_be_damaged) && error.errno() == libc::EIO;
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
