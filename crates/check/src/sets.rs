//! Two sets of block numbers: dense for PM, sparse for devices whose claimed size cannot be trusted.

use std::collections::BTreeMap;

/// A set of numbers below a fixed bound.
pub struct Dense {
    words: Vec<u64>,
}

impl Dense {
    /// An empty set of numbers below `count`.
    pub fn new(count: u64) -> Dense {
        Dense { words: vec![0; count.div_ceil(64) as usize] }
    }

    /// Adds a number; false when it was in already or is out of bounds.
    pub fn insert(&mut self, number: u64) -> bool {
        let Some(word) = self.words.get_mut((number / 64) as usize) else {
            return false;
        };
        let bit = 1 << (number % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether the number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let word = self.words.get((number / 64) as usize).copied().unwrap_or(0);
        word >> (number % 64) & 1 == 1
    }
}

/// A set of any numbers; memory grows with the 4096-ranges in use.
#[derive(Default)]
pub struct Sparse {
    pages: BTreeMap<u64, Box<[u64; 64]>>,
}

impl Sparse {
    /// Adds a number; false when it was in already.
    pub fn insert(&mut self, number: u64) -> bool {
        let page = self.pages.entry(number >> 12).or_insert_with(|| Box::new([0; 64]));
        let Some(word) = page.get_mut((number >> 6 & 63) as usize) else {
            return false;
        };
        let bit = 1 << (number & 63);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether the number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let word = self.pages.get(&(number >> 12)).and_then(|page| page.get((number >> 6 & 63) as usize));
        word.is_some_and(|word| word >> (number & 63) & 1 == 1)
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().flat_map(|(page, words)| {
            let base = page << 12;
            words.iter().enumerate().flat_map(move |(index, word)| {
                let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
                bits.map(move |bit| base + index as u64 * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_contains_iter() {
        let mut dense = Dense::new(100);
        assert!(dense.insert(99) && !dense.insert(99) && dense.contains(99) && !dense.contains(98));
        assert!(!dense.insert(1 << 40));
        let mut sparse = Sparse::default();
        let numbers = [0, 63, 64, 4095, 4096, 1 << 50, u64::MAX];
        assert!(numbers.iter().all(|number| sparse.insert(*number)));
        assert!(!sparse.insert(64) && sparse.contains(1 << 50) && !sparse.contains(65));
        assert_eq!(sparse.iter().collect::<Vec<_>>(), numbers);
    }
}
