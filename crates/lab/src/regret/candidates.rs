//! The candidates that the row compares: policies with their options, and rules for clean copies.

use terrace_placement::Ablation;

/// The rule for clean copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// As in the engine: a demoted block leaves PM, promotions stop when PM gets short, and DRAM keeps pages
    /// by the number of their requests.
    Engine,
    /// A demoted block stays in PM until a block of more worth needs the space. DRAM as in the engine.
    Pm,
    /// DRAM keeps pages by worth too. A copy that leaves PM goes to DRAM; a copy that leaves DRAM goes to PM
    /// if it is worth more than the least copy there.
    Both,
}

/// A policy with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub name: &'static str,
    /// The id of a policy, as [`terrace_placement::POLICIES`] has it.
    pub policy: u8,
    pub ablation: Ablation,
    pub copies: Copies,
}

const fn candidate(name: &'static str, policy: u8, ablation: Ablation) -> Candidate {
    Candidate { name, policy, ablation, copies: Copies::Engine }
}

const fn proposal(name: &'static str, copies: Copies) -> Candidate {
    Candidate { name, policy: 3, ablation: Ablation::Nothing, copies }
}

/// The compared candidates: the policies, `predictive` with each of its predictors left out, and proposals
/// that the engine does not implement.
pub(crate) const CANDIDATES: [Candidate; 11] = [
    candidate("predictive", 3, Ablation::Nothing),
    candidate("write-only", 4, Ablation::Nothing),
    candidate("anticache", 2, Ablation::Nothing),
    candidate("static", 1, Ablation::Nothing),
    candidate("no synchronicity: all async", 3, Ablation::SynchronicityAsync),
    candidate("no synchronicity: all sync", 3, Ablation::SynchronicitySync),
    candidate("no write size", 3, Ablation::WriteSize),
    candidate("no read frequency", 3, Ablation::ReadFrequency),
    candidate("no temperature", 3, Ablation::Temperature),
    proposal("copies stay in PM", Copies::Pm),
    proposal("copies in PM and DRAM by worth", Copies::Both),
];
