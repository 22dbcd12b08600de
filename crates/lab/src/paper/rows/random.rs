//! Rows tpfs-8, -9, -10, zig-4r, -4w: fio's random reads and writes of 4 KiB.

use super::{ALL, both, subjects};
use serde_json::{Value, json};
use terrace_bench::comparison::plan::{Cell, Metric, Must, Plan, Scale, Status, Work};
use terrace_bench::site::programs::Program;
use terrace_bench::site::subject::{Peer, Tuning};
use terrace_bench::workload::load::Kind;
use terrace_bench::workload::worker::Sync;

/// [TPFS table 3].
const LOCALITIES: [(f64, &str); 5] =
    [(1.04, "90/10"), (0.88, "80/20"), (0.71, "70/30"), (0.44, "60/40"), (0.0, "50/50")];
/// The largest PM by data in these rows; the publications have up to 8.
const RICHEST_PM_PER_DATA: f64 = 4.0;
/// The publications have 32 and 20 threads, each with a file of its own.
const THREADS: u64 = 4;

fn kind(scale: &Scale, write: bool, theta: f64) -> Kind {
    let sync = if write { Sync::Flag } else { Sync::Never };
    let file_bytes = scale.dataset_bytes / THREADS;
    Kind::Random { write, sync, files: THREADS, file_bytes, io_bytes: 4096, theta, single: None }
}

fn localities(scale: &Scale, write: bool, cache_share: f64) -> Plan {
    let cache = (scale.dataset_bytes as f64 * cache_share) as u64;
    let mut plan = Plan::new(Metric::OperationsPerS, "locality", cache);
    let shares = [(1.0 / 16.0, "6%"), (0.25, "25%"), (RICHEST_PM_PER_DATA, "400%")];
    subjects(&mut plan, scale, &shares, cache);
    // The floor of the FUSE path: the null server's file of 4 MiB, which has no data.
    plan.subjects.push(scale.subject("null", Peer::Null, ALL, Tuning::default()));
    for (theta, name) in LOCALITIES.iter().take(if scale.quick { 1 } else { 5 }) {
        plan.point(scale, -theta, *name, &kind(scale, write, *theta), THREADS);
        if scale.fio {
            with_fio(&mut plan, scale, write, *theta, name);
        }
    }
    plan.notes.push(format!("{THREADS} threads, a private file each; θ in the order of the axis 1.04 to 0."));
    plan
}

/// Adds the same load by the program fio, on subjects with a directory. Fio has files of its own.
fn with_fio(plan: &mut Plan, scale: &Scale, write: bool, theta: f64, at: &str) {
    let program = Program::Fio {
        write,
        theta: format!("{theta}"),
        files: THREADS,
        file_bytes: scale.dataset_bytes / THREADS,
        milliseconds: scale.limit_ns / 1_000_000,
    };
    for (subject, found) in plan.subjects.iter().enumerate() {
        if !matches!(found.peer, Peer::Local | Peer::Null) {
            let (series, work) = (format!("{} (fio)", found.label), Work::Program(program.clone()));
            plan.cells.push(Cell { subject, series, x: -theta, at: at.to_string(), work });
        }
    }
}

/// The localities from uniform access to the most skewed.
fn rising() -> Vec<&'static str> {
    LOCALITIES.iter().rev().map(|(_, name)| *name).collect()
}

fn reads(scale: &Scale, cache_share: f64) -> Plan {
    let mut plan = localities(scale, false, cache_share);
    both(&mut plan, "PM-rich is as fast as PM alone", "400%", "pm-only", Must::AtLeast(0.98));
    plan.claim("a little PM against data journalling", "terrace 6%", "ext4-dj", Must::Shown);
    both(&mut plan, "read-hot files in DRAM: published +6 to +29 %", "400%", "pm-only", Must::Shown);
    for name in ["terrace 6%", "local 6%"] {
        plan.steps("rises with locality", name, &rising(), Must::AtLeast(1.0));
    }
    plan.conclude = Some(served);
    plan
}

