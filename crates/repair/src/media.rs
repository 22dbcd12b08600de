//! The media of a pool that a repair writes, and the view of them that everything but commit and headers uses.

use std::sync::Arc;
use terrace_check::PoolView;
use terrace_media::{BlockMedium, PmMedium};

/// The media of a pool.
pub struct Media {
    /// Persistent memory.
    pub pm: Arc<dyn PmMedium>,
    /// Lower-tier devices by [`terrace_format::DeviceId`]; `None` when absent.
    pub block: Vec<Option<Arc<dyn BlockMedium>>>,
}

impl Media {
    /// The media, only to be read.
    pub fn view(&self) -> PoolView {
        PoolView::new(Arc::clone(&self.pm), self.block.clone())
    }
}
