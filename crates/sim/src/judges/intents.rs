//! A truncation or punch of several transactions reads as done between its pieces.

use crate::world::World;
use crate::world::amid::Nesting;
use std::collections::BTreeSet;
use terrace_engine::Wait;
use terrace_reference::Stamp;

/// Bytes of a file block.
const BLOCK: u64 = terrace_reference::BLOCK as u64;

impl World {
    /// Reads a file before and between the pieces of its truncation or punch: it must read as after the whole
    /// operation.
    pub(crate) fn read_amid_intent(&mut self, point: &str) {
        let is_open =
            point.starts_with("intent:") && self.amid.depth == 0 && self.amid.nesting == Nesting::None;
        let Some((op, from)) = self.amid.alone.clone().filter(|_| is_open && !self.power.crash.is_taken())
        else {
            return;
        };
        let Some(id) = op.target().filter(|_| !self.pool.faulty() && !self.pool.may_be_damaged) else {
            return;
        };
        let mut after = self.model.clone();
        let when = Stamp { from, to: self.pool.now() };
        if after.perform(&op, when).is_err() {
            return;
        }
        self.counts.work.amid_intents += 1;
        let Some(content) = after.node(id).ok().and_then(|node| node.content()).cloned() else { return };
        // A file of terabytes has little more than holes. Blocks allocated before or after the operation are
        // read with their neighbours; so are the edges of the operation.
        let before = self.model.node(id).ok().and_then(|node| node.content()).cloned();
        let end = content.size().div_ceil(BLOCK);
        let mut blocks: BTreeSet<u64> = content.allocated(0, end).collect();
        blocks.extend(before.iter().flat_map(|before| before.allocated(0, end)));
        let (mut at, mut found) = (0, Vec::<u8>::new());
        for block in blocks {
            let until = content.size().min((block + 2) * BLOCK);
            at = at.max(block.saturating_sub(1) * BLOCK);
            while at < until {
                found.resize((until - at) as usize, 0);
                let read = self.pool.fs().read_into(self.known.ino(id), at, &mut found, false, Wait::Allowed);
                let count = read.unwrap_or_else(|error| panic!("{op:?}: read at {at} amid it: {error}"));
                let mut expected = vec![0xaa; count];
                assert_eq!(
                    after.read(id, at, &mut expected, when),
                    Ok(count),
                    "{op:?}: read at {at} amid it"
                );
                let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                assert_eq!(differs, None, "{op:?}: byte {at} and so many differ amid it");
                assert_ne!(count, 0, "{op:?}: the end at {at} amid it");
                at += count as u64;
            }
        }
    }
}
