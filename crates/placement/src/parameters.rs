//! The parameters of a mount, with the publications' values.

use crate::spill::Spill;
use crate::temperature::TICKS_PER_SECOND;
use crate::threshold::{Dataflow, Utilisation};

/// Parameters of the predictors (design 5) and of migration (design 7). Each is a mount option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// A file with fewer blocks than this written between two fsyncs is updated synchronously ([TPFS] section 4).
    pub sync_blocks: u32,
    /// A write whose counter is above this is large and stable ([TPFS] section 4).
    pub large_after: u8,
    /// Bytes below which no write is large, whatever its counter.
    pub large_min: u64,
    /// While less of PM is used, large writes go there too; 0: never. `None`: [`Self::large_pm`] of the medium.
    pub large_pm_percent: Option<u8>,
    /// A file is read-dominated when more than this many times its size was read since its last write ([TPFS]
    /// section 4).
    pub read_times: u32,
    /// The read, counted from 1, that promotes a cold block (design 6); 1 is the rule of [AC-BPFS].
    pub touches: u32,
    /// Seconds without use after which a file is demoted as a whole ([TPFS] section 5.2).
    pub whole_after_s: u32,
    /// Equation (1) of [TPFS].
    pub utilisation: Utilisation,
    /// Equation (2) of [TPFS].
    pub dataflow: Dataflow,
    /// The marks at which a lower tier spills to slower tiers.
    pub spill: Spill,
}

/// The least demotion threshold: a larger value would demote other blocks to make room for large writes.
const LARGE_PM_PERCENT: u8 = 50;

impl Parameters {
    /// The publications' values, and our own values where the publications have none.
    pub const PUBLISHED: Parameters = Parameters {
        sync_blocks: 1024,
        large_after: 4,
        large_min: 64 << 10,
        large_pm_percent: None,
        read_times: 2,
        touches: 2,
        whole_after_s: 30,
        utilisation: Utilisation::PUBLISHED,
        dataflow: Dataflow::PUBLISHED,
        spill: Spill::DEFAULT,
    };

    /// These parameters for a PM with a journal, or without: a large write through a journal is written three times to its device
    /// before a lower tier has it (docs/placement.md).
    #[must_use]
    pub fn for_medium(self, is_journaled: bool) -> Parameters {
        assert!(self.large_pm_percent.is_none_or(|percent| percent <= 100), "more than all of PM");
        let by_medium = if is_journaled { 0 } else { LARGE_PM_PERCENT };
        Parameters { large_pm_percent: Some(self.large_pm_percent.unwrap_or(by_medium)), ..self }
    }

    /// The percentage of PM below which large writes go to PM too.
    #[inline]
    pub fn large_pm(&self) -> u8 {
        self.large_pm_percent.unwrap_or(LARGE_PM_PERCENT)
    }

    /// [`Self::whole_after_s`] in ticks.
    pub fn whole_after(&self) -> u32 {
        self.whole_after_s.saturating_mul(TICKS_PER_SECOND)
    }

    /// Checks that the values fit together.
    ///
    /// # Errors
    /// The conflicting values, by the names of the mount options.
    pub fn check(&self) -> Result<(), String> {
        self.utilisation.check()?;
        self.dataflow.check()?;
        self.spill.check()
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters::PUBLISHED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_writes_pass_a_journal_unless_an_option_says_otherwise() {
        let large_pm = |given, is_journaled| {
            let parameters = Parameters { large_pm_percent: given, ..Parameters::PUBLISHED };
            parameters.for_medium(is_journaled).large_pm()
        };
        assert_eq!((large_pm(None, true), large_pm(None, false)), (0, LARGE_PM_PERCENT));
        assert_eq!((large_pm(Some(50), true), large_pm(Some(7), false)), (50, 7));
    }
}
