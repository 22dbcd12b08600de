//! Steering: the policy, and the memory of the predictors.
//!
//! No lock; tables of atomic words of fixed size. Nothing is remembered unless the policy steers writes.

pub mod data_flows;
pub mod directory_history;
pub mod file_history;
pub mod prediction_score;
pub mod write_history;

use data_flows::Flows;
use directory_history::DirectoryHistories;
use file_history::{FileHistories, Lessons};
use prediction_score::PredictionScore;
use terrace_placement::{Home, Parameters, Policy};
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use write_history::WriteHistory;

/// The policy, and the memory of the predictors.
pub struct Steering {
    policy: Box<dyn Policy>,
    parameters: Parameters,
    /// The home that the mount forces on every write.
    forced_home: Option<Home>,
    /// Whether the predictors are asked and told.
    predictors_on: AtomicBool,
    /// Whether blocks get the times of their uses; only a bench switches that off.
    record_use_times: AtomicBool,
    file_histories: FileHistories,
    directory_history: DirectoryHistories,
    write_history: WriteHistory,
    data_flows: Flows,
    score: PredictionScore,
    /// Monotonic time of the mount.
    mounted_ns: u64,
    /// Coarse time for the use of PM blocks: one tick each 10 ms since the mount.
    tick: AtomicU32,
}

impl Steering {
    /// `pm_blocks`: PM blocks for data and metadata, by which the tables are sized.
    pub fn new(
        policy: Box<dyn Policy>,
        parameters: Parameters,
        forced_home: Option<Home>,
        pm_blocks: u64,
        mounted_ns: u64,
    ) -> Steering {
        let predictors_on = policy.steers_writes();
        // Nothing is noted without predictors: the tables are as small as can be.
        let table_blocks = if predictors_on { pm_blocks } else { 0 };
        Steering {
            policy,
            parameters,
            forced_home,
            predictors_on: AtomicBool::new(predictors_on),
            record_use_times: AtomicBool::new(true),
            file_histories: FileHistories::new(table_blocks),
            directory_history: DirectoryHistories::new(table_blocks),
            write_history: WriteHistory::new(table_blocks),
            data_flows: Flows::new(&parameters),
            score: PredictionScore::default(),
            mounted_ns,
            tick: AtomicU32::new(1),
        }
    }

    /// The policy.
    #[inline]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// The predictors' parameters.
    #[inline]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The home that the mount forces on every write.
    #[inline]
    pub(crate) fn forced_home(&self) -> Option<Home> {
        self.forced_home
    }

    /// Whether the predictors are asked and told.
    #[inline]
    pub(crate) fn predictors_on(&self) -> bool {
        self.predictors_on.load(Ordering::Relaxed)
    }

    /// Switches the predictors and the times of uses off, or on again where the policy steers writes: for benches.
    #[inline]
    pub fn let_rest(&self, rest: bool) {
        let off = self.policy.steers_writes() && rest;
        self.predictors_on.store(self.policy.steers_writes() && !rest, Ordering::Relaxed);
        self.record_use_times.store(!off, Ordering::Relaxed);
    }

    /// The tick to note for a block that is used now; `None` while times of uses are not noted.
    #[inline]
    pub fn stamp(&self) -> Option<u32> {
        self.record_use_times.load(Ordering::Relaxed).then(|| self.tick())
    }

    /// Monotonic time of the mount.
    #[inline]
    pub fn mounted_ns(&self) -> u64 {
        self.mounted_ns
    }

    /// The present tick.
    #[inline]
    pub fn tick(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Sets the present tick.
    #[inline]
    pub fn set_tick(&self, tick: u32) {
        self.tick.store(tick, Ordering::Relaxed);
    }

    /// The file histories of the predictors.
    #[inline]
    pub fn file_histories(&self) -> &FileHistories {
        &self.file_histories
    }

    /// The directory histories: how files ended, by directory and by kind of name.
    #[inline]
    pub fn directory_history(&self) -> &DirectoryHistories {
        &self.directory_history
    }

    /// Write entries by regions of files.
    #[inline]
    pub(crate) fn write_history(&self) -> &WriteHistory {
        &self.write_history
    }

    /// Bytes read and written, by tier.
    #[inline]
    pub fn data_flows(&self) -> &Flows {
        &self.data_flows
    }

    /// Predictions beside outcomes.
    #[inline]
    pub fn score(&self) -> &PredictionScore {
        &self.score
    }

    /// The tables and parameters that file histories need to learn from an event at `tick`.
    #[inline]
    pub(crate) fn lessons(&self, tick: u32) -> Lessons<'_> {
        Lessons {
            parameters: &self.parameters,
            score: &self.score,
            directories: &self.directory_history,
            tick,
        }
    }
}
