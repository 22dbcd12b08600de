//! The anchor: the point from which a journal counts.

use crate::address::BLOCK_SIZE;
use crate::checkpoint::FAR;
use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::device::TAKEN;
use crate::journal::Layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of an anchor.
pub const ANCHOR_MAGIC: [u8; 8] = *b"TERRJNL0";
const VERSION: u32 = 1;
const CLEAN: u32 = 1;

/// An anchor as it lies on the device.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    uuid: [u8; 16],
    image_bytes: U64,
    log_bytes: U64,
    number: U64,
    epoch: U64,
    start: U64,
    sequence: U64,
    acknowledged: U64,
    previous: U32,
    table: U32,
    named: U64,
    spare: [u8; 52],
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == 160);

/// The point from which a journal counts: home has the entries of all earlier batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// The journal's UUID, new with each format.
    pub uuid: [u8; 16],
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Rises with each anchor; the larger sound copy counts.
    pub number: u64,
    /// Rises with each opening. No batch of a larger epoch counts.
    pub epoch: u64,
    /// Position of the first batch that counts.
    pub start: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// CRC of the batch before it.
    pub previous: u32,
    /// The log was acknowledged up to this position: a shorter log is damage.
    pub acknowledged: u64,
    /// Position from which entries name pages that a crash may have torn in home. Home and table have the pages that earlier
    /// entries name. 0 in journals of older programs.
    pub named: u64,
    /// The table in use, 0 or 1.
    pub table: usize,
    /// Written by an orderly unmount: no batch follows.
    pub clean: bool,
}

/// The reason against a block as an anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedAnchor {
    /// No anchor was ever here.
    NotAJournal,
    /// An anchor of another version of the format.
    Version(u32),
    /// A damaged anchor.
    Corrupt(Corrupt),
}

impl Anchor {
    /// The addresses on the device.
    ///
    /// # Errors
    /// Sizes that no journal has.
    pub fn layout(&self) -> Result<Layout, Corrupt> {
        Layout::new(self.image_bytes, self.log_bytes).ok_or_else(|| {
            let found = format!("an image of {} bytes, a log of {}", self.image_bytes, self.log_bytes);
            Corrupt::new("journal anchor", "sizes of a journal", found)
        })
    }

    /// The block as written.
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = Raw {
            magic: ANCHOR_MAGIC,
            version: VERSION.into(),
            flags: if self.clean { CLEAN } else { 0 }.into(),
            uuid: self.uuid,
            image_bytes: self.image_bytes.into(),
            log_bytes: self.log_bytes.into(),
            number: self.number.into(),
            epoch: self.epoch.into(),
            start: self.start.into(),
            sequence: self.sequence.into(),
            acknowledged: self.acknowledged.into(),
            previous: self.previous.into(),
            table: (self.table as u32).into(),
            named: self.named.into(),
            spare: [0; 52],
            crc: 0.into(),
        };
        raw.crc = crc32c(raw.as_bytes().split_at(size_of::<Raw>() - 4).0).into();
        let mut block = raw.as_bytes().to_vec();
        block.resize(BLOCK_SIZE as usize, 0);
        if let Some(place) = block.get_mut(TAKEN.0..TAKEN.0 + TAKEN.1.len()) {
            place.copy_from_slice(&TAKEN.1);
        }
        block
    }

    /// Accepts a copy read from a device.
    ///
    /// # Errors
    /// The reason against the copy; the other copy may be sound.
    pub fn decode(block: &[u8]) -> Result<Anchor, RefusedAnchor> {
        let (raw, _) = Raw::read_from_prefix(block).map_err(|_| RefusedAnchor::NotAJournal)?;
        if raw.magic != ANCHOR_MAGIC {
            return Err(RefusedAnchor::NotAJournal);
        }
        let corrupt = |expected: &str, found: String| {
            RefusedAnchor::Corrupt(Corrupt::new("journal anchor", expected, found))
        };
        let crc = crc32c(raw.as_bytes().split_at(size_of::<Raw>() - 4).0);
        if raw.crc.get() != crc {
            return Err(corrupt(&format!("CRC {crc:#x}"), format!("{:#x}", raw.crc.get())));
        }
        if raw.version.get() != VERSION {
            return Err(RefusedAnchor::Version(raw.version.get()));
        }
        let anchor = Anchor {
            uuid: raw.uuid,
            image_bytes: raw.image_bytes.get(),
            log_bytes: raw.log_bytes.get(),
            number: raw.number.get(),
            epoch: raw.epoch.get(),
            start: raw.start.get(),
            sequence: raw.sequence.get(),
            previous: raw.previous.get(),
            acknowledged: raw.acknowledged.get(),
            named: raw.named.get(),
            table: raw.table.get() as usize,
            clean: raw.flags.get() & CLEAN != 0,
        };
        let numbers = [anchor.number, anchor.epoch, anchor.start, anchor.sequence, anchor.acknowledged];
        let is_possible = numbers.iter().all(|number| *number < FAR)
            && anchor.start.is_multiple_of(BLOCK_SIZE)
            && anchor.acknowledged.is_multiple_of(BLOCK_SIZE)
            && anchor.named.is_multiple_of(BLOCK_SIZE)
            && anchor.named <= anchor.acknowledged
            && anchor.start <= anchor.acknowledged
            && anchor.acknowledged - anchor.start <= anchor.log_bytes
            && anchor.table < 2;
        if !is_possible {
            return Err(corrupt("numbers of a journal", format!("{anchor:?}")));
        }
        anchor.layout().map_err(RefusedAnchor::Corrupt)?;
        Ok(anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::MIN_LOG_BYTES;

    fn anchor() -> Anchor {
        Anchor {
            uuid: [3; 16],
            image_bytes: 1 << 20,
            log_bytes: MIN_LOG_BYTES,
            number: 9,
            epoch: 4,
            start: 4096,
            sequence: 77,
            previous: 0xdead,
            acknowledged: 8192,
            named: 4096,
            table: 1,
            clean: true,
        }
    }

    #[test]
    fn an_anchor_round_trips_and_its_damage_is_found() {
        let bytes = anchor().encode();
        assert_eq!(Anchor::decode(&bytes), Ok(anchor()));
        for at in 0..size_of::<Raw>() {
            let mut damaged = bytes.clone();
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= 1;
            }
            assert!(Anchor::decode(&damaged).is_err(), "byte {at}");
        }
        assert_eq!(Anchor::decode(&[0; 4096]), Err(RefusedAnchor::NotAJournal));
        assert_eq!(Anchor::decode(&[]), Err(RefusedAnchor::NotAJournal));
    }

    #[test]
    fn impossible_numbers_are_damage() {
        let change = |edit: fn(&mut Anchor)| {
            let mut anchor = anchor();
            edit(&mut anchor);
            Anchor::decode(&anchor.encode())
        };
        for edit in [
            (|anchor| anchor.start = 100) as fn(&mut Anchor),
            |anchor| anchor.start = 12288,
            |anchor| anchor.acknowledged = FAR,
            |anchor| anchor.acknowledged = 8192 + MIN_LOG_BYTES,
            |anchor| anchor.named = 12288,
            |anchor| anchor.named = 100,
            |anchor| anchor.table = 2,
            |anchor| anchor.epoch = u64::MAX,
            |anchor| anchor.image_bytes = 5,
            |anchor| anchor.log_bytes = 4096,
        ] {
            assert!(matches!(change(edit), Err(RefusedAnchor::Corrupt(_))));
        }
    }
}
