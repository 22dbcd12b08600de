//! Questions about the tree that no operation asks: sizes, allocated blocks, waiting changes, and the states of
//! this moment.

use crate::Reference;
use crate::crash::CrashState;
use crate::node::{Id, Kind, Node};

impl Reference {
    /// Size of a regular file, else 0.
    pub fn size_of(&self, id: Id) -> u64 {
        let content = self.node(id).ok().and_then(|node| node.content());
        content.map_or(0, |content| content.size())
    }

    /// Unwritten blocks of a file inside a range of blocks: allocated, and never written.
    pub fn unwritten_in(&self, id: Id, first: u64, end: u64) -> u64 {
        let content = self.node(id).ok().and_then(|node| node.content());
        content.map_or(0, |content| content.unwritten(first, end))
    }

    /// Whether a file may have bytes in DRAM alone.
    pub fn has_waiting_writes(&self, id: Id) -> bool {
        self.node(id).is_ok_and(|node| node.unwritten.is_some())
    }

    /// Blocks of all files that may have no location yet.
    pub fn blocks_without_location(&self) -> u64 {
        self.nodes().map(|(_, node)| node.blocks_without_location()).sum()
    }

    /// The number of waiting changes of each file with waiting writes, at this moment.
    pub fn waiting_changes(&self) -> Vec<(Id, u64)> {
        let waiting = self.nodes().filter(|(_, node)| node.unwritten.is_some());
        waiting.map(|(id, _)| (id, self.waited(id))).collect()
    }

    /// Makes the waiting changes up to these numbers durable.
    pub fn changes_written_back(&mut self, written: &[(Id, u64)]) {
        written.iter().for_each(|(id, waited)| self.written_back(*id, *waited));
    }

    /// Sets a tier pin for an inode and everything below its directory.
    pub fn set_pin_below(&mut self, id: Id, tier: Option<u8>) {
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            let Ok(mut node) = self.node(id).cloned() else { continue };
            match &node.kind {
                Kind::Directory { entries, .. } => left.extend(entries.values()),
                Kind::Regular(_) => {}
                _ => continue,
            }
            node.pin = tier;
            self.put_node(id, node);
        }
    }
}

impl CrashState {
    /// The present state: allowed alone if no visible operation is under way.
    pub fn now(tree: &Reference) -> CrashState {
        CrashState { tree: tree.clone(), torn: None, name: "now".into() }
    }

    /// The state with all waiting writes durable, if writes wait.
    pub fn written_back(tree: &Reference) -> Option<CrashState> {
        let waits = tree.nodes().any(|(_, node)| node.unwritten.is_some());
        waits.then(|| {
            let mut tree = tree.clone();
            tree.all_written_back();
            CrashState { tree, torn: None, name: "everything written back".into() }
        })
    }
}

impl Node {
    /// Blocks that may have no location yet; st_blocks need not count them.
    pub fn blocks_without_location(&self) -> u64 {
        self.unwritten.as_ref().map_or(0, |unwritten| unwritten.without_place())
    }
}
