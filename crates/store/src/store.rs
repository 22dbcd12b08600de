//! The store: where each byte of a mounted pool is, in parts.

use crate::operation::provide::Provide;
use crate::parts::devices::device::Devices;
use crate::parts::dram::Dram;
use crate::parts::inodes::Inodes;
use crate::parts::mode::Mode;
use crate::parts::persistent::Persistent;
use crate::parts::pressure::Pressure;
use crate::parts::steering::Steering;
use std::sync::{Arc, OnceLock};
use terrace_runtime::Clock;

/// The state of a mounted pool. The modules of this crate hold the functions over the state, each named for
/// its action.
pub struct Store {
    /// The structures in PM.
    pub persistent: Persistent,
    /// Inodes in DRAM.
    pub inodes: Inodes,
    /// Content in DRAM.
    pub dram: Dram,
    /// Lower-tier devices.
    pub devices: Devices,
    /// The policy and the predictors.
    pub steering: Steering,
    /// Pressure on PM and the moves that relieve it.
    pub pressure: Pressure,
    /// How the pool is mounted.
    pub mode: Mode,
    /// The only clock.
    pub clock: Arc<dyn Clock>,
    /// Set once, before the first operation.
    pub provider: OnceLock<Box<dyn Provide>>,
}
