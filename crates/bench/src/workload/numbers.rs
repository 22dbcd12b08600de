//! Pseudo-random numbers, the same in every run, and distributions drawn from them.

use std::io;

/// SplitMix64 [Steele, Lea, Flood, OOPSLA 2014].
#[derive(Debug, Clone)]
pub struct Picks(u64);

impl Picks {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Picks {
        Picks(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from 0 up to but not including 1.
    fn share(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipf's distribution over the blocks of a file, as fio draws it: rank r has a weight of r^-θ, and ranks are
/// scattered over the file. θ = 0 is uniform. [TPFS table 3] gives the θ of the localities 90/10 to 50/50.
#[derive(Debug)]
pub struct Zipf {
    /// For each rank the weight of all ranks up to it, from 0 to 1.
    cumulative: Vec<f64>,
    /// Prime to the number of blocks: rank · stride mod blocks scatters the ranks.
    stride: u64,
}

impl Zipf {
    /// # Errors
    /// `InvalidInput` without blocks or with a θ that is no number from 0 to 4.
    pub fn new(blocks: u64, theta: f64) -> io::Result<Zipf> {
        if blocks == 0 || !(0.0..=4.0).contains(&theta) {
            let text = format!("zipf over {blocks} blocks with theta {theta}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=blocks)
            .map(|rank| {
                sum += (rank as f64).powf(-theta);
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|value| *value /= sum);
        // Near the golden section, the next number without a common divisor.
        let mut stride = ((blocks as f64 * 0.618) as u64).max(1);
        while divisor(stride, blocks) != 1 {
            stride += 1;
        }
        Ok(Zipf { cumulative, stride })
    }

    /// A rank, 0 the most frequent.
    pub fn rank(&self, picks: &mut Picks) -> u64 {
        let share = picks.share();
        let rank = self.cumulative.partition_point(|value| *value <= share) as u64;
        rank.min(self.cumulative.len() as u64 - 1)
    }

    /// A block of the file.
    pub fn block(&self, picks: &mut Picks) -> u64 {
        let blocks = self.cumulative.len() as u128;
        ((u128::from(self.rank(picks)) * u128::from(self.stride)) % blocks) as u64
    }

    /// Draws blocks in advance, so the time of drawing is not measured.
    pub fn draw(&self, picks: &mut Picks, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.block(picks)).collect()
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of the draws that fall on the most frequent `hot` part of the ranks.
    fn share_of(theta: f64, hot: f64) -> f64 {
        const BLOCKS: u64 = 65_536;
        const DRAWS: u64 = 200_000;
        let zipf = Zipf::new(BLOCKS, theta).unwrap();
        let mut picks = Picks::new(1);
        let limit = (BLOCKS as f64 * hot) as u64;
        let inside = (0..DRAWS).filter(|_| zipf.rank(&mut picks) < limit).count();
        inside as f64 / DRAWS as f64
    }

    /// The shares that the θ of [TPFS table 3] give for a file of 256 MiB, computed by hand. They equal the
    /// paper's localities except 90/10, which needs a larger file.
    #[test]
    fn thetas_of_the_paper_have_its_localities() {
        for (theta, hot, wanted) in
            [(1.04, 0.1, 0.84), (0.88, 0.2, 0.77), (0.71, 0.3, 0.70), (0.44, 0.4, 0.60), (0.0, 0.5, 0.50)]
        {
            let got = share_of(theta, hot);
            assert!((got - wanted).abs() < 0.015, "theta {theta}: {got}");
        }
    }

    #[test]
    fn every_block_can_be_drawn_once_per_rank() {
        for blocks in [1, 2, 7, 100, 4096] {
            let zipf = Zipf::new(blocks, 0.0).unwrap();
            let mut seen: Vec<u64> = (0..blocks).map(|rank| rank * zipf.stride % blocks).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..blocks).collect::<Vec<_>>(), "{blocks} blocks");
        }
    }

    #[test]
    fn draws_repeat_and_stay_inside() {
        let zipf = Zipf::new(100, 1.04).unwrap();
        let first = zipf.draw(&mut Picks::new(5), 1000);
        assert_eq!(first, zipf.draw(&mut Picks::new(5), 1000));
        assert!(first.iter().all(|block| *block < 100));
        assert!(Zipf::new(0, 1.0).is_err() && Zipf::new(5, f64::NAN).is_err());
        assert_eq!(Picks::new(1).below(0), 0);
    }
}
