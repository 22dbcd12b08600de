//! The simulated power supply: whether power has failed, and the states that a crash may leave.

use crate::media::{Media, Moment};
use terrace_reference::{CrashState, Reference};

/// The state of the simulated power supply.
#[derive(Default)]
pub enum Crash {
    /// No loss of power is planned.
    #[default]
    None,
    /// Power fails at an event of the clock; choices after it come from the seed.
    Armed { seed: u64 },
    /// Power has failed; `states` may be left.
    Taken { seed: u64, moment: Box<Moment>, states: Vec<CrashState> },
}

impl Crash {
    /// Whether power has failed: the work that still runs has no effect.
    pub fn is_taken(&self) -> bool {
        matches!(self, Crash::Taken { .. })
    }
}

/// The power supply, and the states that a loss of power may leave besides the present one.
#[derive(Default)]
pub struct Power {
    /// The state of the supply.
    pub crash: Crash,
    /// On PM where only `persist` makes durable: the states since the last persist.
    pub unpersisted: Vec<CrashState>,
}

impl Power {
    /// Keeps the moment, if power failed in the work that just ended.
    pub fn take_crash(&mut self, media: &Media) -> bool {
        let Crash::Armed { seed } = self.crash else { return false };
        let Some(moment) = media.take_moment() else { return false };
        self.crash = Crash::Taken { seed, moment: Box::new(moment), states: Vec::new() };
        true
    }

    /// Keeps this state as one that a crash before the next persist may leave.
    pub fn keep_unpersisted(&mut self, model: &Reference) {
        let name = "what was there before, not yet made durable".into();
        self.unpersisted.push(CrashState { tree: model.clone(), torn: None, name });
    }
}
