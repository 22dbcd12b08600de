//! The synchronicity predictor ([TPFS] section 4, [Ziggurat] section 4): will this file be fsynced soon?
//!
//! It counts the blocks written between two fsyncs. Fewer than `sync_blocks`: updated synchronously. A file
//! never synced is synchronous until it passes that many (design 5). An fsync with nothing written since the one
//! before says nothing about writes and changes nothing.

use crate::Parameters;

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Judgement {
    /// Never synced and not yet past `sync_blocks`: counts as synchronous.
    #[default]
    Unjudged,
    /// The last interval was short.
    Synchronous,
    /// The last interval, or the present one, was long.
    Asynchronous,
}

/// One file's state: 8 bytes when packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Synchronicity {
    /// Blocks written since the last fsync.
    pub blocks: u32,
    /// What follows from the intervals so far.
    pub judgement: Judgement,
}

impl Synchronicity {
    /// `blocks` were written without O_SYNC.
    pub fn wrote(&mut self, blocks: u32, parameters: &Parameters) {
        self.blocks = self.blocks.saturating_add(blocks);
        if self.blocks >= parameters.sync_blocks {
            self.judgement = Judgement::Asynchronous;
        }
    }

    /// A write through a descriptor with O_SYNC or O_DSYNC: synchronous by definition.
    pub fn wrote_durably(&mut self) {
        *self = Synchronicity { blocks: 0, judgement: Judgement::Synchronous };
    }

    /// The file was fsynced.
    pub fn synced(&mut self, parameters: &Parameters) {
        if self.blocks > 0 {
            let short = self.blocks < parameters.sync_blocks;
            self.judgement = if short { Judgement::Synchronous } else { Judgement::Asynchronous };
            self.blocks = 0;
        }
    }

    /// Whether the next write is expected to be fsynced soon.
    pub fn is_synchronous(&self) -> bool {
        self.judgement != Judgement::Asynchronous
    }

    /// As one word.
    pub fn pack(&self) -> u64 {
        u64::from(self.blocks) | (self.judgement as u64) << 32
    }

    /// From [`Self::pack`]; zero is a file nothing is known of.
    pub fn unpack(word: u64) -> Synchronicity {
        let judgement = match word >> 32 {
            0 => Judgement::Unjudged,
            1 => Judgement::Synchronous,
            _ => Judgement::Asynchronous,
        };
        Synchronicity { blocks: word as u32, judgement }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a stream of (blocks, then fsync?) and gives what was predicted before each write.
    fn stream(steps: &[(u32, bool)]) -> Vec<bool> {
        let parameters = Parameters::default();
        let mut state = Synchronicity::default();
        let predict = |(blocks, sync): &(u32, bool)| {
            let predicted = state.is_synchronous();
            state.wrote(*blocks, &parameters);
            if *sync {
                state.synced(&parameters);
            }
            state = Synchronicity::unpack(state.pack());
            predicted
        };
        steps.iter().map(predict).collect()
    }

    #[test]
    fn short_intervals_are_synchronous_and_long_ones_are_not() {
        assert_eq!(stream(&[(4, false), (1019, false), (1, false), (1, false)]), [true, true, true, false]);
        assert_eq!(stream(&[(2000, true), (1, true), (1, true)]), [true, false, true]);
        assert_eq!(stream(&[(1023, true), (1024, false), (1, false)]), [true, true, false]);
    }

    #[test]
    fn an_fsync_of_nothing_says_nothing() {
        assert_eq!(stream(&[(5000, true), (0, true), (100, false)]), [true, false, false]);
    }

    #[test]
    fn o_sync_is_synchronous_whatever_was_before() {
        let mut state = Synchronicity { blocks: 9000, judgement: Judgement::Asynchronous };
        state.wrote_durably();
        assert!(state.is_synchronous());
    }
}
