//! The locations of the structures of a sound pool, so that damage can hit them and fix their checksums.

use super::text;
use rand::Rng;
use rand::rngs::StdRng;
use terrace_format::checkpoint::{Checkpoint, FAR};
use terrace_format::checksum::record_seed;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::inode::pack_root;
use terrace_format::record::{HEADER_SIZE, Record, plausible_length};
use terrace_format::superblock::Superblock;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Geometry, PmBlock, PmOffset};
use terrace_media::block::DeviceImage;
use terrace_media::pm::PmImage;

/// A valid record of a lane.
pub struct Place {
    pub lane: u32,
    pub position: u64,
    pub length: usize,
}

/// A sound pool and the locations of its structures.
pub struct Sound {
    pub pm: PmImage,
    pub device: DeviceImage,
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub checkpoint: Checkpoint,
    pub inode_pages: Vec<u64>,
    pub nodes: Vec<u64>,
    pub catalog_pages: Vec<u64>,
    pub data: Vec<u64>,
    /// Blocks of the shared table; empty with trees and block tables.
    pub map_area: Vec<u64>,
    pub records: Vec<Place>,
    /// The position of the next record of each lane.
    pub heads: Vec<u64>,
}

impl Sound {
    /// Reads a golden image.
    pub fn from_text(image: &str) -> Result<Sound, String> {
        let media = text::decode(image)?;
        let [(_, pm), (_, device)] = media.as_slice() else { return Err("two media expected".into()) };
        let superblock = Superblock::verify(&pm[..8192], true).map_err(|error| error.to_string())?;
        let geometry = superblock.geometry();
        let at = CHECKPOINT_COPIES[0].offset().0 as usize;
        let checkpoint = Checkpoint::decode(&pm[at..at + 4096], &superblock.uuid, geometry.lane_count);
        let mut sound = Sound {
            pm: PmImage::from(pm.clone()),
            device: DeviceImage::from_bytes(device),
            checkpoint: checkpoint.map_err(|error| error.to_string())?,
            superblock,
            geometry,
            inode_pages: Vec::new(),
            nodes: Vec::new(),
            catalog_pages: Vec::new(),
            data: Vec::new(),
            map_area: (0..geometry.first_pool_block().0)
                .filter(|at| geometry.is_map_area(PmBlock(*at)))
                .collect(),
            records: Vec::new(),
            heads: Vec::new(),
        };
        sound.find_blocks(pm);
        (0..geometry.lane_count).for_each(|lane| sound.find_records(lane));
        Ok(sound)
    }

    fn find_blocks(&mut self, pm: &[u8]) {
        for block in self.geometry.first_pool_block().0..self.geometry.block_count() {
            let at = self.geometry.table_entry(PmBlock(block)).0 as usize;
            let word = pm[at..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
            match Owner::decode(word) {
                Some(Owner::Page { kind: PageKind::InodePage, .. }) => self.inode_pages.push(block),
                Some(Owner::Page { kind: PageKind::CatalogPage, .. }) => self.catalog_pages.push(block),
                Some(Owner::Page { .. }) => self.nodes.push(block),
                Some(Owner::File { .. }) => self.data.push(block),
                _ => {}
            }
        }
    }

    fn find_records(&mut self, lane: u32) {
        let mut position = self.checkpoint.tails[lane as usize];
        loop {
            let header = self.ring(lane, position, HEADER_SIZE);
            let length = header.first_chunk().and_then(|h| plausible_length(h, self.geometry.max_record()));
            let Some(length) = length else { break };
            let seed = record_seed(&self.superblock.uuid, lane, position, self.checkpoint.epoch);
            let bytes = self.ring(lane, position, length);
            let Some(record) = Record::verify(bytes, seed, self.geometry.pm_size) else { break };
            if record.lsn < self.checkpoint.lsn {
                break;
            }
            self.records.push(Place { lane, position, length });
            position += record.ring_bytes;
        }
        self.heads.push(position);
    }

    /// Bytes of a lane.
    pub fn ring(&self, lane: u32, position: u64, length: usize) -> Vec<u8> {
        let byte = |at: u64| {
            let mut byte = [0];
            assert!(self.pm.read(self.ring_place(lane, at).0, &mut byte));
            byte[0]
        };
        (position..position + length as u64).map(byte).collect()
    }

    pub fn ring_place(&self, lane: u32, position: u64) -> PmOffset {
        self.geometry.lane_offset(lane).plus(position % self.geometry.lane_size)
    }

    /// A random block of PM, mostly one in use.
    pub fn some_block(&self, random: &mut StdRng) -> u64 {
        let lists = [&self.inode_pages, &self.nodes, &self.catalog_pages, &self.data, &self.map_area];
        match lists.get(random.random_range(0..7)) {
            Some(list) if !list.is_empty() => list[random.random_range(0..list.len())],
            _ => random.random_range(0..self.geometry.block_count()),
        }
    }

    /// A random written block of the device, or a block beside it.
    pub fn some_device_block(&self, random: &mut StdRng) -> DeviceBlock {
        let limit = if random.random() { 120 } else { self.device.blocks() };
        DeviceBlock(random.random_range(0..limit))
    }

    /// A random value that readers may take for a block, a length or an inode number.
    pub fn nasty(&self, random: &mut StdRng) -> u64 {
        let block = self.some_block(random);
        match random.random_range(0..16) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => FAR - random.random_range(0..2),
            4 => random.random(),
            5 => random.random_range(0..20),
            6 => 1 << random.random_range(0..64),
            7 => block | 1 << 63,
            8 => block * BLOCK_SIZE,
            9 => pack_root(random.random_range(0..7), block),
            10 => self.geometry.block_count() - random.random_range(0..2),
            11 => Owner::Page { kind: PageKind::MapNode, datum: random.random_range(0..20) }.encode(),
            12 => {
                let (ino, block) = (random.random_range(1..20), random.random_range(0..130));
                (ino << 33) | (block << 1) | random.random_range(0..2)
            }
            13 => (1 << random.random_range(1..45)) - 1,
            _ => block,
        }
    }
}
