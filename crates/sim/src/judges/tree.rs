//! The whole tree against the reference.

use crate::judges::comparison::Comparison;
use terrace_engine::Wait;
use terrace_reference::{Id, ROOT};

impl Comparison<'_> {
    /// Compares the whole tree from the root: directories, contents, attributes, xattrs, pins, free space.
    pub(crate) fn compare_all(&mut self) {
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
            if self.tolerance.settling {
                self.take_over_waiting(id);
            }
            self.compare_attributes(id);
            self.compare_xattrs(id);
            self.compare_content(id);
            self.compare_attributes(id);
        }
        self.compare_pins();
        if self.tolerance.lenient {
            return;
        }
        let space = self.pool.fs().statfs(Wait::Allowed).unwrap();
        let used = space.blocks - space.free;
        let placed = self.model.allocated_blocks() - self.model.blocks_without_location();
        assert!(used >= placed, "statfs: {used} blocks used, st_blocks say more");
        assert!(space.available <= space.free && space.free <= space.blocks);
    }
}
