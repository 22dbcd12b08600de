//! The state of one round of repair, in parts: the pool with its changes, owners of PM blocks, inodes, file maps,
//! catalog, pages below.
//!
//! Invariant: no function here writes a medium; all changes go to the pool's overlay.

pub(crate) mod actions;
pub(crate) mod below;
pub(crate) mod catalog;
pub(crate) mod fresh;
pub(crate) mod inodes;
pub(crate) mod maps;
pub(crate) mod owners;
pub(crate) mod pool;
pub(crate) mod sifted;
pub(crate) mod witness;

use actions::{Actions, Stuck};
use below::PagesBelow;
use catalog::Catalog;
use fresh::Fresh;
use inodes::Inodes;
use maps::FileMap;
use owners::Owners;
use pool::{Bytes, Pool};
use std::collections::BTreeMap;
use terrace_check::PoolView;
use terrace_check::overlay::Overlay;
use terrace_format::Lsn;
use terrace_format::superblock::Superblock;
use terrace_format::table::Owner;

/// State of one round.
pub(crate) struct Round<'a> {
    pub pool: Pool<'a>,
    pub owners: Owners,
    pub inodes: Inodes,
    /// File maps by inode.
    pub maps: BTreeMap<u32, FileMap>,
    pub catalog: Catalog,
    pub below: PagesBelow,
    pub actions: &'a mut Actions,
    pub fresh: &'a mut Fresh,
    /// Past the LSN of every record.
    pub log_end: Lsn,
}

impl<'a> Round<'a> {
    pub fn new(
        view: &'a PoolView,
        superblock: Superblock,
        (overlay, log_end): (Overlay, Lsn),
        actions: &'a mut Actions,
        fresh: &'a mut Fresh,
    ) -> Round<'a> {
        let pool = Pool::new(view, superblock, overlay);
        Round {
            owners: Owners::read(&pool),
            pool,
            inodes: Inodes::default(),
            maps: BTreeMap::new(),
            catalog: Catalog::default(),
            below: PagesBelow::default(),
            actions,
            fresh,
            log_end,
        }
    }

    /// A block for a new page.
    pub fn allocate(&mut self, owner: Owner) -> Result<u64, Stuck> {
        self.fresh.allocate(&mut self.pool, &mut self.owners, owner)
    }

    /// The content of a page of the inode file, in PM or below.
    pub fn inode_page(&self, index: u64) -> Option<Bytes> {
        let place = *self.inodes.pages.get(&index)?;
        self.below.inodes.get(&place).cloned().or_else(|| self.pool.block(place))
    }
}
