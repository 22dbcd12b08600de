//! Runs of hashes by AVX-512, eight in a vector, and by AVX2, four in a vector.
//!
//! Invariants: lane i of a vector has the message word of its first block plus i; the caller has checked that no word of
//! the run carries into the inode number; stores end with the run.

use super::key::{FINISH, HashKey, LENGTH_BLOCK};
use std::arch::x86_64::*;

const LANES_512: usize = 8;
const LANES_256: usize = 4;

/// Hashes of the words `first`, `first + 1`, … .
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn hash_run_avx512(key: &HashKey, first: u64, out: &mut [u64]) {
    let state = key.state.map(|word| _mm512_set1_epi64(word as i64));
    let step = _mm512_set1_epi64(LANES_512 as i64);
    let lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    let mut words = _mm512_add_epi64(_mm512_set1_epi64(first as i64), lanes);
    for part in out.chunks_mut(LANES_512) {
        let hashes = hash_512(state, words);
        let mask = 0xff >> (LANES_512 - part.len());
        // SAFETY: the mask has a bit for each place of `part`, and the store writes lanes with a bit only.
        unsafe { _mm512_mask_storeu_epi64(part.as_mut_ptr().cast(), mask, hashes) };
        words = _mm512_add_epi64(words, step);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn hash_512(state: [__m512i; 4], words: __m512i) -> __m512i {
    let length = _mm512_set1_epi64(LENGTH_BLOCK as i64);
    let [v0, v1, v2, v3] = state;
    let mut v = second_half_512([v0, v1, v2, _mm512_xor_si512(v3, words)]);
    v[0] = _mm512_xor_si512(v[0], words);
    v[3] = _mm512_xor_si512(v[3], length);
    v = round_512(v);
    v[0] = _mm512_xor_si512(v[0], length);
    v[2] = _mm512_xor_si512(v[2], _mm512_set1_epi64(FINISH as i64));
    for _ in 0..3 {
        v = round_512(v);
    }
    _mm512_xor_si512(_mm512_xor_si512(v[0], v[1]), _mm512_xor_si512(v[2], v[3]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_512([mut v0, mut v1, v2, v3]: [__m512i; 4]) -> [__m512i; 4] {
    v0 = _mm512_add_epi64(v0, v1);
    v1 = _mm512_xor_si512(_mm512_rol_epi64::<13>(v1), v0);
    v0 = _mm512_rol_epi64::<32>(v0);
    second_half_512([v0, v1, v2, v3])
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn second_half_512([mut v0, mut v1, mut v2, mut v3]: [__m512i; 4]) -> [__m512i; 4] {
    v2 = _mm512_add_epi64(v2, v3);
    v3 = _mm512_xor_si512(_mm512_rol_epi64::<16>(v3), v2);
    v0 = _mm512_add_epi64(v0, v3);
    v3 = _mm512_xor_si512(_mm512_rol_epi64::<21>(v3), v0);
    v2 = _mm512_add_epi64(v2, v1);
    v1 = _mm512_xor_si512(_mm512_rol_epi64::<17>(v1), v2);
    v2 = _mm512_rol_epi64::<32>(v2);
    [v0, v1, v2, v3]
}

/// Hashes of the words `first`, `first + 1`, … .
#[target_feature(enable = "avx2")]
pub(super) fn hash_run_avx2(key: &HashKey, first: u64, out: &mut [u64]) {
    let state = key.state.map(|word| _mm256_set1_epi64x(word as i64));
    let step = _mm256_set1_epi64x(LANES_256 as i64);
    let mut words = _mm256_add_epi64(_mm256_set1_epi64x(first as i64), _mm256_set_epi64x(3, 2, 1, 0));
    let (parts, rest) = out.as_chunks_mut::<LANES_256>();
    for part in parts {
        // SAFETY: `part` has as many places as the vector has lanes.
        unsafe { _mm256_storeu_si256(part.as_mut_ptr().cast(), hash_256(state, words)) };
        words = _mm256_add_epi64(words, step);
    }
    if !rest.is_empty() {
        let mut part = [0; LANES_256];
        // SAFETY: `part` has as many places as the vector has lanes.
        unsafe { _mm256_storeu_si256(part.as_mut_ptr().cast(), hash_256(state, words)) };
        rest.copy_from_slice(&part[..rest.len()]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn hash_256(state: [__m256i; 4], words: __m256i) -> __m256i {
    let length = _mm256_set1_epi64x(LENGTH_BLOCK as i64);
    let [v0, v1, v2, v3] = state;
    let mut v = second_half_256([v0, v1, v2, _mm256_xor_si256(v3, words)]);
    v[0] = _mm256_xor_si256(v[0], words);
    v[3] = _mm256_xor_si256(v[3], length);
    v = round_256(v);
    v[0] = _mm256_xor_si256(v[0], length);
    v[2] = _mm256_xor_si256(v[2], _mm256_set1_epi64x(FINISH as i64));
    for _ in 0..3 {
        v = round_256(v);
    }
    _mm256_xor_si256(_mm256_xor_si256(v[0], v[1]), _mm256_xor_si256(v[2], v[3]))
}

#[inline]
#[target_feature(enable = "avx2")]
fn round_256([mut v0, mut v1, v2, v3]: [__m256i; 4]) -> [__m256i; 4] {
    v0 = _mm256_add_epi64(v0, v1);
    v1 = _mm256_xor_si256(turn::<13, 51>(v1), v0);
    v0 = turn_32(v0);
    second_half_256([v0, v1, v2, v3])
}

#[inline]
#[target_feature(enable = "avx2")]
fn second_half_256([mut v0, mut v1, mut v2, mut v3]: [__m256i; 4]) -> [__m256i; 4] {
    v2 = _mm256_add_epi64(v2, v3);
    v3 = _mm256_xor_si256(turn_16(v3), v2);
    v0 = _mm256_add_epi64(v0, v3);
    v3 = _mm256_xor_si256(turn::<21, 43>(v3), v0);
    v2 = _mm256_add_epi64(v2, v1);
    v1 = _mm256_xor_si256(turn::<17, 47>(v1), v2);
    v2 = turn_32(v2);
    [v0, v1, v2, v3]
}

/// Rotates each lane to the left by `LEFT` bits; `RIGHT` is 64 less `LEFT`.
#[inline]
#[target_feature(enable = "avx2")]
fn turn<const LEFT: i32, const RIGHT: i32>(lanes: __m256i) -> __m256i {
    const { assert!(LEFT + RIGHT == 64) };
    _mm256_or_si256(_mm256_slli_epi64::<LEFT>(lanes), _mm256_srli_epi64::<RIGHT>(lanes))
}

/// Rotates each lane by 16 bits to the left: a shuffle of bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn turn_16(lanes: __m256i) -> __m256i {
    let half = _mm_set_epi8(13, 12, 11, 10, 9, 8, 15, 14, 5, 4, 3, 2, 1, 0, 7, 6);
    _mm256_shuffle_epi8(lanes, _mm256_broadcastsi128_si256(half))
}

/// Rotates each lane by 32 bits: its halves change places.
#[inline]
#[target_feature(enable = "avx2")]
fn turn_32(lanes: __m256i) -> __m256i {
    _mm256_shuffle_epi32::<0b10_11_00_01>(lanes)
}
