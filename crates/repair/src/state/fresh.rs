//! Free blocks for new pages and the journal, shared by all rounds.
//!
//! Invariant: a new page goes to a block that neither the old state nor a later repair reads, so a crash after it was
//! written changes nothing. A block is handed out once.

use super::actions::Stuck;
use super::owners::Owners;
use super::pool::Pool;
use std::collections::BTreeSet;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, PmBlock, PmOffset};

/// Blocks where new pages and the journal may go.
#[derive(Default)]
pub(crate) struct Fresh {
    /// Candidates, not looked at yet, in descending order.
    blocks: Vec<u64>,
    /// Blocks handed out.
    taken: BTreeSet<u64>,
}

impl Fresh {
    /// Blocks handed out.
    pub fn taken(&self) -> &BTreeSet<u64> {
        &self.taken
    }

    /// Finds the blocks whose content neither this repair nor a repeated one reads. Called once, after all
    /// found structures were walked. `named`: data that decides whether a record counts.
    pub fn find(&mut self, pool: &Pool<'_>, owners: &Owners, named: &[(PmOffset, u64)]) {
        let named = |block: u64| {
            let (start, end) = (block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
            named.iter().any(|(at, length)| at.0 < end && start < at.0.saturating_add(*length))
        };
        let first = pool.geometry.first_pool_block().0;
        let unused = |block: &u64| match owners.owner(*block) {
            Some(Owner::Page { kind: PageKind::CatalogPage | PageKind::InodePage, .. }) => false,
            _ => !owners.is_seen(*block) && owners.is_open(*block) && !named(*block),
        };
        self.blocks = (first..pool.geometry.block_count()).rev().filter(unused).collect();
    }

    /// A block for a new page.
    pub fn allocate(&mut self, pool: &mut Pool<'_>, owners: &mut Owners, owner: Owner) -> Result<u64, Stuck> {
        while let Some(block) = self.blocks.pop() {
            if owners.is_open(block) && pool.block(block).is_some() {
                owners.own(block, owner);
                let is_new = self.taken.insert(block);
                assert!(is_new, "block {block} is handed out twice");
                pool.open_checksum(PmBlock(block));
                return Ok(block);
            }
        }
        Err(Stuck("persistent memory has too few free blocks for the repair".into()))
    }

    /// A block for the journal: taken as for a page, but without an owner.
    pub fn allocate_unowned(&mut self, pool: &mut Pool<'_>, owners: &mut Owners) -> Result<u64, Stuck> {
        let block = self.allocate(pool, owners, Owner::Page { kind: PageKind::Fixed, datum: 0 })?;
        owners.release(block);
        Ok(block)
    }
}
