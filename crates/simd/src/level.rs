//! The instruction sets that this crate has code for, and the choice among them.
//!
//! Invariants: a `Level` that is not portable exists only on a processor, under a kernel, with all instructions of the
//! level. Code that holds a `Level` therefore may call functions compiled for it. The functions enable no feature that
//! [`detect`] does not ask for.

use std::fmt;
use std::sync::OnceLock;

/// The instruction set of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// No instruction beyond those of the target.
    Portable,
}

/// A level of instructions that this machine has: AVX-512, AVX2 or portable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(Set);

impl Level {
    /// The level of every machine.
    pub const PORTABLE: Level = Level(Set::Portable);

    /// Every level of this machine, the best first. Tests and benches run all of them.
    pub fn available() -> Vec<Level> {
        detect().into_iter().map(Level).collect()
    }

    /// `avx512`, `avx2` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            Set::Portable => "portable",
        }
    }

    /// The instruction set, which the machine has.
    #[inline]
    pub(crate) fn set(self) -> Set {
        self.0
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The best level of this machine, detected by the first call.
#[inline]
pub fn level() -> Level {
    static BEST: OnceLock<Level> = OnceLock::new();
    *BEST.get_or_init(|| Level::available()[0])
}

/// The sets that processor and kernel support, the best first; the last is portable.
fn detect() -> Vec<Set> {
    let mut sets = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx2 = is_x86_feature_detected!("avx2");
        let has_avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        if has_avx2 && has_avx512 {
            sets.push(Set::Avx512);
        }
        if has_avx2 {
            sets.push(Set::Avx2);
        }
    }
    sets.push(Set::Portable);
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_level_is_the_first_available() {
        let levels = Level::available();
        assert_eq!(level(), levels[0]);
        assert_eq!(levels.last(), Some(&Level::PORTABLE));
        println!(
            "levels of this machine: {}",
            levels.iter().map(Level::to_string).collect::<Vec<_>>().join(" ")
        );
    }
}
