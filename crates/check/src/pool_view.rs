//! The media of a pool, as a check may use them: to read.

use std::sync::Arc;
use terrace_media::{BlockMedium, BlockView, PmMedium, PmView};

/// The media of a pool, that are only read.
#[derive(Clone)]
pub struct PoolView {
    /// Persistent memory.
    pub pm: PmView,
    /// Lower-tier devices by [`terrace_format::DeviceId`]; `None` when absent.
    pub block: Vec<Option<BlockView>>,
}

impl PoolView {
    /// Views of PM and of the devices by their ids; `None` for an absent device.
    pub fn new(pm: Arc<dyn PmMedium>, block: Vec<Option<Arc<dyn BlockMedium>>>) -> PoolView {
        let block = block.into_iter().map(|medium| medium.map(BlockView::new));
        PoolView { pm: PmView::new(pm), block: block.collect() }
    }
}
