//! Where things lie in PM: computed once at mkfs, stored in the superblock.
//!
//! ```text
//! block 0..2   superblock, copy A      block 4  checkpoint, copy A    block 6  roots
//! block 2..4   superblock, copy B      block 5  checkpoint, copy B    block 7  spare
//! block 8..    lanes, block table, checksum words (feature page-checksums), area of the file map (cuckoo, clustered), pool of blocks
//! ```

use crate::address::{BLOCK_SIZE, LINE_SIZE, PmBlock, PmOffset};
use crate::corrupt::Corrupt;
use crate::inode::ORPHAN_LISTS;
use crate::map_kind::MapKind;
use crate::table::TABLE_ENTRY_SIZE;

/// Blocks of one superblock copy.
pub const SUPERBLOCK_BLOCKS: u64 = 2;
/// The two superblock copies.
pub const SUPERBLOCK_COPIES: [PmBlock; 2] = [PmBlock(0), PmBlock(2)];
/// The two checkpoint copies.
pub const CHECKPOINT_COPIES: [PmBlock; 2] = [PmBlock(4), PmBlock(5)];
/// Roots of the inode file, the catalog shards and the orphan lists.
pub const ROOTS_BLOCK: PmBlock = PmBlock(6);
/// First block of the lanes.
pub const LANES_BLOCK: PmBlock = PmBlock(8);

/// Bytes of a block's word in the area of checksums.
pub const CHECKSUM_WORD_SIZE: u64 = 8;

/// Smallest PM that mkfs accepts.
pub const MIN_PM_SIZE: u64 = 2 << 20;
/// Largest number of lanes: their tails must fit in a checkpoint block.
pub const MAX_LANES: u32 = 256;
/// Most blocks of PM with the map clustered: a place in its lines has 27 bits.
pub const MAX_CLUSTERED_BLOCKS: u64 = 1 << 27;
/// Largest number of catalog shards: their roots must fit in the roots block.
pub const MAX_SHARDS: u32 = 256;
/// A quarter of a lane must hold the largest record of any single-step operation (docs/format.md
/// "Largest records"), so no lane is smaller than this.
pub const MIN_LANE_SIZE: u64 = 16 << 10;

/// The layout of one pool's PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of PM, a multiple of the block size.
    pub pm_size: u64,
    /// Number of lanes.
    pub lane_count: u32,
    /// Bytes of each lane, a multiple of the block size.
    pub lane_size: u64,
    /// Number of catalog shards.
    pub catalog_shards: u32,
    /// Blocks of a chunk, the largest contiguous allocation on a lower tier.
    pub chunk_blocks: u32,
    /// Whether metadata pages have checksums (feature page-checksums).
    pub checksummed: bool,
    /// The file map of the pool.
    pub map: MapKind,
}

impl Geometry {
    /// The geometry that mkfs chooses for `pm_size` bytes: lanes together at most 1/64 of PM, each
    /// at most 1 MiB, at most 16 of them (design 4).
    ///
    /// # Errors
    /// A sentence when the size is below the minimum.
    pub fn choose(pm_size: u64, chunk_blocks: u32) -> Result<Geometry, String> {
        let pm_size = pm_size / BLOCK_SIZE * BLOCK_SIZE;
        if pm_size < MIN_PM_SIZE {
            return Err(format!(
                "persistent memory of {pm_size} bytes is below the minimum of {MIN_PM_SIZE}"
            ));
        }
        let budget = pm_size / 64;
        let mut lane_count = 16u32;
        while lane_count > 1 && budget / u64::from(lane_count) < (64 << 10) {
            lane_count /= 2;
        }
        // Tiny test geometries get two small lanes rather than one, so that tests use several lanes.
        if lane_count == 1 && budget >= 2 * MIN_LANE_SIZE {
            lane_count = 2;
        }
        let lane_size =
            (budget / u64::from(lane_count)).clamp(MIN_LANE_SIZE, 1 << 20) / BLOCK_SIZE * BLOCK_SIZE;
        let catalog_shards = if pm_size < (64 << 20) { 4 } else { 64 };
        let map = MapKind::default();
        let geometry =
            Geometry { pm_size, lane_count, lane_size, catalog_shards, chunk_blocks, checksummed: true, map };
        geometry.with_map(map)
    }

