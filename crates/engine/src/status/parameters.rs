//! The parameters in force, as `terrace status` shows them.

use crate::engine::Engine;
use serde::Serialize;
use terrace_format::BLOCK_SIZE;
use terrace_migration::demote::victims::demotion_blocks;
use terrace_placement::Parameters;
use terrace_placement::threshold::{Dataflow, Utilisation};
use terrace_store::parts::dram::lazy_writes::BufferOptions;

/// Parameters of predictors, thresholds and migration, and the limits of DRAM. Each is a mount option;
/// parameters that the present policy does not use are shown as well. Serialized flat, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ParametersStatus {
    /// The predictors.
    #[serde(flatten)]
    pub predictors: PredictorStatus,
    /// The thresholds of demotion.
    #[serde(flatten)]
    pub threshold: ThresholdStatus,
    /// The flow of data and the spill of lower tiers.
    #[serde(flatten)]
    pub flow: FlowStatus,
    /// Groups and DRAM.
    #[serde(flatten)]
    pub memory: MemoryStatus,
    /// Write-back of pages in DRAM.
    #[serde(flatten)]
    pub write_back: WriteBackStatus,
}

/// Parameters of the predictors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PredictorStatus {
    /// A file with fewer blocks written between two fsyncs is synchronous.
    pub sync_blocks: u32,
    /// A write is large when its counter is above this
    pub large_after: u8,
    /// and it has at least this many bytes.
    pub large_min_bytes: u64,
    /// While less of PM is used, large writes have their home in PM too.
    pub large_pm_percent: u8,
    /// A file is read-dominated when the bytes read exceed its size times this.
    pub read_times: u32,
    /// The number of the read of a cold block that promotes it.
    pub touches: u32,
    /// A file not used for this long is demoted whole.
    pub whole_after_seconds: u32,
}

/// Parameters of the thresholds of PM use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ThresholdStatus {
    /// `anticache`: PM use above which it demotes.
    pub threshold_percent: u8,
    /// Equation (1): the threshold while as many bytes are read as written,
    pub threshold_even_percent: u8,
    /// the points that doubling the read bytes adds,
    pub threshold_step_percent: u8,
    /// the lowest threshold
    pub threshold_min_percent: u8,
    /// and the highest threshold.
    pub threshold_max_percent: u8,
    /// Each second equation (1) forgets its old bytes divided by this number.
    pub threshold_decay: u32,
}

/// Parameters of the flow of data, and of spilling.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlowStatus {
    /// Equation (2): DRAM idles above this ratio,
    pub dataflow_high: f64,
    /// PM below this one,
    pub dataflow_low: f64,
    /// in each of this many seconds.
    pub dataflow_seconds: u8,
    /// A lower tier spills above this use,
    pub spill_high_percent: u8,
    /// until this use.
    pub spill_low_percent: u8,
}

/// Limits of groups and of DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryStatus {
    /// Most bytes of a demoted group: `group=`, a chunk, or a sixteenth of PM, whichever is least.
    pub group_bytes: u64,
    /// Most bytes of clean pages at present.
    pub cache_bytes: u64,
    /// The cache follows the memory of the machine.
    pub cache_follows_memory: bool,
    /// Most bytes of dirty pages.
    pub buffer_bytes: u64,
    /// Bytes read at once around a cold block that DRAM lacks.
    pub prefetch_bytes: u64,
    /// Lifetime of a page that was read ahead and not used.
    pub prefetch_seconds: f64,
}

/// Marks of write-back of pages in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WriteBackStatus {
    /// Below this share of free pages pages are written back,
    pub lazy_low_percent: u8,
    /// until this share is free.
    pub lazy_high_percent: u8,
    /// Pages that are dirty for this long are written back;
    pub lazy_age_seconds: f64,
    /// the period of the search for them.
    pub lazy_period_seconds: f64,
    /// A file without a sync for this long is lazy.
    pub lazy_idle_seconds: f64,
}

pub(crate) fn parameters_status(engine: &Engine) -> ParametersStatus {
    let parameters = engine.store.steering.parameters();
    ParametersStatus {
        predictors: predictor_status(parameters),
        threshold: threshold_status(engine, &parameters.utilisation),
        flow: flow_status(parameters),
        memory: memory_status(engine),
        write_back: write_back_status(engine.store.dram.lazy_writes().options()),
    }
}

fn predictor_status(parameters: &Parameters) -> PredictorStatus {
    PredictorStatus {
        sync_blocks: parameters.sync_blocks,
        large_after: parameters.large_after,
        large_min_bytes: parameters.large_min,
        large_pm_percent: parameters.large_pm(),
        read_times: parameters.read_times,
        touches: parameters.touches,
        whole_after_seconds: parameters.whole_after_s,
    }
}

fn threshold_status(engine: &Engine, utilisation: &Utilisation) -> ThresholdStatus {
    let Utilisation { even_percent, step_percent, least_percent, most_percent, decay } = *utilisation;
    ThresholdStatus {
        threshold_percent: engine.store.mode.threshold_percent,
        threshold_even_percent: even_percent,
        threshold_step_percent: step_percent,
        threshold_min_percent: least_percent,
        threshold_max_percent: most_percent,
        threshold_decay: decay,
    }
}

fn flow_status(parameters: &Parameters) -> FlowStatus {
    let Dataflow { high_percent, low_percent, seconds } = parameters.dataflow;
    FlowStatus {
        dataflow_high: f64::from(high_percent) / 100.0,
        dataflow_low: f64::from(low_percent) / 100.0,
        dataflow_seconds: seconds,
        spill_high_percent: parameters.spill.high_percent,
        spill_low_percent: parameters.spill.low_percent,
    }
}

fn memory_status(engine: &Engine) -> MemoryStatus {
    MemoryStatus {
        group_bytes: demotion_blocks(&engine.migration) * BLOCK_SIZE,
        cache_bytes: engine.store.dram.cache().budget_bytes(),
        cache_follows_memory: engine.memory.is_some(),
        buffer_bytes: engine.store.dram.write_back().limit_pages * BLOCK_SIZE,
        prefetch_bytes: engine.store.dram.read_ahead().shortest * BLOCK_SIZE,
        prefetch_seconds: engine.store.mode.prefetch_ms as f64 / 1000.0,
    }
}

fn write_back_status(options: &BufferOptions) -> WriteBackStatus {
    let BufferOptions { low_percent, high_percent, period, age, idle, .. } = *options;
    WriteBackStatus {
        lazy_low_percent: low_percent,
        lazy_high_percent: high_percent,
        lazy_age_seconds: age.as_secs_f64(),
        lazy_period_seconds: period.as_secs_f64(),
        lazy_idle_seconds: idle.as_secs_f64(),
    }
}
