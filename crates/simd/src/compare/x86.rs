//! Comparison of a group by AVX-512, in two vectors of eight owner words, and by AVX2, in four vectors of four.
//!
//! Invariant: loads end with the entries that the caller has.

use std::arch::x86_64::*;

/// Entries in a vector of 64 bytes.
const IN_512: usize = 4;
/// Entries of four owner words, which a step of AVX2 compares.
const STEP_256: usize = 4;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn matching_avx512(entries: &[[u64; 2]; 16], owner: u64, significant: u64) -> u16 {
    let from = entries.as_ptr();
    // SAFETY: the group has 16 entries, four in each of the vectors.
    let load = |index: usize| unsafe { _mm512_loadu_si512(from.add(index * IN_512).cast()) };
    match_512([load(0), load(1), load(2), load(3)], owner, significant)
}

/// Compares up to 16 entries.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn matching_part_avx512(entries: &[[u64; 2]], owner: u64, significant: u64) -> u16 {
    // a bit for each word
    let words = ((1u64 << (2 * entries.len())) - 1) as u32;
    let from = entries.as_ptr();
    let load = |index: usize| {
        let mask = (words >> (2 * IN_512 * index)) as u8;
        // SAFETY: the mask has bits of words that the slice has, and the load reads lanes with a bit only.
        unsafe { _mm512_maskz_loadu_epi64(mask, from.wrapping_add(index * IN_512).cast()) }
    };
    let present = ((1u32 << entries.len()) - 1) as u16;
    match_512([load(0), load(1), load(2), load(3)], owner, significant) & present
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn match_512(parts: [__m512i; 4], owner: u64, significant: u64) -> u16 {
    let owner = _mm512_set1_epi64(owner as i64);
    let significant = _mm512_set1_epi64(significant as i64);
    let owner_words = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
    let low = _mm512_permutex2var_epi64(parts[0], owner_words, parts[1]);
    let high = _mm512_permutex2var_epi64(parts[2], owner_words, parts[3]);
    let low = _mm512_testn_epi64_mask(_mm512_xor_si512(low, owner), significant);
    let high = _mm512_testn_epi64_mask(_mm512_xor_si512(high, owner), significant);
    u16::from(high) << 8 | u16::from(low)
}

#[target_feature(enable = "avx2")]
pub(super) fn matching_avx2(entries: &[[u64; 2]; 16], owner: u64, significant: u64) -> u16 {
    matching_part_avx2(entries, owner, significant)
}

/// Compares up to 16 entries.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn matching_part_avx2(entries: &[[u64; 2]], owner: u64, significant: u64) -> u16 {
    let owners = _mm256_set1_epi64x(owner as i64);
    let mask = _mm256_set1_epi64x(significant as i64);
    let (steps, rest) = entries.as_chunks::<STEP_256>();
    let mut bits = 0;
    for (index, step) in steps.iter().enumerate() {
        // SAFETY: the step has four entries, two in each of the vectors.
        let (early, late) = unsafe {
            let from = step.as_ptr().cast::<__m256i>();
            (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)))
        };
        let words = _mm256_unpacklo_epi64(early, late);
        let different = _mm256_and_si256(_mm256_xor_si256(words, owners), mask);
        let equal = _mm256_cmpeq_epi64(different, _mm256_setzero_si256());
        bits |= (_mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u16) << (index * STEP_256);
    }
    // The owner words of a step stand in the order 0 2 1 3: the middle bits change places.
    let swapped = (bits ^ bits >> 1) & 0x2222;
    bits ^= swapped | swapped << 1;
    for (index, entry) in rest.iter().enumerate() {
        bits |= u16::from((entry[0] ^ owner) & significant == 0) << (steps.len() * STEP_256 + index);
    }
    bits
}
