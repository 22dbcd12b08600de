//! Content and choices that are computed from a number, so a test remembers the number alone.

/// A sequence of numbers from a seed (splitmix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// `length` bytes computed from `key`; other keys give other bytes.
pub(crate) fn bytes(key: u64, length: usize) -> Vec<u8> {
    let mut numbers = Numbers::new(key ^ 0x5eed_0000_0000_0000);
    let mut content = Vec::with_capacity(length + 8);
    while content.len() < length {
        content.extend_from_slice(&numbers.next().to_le_bytes());
    }
    content.truncate(length);
    content
}

/// A sentence about the first difference of two contents.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found == expected {
        return None;
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    Some(match at {
        None => format!("{} bytes instead of {}", found.len(), expected.len()),
        Some(at) => {
            let tail = &found[at..];
            let zeros = tail.iter().take_while(|byte| **byte == 0).count();
            format!(
                "byte {at} of {} is {:#04x} instead of {:#04x}, {zeros} zeros there",
                expected.len(),
                found[at],
                expected[at]
            )
        }
    })
}
