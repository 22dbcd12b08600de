//! Comparison of the owner words of a group of table entries with a wanted owner.
//!
//! Invariants: the entries lie in the caller's own memory, as words in the byte order of the host; bit i of a result
//! belongs to entry i; bits of entries that a slice does not have are 0.
//! A vector load that follows word-sized stores to the same bytes waits for the stores: a caller that has copied the
//! entries by vector stores, or some time ago, does not pay for this.

#[cfg(target_arch = "x86_64")]
mod x86;

use crate::level::{Level, Set, level};

/// Entries of a group.
pub const GROUP_ENTRIES: usize = 16;

/// A copy of a table entry: owner word, second word.
pub type Words = [u64; 2];

/// Bit i is set where the owner word of entry i agrees with `owner` in all bits of `significant`.
#[inline]
pub fn matching(entries: &[Words; GROUP_ENTRIES], owner: u64, significant: u64) -> u16 {
    matching_at(level(), entries, owner, significant)
}

/// [`matching`] by the instructions of `level`.
#[inline]
pub fn matching_at(level: Level, entries: &[Words; GROUP_ENTRIES], owner: u64, significant: u64) -> u16 {
    match level.set() {
        // SAFETY: a level of this set exists only where the processor has AVX-512 F, BW, DQ and VL.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => unsafe { x86::matching_avx512(entries, owner, significant) },
        // SAFETY: a level of this set exists only where the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => unsafe { x86::matching_avx2(entries, owner, significant) },
        Set::Portable => matching_portable(entries, owner, significant),
    }
}

/// [`matching`] of a part of a group.
///
/// # Panics
/// When there are more than [`GROUP_ENTRIES`] entries.
#[inline]
pub fn matching_part(entries: &[Words], owner: u64, significant: u64) -> u16 {
    matching_part_at(level(), entries, owner, significant)
}

/// [`matching_part`] by the instructions of `level`.
///
/// # Panics
/// When there are more than [`GROUP_ENTRIES`] entries.
#[inline]
pub fn matching_part_at(level: Level, entries: &[Words], owner: u64, significant: u64) -> u16 {
    assert!(entries.len() <= GROUP_ENTRIES, "{} entries are more than a group", entries.len());
    match level.set() {
        // SAFETY: a level of this set exists only where the processor has AVX-512 F, BW, DQ and VL.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => unsafe { x86::matching_part_avx512(entries, owner, significant) },
        // SAFETY: a level of this set exists only where the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => unsafe { x86::matching_part_avx2(entries, owner, significant) },
        Set::Portable => matching_portable(entries, owner, significant),
    }
}

/// Compares up to 16 entries.
fn matching_portable(entries: &[Words], owner: u64, significant: u64) -> u16 {
    let bit = |(place, entry): (usize, &Words)| u16::from((entry[0] ^ owner) & significant == 0) << place;
    entries.iter().enumerate().map(bit).fold(0, |bits, bit| bits | bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// All bits but that of unwritten blocks.
    const NOT_UNWRITTEN: u64 = !1;

    fn expected(entries: &[Words], owner: u64, significant: u64) -> u16 {
        let mut bits = 0;
        for (place, entry) in entries.iter().enumerate() {
            if entry[0] & significant == owner & significant {
                bits |= 1 << place;
            }
        }
        bits
    }

    /// Compares all levels with the definition, for the group and each of its parts.
    fn check(entries: &[Words; GROUP_ENTRIES], owner: u64, significant: u64) {
        let whole = expected(entries, owner, significant);
        assert_eq!(matching(entries, owner, significant), whole);
        for level in Level::available() {
            let found = matching_at(level, entries, owner, significant);
            assert_eq!(found, whole, "{level}: {entries:x?} {owner:x} {significant:x}");
            for length in 0..=GROUP_ENTRIES {
                let part = &entries[..length];
                let found = matching_part_at(level, part, owner, significant);
                assert_eq!(found, expected(part, owner, significant), "{level}: {length} of {entries:x?}");
            }
        }
        assert_eq!(matching_part(&entries[..5], owner, significant), whole & 0x1f);
    }

    #[test]
    fn each_entry_has_its_own_bit() {
        for place in 0..GROUP_ENTRIES {
            let mut entries = [[7, 9]; GROUP_ENTRIES];
            entries[place] = [9, 7];
            check(&entries, 9, u64::MAX);
            check(&entries, 7, u64::MAX);
            assert_eq!(matching(&entries, 9, u64::MAX), 1 << place);
        }
    }

    #[test]
    fn second_words_and_insignificant_bits_count_for_no_match() {
        check(&[[0, u64::MAX]; GROUP_ENTRIES], u64::MAX, u64::MAX);
        check(&[[u64::MAX, 0]; GROUP_ENTRIES], 0, u64::MAX);
        check(&[[u64::MAX, 0]; GROUP_ENTRIES], 0, 0);
        check(&[[0, 0]; GROUP_ENTRIES], 1, NOT_UNWRITTEN);
        check(&[[0, 0]; GROUP_ENTRIES], 1 << 63, NOT_UNWRITTEN);
        check(&[[1 << 63, 0]; GROUP_ENTRIES], 0, u64::MAX >> 1);
        assert_eq!(matching(&[[u64::MAX, 0]; GROUP_ENTRIES], 0, 0), u16::MAX);
    }

    #[test]
    fn random_groups_match_alike_at_every_level() {
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..4_000 {
            // Owners that differ in a single bit or not at all.
            let owner: u64 = rng.random();
            let entries = std::array::from_fn(|_| match rng.random_range(0..4) {
                0 => [owner, rng.random()],
                1 => [owner ^ 1 << rng.random_range(0..64), owner],
                2 => [owner ^ 1, rng.random()],
                _ => rng.random(),
            });
            let significant = [u64::MAX, NOT_UNWRITTEN, rng.random(), 0xffff_ffff << 33];
            significant.into_iter().for_each(|significant| check(&entries, owner, significant));
        }
    }

    #[test]
    #[should_panic(expected = "more than a group")]
    fn a_part_larger_than_a_group_is_refused() {
        matching_part(&[[0, 0]; GROUP_ENTRIES + 1], 0, 0);
    }
}