fn writes(scale: &Scale, cache_share: f64) -> Plan {
    let mut plan = localities(scale, true, cache_share);
    both(&mut plan, "PM-rich is as fast as PM alone", "400%", "pm-only", Must::AtLeast(0.98));
    plan.claim("never below data journalling", "terrace 6%", "ext4-dj", Must::AtLeast(1.0));
    plan.claim("never below the external log", "terrace 6%", "xfs-ml", Must::AtLeast(1.0));
    for name in ["terrace 400%", "local 400%"] {
        plan.steps("flat over locality", name, &rising(), Must::Within(1.1));
    }
    plan
}

/// The sources of all bytes read between the first round and the end, and the time of the first decision to
/// promote into DRAM.
fn served(before: &Status, after: &Status) -> Vec<(String, Value)> {
    let of = |(label, after): (&String, &Value)| {
        let since = |name: &str| {
            let old = before.get(label).and_then(|status| status["io"][name].as_f64()).unwrap_or(0.0);
            after["io"][name].as_f64().map(|now| now - old)
        };
        let migration = &after["migration"];
        let mounted = before.get(label).and_then(|status| status["io"]["seconds"].as_f64());
        let decided = migration["to_dram_first_seconds"].as_f64();
        let value = json!({
            "bytes from PM": since("pm_read_bytes")?,
            "bytes from DRAM": since("dram_read_bytes")?,
            "bytes from the device": since("device_read_bytes")?,
            "bytes promoted to DRAM": migration["to_dram_bytes"],
            "first decided, s after the files were made": decided.zip(mounted).map(|(at, begin)| at - begin),
        });
        Some((format!("reads of {label}"), value))
    };
    after.iter().filter_map(of).collect()
}

/// Files that are only read, with PM and DRAM for the whole data set.
pub(crate) fn promoted(scale: &Scale) -> Plan {
    // Equation (2) must hold for four seconds in a row; then the promotion into DRAM takes time.
    const LEAST_NS: u64 = 8_000_000_000;
    let limit_ns = if scale.quick { scale.limit_ns } else { scale.limit_ns.max(LEAST_NS) };
    let scale = &Scale { limit_ns, ..*scale };
    let mut plan = Plan::new(Metric::OperationsPerS, "locality", scale.dataset_bytes * 5 / 4);
    plan.class = Some("optane");
    let tuning = Tuning { cache_bytes: Some(scale.dataset_bytes * 5 / 4), ..Tuning::default() };
    let fixed = Tuning { policy: Some("static"), ..tuning.clone() };
    for (peer, name) in [(Peer::Terrace, "terrace"), (Peer::Local, "local")] {
        plan.subjects.push(scale.subject(format!("{name} 200%"), peer, ALL, tuning.clone()));
        plan.subjects.push(scale.subject(format!("{name} pm-only"), peer, ALL, fixed.clone()));
    }
    for (theta, name) in [LOCALITIES[0], LOCALITIES[4]] {
        let mut kind = kind(scale, false, theta);
        // Filled by large writes without O_DSYNC, the files would begin on the device.
        if let Kind::Random { sync, .. } = &mut kind {
            *sync = Sync::Flag;
        }
        plan.point(scale, -theta, name, &kind, THREADS);
    }
    both(&mut plan, "read-hot files in DRAM: published +6 to +29 %", "200%", "pm-only", Must::Shown);
    plan.notes.push("Files are filled with O_DSYNC, so that they begin in PM; DRAM for 125 % of the data; a figure takes 8 s at least.".to_string());
    plan.notes.push("Through FUSE what the kernel's cache answers comes from DRAM, too, and reaches no counter: what was read, 4 KiB an operation, less the bytes below.".to_string());
    plan.conclude = Some(served);
    plan
}

/// DRAM by data: 16 of 32 GB in the publication.
pub(crate) fn tpfs_reads(scale: &Scale) -> Plan {
    reads(scale, 0.5)
}
pub(crate) fn tpfs_writes(scale: &Scale) -> Plan {
    writes(scale, 0.5)
}
/// DRAM by data: 10 of 32 GB in the publication.
pub(crate) fn ziggurat_reads(scale: &Scale) -> Plan {
    reads(scale, 0.31)
}
/// Bytes written to the device by demotion, against the bandwidth of the bare device with writes of 1 MiB.
pub(crate) fn ziggurat_writes(scale: &Scale) -> Plan {
    let mut plan = writes(scale, 0.31);
    plan.also = vec![
        ("device", Metric::DeviceBytesPerS),
        ("amplification", Metric::Amplification),
        ("bytes", Metric::BytesPerS),
    ];
    let device = plan.subjects.len();
    plan.subjects.push(scale.subject("device", Peer::Device, 0.0, Tuning::default()));
    for (theta, name) in LOCALITIES.iter().take(if scale.quick { 1 } else { 5 }) {
        plan.cell(device, "device", (-theta, name), super::whole_device(scale));
    }
    for ours in ["terrace 6%", "local 6%"] {
        let text = "of the device's bandwidth: published 96 % (Optane) and 88 % (NVMe)";
        plan.claim(text, &format!("{ours} device"), "device bytes", Must::AtLeast(0.85));
        plan.limit("written per byte demoted", &format!("{ours} amplification"), Must::AtMost(1.1));
    }
    plan
}

