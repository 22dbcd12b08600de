//! The predictors, thresholds and limits of `terrace status --verbose`.

use super::cells::{size, text};
use serde_json::Value;
use terrace_daemon::output;

/// Shows the predictors, if the policy has them, and the parameters that mount options set.
pub(super) fn show(found: &Value) {
    show_placement(&found["placement"]);
    show_limits(found);
}

/// The predictors, if the policy has them.
fn show_placement(placement: &Value) {
    if placement.is_null() {
        return;
    }
    let (blocks, after) = (text(&placement["sync_blocks"]), text(&placement["large_after"]));
    let (least, writes) = (size(&placement["large_min_bytes"]), text(&placement["writes_seen"]));
    output::print(format!(
        "predictors: synchronous below {blocks} blocks, large above {after} from {least}; {writes} writes seen"
    ));
    let (read, written) = (size(&placement["pm_read_bytes"]), size(&placement["pm_written_bytes"]));
    let (ratio, idle) = (text(&placement["dataflow_ratio"]), text(&placement["dataflow_idle"]));
    output::print(format!("PM lately read {read}, written {written}; PM to DRAM {ratio}, idle {idle}"));
    let row = |name: &str| {
        let row = &placement["confusion"][name];
        let bytes = ["synced_bytes", "unsynced_bytes", "open_bytes"].map(|column| size(&row[column]));
        format!("{name} {}", bytes.join("/"))
    };
    let rows =
        ["synchronous", "asynchronous", "expected_synchronous", "expected_asynchronous", "unjudged"].map(row);
    output::print(format!("predicted, of it synced/not/not known yet: {}", rows.join("  ")));
}

/// The parameters that mount options set.
fn show_limits(found: &Value) {
    let parameters = &found["parameters"];
    if parameters.is_null() {
        return;
    }
    let number = |name: &str| parameters[name].as_f64().unwrap_or(0.0);
    let bytes = |name: &str| size(&parameters[name]);
    if !found["placement"].is_null() {
        output::print(format!(
            "thresholds: {} % + {} % · log2(read/written), {} to {} %, decay 1/{} a second; dataflow {} to {} for {} s",
            number("threshold_even_percent"),
            number("threshold_step_percent"),
            number("threshold_min_percent"),
            number("threshold_max_percent"),
            number("threshold_decay"),
            number("dataflow_low"),
            number("dataflow_high"),
            number("dataflow_seconds"),
        ));
        output::print(format!(
            "large writes go below above {} %; files go whole after {} s, are read-dominated above {} times their size; blocks come up on touch {}",
            number("large_pm_percent"),
            number("whole_after_seconds"),
            number("read_times"),
            number("touches"),
        ));
    }
    output::print(format!(
        "a lower tier gives files to slower ones above {} %, down to {} %",
        number("spill_high_percent"),
        number("spill_low_percent"),
    ));
    output::print(format!(
        "limits: group {}, cache {}{}, kernel's cache of files in PM {} ({} now), buffer {}, prefetch {} for {} s",
        bytes("group_bytes"),
        bytes("cache_bytes"),
        if parameters["cache_follows_memory"] == true {
            " (follows the memory that is available)"
        } else {
            ""
        },
        bytes("kernel_cache_bytes"),
        bytes("kernel_cached_bytes"),
        bytes("buffer_bytes"),
        bytes("prefetch_bytes"),
        number("prefetch_seconds"),
    ));
}
