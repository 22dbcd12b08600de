//! The key of the checksums by which a block on a lower tier proves, by its content alone, that it is metadata of
//! this pool: sealed metadata pages (`below`) and group summaries (`device`). docs/decisions/0022.
//!
//! Invariant: with a secret nobody who cannot read the superblock can make such a block, whatever a user may
//! write into a file. Older pools have none: a repair believes less of their content.

use siphasher::sip::SipHasher24;
use siphasher::sip128::SipHasher24 as SipHasher24x128;
use std::fmt;

/// The key of a pool's seals.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealKey {
    /// Identity of the pool.
    pub(crate) pool_uuid: [u8; 16],
    /// The superblock's secret. Pools without the feature `keyed-seals` have none: their seals are CRC32C.
    pub(crate) secret: Option<[u8; 16]>,
}

/// Kinds of sealed blocks. The kind is part of the seal, so a block of a wrong kind is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sealed {
    /// A catalog leaf.
    Leaf = 1,
    /// A page of the inode file.
    Inodes = 2,
    /// A group summary.
    Summary = 3,
}

impl SealKey {
    /// The key of a pool; see [`crate::superblock::Superblock::seal_key`].
    pub const fn new(pool_uuid: [u8; 16], secret: Option<[u8; 16]>) -> SealKey {
        SealKey { pool_uuid, secret }
    }

    /// Whether only those who can read the superblock can make a seal.
    pub fn is_secret(&self) -> bool {
        self.secret.is_some()
    }
}

impl fmt::Debug for SealKey {
    /// Without the key: it must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_secret() { "SealKey(secret)" } else { "SealKey(public)" })
    }
}

/// The keyed checksum of a block (SipHash-2-4, Aumasson and Bernstein 2012). It covers kind and content, and
/// two words with identity and location of the block.
pub(crate) fn keyed(secret: &[u8; 16], kind: Sealed, words: [u64; 2], content: &[u8]) -> u64 {
    let mut bytes = Vec::with_capacity(24 + content.len());
    for word in [kind as u64, words[0], words[1]] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(content);
    SipHasher24::new_with_key(secret).hash(&bytes)
}

/// A name of a pool that every user may see: it tells nothing of the UUID, which the checksums of older pools rest on.
pub fn public_name(pool_uuid: &[u8; 16]) -> [u8; 16] {
    let hash = SipHasher24x128::new_with_key(pool_uuid).hash(b"terrace: public name of a pool");
    hash.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_checksum_is_siphash_2_4_of_kind_words_and_content() {
        let secret: [u8; 16] = std::array::from_fn(|at| at as u8);
        let mut bytes = Vec::new();
        [1u64, 2, 3].iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes.push(b'x');
        assert_eq!(
            keyed(&secret, Sealed::Leaf, [2, 3], b"x"),
            SipHasher24::new_with_key(&secret).hash(&bytes)
        );
        // The paper's test vector.
        let vector: Vec<u8> = (0..15).collect();
        assert_eq!(SipHasher24::new_with_key(&secret).hash(&vector), 0xa129_ca61_49be_45e5);
        assert_ne!(keyed(&secret, Sealed::Inodes, [2, 3], b"x"), keyed(&secret, Sealed::Leaf, [2, 3], b"x"));
        assert_eq!(format!("{:?}", SealKey::new(secret, Some(secret))), "SealKey(secret)");
    }
}
