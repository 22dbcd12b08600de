//! Metadata pages on lower tiers (design C1, docs/decisions/0014): the tagged location of such a page, and
//! the seal by which the copy on the device proves itself.
//!
//! ```text
//! location   bits 56-63 device + 1 (0: a PM block)  55 free slots  40-54 sequence  0-39 device block
//! with a secret, 64-bit seal and bits 40-55 of the location:
//! catalog page below   bytes 0-3: high half of the seal, 10-11: bits, 12-15: low half
//! inode page below     spare words of slots 0: low half, 1: high half, 2: bits, 3: index
//! without, CRC32C:
//! catalog page below   bytes 10-11: 1, 12-15: CRC
//! inode page below     spare words of slots 0: CRC, 1: magic "TIPG", 2: version 1
//! ```
//! Invariant: in PM those bytes are zero, or bytes 0-3 of every leaf, so that the copy below is the page and nothing is lost
//! in its seal.

use crate::address::{DeviceBlock, DeviceId};
use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::inode::SLOT_SIZE;
use crate::page::{LEAF_HEAD, PAGE_SIZE};
use crate::seal::{SealKey, Sealed, keyed};
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
    /// Low bits of the LSN of the demotion: they tell the page from earlier pages in the same device block.
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

/// Identity of a metadata page, part of the seed of its seal.
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

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Identity::Catalog { shard } => write!(f, "leaf of catalog shard {shard}"),
            Identity::Inodes { index } => write!(f, "inode page {index}"),
        }
    }
}

type Bytes = [u8; PAGE_SIZE];

const SLOT: usize = SLOT_SIZE as usize;
/// The spare word of an inode slot.
const SPARE: usize = SLOT - 4;

/// A mark of the seal: its position in the page, and its bytes in the copy on the device. The page in PM has
/// zeros in this position.
struct Mark {
    at: usize,
    length: usize,
    bytes: [u8; 4],
}

impl Mark {
    fn new<const N: usize>(at: usize, bytes: [u8; N]) -> Mark {
        let mut mark = Mark { at, length: N.min(4), bytes: [0; 4] };
        mark.bytes.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        mark
    }
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Where the seal of a page stands.
struct Layout {
    /// The words of the checksum, low word first: position in the page, and the bytes of the page in PM.
    sum: &'static [(usize, [u8; 4])],
    marks: [Mark; 2],
}

impl Layout {
    fn of(key: &SealKey, identity: Identity, word: u64) -> Layout {
        // The bits of a location besides device and block. A repair reads them here when the pointer to the
        // page is lost.
        let bits = ((word >> SEQUENCE_SHIFT) as u16).to_le_bytes();
        match (identity, key.is_secret()) {
            (Identity::Catalog { .. }, true) => Layout {
                sum: &[(12, [0; 4]), (0, LEAF_HEAD)],
                marks: [Mark::new(10, bits), Mark::new(10, bits)],
            },
            (Identity::Catalog { .. }, false) => {
                Layout { sum: &[(12, [0; 4])], marks: [Mark::new(10, [1, 0]), Mark::new(10, [1, 0])] }
            }
            (Identity::Inodes { index }, true) => Layout {
                sum: &[(SPARE, [0; 4]), (SLOT + SPARE, [0; 4])],
                marks: [
                    Mark::new(2 * SLOT + SPARE, [bits[0], bits[1], 0, 0]),
                    Mark::new(3 * SLOT + SPARE, (index as u32).to_le_bytes()),
                ],
            },
            (Identity::Inodes { .. }, false) => Layout {
                sum: &[(SPARE, [0; 4])],
                marks: [Mark::new(SLOT + SPARE, *b"TIPG"), Mark::new(2 * SLOT + SPARE, [1, 0, 0, 0])],
            },
        }
    }

    fn has_marks(&self, page: &Bytes) -> bool {
        self.marks.iter().all(|mark| get(page, mark.at, mark.length) == mark.bytes())
    }

