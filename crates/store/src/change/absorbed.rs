//! Dirty pages that a change settles: their content goes with it into PM, and the commit drops them (S3).

use crate::change::staged::Staged;
use crate::types::inode::Inode;
use terrace_cache::DirtyPage;
use terrace_format::BLOCK_SIZE;

impl Staged<'_> {
    /// Notes that this change settles a dirty page.
    pub fn absorb(&mut self, page: &DirtyPage) {
        self.absorbed.push(page.key);
    }

    /// The end of the last settled page, at most the visible size: the durable end that the settled pages
    /// reach.
    pub fn absorbed_end(&self, inode: &Inode) -> u64 {
        let last = self.absorbed.iter().map(|key| (key.block.0 + 1) * BLOCK_SIZE).max();
        last.map_or(0, |end| end.min(inode.size()))
    }
}
