//! The mark of a tier 0 whose content was taken over by a journal: it stands in place of each superblock copy.

use crate::address::BLOCK_SIZE;
use crate::checksum::crc32c;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of the mark.
pub const MOVED_MAGIC: [u8; 8] = *b"TERRMOV0";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    length: U32,
    path: [u8; 256],
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == 272);

/// The block of a mark that names the path of the journal; a path longer than 256 bytes is cut.
pub fn encode_moved(path: &[u8]) -> Vec<u8> {
    let mut raw = Raw { magic: MOVED_MAGIC, length: 0.into(), path: [0; 256], crc: 0.into() };
    let path = path.get(..path.len().min(raw.path.len())).unwrap_or(path);
    raw.length = (path.len() as u32).into();
    raw.path.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
    raw.crc = crc32c(raw.as_bytes().split_at(size_of::<Raw>() - 4).0).into();
    let mut block = raw.as_bytes().to_vec();
    block.resize(BLOCK_SIZE as usize, 0);
    block
}

/// The path in a mark; `None` for anything else.
pub fn decode_moved(bytes: &[u8]) -> Option<Vec<u8>> {
    let (raw, _) = Raw::read_from_prefix(bytes).ok()?;
    let crc = crc32c(raw.as_bytes().split_at(size_of::<Raw>() - 4).0);
    let is_sound = raw.magic == MOVED_MAGIC && raw.crc.get() == crc;
    raw.path.get(..raw.length.get() as usize).filter(|_| is_sound).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_round_trips_and_its_damage_is_found() {
        let block = encode_moved(b"/srv/journal");
        assert_eq!(block.len() as u64, BLOCK_SIZE);
        assert_eq!(decode_moved(&block).as_deref(), Some(b"/srv/journal".as_slice()));
        for at in 0..size_of::<Raw>() {
            let mut damaged = block.clone();
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= 1;
            }
            assert_eq!(decode_moved(&damaged), None, "byte {at}");
        }
        assert_eq!(decode_moved(&encode_moved(&[b'x'; 300])).map(|path| path.len()), Some(256));
        assert_eq!(decode_moved(&[]), None);
    }
}
