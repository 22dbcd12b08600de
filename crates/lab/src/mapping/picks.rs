//! Numbers that look random, the same for the same seed (splitmix64; Steele et al., OOPSLA 2014).

pub(crate) struct Picks(u64);

impl Picks {
    pub(crate) fn new(seed: u64) -> Picks {
        Picks(seed.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a limit.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// True with a probability.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_spread_and_follow_the_probability() {
        let mut picks = Picks::new(5);
        let mut counts = [0u32; 10];
        (0..10_000).for_each(|_| counts[picks.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        let often = (0..10_000).filter(|_| picks.happens(0.85)).count();
        assert!((8_300..8_700).contains(&often), "{often}");
        assert!(!picks.happens(0.0) && picks.happens(1.0));
    }
}
