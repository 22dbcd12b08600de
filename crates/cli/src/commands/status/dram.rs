//! DRAM in `terrace status`: pages that wait, and the write buffer (docs/write-buffer.md).

use super::cells::{size, text};
use serde_json::Value;
use terrace_daemon::output;

/// Shows how much waits in DRAM; with `verbose` also what the write buffer did.
pub(super) fn show(found: &Value, verbose: bool) {
    let dram = &found["dram"];
    if !dram.is_null() {
        let (cache, dirty) = (size(&dram["cache_bytes"]), size(&dram["dirty_bytes"]));
        let pending = size(&found["bytes_not_yet_durable"]);
        if verbose {
            output::print(format!("DRAM cache {cache}, dirty {dirty}; not yet durable {pending}"));
            lazy_lines(&dram["lazy"], &found["parameters"]).into_iter().for_each(output::print);
        } else {
            let advice = if found["bytes_not_yet_durable"] == 0 { "" } else { "; 'terrace sync' writes it" };
            let text = "of copies of lower tiers; written and not yet durable:";
            output::print(format!("memory: {cache} {text} {pending}{advice}"));
            if dram["lazy"]["on"] == true {
                output::print(lazy_line(&dram["lazy"]));
            }
        }
    }
}

/// The journal of a journaled fast tier: its log, its commits, and pages written home.
pub(super) fn show_journal(journal: &Value, verbose: bool) {
    if journal.is_null() {
        return;
    }
    let [used, log, waiting] =
        ["log_used_bytes", "log_bytes", "waiting_bytes"].map(|name| size(&journal[name]));
    if let Some(error) = journal["failed"].as_str() {
        output::print(format!("journal FAILED: {error}; reads go on, changes are refused"));
    }
    output::print(format!("journal: {used} of a log of {log} in use; {waiting} not yet in it"));
    if verbose {
        let [commits, pages, dirty, healed, damaged] =
            ["commits", "home_pages", "dirty_pages", "healed_pages", "condemned_pages"]
                .map(|name| text(&journal[name]));
        let (bytes, age) = (size(&journal["committed_bytes"]), text(&journal["oldest_ms"]));
        output::print(format!(
            "journal: {commits} commits of {bytes} in all, {pages} pages written home, {dirty} to be written; \
             oldest change not in it {age} ms; mount: {healed} pages healed, {damaged} damaged"
        ));
        show_syncs(journal);
    }
}

/// Times of syncs, and the bytes that the device got for each byte stored.
fn show_syncs(journal: &Value) {
    let number = |name: &str| journal[name].as_f64().unwrap_or(0.0);
    if number("stored_bytes") > 0.0 {
        let of_stored = |bytes: f64| bytes / number("stored_bytes");
        let (log, home) = (of_stored(number("committed_bytes")), of_stored(number("home_pages") * 4096.0));
        output::print(format!("journal: {log:.2} bytes of log and {home:.2} of home for each byte stored"));
    }
    if journal["sync_p50_us"].is_number() {
        let [half, most] = ["sync_p50_us", "sync_p99_us"].map(|name| text(&journal[name]));
        output::print(format!(
            "journal: half of the syncs took at most {half} µs, 99 of 100 at most {most} µs"
        ));
    }
}

/// Whether writes to the fast tier may wait in DRAM, and why.
fn lazy_line(lazy: &Value) -> String {
    let state = if lazy["on"] == true { "on" } else { "off" };
    let [reason, pages] = ["reason", "pages"].map(|name| text(&lazy[name]));
    let [dram, pm] = ["dram_line_ns", "pm_line_ns"].map(|cost| lazy[cost].as_f64());
    let costs = dram.zip(pm).map_or(String::new(), |(dram, pm)| {
        format!(" (for a line PM takes {pm:.1} ns and DRAM {dram:.1} ns)")
    });
    format!("lazy writes {state}: {reason}{costs}; {pages} pages wait")
}

