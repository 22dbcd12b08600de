//! The block table: each block's owner, and whether the owner reaches the block (I6).

use crate::checker::Checker;
use crate::code::Code;
use terrace_format::checksum::crc32c;
use terrace_format::table::{DataChecksum, Entry, MASK_FULL, Owner, PageKind, TABLE_ENTRY_SIZE};
use terrace_format::{BLOCK_SIZE, LineMask, PmBlock};

/// Table entries that are read at once.
const REGION_ENTRIES: u64 = 8192;

/// Reads of the whole table.
pub(crate) fn regions(blocks: u64) -> u64 {
    blocks.div_ceil(REGION_ENTRIES)
}

impl Checker<'_> {
    /// Last phase: every entry decodes, and every owned block was reached.
    pub(crate) fn block_table(&mut self) {
        let (first, count) = (self.geometry.first_pool_block().0, self.geometry.block_count());
        let mut start = 0;
        while start < count {
            let end = (start + REGION_ENTRIES).min(count);
            assert!(start < end, "the scan of the table stands still");
            let mut bytes = vec![0; ((end - start) * TABLE_ENTRY_SIZE) as usize];
            if self.read(self.geometry.table_entry(PmBlock(start)), &mut bytes) {
                for (block, entry) in (start..end).zip(bytes.as_chunks::<16>().0) {
                    self.table_entry(block, block < first, Entry::words(entry));
                }
            }
            self.step();
            start = end;
        }
    }

    fn table_entry(&mut self, block: u64, fixed: bool, words: [u64; 2]) {
        let Some(Entry { owner, lines: LineMask(mask), checksum }) = Entry::decode(words) else {
            self.report(Code::TableOwner, || format!("block {block}: {:#x}", words[0]));
            return;
        };
        if let Some(checksum) = checksum {
            self.data_checksum(block, owner, checksum);
        }
        let is_fixed = matches!(owner, Owner::Page { kind: PageKind::Fixed, .. });
        if fixed != is_fixed {
            self.report(Code::TableFixed, || format!("block {block}: {owner:?}"));
        } else if !fixed && owner != Owner::Free && !self.reached.contains(block) {
            self.report(Code::BlockLeaked, || format!("block {block}: {owner:?}"));
        }
        if owner != Owner::Free && mask != MASK_FULL {
            self.partial_entry(block, owner, mask);
        }
        if !fixed && matches!(owner, Owner::Page { .. }) {
            self.compare_page(PmBlock(block), Some(owner));
        }
        let counts = &mut self.summary.pm_blocks;
        *match owner {
            Owner::Free => &mut counts.free,
            Owner::File { unwritten, .. } => {
                counts.unwritten += u64::from(unwritten);
                &mut counts.files
            }
            Owner::Page { kind, .. } => match kind {
                PageKind::Fixed => &mut counts.fixed,
                PageKind::InodePage => &mut counts.inode_pages,
                PageKind::InodeNode => &mut counts.inode_nodes,
                PageKind::CatalogPage => &mut counts.catalog_pages,
                PageKind::MapNode => &mut counts.map_nodes,
            },
        } += 1;
    }
}

impl Checker<'_> {
    /// A block with a checksum of its data.
    fn data_checksum(&mut self, block: u64, owner: Owner, checksum: DataChecksum) {
        if !self.superblock.has_data_checksums() {
            self.report(Code::TableMask, || format!("block {block}: {:#x}", checksum.encode()));
            return;
        }
        self.summary.pm_blocks.checksums += 1;
        let content = if self.options.read_cold { self.block(block) } else { None };
        let Some(content) = content else { return };
        let (covered, expected) = (checksum.covered(), checksum.crc());
        let found = crc32c(content.get(..covered).unwrap_or(&*content));
        if found != expected {
            self.report(Code::DataChecksum, || {
                format!("block {block}, {owner:?}: CRC {found:#x} of {covered} bytes, expected {expected:#x}")
            });
        }
    }

    /// An owned block that does not hold all lines.
    fn partial_entry(&mut self, block: u64, owner: Owner, mask: u64) {
        let possible = self.superblock.has_partial_shadows() && mask != 0;
        if !possible || !matches!(owner, Owner::File { unwritten: false, .. }) {
            self.report(Code::TableMask, || format!("block {block}: {mask:#x}"));
        } else if self.over_cold.contains(block) {
            self.summary.pm_blocks.partial += 1;
        } else {
            self.report(Code::ShadowAlone, || format!("block {block}, {owner:?}: {mask:#x}"));
        }
    }
}

const _: () = assert!(BLOCK_SIZE.is_multiple_of(TABLE_ENTRY_SIZE));
