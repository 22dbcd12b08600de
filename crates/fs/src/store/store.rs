//! The store: where each byte of a mounted pool is, in parts.

use crate::store::operation::provide::Provide;
use crate::store::parts::devices::device::Devices;
use crate::store::parts::dram::Dram;
use crate::store::parts::inodes::Inodes;
use crate::store::parts::mode::Mode;
use crate::store::parts::persistent::Persistent;
use crate::store::parts::pressure::Pressure;
use crate::store::parts::steering::Steering;
use std::sync::{Arc, OnceLock};
use terrace_runtime::Clock;

/// The state of a mounted pool. Functions over it stand in the rooms of this crate, each named for what it does.
pub(crate) struct Store {
    pub persistent: Persistent,
    pub inodes: Inodes,
    pub dram: Dram,
    pub devices: Devices,
    pub steering: Steering,
    pub pressure: Pressure,
    pub mode: Mode,
    pub clock: Arc<dyn Clock>,
    /// Set once, before the first operation.
    pub provider: OnceLock<Box<dyn Provide>>,
}
