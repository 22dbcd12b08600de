//! Checkpoint: {LSN, epoch, tail of every lane, CRC} in two copies (design T5).

use crate::address::{BLOCK_SIZE, Lsn};
use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::geometry::MAX_LANES;
use crate::record::RECORD_ALIGN;

const MAGIC: u32 = 0x5443_4b50; // "PKCT"
const VERSION: u32 = 1;
const HEADER: usize = 56;

/// LSNs, epochs, sequence numbers and ring positions from here on are damage: a pool would need centuries
/// to reach them, and whoever counts on from one would overflow.
pub const FAR: u64 = 1 << 62;

/// The durable point from which recovery starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Every record below it is applied and durable in place.
    pub lsn: Lsn,
    /// Mount epoch: raised by each recovery; records of another epoch do not count.
    pub epoch: u64,
    /// Rises with every checkpoint; the larger valid copy wins.
    pub sequence: u64,
    /// Set by an orderly unmount.
    pub clean: bool,
    /// Ring position of each lane's first record that is not below `lsn`. Positions only grow; the
    /// place in the ring is the position modulo the lane size.
    pub tails: Vec<u64>,
}

impl Checkpoint {
    /// The block as written.
    pub fn encode(&self, pool_uuid: &[u8; 16]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK_SIZE as usize);
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(pool_uuid);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.lsn.0.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.clean).to_le_bytes());
        bytes.extend_from_slice(&(self.tails.len() as u32).to_le_bytes());
        for tail in &self.tails {
            bytes.extend_from_slice(&tail.to_le_bytes());
        }
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&u64::from(crc).to_le_bytes());
        assert!(bytes.len() as u64 <= BLOCK_SIZE, "a checkpoint of more lanes than fit a block");
        bytes
    }

    /// Accepts a copy read from the medium.
    ///
    /// # Errors
    /// The damage of this copy; the other copy may be sound.
    pub fn decode(block: &[u8], pool_uuid: &[u8; 16], lanes: u32) -> Result<Checkpoint, Corrupt> {
        let site = "checkpoint";
        let short = || Corrupt::new(site, "a whole block", format!("{} bytes", block.len()));
        let word = |at: usize| -> Result<u64, Corrupt> {
            let bytes = block.get(at..at + 8).and_then(|s| s.first_chunk::<8>()).ok_or_else(short)?;
            Ok(u64::from_le_bytes(*bytes))
        };
        let first = word(0)?;
        if first as u32 != MAGIC || (first >> 32) as u32 != VERSION {
            return Err(Corrupt::new(site, "magic and version 1", format!("{first:#x}")));
        }
        if block.get(8..24) != Some(pool_uuid.as_slice()) {
            return Err(Corrupt::new(site, "this pool's UUID", "another"));
        }
        let flags = word(48)?;
        let count = (flags >> 32) as u32;
        if count != lanes || count > MAX_LANES {
            return Err(Corrupt::new(site, format!("{lanes} lanes"), count.to_string()));
        }
        let end = HEADER + 8 * count as usize;
        let covered = block.get(..end).ok_or_else(short)?;
        let found = word(end)?;
        let expected = u64::from(crc32c(covered));
        if found != expected {
            return Err(Corrupt::new(site, format!("CRC {expected:#x}"), format!("{found:#x}")));
        }
        let mut tails = Vec::with_capacity(count as usize);
        for lane in 0..count as usize {
            tails.push(word(HEADER + 8 * lane)?);
        }
        Ok(Checkpoint {
            sequence: word(24)?,
            lsn: Lsn(word(32)?),
            epoch: word(40)?,
            clean: flags as u32 & 1 == 1,
            tails,
        })
    }

    /// False when LSN, epoch or sequence number is one that no pool reaches: mount refuses it.
    pub fn has_possible_numbers(&self) -> bool {
        [self.lsn.0, self.epoch, self.sequence].iter().all(|number| *number < FAR)
    }

    /// The first lane whose tail no record can start at: mount refuses it.
    pub fn impossible_tail(&self) -> Option<usize> {
        self.tails.iter().position(|tail| *tail >= FAR || !tail.is_multiple_of(RECORD_ALIGN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_round_trips_and_its_damage_is_found() {
        let point =
            Checkpoint { lsn: Lsn(7), epoch: 3, sequence: 9, clean: true, tails: vec![0, 64, u64::MAX] };
        let uuid = [5; 16];
        let bytes = point.encode(&uuid);
        assert_eq!(Checkpoint::decode(&bytes, &uuid, 3).ok(), Some(point));
        for at in 0..bytes.len() - 4 {
            let mut damaged = bytes.clone();
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= 1;
            }
            assert!(Checkpoint::decode(&damaged, &uuid, 3).is_err(), "byte {at}");
        }
    }
}
