//! Streaming stores and the CRC32C of what they store in one pass (design T4: data that shares the record's fence).
//!
//! Store and checksum share a pass. A load that follows 4 KiB of streaming stores finds, at every offset within a page, a
//! store on its way to the same offset of a different page, which x86 processors take for a possible conflict: a separate
//! pass for the checksum would wait for these stores. Folding by carry-less multiplication over four 64-byte registers
//! (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Bytes of one step: lengths that the kernel takes are multiples of it.
pub(crate) const STEP_BYTES: usize = 256;

/// Streams `length` bytes and gives their CRC32C.
pub(crate) type StreamChecked = unsafe fn(from: *const u8, to: *mut u8, length: usize) -> u32;

/// The kernel, where the processor has what it takes.
pub(crate) fn detect() -> Option<StreamChecked> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("sse4.2")
    {
        return Some(stream_checked);
    }
    None
}

/// Castagnoli's polynomial without its highest term.
const POLYNOMIAL: u32 = 0x1edc_6f41;

/// x^power modulo the polynomial, bit-reflected, as a multiplier of reflected values.
const fn multiplier(power: u32) -> i64 {
    let mut remainder: u32 = 1;
    let mut step = 0;
    while step < power {
        let carry = remainder >> 31 != 0;
        remainder <<= 1;
        if carry {
            remainder ^= POLYNOMIAL;
        }
        step += 1;
    }
    (remainder.reverse_bits() as i64) << 1
}

/// Multipliers that move 128 bits over a distance in bits: of the earlier and of the later 64.
const fn fold_by(bits: u32) -> (i64, i64) {
    (multiplier(bits + 32), multiplier(bits - 32))
}

const FAR: (i64, i64) = fold_by(8 * STEP_BYTES as u32);
const NEAR: (i64, i64) = fold_by(512);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(value: __m512i, by: __m512i, next: __m512i) -> __m512i {
    let early = _mm512_clmulepi64_epi128::<0x00>(value, by);
    let late = _mm512_clmulepi64_epi128::<0x11>(value, by);
    _mm512_ternarylogic_epi64::<0x96>(early, late, next)
}

/// A constant that comes with the instructions: the compiler would load it from memory, which between two requests of
/// the kernel is out of the cache.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn immediate<const VALUE: i64>() -> i64 {
    let value;
    // SAFETY: sets a register.
    unsafe {
        std::arch::asm!("mov {}, {}", out(reg) value, const VALUE, options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// # Safety
/// `from` is readable and not shared, `to` writable and aligned to lines, both for `length` bytes, a positive
/// multiple of [`STEP_BYTES`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
unsafe fn stream_checked(from: *const u8, to: *mut u8, length: usize) -> u32 {
    // SAFETY: `at` stays below `length`.
    let line = |at: usize| unsafe {
        let line = _mm512_loadu_si512(from.add(at).cast());
        std::arch::asm!("vmovntdq [{}], {}", in(reg) to.add(at), in(zmm_reg) line, options(nostack, preserves_flags));
        line
    };
    let first = _mm512_zextsi128_si512(_mm_cvtsi64_si128(immediate::<0xffff_ffff>()));
    let mut sums = [_mm512_xor_si512(line(0), first), line(64), line(128), line(192)];
    let far = _mm512_broadcast_i32x4(_mm_set_epi64x(immediate::<{ FAR.1 }>(), immediate::<{ FAR.0 }>()));
    let mut at = STEP_BYTES;
    while at < length {
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum = fold(*sum, far, line(at + 64 * index));
        }
        at += STEP_BYTES;
    }
    let near = _mm512_broadcast_i32x4(_mm_set_epi64x(immediate::<{ NEAR.1 }>(), immediate::<{ NEAR.0 }>()));
    let [a, b, c, d] = sums;
    let rest = fold(fold(fold(a, near, b), near, c), near, d);
    let mut words = [0u64; 8];
    // SAFETY: 64 bytes of our own.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), rest) };
    let crc = words.iter().fold(0, |crc, word| _mm_crc32_u64(crc, *word));
    !(crc as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::checksum::crc32c;

    #[repr(align(64))]
    struct Arena([u8; 8192]);

    #[test]
    fn checked_streaming_stores_and_sums_every_length() {
        let Some(stream) = detect() else { return };
        let source: Vec<u8> = (0..9000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for skew in [0, 1, 8, 63] {
            for length in (STEP_BYTES..=8192).step_by(STEP_BYTES) {
                let mut arena = Arena([0; 8192]);
                let from = &source[skew..skew + length];
                // SAFETY: the arena is aligned and holds 8192 bytes.
                let crc = unsafe { stream(from.as_ptr(), arena.0.as_mut_ptr(), length) };
                super::super::kernels::fence();
                assert_eq!(crc, crc32c(from), "{skew} {length}");
                assert_eq!(&arena.0[..length], from, "{skew} {length}");
            }
        }
    }
}
