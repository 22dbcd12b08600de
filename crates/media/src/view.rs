//! Views of media that only read. A check holds views, so the compiler proves that a check writes nothing.
//!
//! Invariant: no method gives out the medium behind a view, and the field is private. Neither a store nor a fence
//! can be reached from a view.
//!
//! A view reads:
//!
//! ```
//! use terrace_media::{BlockView, PmView};
//! use terrace_media::block::AlignedBlock;
//! use terrace_format::{DeviceBlock, PmOffset};
//!
//! fn read(pm: &PmView, device: &BlockView, block: &mut [AlignedBlock]) {
//!     pm.read(PmOffset(0), &mut [0; 8]).unwrap();
//!     device.read(DeviceBlock(0), block).unwrap();
//! }
//! ```
//!
//! A view of PM does not store:
//!
//! ```compile_fail
//! use terrace_media::{PmMedium, PmView};
//! use terrace_format::PmOffset;
//!
//! fn write(pm: &PmView) {
//!     pm.write(PmOffset(0), &[0; 8]).unwrap();
//! }
//! ```
//!
//! A view of a device does not write:
//!
//! ```compile_fail
//! use terrace_media::{BlockMedium, BlockView};
//! use terrace_media::block::AlignedBlock;
//! use terrace_format::DeviceBlock;
//!
//! fn write(device: &BlockView, block: &[AlignedBlock]) {
//!     device.write(DeviceBlock(0), block).unwrap();
//! }
//! ```
//!
//! No view gives its medium away:
//!
//! ```compile_fail
//! use terrace_media::PmView;
//! use terrace_format::PmOffset;
//!
//! fn write(pm: &PmView) {
//!     pm.0.write(PmOffset(0), &[0; 8]).unwrap();
//! }
//! ```

use crate::block::AlignedBlock;
use crate::{BlockMedium, MediaError, PmMedium};
use std::sync::Arc;
use terrace_format::{DeviceBlock, PmOffset};

/// Persistent memory that is only read.
#[derive(Clone)]
pub struct PmView(Arc<dyn PmMedium>);

impl PmView {
    /// A view of a medium.
    pub fn new(medium: Arc<dyn PmMedium>) -> PmView {
        PmView(medium)
    }
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.0.size()
    }
    /// Copies bytes out.
    ///
    /// # Errors
    /// As [`PmMedium::read`].
    pub fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        self.0.read(offset, into)
    }
    /// Reads one aligned word.
    ///
    /// # Errors
    /// As [`PmMedium::load_u64`].
    pub fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        self.0.load_u64(offset)
    }
}

/// A device that is only read.
#[derive(Clone)]
pub struct BlockView(Arc<dyn BlockMedium>);

impl BlockView {
    /// A view of a medium.
    pub fn new(medium: Arc<dyn BlockMedium>) -> BlockView {
        BlockView(medium)
    }
    /// Blocks.
    pub fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    /// Path or name, for messages.
    pub fn name(&self) -> &str {
        self.0.name()
    }
    /// Reads `into.len()` blocks.
    ///
    /// # Errors
    /// As [`BlockMedium::read`].
    pub fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.0.read(first, into)
    }
}
