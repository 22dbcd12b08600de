//! Dirty pages that a change settles: the change takes the content into PM, and the commit drops the pages (S3).

use crate::change::staged::Staged;
use crate::types::inode::Inode;
use terrace_cache::DirtyPage;
use terrace_format::BLOCK_SIZE;

impl Staged<'_> {
    /// Notes that this change settles a dirty page.
    pub fn absorb(&mut self, page: &DirtyPage) {
        let ascends = self.absorbed.last().is_none_or(|last| *last < page.key);
        assert!(ascends, "block {} is settled twice, or out of order (S3)", page.key.block);
        self.absorbed.push(page.key);
    }

    /// The end of the last settled page, at most the visible size: the durable end that the settled pages
    /// reach.
    pub fn absorbed_end(&self, inode: &Inode) -> u64 {
        let last = self.absorbed.iter().map(|key| (key.block.0 + 1) * BLOCK_SIZE).max();
        last.map_or(0, |end| end.min(inode.size()))
    }
}
