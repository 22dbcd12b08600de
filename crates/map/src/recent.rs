//! Slots of blocks away from the first line of their search, as hints for the next search.
//!
//! A block that is written over again and again leaves slots that wait for the checkpoint in front of its own, a line each in
//! groups. A hint leads past these slots. Hints are volatile and prove nothing: a search compares the owner word of the slot,
//! and goes on where the word differs. So no hint has to be taken back when a transaction fails or a block goes.
//!
//! Locks: none. A hint of another inode may take the place of a hint at any time.

use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Hints, a power of two.
const HINTS: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 12;

/// The hints of a map.
pub(crate) struct Recent(Box<[AtomicU64]>);

/// The place of a key and its tag. A tag is never 0, which marks a place without a hint.
#[inline]
fn place(key: u64) -> (usize, u64) {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> (64 - PLACE_BITS)) as usize, (mixed >> 22) & 0xffff_ffff | 1)
}

impl Recent {
    pub fn new() -> Recent {
        Recent((0..HINTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// The slot in which a key may be.
    #[inline]
    pub fn find(&self, key: u64) -> Option<u64> {
        let (place, tag) = place(key);
        let hint = self.0.get(place)?.load(Ordering::Relaxed);
        (hint >> 32 == tag).then_some(hint & 0xffff_ffff)
    }

    /// Notes the slot of a key; `None` where a search begins in the line of the slot.
    #[inline]
    pub fn note(&self, key: u64, slot: Option<u64>) {
        let (place, tag) = place(key);
        let Some(hint) = self.0.get(place) else { return };
        match slot {
            Some(slot) => {
                debug_assert!(slot >> 32 == 0, "slots have 32 bits: {slot}");
                hint.store(tag << 32 | slot, Ordering::Relaxed);
            }
            None if hint.load(Ordering::Relaxed) >> 32 == tag => hint.store(0, Ordering::Relaxed),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_found_until_it_is_taken_back_or_another_takes_its_place() {
        let recent = Recent::new();
        let keys: Vec<u64> = (0..5_000).map(|number| number << 1 | 5 << 40).collect();
        for (slot, key) in (0..).zip(&keys) {
            assert_eq!(recent.find(*key), None);
            recent.note(*key, Some(slot));
            assert_eq!(recent.find(*key), Some(slot));
        }
        let found = (0..).zip(&keys).filter(|(slot, key)| recent.find(**key) == Some(*slot)).count();
        assert!((HINTS / 2..=HINTS).contains(&found), "{found} of {HINTS} hints");
        for key in &keys {
            recent.note(*key, None);
            assert_eq!(recent.find(*key), None);
        }
    }
}
