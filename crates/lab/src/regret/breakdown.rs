//! The table of waits by cause: for each trace the optimum, predictive, and the best other policy.

use super::candidates::CANDIDATES;
use super::optimum::Bound;
use super::setup::{Setup, transfer_ns};
use super::waits::Waits;
use std::fmt::Write as _;

fn seconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e9)
}

/// The best of the other policies; variants of predictive do not count.
fn best_other(waits: &[Waits]) -> usize {
    (1..4).min_by_key(|index| waits[*index].total_ns()).unwrap_or(1)
}

fn thousands(blocks: [u64; 3]) -> String {
    blocks.map(|count| format!("{:.1}", count as f64 / 1e3)).join(" / ")
}

/// The line of a candidate.
fn line(trace: &str, name: &str, waits: &Waits) -> String {
    let transfer_ns = waits.read_ns - waits.latency_ns;
    let parts =
        [waits.total_ns(), waits.memory_ns, waits.latency_ns, transfer_ns, waits.sync_ns, waits.room_ns];
    format!(
        "| {trace} | {name} | {} | {} | {:.1} | {:.1} |\n",
        parts.map(seconds).join(" | "),
        thousands(waits.missed_after),
        waits.blocks_down as f64 / 1e3,
        (waits.blocks_up + waits.blocks_raised) as f64 / 1e3,
    )
}

/// The line of the schedule near the optimum. Its wait that is no transfer is latency, or waiting for the
/// bus.
fn line_of_bound(trace: &str, bound: &Bound, setup: &Setup) -> String {
    let missed: u64 = bound.missed_after.iter().sum();
    let transfer_ns = transfer_ns(missed, setup.device.read_bytes_per_s);
    let latency_ns = bound.schedule_ns.saturating_sub(bound.floor_ns + transfer_ns);
    format!(
        "| {trace} | optimum {}; a schedule | {} | {} | {} | {} | 0 | 0 | {} | {:.1} | |\n",
        seconds(bound.demand_ns),
        seconds(bound.schedule_ns),
        seconds(bound.floor_ns),
        seconds(latency_ns),
        seconds(transfer_ns),
        thousands(bound.missed_after),
        bound.drains as f64 / 1e3,
    )
}

/// The table of traces with the waits of each candidate of [`CANDIDATES`].
pub(crate) fn table<'a>(
    traces: impl Iterator<Item = (&'a str, &'a Bound, &'a [Waits])>,
    setup: &Setup,
    title: &str,
) -> String {
    let mut text = format!(
        "Where the waiting is, {title}; seconds, thousands of blocks:\n\n\
         | trace | | wait | PM, DRAM | latency | transfer | fsync | room | missed: not used before / read / written before | down | up |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for (trace, bound, waits) in traces {
        text += &line_of_bound(trace, bound, setup);
        for index in [0, best_other(waits), CANDIDATES.len() - 1] {
            let _ = write!(text, "{}", line("", CANDIDATES[index].name, &waits[index]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_wait_make_up_a_line() {
        let waits = Waits {
            memory_ns: 1_000_000_000,
            read_ns: 5_000_000_000,
            latency_ns: 2_000_000_000,
            sync_ns: 500_000_000,
            room_ns: 250_000_000,
            missed_after: [1000, 2000, 3500],
            blocks_down: 7000,
            blocks_raised: 100,
            blocks_up: 200,
            ..Waits::default()
        };
        let wanted =
            "| a | b | 6.750 | 1.000 | 2.000 | 3.000 | 0.500 | 0.250 | 1.0 / 2.0 / 3.5 | 7.0 | 0.3 |\n";
        assert_eq!(line("a", "b", &waits), wanted);
        let worse = Waits { room_ns: 1_000_000_000, ..waits };
        assert_eq!(best_other(&[Waits::default(), worse, waits, worse, Waits::default()]), 2);
    }
}
