//! `terrace bench paper --replay TRACE`: a recorded trace on a new pool of this process.

use std::path::Path;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::scale;
use terrace_bench::failure::{Outcome, say};
use terrace_bench::site::Site;
use terrace_bench::site::mounted::Place;
use terrace_bench::site::subject::{Peer, Tuning};

/// Replays a trace in process, on a pool with PM for a sixteenth of `--dataset`.
pub(super) fn replay(options: &Options, trace: &Path) -> Outcome<()> {
    let events = terrace_bench::trace::read(trace)?;
    let scale = scale(options);
    let site = Site::new(&options.site, 0, None)?;
    let subject = scale.subject("replay", Peer::Local, 1.0 / 16.0, Tuning::default());
    site.scratch.need(subject.pm_bytes, subject.device_bytes)?;
    let mounted = site.mount(&subject, None)?;
    let Place::Local { target, .. } = &mounted.place else { return Err("not in process".into()) };
    let begin = site.scratch.now_ns();
    let done = terrace_bench::trace::replay(&events, &**target)?;
    let elapsed_ns = site.scratch.now_ns() - begin;
    let found = serde_json::json!({
        "output_version": 1,
        "operations": done,
        "elapsed_ns": elapsed_ns,
        "status": site.status(&mounted),
    });
    say(if options.output.json { serde_json::to_string_pretty(&found)? } else { replayed(&found) })?;
    mounted.finish(&site)
}

/// The result of a replay, in a line.
pub(super) fn replayed(found: &serde_json::Value) -> String {
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let (operations, seconds) = (number(&found["operations"]), number(&found["elapsed_ns"]) as f64 / 1e9);
    let migration = &found["status"]["migration"];
    let moved = |name: &str| number(&migration[name]) as f64 / f64::from(1 << 20);
    format!(
        "{operations} operations in {seconds:.3} s, {:.0} operations/s; moved down {:.1} MiB, up {:.1} MiB",
        operations as f64 / seconds.max(1e-9),
        moved("demoted_bytes"),
        moved("promoted_bytes"),
    )
}
