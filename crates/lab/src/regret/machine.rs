//! The cost machine for the comparison of policies: PM, DRAM, a device, and a thread that waits for its
//! operations.
//!
//! Time is virtual, so results are exact and repeatable. The cost of an operation is the wait of its thread:
//! latency and transfer of the media in [TPFS table 1], and waits for room. Between operations
//! [`super::setup::THINK_NS`] pass. The device has a single bus; transfers of the foreground come first, and
//! background movements use the remaining bus time (background.rs). A read with two missed runs also reads the
//! blocks between, if the transfer takes less time than a second latency. Clean copies in DRAM lie in the
//! engine's own cache (crates/cache), except for candidates with another rule (copies.rs). Dirty pages have a
//! budget of their own, as `buffer=` beside `cache=`.
//!
//! Policy, decision tree and predictors are the code of crates/placement, as in the engine. The machine lacks
//! directory histories (a trace has no names), read-ahead, metadata, the reserve, back-pressure, and the cost
//! of calls.
//!
//! This file has the state. The layers above it are, from the bottom: copies.rs, groups.rs, demotion.rs with
//! promotion.rs, background.rs, replay.rs.

use super::blocks::Blocks;
use super::candidates::{Candidate, Copies};
use super::histories::Histories;
use super::setup::Setup;
use super::steps::Steps;
use super::victims::Victims;
use super::waits::Waits;
use super::work::Work;
use super::worth::Worth;
use terrace_placement::threshold::Flow;
use terrace_placement::{Idle, Observation, Parameters, Policy, make};

/// A tick of temperature.
const TICK_NS: u64 = 10_000_000;

/// A run of a candidate over a trace.
pub(super) struct Machine<'a> {
    pub steps: &'a Steps,
    pub setup: Setup,
    pub copies: Copies,
    pub policy: Box<dyn Policy>,
    pub parameters: Parameters,
    pub now_ns: u64,
    pub waits: Waits,
    pub blocks: Blocks<'a>,
    pub histories: Histories,
    pub worth: Worth,
    pub victims: Victims,
    pub work: Work,
}

impl<'a> Machine<'a> {
    /// A machine before the first step; none if the candidate's policy is unknown.
    pub fn new(steps: &'a Steps, setup: Setup, candidate: &Candidate) -> Option<Machine<'a>> {
        let policy = make(candidate.policy, 80, &Parameters::PUBLISHED)?;
        Some(Machine {
            steps,
            setup,
            copies: candidate.copies,
            policy: candidate.ablation.of(policy),
            parameters: candidate.ablation.parameters(Parameters::default()),
            now_ns: 0,
            waits: Waits::default(),
            blocks: Blocks::new(steps, setup, candidate.copies),
            histories: Histories::new(steps),
            worth: Worth::new(&setup, steps.blocks()),
            victims: Victims::new(steps),
            work: Work::default(),
        })
    }

    pub fn tick(&self) -> u32 {
        1 + (self.now_ns / TICK_NS) as u32
    }

    pub fn keeps_copies(&self) -> bool {
        self.copies != Copies::Engine
    }

    pub fn belongs_in_dram(&self, id: u32) -> bool {
        let file = self.steps.places[id as usize].0;
        self.policy.follows_reads()
            && self.histories.idle() != Idle::Pm
            && self.histories.files[file as usize].is_read_dominated()
    }

    /// The state of PM as the policy sees it.
    pub fn observe(&mut self) -> Observation {
        let arriving_blocks = self.work.pace.arriving(self.now_ns, self.blocks.used_pm());
        let Flow { pm_read, pm_written, .. } = self.histories.recent();
        Observation {
            total_blocks: self.setup.pm_blocks,
            free_blocks: self.blocks.free_pm(),
            arriving_blocks,
            pm_read_bytes: pm_read,
            pm_written_bytes: pm_written,
        }
    }
}
