//! The tiers of blocks, and tier pins, after requested movements.
//!
//! A tier pin is durable once its job has set it in an inode; new files and directories inherit it. While a
//! job sets tier pins an inode may have the old tier pin or the new one. After the job, or after a loss of
//! power, the reference takes over the tier pin that it finds.

use crate::judges::comparison::Comparison;
use terrace_engine::{MoveRequest, RequestReport};
use terrace_reference::{BLOCK, Id};

impl Comparison<'_> {
    /// Every block of a file that was moved without other work amid the job lies on the requested tier.
    pub(crate) fn assert_moved(&mut self, id: Id, action: MoveRequest, report: &RequestReport) {
        let (Some(tier), true) = (action.tier(), report.pinned_files == 0) else { return };
        if self.model.node(id).is_ok_and(|node| node.content().is_none()) {
            return;
        }
        let found = self.pool.fs().whereabouts(self.known.ino(id)).unwrap();
        // Unwritten blocks have no content to move.
        let unwritten = self.model.unwritten_in(id, 0, u64::MAX) * BLOCK as u64;
        let elsewhere = found.tiers.iter().filter(|(at, _)| *at != tier).map(|(_, bytes)| bytes);
        let elsewhere: u64 = elsewhere.sum();
        assert!(elsewhere <= unwritten, "{id:?} is not on tier {tier}: {found:?}");
    }

    /// After a sync to a tier every block on a faster tier is a clean copy, or was never written.
    pub(crate) fn assert_all_below(&mut self, tier: u8) {
        let ids: Vec<Id> = self.model.nodes().map(|(id, _)| id).collect();
        for id in ids {
            let found = self.pool.fs().whereabouts(self.known.ino(id)).unwrap();
            let unwritten = self.model.unwritten_in(id, 0, u64::MAX) * 4096;
            let above = found.tiers.iter().filter(|(at, _)| *at < tier).map(|(_, bytes)| bytes);
            let above: u64 = above.sum();
            assert!(above <= found.clean_bytes + unwritten, "{id:?}: {found:?}");
        }
    }

    /// Compares the tier pins of all inodes.
    pub(crate) fn compare_pins(&mut self) {
        if !self.config.by_hand {
            return;
        }
        let nodes = self.model.nodes().map(|(id, node)| (id, node.pin)).collect::<Vec<_>>();
        for (id, expected) in nodes {
            let found = self
                .pool
                .fs()
                .pinned(self.known.ino(id))
                .unwrap_or_else(|error| panic!("pin of {id:?}: {error}"));
            if found == expected {
                continue;
            }
            assert_eq!(
                self.tolerance.pins_unsure,
                Some(found),
                "{id:?}: its pin, which should be {expected:?}"
            );
            let mut node = self.model.node(id).cloned().unwrap();
            node.pin = found;
            self.model.put_node(id, node);
        }
    }
}
