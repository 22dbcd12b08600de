//! Status of the predictors: parameters, and predictions beside outcomes.

use crate::engine::Engine;
use serde::Serialize;
use terrace_placement::{Idle, Parameters};
use terrace_store::parts::steering::prediction_score::TallyReport;

/// The predictors: parameters, inputs, and predictions compared with outcomes.
#[derive(Debug, Clone, Serialize)]
pub struct PlacementStatus {
    /// A file with fewer blocks written between two fsyncs is synchronous.
    pub sync_blocks: u32,
    /// A write is large when its counter is above this
    pub large_after: u8,
    /// and it has at least this many bytes.
    pub large_min_bytes: u64,
    /// Bytes read from PM, a decayed sum: equation (1).
    pub pm_read_bytes: u64,
    /// Bytes written to PM, a decayed sum: equation (1).
    pub pm_written_bytes: u64,
    /// The ratio of bytes read from PM to bytes read from DRAM in the last seconds, by default four: equation
    /// (2).
    pub dataflow_ratio: Option<f64>,
    /// The medium that idled in every second of this time: dram, pm or none.
    pub dataflow_idle: &'static str,
    /// Writes that the predictors saw since mount.
    pub writes_seen: u64,
    /// Bytes written since mount with DRAM as their home.
    pub block_home_bytes: u64,
    /// Predictions of the synchronicity predictor, and the outcomes, in bytes.
    pub confusion: TallyReport,
}

pub(crate) fn placement_status(engine: &Engine) -> Option<PlacementStatus> {
    if !engine.store.steering.policy().steers_writes() {
        return None;
    }
    let Parameters { sync_blocks, large_after, large_min, .. } = *engine.store.steering.parameters();
    let window = engine.store.steering.data_flows().window();
    let mut confusion = engine.store.steering.score().report();
    engine.store.steering.file_histories().unsettled(
        engine.store.steering.tick(),
        |judgement, idle, bytes| {
            let row = confusion.row_mut(judgement);
            *if idle { &mut row.unsynced_bytes } else { &mut row.open_bytes } += bytes;
        },
    );
    let (writes_seen, block_home_bytes) = engine.store.steering.data_flows().steered();
    Some(PlacementStatus {
        sync_blocks,
        large_after,
        large_min_bytes: large_min,
        pm_read_bytes: window.decayed().pm_read,
        pm_written_bytes: window.decayed().pm_written,
        dataflow_ratio: window.dataflow_ratio(),
        dataflow_idle: match window.idle() {
            Idle::Neither => "none",
            Idle::Dram => "dram",
            Idle::Pm => "pm",
        },
        writes_seen,
        block_home_bytes,
        confusion,
    })
}
