//! Part `trees`.
use super::ground::Ground;
use crate::smoke::report::Report;
use terrace_bench::failure::Outcome;
pub(super) fn run(_ground: &Ground<'_>, _report: &mut Report) -> Outcome<()> {
    Ok(())
}
