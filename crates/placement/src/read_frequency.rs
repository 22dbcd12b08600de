//! The read frequency predictor ([TPFS] section 4): do the reads of a file outweigh its writes?
//!
//! The counter holds the bytes read since the last write; above twice the file's size the file is read-dominated. The
//! publication counts blocks. Bytes are better: many small reads of a block do not count as many blocks.

/// The predictor's state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadFrequency {
    /// Bytes read since the last write.
    pub bytes: u64,
}

impl ReadFrequency {
    /// `bytes` were read.
    pub fn read(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The file was written.
    pub fn wrote(&mut self) {
        self.bytes = 0;
    }

    /// Whether a file of `size` bytes is read-dominated: `times` its size was read ([TPFS]: 2).
    pub fn is_dominated(&self, size: u64, times: u32) -> bool {
        size > 0 && self.bytes > size.saturating_mul(times.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_twice_the_size_and_not_once_it_is_written() {
        let mut state = ReadFrequency::default();
        assert!(!state.is_dominated(0, 2), "an empty file is not");
        (0..2).for_each(|_| state.read(1 << 20));
        assert!(!state.is_dominated(1 << 20, 2));
        state.read(1);
        assert!(state.is_dominated(1 << 20, 2) && !state.is_dominated(1 << 20, 3));
        state.wrote();
        assert!(!state.is_dominated(1, 2));
    }
}
