//! The keyed hash of a file block: SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) of
//! eight bytes, the little-endian file block and behind it the little-endian inode number.
//!
//! Invariants: the hash is part of the format, so every level gives the values of the standard; the key is public to the
//! pool and secret to its users, so that names of blocks which collide cannot be made up.
//! Hashes of consecutive blocks are independent: each lane of a vector computes the hash of a block.

mod key;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use key::HashKey;

use crate::level::{Level, Set, level};

/// Hash of file block `block` of inode `ino`.
#[inline]
pub fn hash(key: &HashKey, ino: u32, block: u32) -> u64 {
    key.hash_word(message(ino, block))
}

/// Hashes of the file blocks `first`, `first + 1`, … of inode `ino`, one for each place of `out`.
///
/// # Panics
/// When the run goes past file block `u32::MAX`.
#[inline]
pub fn hash_run(key: &HashKey, ino: u32, first: u32, out: &mut [u64]) {
    hash_run_at(level(), key, ino, first, out);
}

/// [`hash_run`] by the instructions of `level`.
///
/// # Panics
/// When the run goes past file block `u32::MAX`.
#[inline]
pub fn hash_run_at(level: Level, key: &HashKey, ino: u32, first: u32, out: &mut [u64]) {
    let room = (1 << 32) - u64::from(first);
    assert!(out.len() as u64 <= room, "a run of {} from file block {first} has an end", out.len());
    let first = message(ino, first);
    match level.set() {
        // SAFETY: a level of this set exists only where the processor has AVX-512 F, BW, DQ and VL.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => unsafe { x86::hash_run_avx512(key, first, out) },
        // SAFETY: a level of this set exists only where the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => unsafe { x86::hash_run_avx2(key, first, out) },
        Set::Portable => hash_run_portable(key, first, out),
    }
}

/// The message as a little-endian word. The word of the next file block is larger by one.
#[inline]
fn message(ino: u32, block: u32) -> u64 {
    u64::from(ino) << 32 | u64::from(block)
}

fn hash_run_portable(key: &HashKey, first: u64, out: &mut [u64]) {
    for (word, hash) in (first..=u64::MAX).zip(out) {
        *hash = key.hash_word(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use siphasher::sip::SipHasher13;
    use std::hash::Hasher;

    /// The key of the vectors: bytes 0 to 15.
    const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    /// Inode number, file block, hash under [`KEY`]. The page docs/format.md has the same rows.
    const VECTORS: [(u32, u32, u64); 8] = [
        (0, 0, 0x5cb9_6f6b_a2a4_fcfc),
        (1, 0, 0x39f3_921f_0019_aa8c),
        (0, 1, 0x32c5_ea5c_e472_f19b),
        (2, 0x1234_5678, 0xd0af_5e29_48b1_a8be),
        (0x7fff_feff, 255, 0x2313_f2c9_b35b_724f),
        (0, u32::MAX, 0x05db_6aaf_b4b8_af2c),
        (u32::MAX, 0, 0x197a_1241_540a_4557),
        (u32::MAX, u32::MAX, 0x823f_3073_1145_3347),
    ];

    /// The hash by a crate that knows nothing of this message.
    fn standard(key: &[u8; 16], ino: u32, block: u32) -> u64 {
        let mut hasher = SipHasher13::new_with_key(key);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&block.to_le_bytes());
        bytes[4..].copy_from_slice(&ino.to_le_bytes());
        hasher.write(&bytes);
        hasher.finish()
    }

    /// A random number, in a third of cases near an edge.
    fn number(rng: &mut StdRng) -> u32 {
        match rng.random_range(0..6) {
            0 => rng.random_range(0..40),
            1 => u32::MAX - rng.random_range(0..40),
            _ => rng.random(),
        }
    }

    #[test]
    fn hashes_of_the_format_page() {
        let key = HashKey::new(KEY);
        for (ino, block, expected) in VECTORS {
            let found = hash(&key, ino, block);
            assert_eq!(found, expected, "inode {ino:#x}, block {block:#x}: {found:#018x}");
            assert_eq!(standard(&KEY, ino, block), expected);
            for level in Level::available() {
                let mut out = [0];
                hash_run_at(level, &key, ino, block, &mut out);
                assert_eq!(out, [expected], "{level}, inode {ino:#x}, block {block:#x}");
            }
        }
    }

    #[test]
    fn the_hash_is_siphash_1_3_of_block_and_inode() {
        let mut rng = StdRng::seed_from_u64(1);
        let edges = [[0; 16], [0xff; 16]];
        for round in 0..20_000 {
            let bytes = edges.get(round).copied().unwrap_or_else(|| rng.random());
            let (ino, block) = (number(&mut rng), number(&mut rng));
            let expected = standard(&bytes, ino, block);
            assert_eq!(hash(&HashKey::new(bytes), ino, block), expected, "{bytes:?} {ino} {block}");
        }
    }

    #[test]
    fn a_run_has_the_hash_of_each_block_at_every_level() {
        let mut rng = StdRng::seed_from_u64(2);
        for round in 0..4_000 {
            let key = HashKey::new(rng.random());
            let ino = number(&mut rng);
            let length = round % 50;
            let first = number(&mut rng).min(u32::MAX - length + u32::from(length != 0));
            let expected: Vec<u64> = (0..length).map(|after| hash(&key, ino, first + after)).collect();
            for level in Level::available() {
                // A place behind the run shows a store that goes too far.
                let mut out = vec![0x5a5a; length as usize + 16];
                let (run, rest) = out.split_at_mut(length as usize);
                hash_run_at(level, &key, ino, first, run);
                assert_eq!(run, expected, "{level}, {length} from {first} of {ino}");
                assert!(rest.iter().all(|word| *word == 0x5a5a), "{level}, {length} from {first}");
            }
            let mut out = vec![0; length as usize];
            hash_run(&key, ino, first, &mut out);
            assert_eq!(out, expected, "{length} from {first} of {ino}");
        }
    }

    #[test]
    fn a_run_may_end_at_the_last_block() {
        let key = HashKey::new(KEY);
        for level in Level::available() {
            let mut out = [0; 16];
            hash_run_at(level, &key, u32::MAX, u32::MAX - 15, &mut out);
            assert_eq!(out[15], hash(&key, u32::MAX, u32::MAX), "{level}");
        }
    }

    #[test]
    #[should_panic(expected = "has an end")]
    fn a_run_past_the_last_block_is_refused() {
        hash_run(&HashKey::new(KEY), 1, u32::MAX, &mut [0; 2]);
    }
}