    /// The geometry of a pool of the same size with another file map.
    ///
    /// # Errors
    /// A sentence when nothing is left for blocks beside the fixed area of the map.
    pub fn with_map(self, map: MapKind) -> Result<Geometry, String> {
        let geometry = Geometry { map, ..self };
        geometry.verify().map_err(|corrupt| corrupt.to_string())?;
        Ok(geometry)
    }

    /// Checks a geometry read from a medium.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn verify(&self) -> Result<(), Corrupt> {
        let fail = |field: &str, expected: &str, found: u64| {
            Err(Corrupt::new(format!("superblock geometry, {field}"), expected, found.to_string()))
        };
        if self.pm_size < MIN_PM_SIZE || !self.pm_size.is_multiple_of(BLOCK_SIZE) || self.pm_size >> 44 != 0 {
            return fail("PM size", "a multiple of 4096 from 2 MiB to 16 TiB", self.pm_size);
        }
        if self.lane_count == 0 || self.lane_count > MAX_LANES {
            return fail("lane count", "1 to 256", self.lane_count.into());
        }
        if self.lane_size < MIN_LANE_SIZE
            || !self.lane_size.is_multiple_of(BLOCK_SIZE)
            || self.lane_size > 1 << 30
        {
            return fail("lane size", "a multiple of 4096 from 16 KiB to 1 GiB", self.lane_size);
        }
        if self.catalog_shards == 0 || self.catalog_shards > MAX_SHARDS {
            return fail("catalog shards", "1 to 256", self.catalog_shards.into());
        }
        if self.chunk_blocks < 8 || self.chunk_blocks > 4096 || !self.chunk_blocks.is_multiple_of(8) {
            return fail("chunk blocks", "a multiple of 8 from 8 to 4096", self.chunk_blocks.into());
        }
        if self.map == MapKind::Clustered && self.block_count() > MAX_CLUSTERED_BLOCKS {
            return fail("PM size", "at most 512 GiB with the map clustered", self.pm_size);
        }
        if self.first_pool_block().0 + 16 > self.block_count() {
            return fail("PM size", "room for blocks after lanes and block table", self.pm_size);
        }
        Ok(())
    }

    /// All blocks of PM, the fixed area included; also the number of block-table entries.
    pub fn block_count(&self) -> u64 {
        self.pm_size / BLOCK_SIZE
    }
    /// First byte of a lane.
    pub fn lane_offset(&self, lane: u32) -> PmOffset {
        assert!(lane <= self.lane_count, "lane {lane} of {}", self.lane_count);
        LANES_BLOCK.offset().plus(u64::from(lane) * self.lane_size)
    }
    /// First byte of the block table.
    pub fn table_offset(&self) -> PmOffset {
        self.lane_offset(self.lane_count)
    }
    /// Address of a block's entry in the block table.
    pub fn table_entry(&self, block: PmBlock) -> PmOffset {
        self.table_offset().plus(block.0 * TABLE_ENTRY_SIZE)
    }
    /// The address behind the last byte of the block table.
    pub fn table_end(&self) -> PmOffset {
        self.table_offset().plus(self.block_count() * TABLE_ENTRY_SIZE)
    }
    /// Whether a block holds entries of the block table.
    pub fn is_table(&self, block: PmBlock) -> bool {
        (self.table_offset()..self.table_end()).contains(&block.offset())
    }
    /// First byte of the checksum words: behind the block that holds the last entry of the block table.
    pub fn checksums_offset(&self) -> PmOffset {
        PmOffset(self.table_end().0.next_multiple_of(BLOCK_SIZE))
    }
    /// Address of a block's checksum word.
    pub fn checksum_word(&self, block: PmBlock) -> PmOffset {
        self.checksums_offset().plus(block.0 * CHECKSUM_WORD_SIZE)
    }
    /// First byte of the area of the file map: behind the block that holds the last checksum word. Empty but for cuckoo and clustered.
    pub fn map_offset(&self) -> PmOffset {
        let checksums = if self.checksummed { self.block_count() * CHECKSUM_WORD_SIZE } else { 0 };
        PmOffset((self.checksums_offset().0 + checksums).next_multiple_of(BLOCK_SIZE))
    }
    /// Buckets of the cuckoo map; 0 with another map.
    pub fn map_buckets(&self) -> u64 {
        match self.map {
            // Of four entries each: a full PM is a load of at most 95 %.
            MapKind::Cuckoo => {
                let blocks = self.block_count().saturating_sub(self.map_offset().0 / BLOCK_SIZE);
                (blocks * 5).div_ceil(19).max(2)
            }
            _ => 0,
        }
    }
    /// Lines of the clustered map: as many as blocks follow the checksum words, so more than the pool has. 0 with another map.
    pub fn map_lines(&self) -> u64 {
        match self.map {
            MapKind::Clustered => self.block_count().saturating_sub(self.map_offset().0 / BLOCK_SIZE),
            _ => 0,
        }
    }
    /// Whether a block belongs to the area of the file map.
    pub fn is_map_area(&self, block: PmBlock) -> bool {
        block.offset() >= self.map_offset() && block < self.first_pool_block()
    }
    /// First block that is handed out; the fixed area ends before it.
    pub fn first_pool_block(&self) -> PmBlock {
        let before = self.map_offset().0 / BLOCK_SIZE;
        PmBlock(match self.map {
            // Buckets, and a block for the stash.
            MapKind::Cuckoo => before + self.map_buckets().div_ceil(BLOCK_SIZE / LINE_SIZE) + 1,
            MapKind::Clustered => before + self.map_lines().div_ceil(BLOCK_SIZE / LINE_SIZE),
            _ => before,
        })
    }
    /// Largest record in bytes (design T7).
    pub fn max_record(&self) -> u64 {
        self.lane_size / 4
    }
    /// Whether a record may write here: it changes the roots, the block table, the area of the map and blocks of the
    /// pool, nothing else.
    pub fn may_log(&self, offset: PmOffset, length: u64) -> bool {
        let end = offset.0.saturating_add(length);
        let roots = ROOTS_BLOCK.offset();
        (offset >= roots && end <= roots.0 + BLOCK_SIZE)
            || (offset >= self.table_offset() && end <= self.table_end().0)
            || (offset >= self.map_offset() && end <= self.pm_size)
    }
    /// Address of the word that holds the root of the inode file's radix tree.
    pub fn inode_root(&self) -> PmOffset {
        ROOTS_BLOCK.offset()
    }
    /// Address of the word that holds the number of pages of the inode file.
    pub fn inode_pages(&self) -> PmOffset {
        ROOTS_BLOCK.offset().plus(8)
    }
    /// Address of the word with the largest distance of a block from its home, plus one, where the block table is the map.
    pub fn map_reach(&self) -> PmOffset {
        ROOTS_BLOCK.offset().plus(16)
    }
    /// Address of an orphan list's head word (an inode number, 0 when empty).
    pub fn orphan_head(&self, list: usize) -> PmOffset {
        ROOTS_BLOCK.offset().plus(64 + 8 * (list % ORPHAN_LISTS) as u64)
    }
    /// Address of a catalog shard's root word (a tagged location).
    pub fn shard_root(&self, shard: u32) -> PmOffset {
        assert!(shard < self.catalog_shards, "shard {shard} of {}", self.catalog_shards);
        ROOTS_BLOCK.offset().plus(1024 + 8 * u64::from(shard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_pool_has_two_lanes_of_16_kib() {
        let geometry = Geometry::choose(2 << 20, 16).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!((geometry.lane_count, geometry.lane_size), (2, 16 << 10));
        assert_eq!(geometry.first_pool_block(), PmBlock(19));
        assert_eq!(Geometry { checksummed: false, ..geometry }.first_pool_block(), PmBlock(18));
        assert!(Geometry::choose(1 << 20, 16).is_err());
    }

    #[test]
    fn lanes_stay_below_a_sixty_fourth() {
        for shift in 21..44 {
            let geometry = Geometry::choose(1 << shift, 4096).unwrap_or_else(|e| unreachable!("{e}"));
            assert!(u64::from(geometry.lane_count) * geometry.lane_size <= geometry.pm_size / 64);
        }
    }
}
