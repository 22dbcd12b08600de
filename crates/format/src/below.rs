//! Metadata pages on lower tiers (design C1, docs/decisions/0014): the tagged location that names one, and the
//! checksum that makes its copy there self-checking.
//!
//! ```text
//! location   bits 56-63 device + 1 (0: a PM block)  55 free slots  40-54 sequence  0-39 device block
//! catalog page below   bytes 10-11: 1, 12-15: CRC
//! inode page below     spare words of slots 0: CRC, 1: magic "TIPG", 2: version 1
//! ```
//! Invariant: in PM those bytes are zero, so that the copy below is the page and nothing is lost in its seal.

use crate::address::{DeviceBlock, DeviceId};
use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::inode::SLOT_SIZE;
use crate::page::PAGE_SIZE;
use crate::superblock::MAX_DEVICES;
use std::collections::HashMap;

/// Bit of a location: an inode page that had a free slot when it moved.
const FREE_SLOTS: u64 = 1 << 55;
const SEQUENCE_SHIFT: u32 = 40;
const SEQUENCE_MASK: u64 = (1 << 15) - 1;
/// Device blocks that a location can name.
pub const MAX_BELOW_BLOCK: u64 = (1 << SEQUENCE_SHIFT) - 1;

/// Where a metadata page lies on a lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Below {
    /// The device.
    pub device: DeviceId,
    /// The block there, at most [`MAX_BELOW_BLOCK`].
    pub block: DeviceBlock,
    /// Low bits of the LSN when it moved: tells a page from one that lay there before.
    pub sequence: u16,
    /// An inode page with a free slot.
    pub free_slots: bool,
}

/// Whether a location names a page below PM.
pub fn is_below(word: u64) -> bool {
    word >> 56 != 0
}

impl Below {
    /// A place; `lsn` is any number that rises from move to move.
    pub fn new(device: DeviceId, block: DeviceBlock, lsn: u64, free_slots: bool) -> Below {
        Below { device, block, sequence: (lsn & SEQUENCE_MASK) as u16, free_slots }
    }

    /// The location word.
    pub fn encode(&self) -> u64 {
        debug_assert!(self.block.0 <= MAX_BELOW_BLOCK && usize::from(self.device.0) < MAX_DEVICES);
        (u64::from(self.device.0) + 1) << 56
            | if self.free_slots { FREE_SLOTS } else { 0 }
            | (u64::from(self.sequence) & SEQUENCE_MASK) << SEQUENCE_SHIFT
            | self.block.0 & MAX_BELOW_BLOCK
    }

    /// Decodes a location word; `None` for a PM block and for what no pool has.
    pub fn decode(word: u64) -> Option<Below> {
        let device = (word >> 56).checked_sub(1)?;
        let block = DeviceBlock(word & MAX_BELOW_BLOCK);
        (device < MAX_DEVICES as u64 && block.0 != 0).then_some(Below {
            device: DeviceId(device as u8),
            block,
            sequence: (word >> SEQUENCE_SHIFT & SEQUENCE_MASK) as u16,
            free_slots: word & FREE_SLOTS != 0,
        })
    }
}

/// What a page is: part of its checksum's seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Leaf of a catalog shard.
    Catalog {
        /// The shard.
        shard: u32,
    },
    /// Page of the inode file.
    Inodes {
        /// Its index.
        index: u64,
    },
}

type Bytes = [u8; PAGE_SIZE];