    /// Takes the checksum out of a copy.
    fn take_sum(&self, page: &mut Bytes) -> u64 {
        let mut sum = 0;
        for (index, (at, plain)) in self.sum.iter().enumerate() {
            let word = get(page, *at, 4).first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            sum |= u64::from(word) << (32 * index);
            set(page, *at, plain);
        }
        sum
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

/// The checksum in a seal: it covers identity, location word and content of the page, with the seal's words
/// as in PM.
fn checksum(page: &Bytes, key: &SealKey, identity: Identity, word: u64) -> u64 {
    let (kind, datum) = match identity {
        Identity::Catalog { shard } => (Sealed::Leaf, u64::from(shard)),
        Identity::Inodes { index } => (Sealed::Inodes, index),
    };
    match &key.secret {
        Some(secret) => keyed(secret, kind, [datum, word], page),
        None => {
            let mut bytes = Vec::with_capacity(40 + PAGE_SIZE);
            bytes.extend_from_slice(&key.pool_uuid);
            for word in [kind as u64, datum, word] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(page);
            crc32c(&bytes).into()
        }
    }
}

/// Makes the copy for a lower tier of a page as it lies in PM; false, changing nothing, when the bytes of the
/// seal are not what they are in PM: such a page is damaged and stays where it is.
#[must_use]
pub fn seal(page: &mut Bytes, key: &SealKey, identity: Identity, word: u64) -> bool {
    let layout = Layout::of(key, identity, word);
    let plain = |at: usize, bytes: &[u8]| get(page, at, bytes.len()) == bytes;
    let sum_is_plain = layout.sum.iter().all(|(at, bytes)| plain(*at, bytes));
    let zeros = |mark: &Mark| get(page, mark.at, mark.length).iter().all(|byte| *byte == 0);
    if !sum_is_plain || !layout.marks.iter().all(zeros) {
        return false;
    }
    for mark in &layout.marks {
        set(page, mark.at, mark.bytes());
    }
    let sum = checksum(page, key, identity, word);
    for (index, (at, _)) in layout.sum.iter().enumerate() {
        set(page, *at, &((sum >> (32 * index)) as u32).to_le_bytes());
    }
    true
}

/// Checks a copy read from a lower tier and makes it the page that belongs in PM.
///
/// # Errors
/// `Corrupt` when the copy is not this page, sealed for this location.
pub fn unseal(page: &mut Bytes, key: &SealKey, identity: Identity, word: u64) -> Result<(), Corrupt> {
    let layout = Layout::of(key, identity, word);
    let found = layout.take_sum(page);
    if !layout.has_marks(page) || found != checksum(page, key, identity, word) {
        let site = format!("metadata page {identity:?} at {word:#x}");
        return Err(Corrupt::new(site, "its seal", format!("{found:#x}")));
    }
    for mark in &layout.marks {
        if let Some(place) = page.get_mut(mark.at..mark.at + mark.length) {
            place.fill(0);
        }
    }
    Ok(())
}

/// Finds the location word under which a copy was sealed. A repair needs it for pages without a pointer.
///
/// With a secret the word stands in the copy. Without one it follows from the CRC. A CRC is linear: an
/// unknown bit of the word (sequence, free slots) changes the CRC of every page in the same way, so a table
/// has these changes.
pub struct Words {
    key: SealKey,
    changes: HashMap<u64, u16>,
}

/// Bits of a word that are not the place, from [`SEQUENCE_SHIFT`] on.
const UNKNOWN_BITS: u32 = 16;

impl Words {
    /// For the seals of one pool.
    pub fn new(key: SealKey) -> Words {
        if key.is_secret() {
            return Words { key, changes: HashMap::new() };
        }
        let change = |bits: u64| {
            let of = |word| checksum(&[0; PAGE_SIZE], &key, Identity::Inodes { index: 0 }, word);
            of(bits << SEQUENCE_SHIFT) ^ of(0)
        };
        let basis: Vec<u64> = (0..UNKNOWN_BITS).map(|bit| change(1 << bit)).collect();
        let sum = |bits: u16| {
            let set = (0u32..).zip(&basis).filter(|(bit, _)| bits >> bit & 1 == 1);
            set.fold(0, |sum, (_, change)| sum ^ change)
        };
        Words { key, changes: (0..=u16::MAX).map(|bits| (sum(bits), bits)).collect() }
    }

    /// The word under which the copy in this place opens as `identity`, if there is one.
    pub fn find(
        &self,
        page: &[u8; PAGE_SIZE],
        identity: Identity,
        device: DeviceId,
        block: DeviceBlock,
    ) -> Option<u64> {
        let place = Below::new(device, block, 0, false).encode();
        if self.key.is_secret() {
            let at = match identity {
                Identity::Catalog { .. } => 10,
                Identity::Inodes { .. } => 2 * SLOT + SPARE,
            };
            let bits = u16::from_le_bytes(*get(page, at, 2).first_chunk::<2>()?);
            let word = place | u64::from(bits) << SEQUENCE_SHIFT;
            // The marks are compared before the checksum, because they alone exclude most pages.
            let is_it = Layout::of(&self.key, identity, word).has_marks(page)
                && unseal(&mut page.clone(), &self.key, identity, word).is_ok();
            return is_it.then_some(word);
        }
        let layout = Layout::of(&self.key, identity, place);
        if !layout.has_marks(page) {
            return None;
        }
        let mut content = *page;
        let found = layout.take_sum(&mut content);
        let bits = self.changes.get(&(found ^ checksum(&content, &self.key, identity, place)))?;
        Some(place | u64::from(*bits) << SEQUENCE_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;

    const KEYS: [SealKey; 2] = [SealKey::new([7; 16], None), SealKey::new([7; 16], Some([5; 16]))];

    fn leaf() -> Page {
        let mut leaf = Page::new(0);
        let filled = leaf.insert(0, b"key", b"value") && leaf.insert(1, b"long", b"value");
        assert!(filled && leaf.remove(0).is_ok());
        leaf
    }

    #[test]
    fn the_word_of_a_copy_is_found_again() {
        for key in KEYS {
            let words = Words::new(key);
            for (lsn, free) in [(0, false), (0x1234_5678, true), (u64::MAX, false), (1, true)] {
                let (device, block) = (DeviceId(3), DeviceBlock(0xab_cdef));
                let word = Below::new(device, block, lsn, free).encode();
                for identity in [Identity::Catalog { shard: 2 }, Identity::Inodes { index: 77 }] {
                    let mut page = [0; PAGE_SIZE];
                    page[1000..1020].fill(9);
                    if let Identity::Catalog { .. } = identity {
                        page = *leaf().0;
                    }
                    assert!(seal(&mut page, &key, identity, word));
                    assert_eq!(words.find(&page, identity, device, block), Some(word));
                    assert_eq!(words.find(&page, Identity::Inodes { index: 78 }, device, block), None);
                }
            }
        }
    }

    /// A seal was a CRC32C over the pool's UUID, which `status` showed to everybody: a block of a user's file could pose as a
    /// page of the catalog.
    #[test]
    fn without_the_secret_no_page_opens() {
        let word = Below::new(DeviceId(1), DeviceBlock(99), 5, false).encode();
        let identity = Identity::Catalog { shard: 3 };
        for forger in [SealKey::new([7; 16], None), SealKey::new([7; 16], Some([6; 16]))] {
            let mut page = *leaf().0;
            assert!(seal(&mut page, &forger, identity, word));
            assert!(unseal(&mut page.clone(), &KEYS[1], identity, word).is_err());
            assert_eq!(Words::new(KEYS[1]).find(&page, identity, DeviceId(1), DeviceBlock(99)), None);
        }
    }

    #[test]
    fn all_64_bits_of_a_keyed_seal_count() {
        let word = Below::new(DeviceId(1), DeviceBlock(99), 5, false).encode();
        let inodes = [0; PAGE_SIZE];
        for (page, identity) in
            [(*leaf().0, Identity::Catalog { shard: 3 }), (inodes, Identity::Inodes { index: 9 })]
        {
            let mut copy = page;
            assert!(seal(&mut copy, &KEYS[1], identity, word));
            for (at, _) in Layout::of(&KEYS[1], identity, word).sum {
                for bit in 0..32 {
                    let mut flipped = copy;
                    if let Some(byte) = flipped.get_mut(at + bit / 8) {
                        *byte ^= 1 << (bit % 8);
                    }
                    assert!(unseal(&mut flipped, &KEYS[1], identity, word).is_err(), "{at} bit {bit}");
                }
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
        let word = Below::new(DeviceId(1), DeviceBlock(99), 5, false).encode();
        let later = Below::new(DeviceId(1), DeviceBlock(99), 6, false).encode();
        let mut inodes = [0; PAGE_SIZE];
        inodes[..100].fill(0x55);
        for (key, other) in
            KEYS.iter().zip([SealKey::new([8; 16], None), SealKey::new([7; 16], Some([8; 16]))])
        {
            for (page, identity, wrong) in [
                (*leaf().0, Identity::Catalog { shard: 3 }, Identity::Catalog { shard: 4 }),
                (inodes, Identity::Inodes { index: 9 }, Identity::Inodes { index: 8 }),
            ] {
                let mut copy = page;
                assert!(seal(&mut copy, key, identity, word));
                assert_ne!(copy, page);
                // A page sealed twice would not open to the original page.
                assert!(!seal(&mut copy.clone(), key, identity, word));
                let refused = |key, identity, word| unseal(&mut copy.clone(), key, identity, word).is_err();
                assert!(refused(&other, identity, word));
                assert!(refused(key, wrong, word));
                assert!(refused(key, identity, later));
                let mut flipped = copy;
                flipped[2000] ^= 1;
                assert!(unseal(&mut flipped, key, identity, word).is_err());
                assert_eq!(unseal(&mut copy, key, identity, word), Ok(()));
                assert_eq!(copy, page);
            }
        }
    }
}
