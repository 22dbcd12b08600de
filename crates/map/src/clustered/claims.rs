//! Free lines that a change under way takes for itself.
//!
//! A line with a key belongs to the inode of the key: other changes leave the line alone. So free lines alone need an
//! agreement: a bit claims a line until the stores of the change are issued. A search for a free line passes claimed lines,
//! and does not wait.
//!
//! Invariant: the key of a line is read after its bit was set; the bit goes after the key was stored, or when the change was
//! given up.
//!
//! Locks: none.

use smallvec::SmallVec;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// A bit for each line.
pub(super) struct Claims(Vec<AtomicU64>);

impl Claims {
    pub fn new(lines: u64) -> Claims {
        Claims((0..lines.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Claims an unclaimed line, if `is_free` then says that the key is 0.
    fn take(&self, line: u64, is_free: impl FnOnce() -> bool) -> bool {
        let Some(word) = self.0.get((line / 64) as usize) else { return false };
        let bit = 1 << (line % 64);
        let is_claimed = word.fetch_or(bit, Ordering::AcqRel) & bit != 0;
        if is_claimed && !planted(Mistake::ClaimIgnoresClaims) {
            return false;
        }
        let is_taken = is_free();
        if !is_taken {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
        is_taken
    }

    fn give_back(&self, line: u64) {
        if let Some(word) = self.0.get((line / 64) as usize) {
            word.fetch_and(!(1 << (line % 64)), Ordering::AcqRel);
        }
    }
}

/// Lines that a change has claimed. Dropped when its stores are issued, or when it was given up.
#[must_use]
pub(crate) struct Claimed<'a> {
    claims: &'a Claims,
    lines: SmallVec<[u64; 2]>,
}

impl<'a> Claimed<'a> {
    pub(super) fn none(claims: &'a Claims) -> Claimed<'a> {
        Claimed { claims, lines: SmallVec::new() }
    }

    /// Claims a line, if it is free.
    pub(super) fn take(&mut self, line: u64, is_free: impl FnOnce() -> bool) -> bool {
        let is_taken = self.claims.take(line, is_free);
        if is_taken {
            self.lines.push(line);
        }
        is_taken
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.lines.iter().for_each(|line| self.claims.give_back(*line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_claimed_once_until_its_claim_ends() {
        let claims = Claims::new(130);
        let mut first = Claimed::none(&claims);
        assert!(first.take(129, || true) && first.take(65, || true));
        let mut second = Claimed::none(&claims);
        assert!(!second.take(129, || true), "another has claimed the line");
        assert!(!second.take(3, || false), "the line is not free");
        assert!(second.take(3, || true), "a line that was not free is not kept");
        drop(first);
        assert!(second.take(129, || true));
        assert!(!Claimed::none(&claims).take(192, || true), "no such line");
    }
}
