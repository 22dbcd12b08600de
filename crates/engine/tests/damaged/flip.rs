//! Flipped bits in every structure, with checksums left unchanged; and right checksum words for damaged
//! pages, so that readers meet the damage behind them.

use super::damage::{BLOCK, Damaged};
use terrace_format::geometry::{CHECKPOINT_COPIES, ROOTS_BLOCK};
use terrace_format::page_checksum::{ChecksumWord, page_checksum};
use terrace_format::{BLOCK_SIZE, PmBlock};

impl Damaged<'_> {
    /// Flips a bit of a structure and leaves its checksum unchanged.
    pub fn flip(&mut self) {
        let (sound, geometry) = (self.sound, self.sound.geometry);
        let fixed = |from: u64, to: u64| (from..to).collect::<Vec<u64>>();
        let table = geometry.table_offset().block().0;
        let words = geometry.checksums_offset().block().0;
        let (name, blocks) = match self.below(10) {
            0 => ("superblock", fixed(0, CHECKPOINT_COPIES[0].0)),
            1 => ("checkpoint", CHECKPOINT_COPIES.map(|copy| copy.0).to_vec()),
            2 => ("roots", vec![ROOTS_BLOCK.0]),
            3 => return self.flip_record(),
            4 => ("block table", fixed(table, words)),
            5 if geometry.checksummed => ("checksum words", fixed(words, geometry.map_offset().block().0)),
            6 => ("inode page", sound.inode_pages.clone()),
            7 if !sound.nodes.is_empty() => ("node", sound.nodes.clone()),
            8 if !sound.map_area.is_empty() => ("table of all files", sound.map_area.clone()),
            _ => ("catalog page", sound.catalog_pages.clone()),
        };
        self.tell(format!(" in {name}"));
        self.flip_at(self.of(&blocks) * BLOCK_SIZE + self.below(BLOCK) as u64);
    }

    /// Flips a bit of a record that recovery replays, or of a lane without records.
    fn flip_record(&mut self) {
        let geometry = self.sound.geometry;
        let lanes = geometry.lane_size as usize * geometry.lane_count as usize;
        let offset = match self.sound.records.len() {
            0 => geometry.lane_offset(0).0 + self.below(lanes) as u64,
            count => {
                let record = &self.sound.records[self.below(count)];
                let position = record.position + self.below(record.length) as u64;
                self.sound.ring_place(record.lane, position).0
            }
        };
        self.tell(" in record".into());
        self.flip_at(offset);
    }

    fn flip_at(&mut self, offset: u64) {
        let byte = self.get(offset, 1)[0] ^ 1 << self.below(8);
        self.put(offset, &[byte]);
    }

    /// Makes the checksum word of every metadata page right for its damaged content.
    pub fn seal_pages(&mut self) {
        let (sound, geometry) = (self.sound, self.sound.geometry);
        let table = geometry.table_offset().block().0..geometry.checksums_offset().block().0;
        let pages = [&sound.inode_pages, &sound.nodes, &sound.catalog_pages, &sound.map_area];
        let pages = pages.into_iter().flatten().copied();
        for page in table.chain([ROOTS_BLOCK.0]).chain(pages).map(PmBlock) {
            let bytes = self.get(page.offset().0, BLOCK);
            let word = ChecksumWord::Covers(page_checksum(&sound.superblock.uuid, page, &bytes));
            assert!(self.pm.write(geometry.checksum_word(page).0, &word.encode().to_le_bytes()));
        }
    }

    pub fn bits(&mut self) {
        for _ in 0..=self.below(8) {
            let at = self.some_offset() + self.below(BLOCK) as u64;
            let byte = self.get(at, 1)[0] ^ 1 << self.below(8);
            self.put(at, &[byte]);
        }
    }
}