/// PM fixed, DRAM from twice the data to a sixteenth of the data.
pub(crate) fn sensitivity(scale: &Scale) -> Plan {
    const SHARES: [(f64, &str); 5] =
        [(2.0, "200%"), (1.0, "100%"), (0.5, "50%"), (0.25, "25%"), (0.0625, "6%")];
    // Ten pools exist at a time, each with PM of four times the data, as published: all must fit into memory.
    const MOST_BYTES: u64 = 256 << 20;
    let scale = &Scale { dataset_bytes: scale.dataset_bytes.min(MOST_BYTES), ..*scale };
    let mut plan = Plan::new(Metric::OperationsPerS, "DRAM cache of the data", scale.dataset_bytes * 2);
    for (share, text) in SHARES.iter().take(if scale.quick { 1 } else { SHARES.len() }) {
        let cache_bytes = Some((scale.dataset_bytes as f64 * share) as u64);
        let tuning = Tuning { cache_bytes, ..Tuning::default() };
        for (peer, name) in [(Peer::Terrace, "terrace"), (Peer::Local, "local")] {
            let subject = plan.subjects.len();
            plan.subjects.push(scale.subject(
                format!("{name} cache {text}"),
                peer,
                RICHEST_PM_PER_DATA,
                tuning.clone(),
            ));
            for (write, what) in [(false, "read"), (true, "write")] {
                let work = Work::Load(scale.load(kind(scale, write, 0.71), THREADS));
                let (series, at) = (format!("{name} {what}"), (*text).to_string());
                plan.cells.push(Cell { subject, series, x: *share, at, work });
            }
        }
    }
    for name in ["terrace", "local"] {
        let (reads, writes) = (format!("{name} read"), format!("{name} write"));
        plan.steps(
            "reads: DRAM of half the data is enough",
            &reads,
            &["200%", "100%", "50%"],
            Must::Within(1.1),
        );
        plan.steps(
            "reads fall below half the data in DRAM",
            &reads,
            &["50%", "25%", "6%"],
            Must::AtMost(1.0),
        );
        let places = SHARES.map(|(_, text)| text);
        plan.steps("writes do not care", &writes, &places, Must::Within(1.1));
    }
    plan.notes
        .push("PM is 400 % of the data, as published; locality 70/30; at most 256 MiB of data.".to_string());
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_reads_are_counted_from_the_first_round_on() {
        let status = |seconds: f64, pm: u64, dram: u64, first: Option<f64>| {
            let io = json!({ "seconds": seconds, "pm_read_bytes": pm, "dram_read_bytes": dram,
                "device_read_bytes": 3 });
            let migration = json!({ "to_dram_bytes": dram, "to_dram_first_seconds": first });
            Status::from([("local".to_string(), json!({ "io": io, "migration": migration }))])
        };
        let found = served(&status(5.0, 100, 0, None), &status(60.0, 400, 70, Some(11.5)));
        assert_eq!(found.len(), 1);
        let value = &found[0].1;
        assert_eq!((&value["bytes from PM"], &value["bytes from DRAM"]), (&json!(300.0), &json!(70.0)));
        assert_eq!(value["bytes from the device"], json!(0.0));
        assert_eq!(value["first decided, s after the files were made"], json!(6.5));
        let never = served(&status(5.0, 100, 0, None), &status(60.0, 400, 0, None));
        assert_eq!(never[0].1["first decided, s after the files were made"], Value::Null);
        // A peer has no status.
        assert!(served(&Status::new(), &Status::from([("ext4".to_string(), Value::Null)])).is_empty());
    }
}