/// The state of lazy writes; where some were made, what became of them; and the marks of write-back.
fn lazy_lines(lazy: &Value, parameters: &Value) -> Vec<String> {
    let mut lines = vec![lazy_line(lazy)];
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    if let Some(ratio) = lazy["hit_ratio"].as_f64() {
        lines.push(format!(
            "of the blocks of lazy writes {} waited already, {} lines merged; dropped unwritten by removal or truncation {}",
            percent(ratio),
            text(&lazy["merged_lines"]),
            size(&lazy["dead_bytes"]),
        ));
    }
    if lazy["made_lazy"].as_u64().zip(lazy["made_eager"].as_u64()).is_some_and(|(a, b)| a + b > 0) {
        let agreement = lazy["agreement"].as_f64().map_or_else(|| "-".to_string(), percent);
        let [made_lazy, eager, of, twice] =
            ["made_lazy", "made_eager", "synced_lines", "lines_copied_twice"].map(|name| text(&lazy[name]));
        lines.push(format!(
            "syncs chose {made_lazy} blocks lazy, {eager} eager, {agreement} as before; of {of} synced lines {twice} were copied twice"
        ));
    }
    let number = |name: &str| parameters[name].as_f64();
    if let (Some(low), Some(high)) = (number("lazy_low_percent"), number("lazy_high_percent")) {
        let [age, period, idle] = ["lazy_age_seconds", "lazy_period_seconds", "lazy_idle_seconds"]
            .map(|name| number(name).unwrap_or(0.0));
        let mut line = format!(
            "write-back below {low} % free up to {high} %, after {age} s, looked for every {period} s"
        );
        if lazy["on"] == true {
            line.push_str(&format!("; a file is lazy after {idle} s without fsync"));
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_tell_hits_choices_and_marks() {
        let mut lazy = json!({
            "on": true, "reason": "as the mount option lazy says", "dram_line_ns": null, "pm_line_ns": null,
            "pages": 3, "hit_ratio": null, "made_lazy": 0, "made_eager": 0,
        });
        let parameters = json!({
            "lazy_low_percent": 5, "lazy_high_percent": 20, "lazy_age_seconds": 30.0,
            "lazy_period_seconds": 0.5, "lazy_idle_seconds": 5.0,
        });
        let marks = "write-back below 5 % free up to 20 %, after 30 s, looked for every 0.5 s; \
                     a file is lazy after 5 s without fsync";
        let first = "lazy writes on: as the mount option lazy says; 3 pages wait";
        assert_eq!(lazy_lines(&lazy, &parameters), [first, marks]);
        lazy["on"] = json!(false);
        let off = [
            first.replace("on:", "off:"),
            marks[..marks.len() - "; a file is lazy after 5 s without fsync".len()].into(),
        ];
        assert_eq!(lazy_lines(&lazy, &parameters), off);
        lazy["on"] = json!(true);
        for (name, value) in
            [("hit_ratio", json!(0.75)), ("merged_lines", json!(90)), ("dead_bytes", json!(8192))]
        {
            lazy[name] = value;
        }
        for (name, value) in [("made_lazy", json!(2)), ("made_eager", json!(5)), ("agreement", json!(0.91))] {
            lazy[name] = value;
        }
        (lazy["lines_copied_twice"], lazy["synced_lines"]) = (json!(64), json!(4096));
        let lines = lazy_lines(&lazy, &Value::Null);
        let hits = "of the blocks of lazy writes 75 % waited already, 90 lines merged; dropped unwritten by removal or truncation 8 KiB";
        let choices =
            "syncs chose 2 blocks lazy, 5 eager, 91 % as before; of 4096 synced lines 64 were copied twice";
        assert_eq!(lines, [first, hits, choices]);
        (lazy["dram_line_ns"], lazy["pm_line_ns"]) = (json!(1.0), json!(201.5));
        let costs = "(for a line PM takes 201.5 ns and DRAM 1.0 ns)";
        assert_eq!(lazy_line(&lazy), first.replace(";", &format!(" {costs};")));
    }
}
