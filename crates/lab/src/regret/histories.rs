//! The predictors' histories on the cost machine: of files, and of the traffic of the last seconds.

use super::steer::FileMemory;
use super::steps::Steps;
use terrace_placement::Idle;
use terrace_placement::threshold::{Flow, Window};

const SECOND_NS: u64 = 1_000_000_000;

/// File histories and traffic.
pub(super) struct Histories {
    pub files: Vec<FileMemory>,
    /// Traffic so far.
    pub flow: Flow,
    /// Traffic up to the last whole second.
    flow_before: Flow,
    window: Window,
    /// Whole seconds so far.
    seconds: u64,
}

impl Histories {
    pub fn new(steps: &Steps) -> Histories {
        Histories {
            files: vec![FileMemory::default(); steps.files.len()],
            flow: Flow::default(),
            flow_before: Flow::default(),
            window: Window::default(),
            seconds: 0,
        }
    }

    /// Closes the seconds before `now_ns`.
    pub fn close_seconds(&mut self, now_ns: u64) {
        while now_ns / SECOND_NS > self.seconds {
            self.seconds += 1;
            let flow = self.flow.since(&self.flow_before);
            self.flow_before = self.flow;
            self.window.second(flow);
        }
    }

    /// The memory that has idle bandwidth.
    pub fn idle(&self) -> Idle {
        self.window.idle()
    }

    /// The traffic of the last seconds.
    pub fn recent(&self) -> Flow {
        self.window.decayed()
    }
}