/// A mark: its place and bytes.
type Mark = (usize, &'static [u8]);

/// Where the CRC stands, and the marks.
fn seal_places(identity: Identity) -> (usize, &'static [Mark]) {
    const SLOT: usize = SLOT_SIZE as usize;
    const SPARE: usize = SLOT - 4;
    match identity {
        Identity::Catalog { .. } => (12, &[(10, &[1, 0])]),
        Identity::Inodes { .. } => (SPARE, &[(SLOT + SPARE, b"TIPG"), (2 * SLOT + SPARE, &[1, 0, 0, 0])]),
    }
}

fn set(page: &mut Bytes, at: usize, bytes: &[u8]) {
    if let Some(place) = page.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn get(page: &Bytes, at: usize, length: usize) -> &[u8] {
    page.get(at..at + length).unwrap_or_default()
}

/// CRC of a page with its CRC field zero, behind what it is and where it lies.
fn checksum(page: &Bytes, pool_uuid: &[u8; 16], identity: Identity, word: u64) -> u32 {
    let (kind, datum) = match identity {
        Identity::Catalog { shard } => (1u64, u64::from(shard)),
        Identity::Inodes { index } => (2, index),
    };
    let mut bytes = Vec::with_capacity(40 + PAGE_SIZE);
    bytes.extend_from_slice(pool_uuid);
    for word in [kind, datum, word] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(page);
    crc32c(&bytes)
}

/// Makes the copy for a lower tier of a page as it lies in PM; false, changing nothing, when the bytes of the
/// seal are not zero: such a page is damaged and stays where it is.
#[must_use]
pub fn seal(page: &mut Bytes, pool_uuid: &[u8; 16], identity: Identity, word: u64) -> bool {
    let (crc_at, marks) = seal_places(identity);
    let used = |at: usize, length: usize| get(page, at, length).iter().any(|byte| *byte != 0);
    if used(crc_at, 4) || marks.iter().any(|(at, mark)| used(*at, mark.len())) {
        return false;
    }
    for (at, mark) in marks {
        set(page, *at, mark);
    }
    let crc = checksum(page, pool_uuid, identity, word);
    set(page, crc_at, &crc.to_le_bytes());
    true
}

/// Checks a copy read from a lower tier and makes it the page that belongs in PM.
///
/// # Errors
/// A copy that is not this page in this place.
pub fn unseal(page: &mut Bytes, pool_uuid: &[u8; 16], identity: Identity, word: u64) -> Result<(), Corrupt> {
    let (crc_at, marks) = seal_places(identity);
    let found = get(page, crc_at, 4).first_chunk::<4>().map_or(0, |crc| u32::from_le_bytes(*crc));
    set(page, crc_at, &[0; 4]);
    let expected = checksum(page, pool_uuid, identity, word);
    if found != expected || marks.iter().any(|(at, mark)| get(page, *at, mark.len()) != *mark) {
        let site = format!("metadata page {identity:?} at {word:#x}");
        return Err(Corrupt::new(site, format!("CRC {expected:#x} and marks"), format!("{found:#x}")));
    }
    for (at, mark) in marks {
        if let Some(place) = page.get_mut(*at..at + mark.len()) {
            place.fill(0);
        }
    }
    Ok(())
}

/// Finds out under which location word a copy was sealed, where nothing names it any more: for repair.
///
/// A CRC is linear, so what each bit of the word that is not known (sequence and free slots) changes in it is the same for
/// every page: all of them are in a table.
pub struct Words(HashMap<u32, u16>);

/// Lowest bit of a word that is not the place, and how many follow.
const UNKNOWN_BITS: u32 = 16;

impl Default for Words {
    fn default() -> Self {
        let change = |bits: u64| {
            let of = |word| checksum(&[0; PAGE_SIZE], &[0; 16], Identity::Inodes { index: 0 }, word);
            of(bits << SEQUENCE_SHIFT) ^ of(0)
        };
        let basis: Vec<u32> = (0..UNKNOWN_BITS).map(|bit| change(1 << bit)).collect();
        let sum = |bits: u16| {
            let set = (0u32..).zip(&basis).filter(|(bit, _)| bits >> bit & 1 == 1);
            set.fold(0, |sum, (_, change)| sum ^ change)
        };
        Words((0..=u16::MAX).map(|bits| (sum(bits), bits)).collect())
    }
}

impl Words {
    /// The word under which the copy in this place opens as `identity`, if there is one.
    pub fn find(
        &self,
        page: &[u8; PAGE_SIZE],
        pool_uuid: &[u8; 16],
        identity: Identity,
        device: DeviceId,
        block: DeviceBlock,
    ) -> Option<u64> {
        let (crc_at, marks) = seal_places(identity);
        if marks.iter().any(|(at, mark)| get(page, *at, mark.len()) != *mark) {
            return None;
        }
        let found = get(page, crc_at, 4).first_chunk::<4>().map_or(0, |crc| u32::from_le_bytes(*crc));
        let mut content = *page;
        set(&mut content, crc_at, &[0; 4]);
        let place = Below::new(device, block, 0, false).encode();
        let bits = self.0.get(&(found ^ checksum(&content, pool_uuid, identity, place)))?;
        Some(place | u64::from(*bits) << SEQUENCE_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;

    #[test]
    fn the_word_of_a_copy_is_found_again() {
        let (uuid, words) = ([7; 16], Words::default());
        for (lsn, free) in [(0, false), (0x1234_5678, true), (u64::MAX, false), (1, true)] {
            let (device, block) = (DeviceId(3), DeviceBlock(0xab_cdef));
            let word = Below::new(device, block, lsn, free).encode();
            for identity in [Identity::Catalog { shard: 2 }, Identity::Inodes { index: 77 }] {
                let mut page = [0; PAGE_SIZE];
                page[1000..2000].fill(9);
                assert!(seal(&mut page, &uuid, identity, word));
                assert_eq!(words.find(&page, &uuid, identity, device, block), Some(word));
                assert_eq!(words.find(&page, &uuid, Identity::Inodes { index: 78 }, device, block), None);
            }
        }
    }

    #[test]
    fn locations_round_trip() {
        let places = [
            Below::new(DeviceId(0), DeviceBlock(1), 0, false),
            Below::new(DeviceId(23), DeviceBlock(MAX_BELOW_BLOCK), u64::MAX, true),
        ];
        for place in places {
            assert!(is_below(place.encode()));
            assert_eq!(Below::decode(place.encode()), Some(place));
        }
        assert!(!is_below(1 << 40));
        for word in [0, 77, 25 << 56 | 1, 1 << 56, u64::MAX] {
            assert_eq!(Below::decode(word), None);
        }
    }

    #[test]
    fn a_sealed_page_opens_only_as_itself_in_its_place() {
        let (uuid, other) = ([7; 16], [8; 16]);
        let word = Below::new(DeviceId(1), DeviceBlock(99), 5, false).encode();
        let later = Below::new(DeviceId(1), DeviceBlock(99), 6, false).encode();
        let mut leaf = Page::new(0);
        assert!(
            leaf.insert(0, b"key", b"value") && leaf.insert(1, b"long", b"value") && leaf.remove(0).is_ok()
        );
        let mut inodes = [0; PAGE_SIZE];
        inodes[..100].fill(0x55);
        for (page, identity, wrong) in [
            (*leaf.0, Identity::Catalog { shard: 3 }, Identity::Catalog { shard: 4 }),
            (inodes, Identity::Inodes { index: 9 }, Identity::Inodes { index: 8 }),
        ] {
            let mut copy = page;
            assert!(seal(&mut copy, &uuid, identity, word));
            assert_ne!(copy, page);
            // Sealed twice it would not open to what it was.
            assert!(!seal(&mut copy.clone(), &uuid, identity, word));
            let refused = |uuid, identity, word| unseal(&mut copy.clone(), uuid, identity, word).is_err();
            assert!(refused(&other, identity, word));
            assert!(refused(&uuid, wrong, word));
            assert!(refused(&uuid, identity, later));
            let mut flipped = copy;
            flipped[2000] ^= 1;
            assert!(unseal(&mut flipped, &uuid, identity, word).is_err());
            assert_eq!(unseal(&mut copy, &uuid, identity, word), Ok(()));
            assert_eq!(copy, page);
        }
    }
}
