//! Poison of recorded PM: ranges on which accesses fail.
//!
//! Invariant: a condemned range fails every read until the medium is opened anew; no call takes it back.

use crate::block::Times;
use std::ops::Range;

/// Accesses that poison makes fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads and stores.
    Any,
    /// Reads alone: stores go through, as they do on PM whose line is gone.
    Reads,
    /// Stores alone.
    Stores,
}

struct Poison {
    range: Range<u64>,
    access: Access,
    times: Times,
}

impl Poison {
    fn meets(&self, range: &Range<u64>, access: Access) -> bool {
        touch(&self.range, range) && (self.access == access || self.access == Access::Any)
    }
}

/// All poison of a medium.
#[derive(Default)]
pub(super) struct Poisons {
    poisoned: Vec<Poison>,
    /// Ranges that no read may touch until the next mount.
    condemned: Vec<Range<u64>>,
    /// Accesses that failed.
    errors: u64,
}

impl Poisons {
    pub fn add(&mut self, range: Range<u64>, access: Access, times: Times) {
        assert!(range.start <= range.end, "poison of a range that ends before its start");
        self.poisoned.push(Poison { range, access, times });
    }

    /// Poison that has not ended.
    pub fn left(&self) -> usize {
        self.poisoned.len()
    }

    pub fn clear(&mut self) {
        self.poisoned.clear();
    }

    pub fn condemn(&mut self, range: Range<u64>) {
        self.condemned.push(range);
    }

    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Whether an access fails. Poison with a count is used up by it.
    pub fn strike(&mut self, range: &Range<u64>, access: Access) -> bool {
        if access == Access::Reads && self.condemned.iter().any(|other| touch(other, range)) {
            self.errors += 1;
            return true;
        }
        let Some(index) = self.poisoned.iter().position(|poison| poison.meets(range, access)) else {
            return false;
        };
        let poison = &mut self.poisoned[index];
        let strike = poison.times.strike();
        if strike.here {
            poison.range = range.clone();
        }
        if !strike.stays {
            self.poisoned.remove(index);
        }
        self.errors += u64::from(strike.fails);
        strike.fails
    }

    /// Whether the write-back of a range has no effect. Poison that is still to come keeps no line back.
    pub fn keeps_back(&self, range: &Range<u64>) -> bool {
        let in_force = |times| matches!(times, Times::Forever | Times::Count(_) | Times::AlwaysAfter(0));
        self.poisoned.iter().any(|poison| in_force(poison.times) && poison.meets(range, Access::Stores))
    }
}

fn touch(first: &Range<u64>, second: &Range<u64>) -> bool {
    first.start < second.end && second.start < first.end
}
