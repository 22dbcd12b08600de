//! State shared by the phases, and reads of PM that report unreadable lines.
//!
//! Invariants: `inodes` is in the order of inode numbers. A block enters `reached` once, and only the first `claim` of
//! a block lets its caller descend.

use crate::clustered_table::ClusteredTable;
use crate::code::Code;
use crate::cuckoo_table::CuckooTable;
use crate::inode_record::InodeRecord;
use crate::options::Options;
use crate::overlay::Overlay;
use crate::pool_view::PoolView;
use crate::report::{Findings, Summary};
use crate::sets::{Dense, Sparse};
use crate::table_blocks::TableMap;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::rc::Rc;
use terrace_format::superblock::Superblock;
use terrace_format::table::{Entry, Owner};
use terrace_format::{BLOCK_SIZE, Geometry, PmBlock, PmOffset};

/// The used blocks of a lower-tier device, gathered from the catalog.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// Blocks of the device, as the superblock says.
    pub(crate) blocks: u64,
    /// Blocks that can be read now; 0 when the device is absent or foreign.
    pub(crate) readable: u64,
    /// Blocks of cold extents and metadata pages.
    pub(crate) extents: Sparse,
    /// Blocks marked in chunk bitmaps.
    pub(crate) marked: Sparse,
}

/// A radix node read from PM.
pub type Node = Vec<u64>;

pub(crate) struct Checker<'a> {
    pub(crate) pool: &'a PoolView,
    pub(crate) options: Options<'a>,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) overlay: Overlay,
    pub(crate) findings: Findings,
    pub(crate) summary: Summary,
    /// PM blocks reached from their owner.
    pub(crate) reached: Dense,
    /// Partial shadows that have a written cold copy.
    pub(crate) over_cold: Dense,
    /// Inodes in use, by number.
    pub(crate) inodes: Vec<InodeRecord>,
    pub(crate) cold: Vec<DeviceState>,
    /// A metadata page below could not be read: missing keys and slots may be on it.
    pub(crate) unread: bool,
    /// Unreadable pages of the inode file below, by index.
    pub(crate) unread_inodes: BTreeSet<u64>,
    /// The block table by inode and block, where it is the file map.
    pub(crate) table_map: Option<Rc<TableMap>>,
    /// The cuckoo table of all files, where it is the file map.
    pub(crate) cuckoo: Option<Rc<CuckooTable>>,
    /// The clustered table of all files, where it is the file map.
    pub(crate) clustered: Option<Rc<ClusteredTable>>,
    progress: (u64, u64),
}

impl<'a> Checker<'a> {
    pub(crate) fn new(
        pool: &'a PoolView,
        options: Options<'a>,
        superblock: Superblock,
        overlay: Overlay,
        findings: Findings,
        summary: Summary,
    ) -> Checker<'a> {
        let geometry = superblock.geometry();
        Checker {
            pool,
            options,
            superblock,
            geometry,
            overlay,
            findings,
            summary,
            reached: Dense::new(geometry.block_count()),
            over_cold: Dense::new(if superblock.has_partial_shadows() { geometry.block_count() } else { 0 }),
            inodes: Vec::new(),
            cold: Vec::new(),
            unread: false,
            unread_inodes: BTreeSet::new(),
            table_map: None,
            cuckoo: None,
            clustered: None,
            progress: (0, 0),
        }
    }

    /// Tells the units of work of all phases.
    pub(crate) fn expect_steps(&mut self, steps: u64) {
        self.progress.1 = steps;
    }

    /// Reports that a unit of work is done.
    pub(crate) fn step(&mut self) {
        self.progress.0 = (self.progress.0 + 1).min(self.progress.1);
        if let Some(tell) = self.options.progress {
            tell(self.progress.0, self.progress.1);
        }
    }

    pub(crate) fn report(&mut self, code: Code, detail: impl FnOnce() -> String) {
        self.findings.add(code, detail);
    }

    /// Reads PM as it will be after recovery; reports unreadable lines.
    pub(crate) fn read(&mut self, offset: PmOffset, into: &mut [u8]) -> bool {
        match self.overlay.read(&self.pool.pm, offset, into) {
            Ok(()) => true,
            Err(error) => {
                self.report(Code::PmUnreadable, || error.to_string());
                false
            }
        }
    }

    pub(crate) fn word(&mut self, offset: PmOffset) -> Option<u64> {
        let mut word = [0; 8];
        self.read(offset, &mut word).then(|| u64::from_le_bytes(word))
    }

    /// A block of the pool; the caller has checked its number.
    pub(crate) fn block(&mut self, block: u64) -> Option<Box<[u8; BLOCK_SIZE as usize]>> {
        assert!(block < self.geometry.block_count(), "block {block} was not judged");
        let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
        let offset = PmOffset(block.checked_mul(BLOCK_SIZE)?);
        self.read(offset, bytes.as_mut_slice()).then_some(bytes)
    }

    /// A radix node; the caller has checked its number.
    pub(crate) fn node(&mut self, block: u64) -> Option<Node> {
        let bytes = self.block(block)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Some(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// True for a block that may be handed out.
    pub(crate) fn in_pool(&self, block: u64) -> bool {
        block >= self.geometry.first_pool_block().0 && block < self.geometry.block_count()
    }

    /// Notes that `site` reaches `block` as `owner`. True when it is in range and reached for the first
    /// time, so that the caller may descend: every block is descended into at most once.
    pub(crate) fn claim(&mut self, block: u64, owner: Owner, site: &dyn Display) -> bool {
        if !self.in_pool(block) {
            self.report(Code::BlockRange, || format!("{site}: block {block:#x}"));
            return false;
        }
        if !self.reached.insert(block) {
            self.report(Code::BlockTwice, || format!("block {block}: again from {site}"));
            return false;
        }
        assert!(self.reached.contains(block), "block {block} could be descended into again");
        let mut words = [0; 16];
        if !self.read(self.geometry.table_entry(PmBlock(block)), &mut words) {
            return true;
        }
        match Entry::decode(Entry::words(&words)).map(|entry| entry.owner) {
            None => {} // reported by the scan of the table
            Some(found) if found == owner => {}
            Some(found) => {
                self.report(Code::BlockOwner, || {
                    format!("block {block}: reached from {site}, the table says {found:?}")
                });
            }
        }
        true
    }

    /// The index of an inode in `inodes`.
    pub(crate) fn find(&self, ino: u64) -> Option<usize> {
        let ino = u32::try_from(ino).ok()?;
        self.inodes.binary_search_by_key(&ino, |record| record.ino).ok()
    }

    pub(crate) fn inode(&self, ino: u64) -> Option<&InodeRecord> {
        self.inodes.get(self.find(ino)?)
    }

    pub(crate) fn inode_mut(&mut self, ino: u64) -> Option<&mut InodeRecord> {
        let at = self.find(ino)?;
        self.inodes.get_mut(at)
    }
}
