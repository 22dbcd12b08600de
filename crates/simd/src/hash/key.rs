//! The key of the hash, and the hash of a single message word.
//!
//! Invariant: the state words are fixed by the key alone. The first round adds and turns two of the four words before
//! the message reaches them; this half of the round belongs to the key setup here.

/// The initial state of SipHash under a key.
#[derive(Debug, Clone, Copy)]
pub struct HashKey {
    /// The words v0 to v3: v0 and v1 behind their half of the first round, v2 and v3 before it.
    pub(super) state: [u64; 4],
}

/// The block behind a message of eight bytes: the length in the highest byte.
pub(super) const LENGTH_BLOCK: u64 = 8 << 56;
/// Goes into v2 before the last three rounds.
pub(super) const FINISH: u64 = 0xff;

impl HashKey {
    /// Makes a key of 16 bytes, which are two little-endian words.
    pub fn new(bytes: [u8; 16]) -> HashKey {
        let both = u128::from_le_bytes(bytes);
        let (k0, k1) = (both as u64, (both >> 64) as u64);
        let (mut v0, mut v1) = (k0 ^ 0x736f_6d65_7073_6575, k1 ^ 0x646f_7261_6e64_6f6d);
        let (v2, v3) = (k0 ^ 0x6c79_6765_6e65_7261, k1 ^ 0x7465_6462_7974_6573);
        first_half(&mut v0, &mut v1);
        HashKey { state: [v0, v1, v2, v3] }
    }

    /// SipHash-1-3 of the eight bytes of `word`, the lowest first.
    #[inline]
    pub(super) fn hash_word(&self, word: u64) -> u64 {
        let [v0, v1, v2, v3] = self.state;
        let mut v = second_half([v0, v1, v2, v3 ^ word]);
        v[0] ^= word;
        v[3] ^= LENGTH_BLOCK;
        v = round(v);
        v[0] ^= LENGTH_BLOCK;
        v[2] ^= FINISH;
        for _ in 0..3 {
            v = round(v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

#[inline]
fn round([mut v0, mut v1, v2, v3]: [u64; 4]) -> [u64; 4] {
    first_half(&mut v0, &mut v1);
    second_half([v0, v1, v2, v3])
}

/// The steps of a round that need v0 and v1 only.
#[inline]
fn first_half(v0: &mut u64, v1: &mut u64) {
    *v0 = v0.wrapping_add(*v1);
    *v1 = v1.rotate_left(13) ^ *v0;
    *v0 = v0.rotate_left(32);
}

/// The steps of a round behind [`first_half`].
#[inline]
fn second_half([mut v0, mut v1, mut v2, mut v3]: [u64; 4]) -> [u64; 4] {
    v2 = v2.wrapping_add(v3);
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.wrapping_add(v3);
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.wrapping_add(v1);
    v1 = v1.rotate_left(17) ^ v2;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}
