//! The synchronicity predictor ([TPFS] section 4, [Ziggurat] section 4): will this file be fsynced soon?
//!
//! It counts the blocks written between two fsyncs. Fewer than `sync_blocks`: updated synchronously. A file
//! that was never synced is judged by its directory history ([`crate::prior`]), and is synchronous without
//! such a history, until it passes `sync_blocks` (design 5). An fsync without writes since the last fsync is
//! ignored.
//!
//! The directory history learns the fate of a file at these moments: the file is fsynced, passes
//! `sync_blocks`, is closed with unsynced bytes, or its unsynced bytes reach the age at which write-back
//! writes dirty pages. A fate equal to the last told fate is not told again.

use crate::Parameters;
use crate::temperature::TICKS_PER_SECOND;

/// The age at which write-back writes a dirty page. A file whose unsynced bytes reach it counts as not
/// synced in the directory history.
pub const WRITE_BACK_TICKS: u32 = 30 * TICKS_PER_SECOND;

/// The judgement of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Judgement {
    /// Never synced and not yet past `sync_blocks`, without a directory history: counts as synchronous.
    #[default]
    Unjudged,
    /// The last interval was short.
    Synchronous,
    /// The last interval, or the present one, was long.
    Asynchronous,
    /// No file history; by the directory history files are synced.
    ExpectedSynchronous,
    /// No file history; by the directory history files are not synced.
    ExpectedAsynchronous,
}

impl Judgement {
    /// Number of judgements.
    pub const COUNT: usize = 5;

    /// All judgements, by number.
    pub const ALL: [Judgement; Judgement::COUNT] = [
        Judgement::Unjudged,
        Judgement::Synchronous,
        Judgement::Asynchronous,
        Judgement::ExpectedSynchronous,
        Judgement::ExpectedAsynchronous,
    ];

    /// Whether the judgement follows from the file's own intervals.
    #[inline]
    pub fn is_own(self) -> bool {
        matches!(self, Judgement::Synchronous | Judgement::Asynchronous)
    }

    /// Whether the next write is expected to be fsynced soon.
    #[inline]
    pub fn is_synchronous(self) -> bool {
        !matches!(self, Judgement::Asynchronous | Judgement::ExpectedAsynchronous)
    }
}

/// The predictor's state of a file: 8 bytes when packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Synchronicity {
    /// Blocks written since the last fsync.
    pub blocks: u32,
    /// The judgement by the intervals so far, or by the directory history.
    pub judgement: Judgement,
    /// The fate that the directory history was told last.
    told: Option<bool>,
}

impl Synchronicity {
    /// `blocks` were written without O_SYNC.
    #[inline]
    pub fn wrote(&mut self, blocks: u32, parameters: &Parameters) {
        self.blocks = self.blocks.saturating_add(blocks);
        if self.blocks >= parameters.sync_blocks {
            self.judgement = Judgement::Asynchronous;
        }
    }

    /// A write through a descriptor with O_SYNC or O_DSYNC: synchronous by definition.
    pub fn wrote_durably(&mut self) {
        (self.blocks, self.judgement) = (0, Judgement::Synchronous);
    }

    /// The file was fsynced.
    #[inline]
    pub fn synced(&mut self, parameters: &Parameters) {
        if self.blocks > 0 {
            let short = self.blocks < parameters.sync_blocks;
            self.judgement = if short { Judgement::Synchronous } else { Judgement::Asynchronous };
            self.blocks = 0;
        }
    }

    /// Takes the expectation of the directory history, unless the file has a history of its own.
    pub fn expect(&mut self, expected: Option<bool>) {
        if !self.judgement.is_own() {
            self.judgement = match expected {
                None => Judgement::Unjudged,
                Some(true) => Judgement::ExpectedSynchronous,
                Some(false) => Judgement::ExpectedAsynchronous,
            };
        }
    }

    /// Notes the fate of the file; true if the directory history is to be told.
    #[inline]
    pub fn tells(&mut self, synced: bool) -> bool {
        self.told.replace(synced) != Some(synced)
    }

    /// Whether the next write is expected to be fsynced soon.
    #[inline]
    pub fn is_synchronous(&self) -> bool {
        self.judgement.is_synchronous()
    }

    /// As one word.
    #[inline]
    pub fn pack(&self) -> u64 {
        let told = self.told.map_or(0, |synced| 1 + u64::from(synced));
        u64::from(self.blocks) | (self.judgement as u64) << 32 | told << 40
    }

    /// From [`Self::pack`]; zero is a file without any history.
    #[inline]
    pub fn unpack(word: u64) -> Synchronicity {
        let judgement = Judgement::ALL.get((word >> 32 & 0xff) as usize).copied();
        let told = match word >> 40 {
            0 => None,
            told => Some(told == 2),
        };
        Synchronicity { blocks: word as u32, judgement: judgement.unwrap_or_default(), told }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a stream of (blocks, then fsync?) and gives the prediction before each write.
    fn stream_of(mut state: Synchronicity, steps: &[(u32, bool)]) -> Vec<bool> {
        let parameters = Parameters::default();
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

    fn stream(steps: &[(u32, bool)]) -> Vec<bool> {
        stream_of(Synchronicity::default(), steps)
    }

    #[test]
    fn short_intervals_are_synchronous_and_long_ones_are_not() {
        assert_eq!(stream(&[(4, false), (1019, false), (1, false), (1, false)]), [true, true, true, false]);
        assert_eq!(stream(&[(2000, true), (1, true), (1, true)]), [true, false, true]);
        assert_eq!(stream(&[(1023, true), (1024, false), (1, false)]), [true, true, false]);
    }

    #[test]
    fn an_fsync_without_writes_leaves_the_judgement_alone() {
        assert_eq!(stream(&[(5000, true), (0, true), (100, false)]), [true, false, false]);
    }

    #[test]
    fn o_sync_is_synchronous_whatever_was_before() {
        let mut state =
            Synchronicity { blocks: 9000, judgement: Judgement::Asynchronous, ..Synchronicity::default() };
        state.wrote_durably();
        assert!(state.is_synchronous());
    }

    #[test]
    fn the_expectation_holds_until_the_file_has_a_history() {
        let mut expected = Synchronicity::default();
        expected.expect(Some(false));
        assert_eq!(stream_of(expected, &[(4, false), (4, true), (4, false)]), [false, false, true]);
        let mut judged = Synchronicity { judgement: Judgement::Synchronous, ..Synchronicity::default() };
        judged.expect(Some(false));
        assert_eq!(judged.judgement, Judgement::Synchronous);
    }

    #[test]
    fn a_file_tells_the_same_once() {
        let mut state = Synchronicity::default();
        let mut tells = |synced| {
            let told = state.tells(synced);
            state = Synchronicity::unpack(state.pack());
            told
        };
        assert_eq!([true, true, false, false, true].map(&mut tells), [true, false, true, false, true]);
    }
}
