//! Checksums of metadata pages in PM (feature page-checksums): does each page match.

use crate::checker::Checker;
use crate::code::Code;
use crate::overlay::Overlay;
use terrace_format::geometry::ROOTS_BLOCK;
use terrace_format::inode::SLOTS_PER_PAGE;
use terrace_format::page_checksum::{ChecksumWord, page_checksum};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, Geometry, PmBlock, PmOffset};
use terrace_media::PmView;

/// Opens the checksum words of the pages that a range touches, as recovery does for replayed stores.
pub fn open(overlay: &mut Overlay, geometry: &Geometry, offset: PmOffset, length: usize) {
    let last = offset.0.saturating_add((length as u64).saturating_sub(1)) / BLOCK_SIZE;
    for page in offset.0 / BLOCK_SIZE..=last.min(geometry.block_count().saturating_sub(1)) {
        if geometry.checksummed {
            overlay.write(geometry.checksum_word(PmBlock(page)), &[0; 8]);
        }
    }
}

/// The fault of a page or its checksum word; `None` when the page matches, or cannot be read.
pub fn fault(
    (pm, overlay): (&PmView, &Overlay),
    geometry: &Geometry,
    pool_uuid: &[u8; 16],
    page: PmBlock,
) -> Option<Code> {
    let mut word = [0; 8];
    if overlay.read(pm, geometry.checksum_word(page), &mut word).is_err() {
        return Some(Code::PmUnreadable);
    }
    match ChecksumWord::decode(u64::from_le_bytes(word)) {
        ChecksumWord::Open => None,
        ChecksumWord::Damaged(_) => Some(Code::ChecksumWord),
        ChecksumWord::Covers(crc) => {
            let mut bytes = [0; BLOCK_SIZE as usize];
            overlay.read(pm, page.offset(), &mut bytes).ok()?;
            (page_checksum(pool_uuid, page, &bytes) != crc).then_some(Code::PageChecksum)
        }
    }
}

/// The one bit of a page that explains why it does not match its checksum: byte and value. Each single bit of
/// a page changes the CRC32C in its own way; damage of several bits looks like one wrong bit in 1 of 130,000
/// cases.
pub fn wrong_bit(
    (pm, overlay): (&PmView, &Overlay),
    geometry: &Geometry,
    pool_uuid: &[u8; 16],
    page: PmBlock,
) -> Option<(PmOffset, u8)> {
    let (mut word, mut bytes) = ([0; 8], [0; BLOCK_SIZE as usize]);
    overlay.read(pm, geometry.checksum_word(page), &mut word).ok()?;
    overlay.read(pm, page.offset(), &mut bytes).ok()?;
    let ChecksumWord::Covers(crc) = ChecksumWord::decode(u64::from_le_bytes(word)) else { return None };
    let (at, bit) = bit_of_syndrome(page_checksum(pool_uuid, page, &bytes) ^ crc)?;
    let byte = bytes.get(at as usize)? ^ 1 << bit;
    Some((page.offset().plus(at), byte))
}

/// The bit of a page whose change changes its CRC32C by this much: byte and bit. Each byte behind the bit
/// multiplies its share of the CRC by the same power of x, independent of the page's content.
fn bit_of_syndrome(syndrome: u32) -> Option<(u64, u32)> {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let times_x8 = |share: u32| (0..8).fold(share, |s, _| s >> 1 ^ if s & 1 == 1 { POLYNOMIAL } else { 0 });
    let mut shares: [u32; 8] = std::array::from_fn(|bit| 1 << bit);
    for at in (0..BLOCK_SIZE).rev() {
        shares = shares.map(times_x8);
        if let Some(bit) = (0u32..).zip(shares).find_map(|(bit, share)| (share == syndrome).then_some(bit)) {
            return Some((at, bit));
        }
    }
    None
}

/// The owner of a block, as far as the block table can be read.
pub fn owner(pm: &PmView, overlay: &Overlay, geometry: &Geometry, block: PmBlock) -> Option<Owner> {
    let mut word = [0; 8];
    overlay.read(pm, geometry.table_entry(block), &mut word).ok()?;
    Owner::decode(u64::from_le_bytes(word)).filter(|_| block >= geometry.first_pool_block())
}

/// Describes a metadata page for the user.
pub fn describe(geometry: &Geometry, page: PmBlock, owner: Option<Owner>) -> String {
    let what = match owner {
        _ if page == ROOTS_BLOCK => "the roots".into(),
        _ if geometry.is_table(page) => {
            let first = (page.offset().0 - geometry.table_offset().0) / 16;
            format!("block table, blocks {first} to {}", first + BLOCK_SIZE / 16 - 1)
        }
        _ if geometry.is_map_area(page) => {
            let first = (page.offset().0 - geometry.map_offset().0) / 64;
            format!("{} table, lines {first} to {}", geometry.map.name(), first + BLOCK_SIZE / 64 - 1)
        }
        Some(Owner::Page { kind: PageKind::InodePage, datum }) => {
            let first = u64::from(datum) * SLOTS_PER_PAGE;
            format!("inodes {first} to {}", first + SLOTS_PER_PAGE - 1)
        }
        Some(Owner::Page { kind: PageKind::CatalogPage, datum }) => format!("catalog page of shard {datum}"),
        Some(Owner::Page { kind: PageKind::MapNode, datum }) => format!("map of inode {datum}"),
        _ => "map of the inode file".into(),
    };
    format!("page {page}: {what}")
}

impl Checker<'_> {
    /// Compares the pages of the fixed area. Pages of the pool are compared when their block table entries
    /// are judged.
    pub(crate) fn fixed_checksums(&mut self) {
        let table =
            self.geometry.table_offset().0 / BLOCK_SIZE..self.geometry.table_end().0.div_ceil(BLOCK_SIZE);
        let map = self.geometry.map_offset().0 / BLOCK_SIZE..self.geometry.first_pool_block().0;
        for page in std::iter::once(ROOTS_BLOCK.0).chain(table).chain(map) {
            self.compare_page(PmBlock(page), None);
        }
    }

    /// Compares a metadata page with its checksum.
    pub(crate) fn compare_page(&mut self, page: PmBlock, owner: Option<Owner>) {
        if !self.geometry.checksummed {
            return;
        }
        let media = (&self.pool.pm, &self.overlay);
        if let Some(code) = fault(media, &self.geometry, &self.superblock.uuid, page) {
            let geometry = self.geometry;
            let page = describe(&geometry, page, owner);
            let unreadable = code == Code::PmUnreadable;
            self.report(code, || if unreadable { format!("the checksum word of {page}") } else { page });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::checksum::crc32c;

    #[test]
    fn every_wrong_bit_of_a_page_is_found() {
        let mut page: Vec<u8> = (0..BLOCK_SIZE).map(|at| ((at * 31) >> 3) as u8).collect();
        let sound = crc32c(&page);
        for at in [0, 1, 63, 2000, 4095] {
            for bit in 0..8 {
                page.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << bit);
                assert_eq!(bit_of_syndrome(crc32c(&page) ^ sound), Some((at as u64, bit)));
                page.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << bit);
            }
        }
        let mut two = page.clone();
        two.iter_mut().step_by(1000).take(2).for_each(|byte| *byte ^= 1);
        assert_eq!(bit_of_syndrome(crc32c(&two) ^ sound), None);
    }
}
