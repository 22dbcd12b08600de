//! Structural changes: transactions that put new pages in the place of old ones (design T7).
//!
//! Invariant: pages are copied, never changed by halves. New contents are streamed to claimed blocks and ordered before
//! the record that links them (T4); the old pages stay as they are until the checkpoint has passed that record (T6).
//! Lock order: lane space and blocks first, then the shard.

use crate::catalog::Catalog;
use crate::divide::Copied;
use crate::edit::Freed;
use crate::node::{MAX_LEVEL, Node, damaged};
use crate::reader::{Reader, Step};
use crate::shards::ShardsWrite;
use terrace_blocks::{Claim, Purpose, Target};
use terrace_format::PmBlock;
use terrace_format::page::{CELL_HEADER, Page};
use terrace_format::table::{Owner, PageKind};
use terrace_wal::{Error, NoSpace, Result, Tx};

/// Largest record of a structural change: a parent's shifted slots, a separator, a child pointer,
/// a root word, five block-table entries.
pub const STRUCTURAL_RECORD_BYTES: usize = 2048;

/// The state of a structural change: the locked shard, its claim and its transaction.
pub(crate) struct Change<'a, 'b> {
    pub guard: &'a mut ShardsWrite<'b>,
    pub claim: &'a mut Claim<'b>,
    pub tx: &'a mut Tx,
    pub freed: &'a mut Freed,
    pub shard: u32,
}

impl Catalog {
    /// Claims, reserves, locks, changes, commits. The change says whether there is anything to commit.
    pub(crate) fn change(
        &self,
        shard: u32,
        pages: usize,
        purpose: Purpose,
        change: impl FnOnce(&mut Change<'_, '_>) -> Result<bool>,
    ) -> Result<bool> {
        let mut claim = self.claim(pages, purpose)?;
        let reservation = self.wal().reserve(STRUCTURAL_RECORD_BYTES)?;
        let mut guard = self.write(&[shard]);
        let (mut tx, mut freed) = (Tx::new(), Freed::default());
        let result = change(&mut Change {
            guard: &mut guard,
            claim: &mut claim,
            tx: &mut tx,
            freed: &mut freed,
            shard,
        });
        if !matches!(result, Ok(true)) {
            freed.abandoned(self.blocks());
            drop(guard);
            claim.give_back_all();
            return result;
        }
        // Survives a crash between here and the record: the new pages are nobody's yet.
        self.pm().order();
        match self.wal().commit(reservation, &tx) {
            Ok(lsn) => {
                freed.committed(self.blocks(), lsn);
                Ok(true)
            }
            Err(error) => {
                // The record may be half visible, so the claimed pages are not given back.
                freed.abandoned(self.blocks());
                Err(error)
            }
        }
    }

    fn claim(&self, pages: usize, purpose: Purpose) -> Result<Claim<'_>> {
        match self.blocks().claim(pages, purpose) {
            Err(Error::NoSpace(NoSpace::Pm)) => {
                self.wal().checkpoint()?;
                self.blocks().claim(pages, purpose)
            }
            other => other,
        }
    }
}

impl Reader<'_> {
    /// A whole page, every cell of it checked.
    pub(crate) fn page(&self, block: PmBlock, level: u8) -> Result<Page> {
        let node = self.node(block, Some(level))?;
        let mut page = Page::new(level);
        page.0.copy_from_slice(node.bytes());
        page.verify_header(&format!("catalog page {block}"))?;
        let mut last: Option<&[u8]> = None;
        for index in 0..node.count() {
            let (key, _) = page.cell(index)?;
            let first_inner = level > 0 && index == 0;
            if last.is_some_and(|last| last >= key) || (first_inner && !key.is_empty()) {
                return Err(damaged(block, "keys", "ascending keys", format!("cell {index}")));
            }
            last = Some(key);
        }
        Ok(page)
    }
}

impl Change<'_, '_> {
    /// Puts new pages in the place of `old`; `above` is the path to it.
    pub(crate) fn install(&mut self, above: &[Step], old: PmBlock, copied: &Copied) -> Result<()> {
        let left = self.new_page(&copied.left)?;
        let right = match &copied.right {
            Some((key, page)) => Some((key, self.new_page(page)?)),
            None => None,
        };
        let parent = match above.last() {
            Some(step) => Some((self.guard.committed().node(step.block, Some(step.level))?, step.index)),
            None => None,
        };
        self.guard.release(self.tx, self.freed, self.shard, old)?;
        match (parent, right) {
            (None, None) => self.guard.write_root(self.tx, self.shard, Some(left)),
            (None, Some((key, right))) => {
                let level = copied.left.level() + 1;
                if level > MAX_LEVEL {
                    return Err(damaged(old, "level of a root", "at most 15", level));
                }
                let mut root = Page::new(level);
                let whole =
                    root.insert(0, &[], &left.0.to_le_bytes()) && root.insert(1, key, &right.0.to_le_bytes());
                assert!(whole, "two children fit an empty page");
                let root = self.new_page(&root)?;
                self.guard.write_root(self.tx, self.shard, Some(root));
            }
            (Some((parent, index)), right) => {
                self.guard.set_child(self.tx, &parent, index, left.0)?;
                if let Some((key, right)) = right {
                    self.insert_child(&parent, index + 1, key, right);
                }
            }
        }
        Ok(())
    }

    fn insert_child(&mut self, parent: &Node, index: usize, key: &[u8], child: PmBlock) {
        assert!(parent.gap() >= 2 + CELL_HEADER + key.len() + 8, "room in the parent was checked");
        self.guard.insert_cell(self.tx, parent, index, key, &child.0.to_le_bytes());
    }

    /// Streams a page to a claimed block and logs its owner.
    pub(crate) fn new_page(&mut self, page: &Page) -> Result<PmBlock> {
        let block = self.claim.take(Target::Page).ok_or(NoSpace::Pm)?;
        let catalog = self.guard.catalog;
        catalog.pm().write_streaming(block.offset(), page.0.as_slice())?;
        let owner = Owner::Page { kind: PageKind::CatalogPage, datum: self.shard };
        catalog.blocks().set_owner(self.tx, block, owner);
        Ok(block)
    }
}
