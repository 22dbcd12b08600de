//! Rows acbpfs-t1, -3 to -6: the anti-caching policy.

use terrace_bench::comparison::plan::{Cell, Metric, Must, Plan, Scale, Work};
use terrace_bench::site::subject::{Peer, Tuning};
use terrace_bench::workload::anticache::NameOperation;
use terrace_bench::workload::load::Kind;
use terrace_bench::workload::personality::Personality;
use terrace_bench::workload::worker::Sync;

/// A DRAM cache too small to serve the reads of these rows.
const LITTLE_CACHE_BYTES: u64 = 1 << 20;
const BOTH: [(Peer, &str); 2] = [(Peer::Terrace, "terrace"), (Peer::Local, "local")];

fn tuning(policy: &'static str) -> Tuning {
    Tuning { policy: Some(policy), cache_bytes: Some(LITTLE_CACHE_BYTES), ..Tuning::default() }
}

/// Operations on names, with policy=anticache and with policy=static.
pub(crate) fn names(scale: &Scale) -> Plan {
    let mut plan = Plan::new(Metric::MedianLatencyNs, "operation", 64 << 20);
    // Room for unlinked files of 16 MiB whose blocks are not free yet.
    let sized = Scale { dataset_bytes: if scale.quick { 96 << 20 } else { 256 << 20 }, ..*scale };
    for (peer, name) in BOTH {
        for policy in ["anticache", "static"] {
            plan.subjects.push(sized.subject(format!("{name} {policy}"), peer, 1.0, tuning(policy)));
        }
        let (ours, theirs) = (format!("{name} anticache"), format!("{name} static"));
        plan.claim("published −4 to +12 %", &ours, &theirs, Must::AtMost(1.10));
    }
    for (number, operation) in NameOperation::ALL.into_iter().enumerate() {
        plan.point(scale, number as f64, operation.name(), &Kind::Names { operation }, 1);
    }
    plan
}

/// Durable appends, of sizes from 1 KiB to more than the threshold of PM.
pub(crate) fn append(scale: &Scale) -> Plan {
    let mut plan = Plan::new(Metric::MedianLatencyNs, "append", 512 << 20);
    let sized = Scale { dataset_bytes: 512 << 20, ..*scale };
    for (peer, name) in BOTH {
        // The threshold is 40 MB in the publication; here it is 60 % of 64 MiB.
        let small = Tuning { threshold_percent: Some(60), ..tuning("anticache") };
        plan.subjects.push(sized.subject(format!("{name} anticache"), peer, 0.125, small));
        plan.subjects.push(sized.subject(format!("{name} pm-only"), peer, 1.0, tuning("static")));
        let (ours, theirs) = (format!("{name} anticache"), format!("{name} pm-only"));
        plan.claim("like PM only", &ours, &theirs, Must::AtMost(1.10));
    }
    plan.subjects.push(sized.subject("ext4", Peer::Ext4, 0.125, Tuning::default()));
    // "Orders of magnitude" are at least a factor of 10.
    plan.claim("orders of magnitude faster than ext4", "ext4", "terrace anticache", Must::AtLeast(10.0));
    let sizes: [(u64, &str); 6] = [
        (1 << 10, "1K"),
        (4 << 10, "4K"),
        (64 << 10, "64K"),
        (1 << 20, "1M"),
        (16 << 20, "16M"),
        (64 << 20, "64M"),
    ];
    for (bytes, text) in sizes.into_iter().take(if scale.quick { 2 } else { 6 }) {
        plan.point(scale, bytes as f64, text, &Kind::AppendSync { bytes }, 1);
    }
    plan
}

/// Random reads, and overwrites with fsync, of a data set four times the threshold.
pub(crate) fn random(scale: &Scale) -> Plan {
    let mut plan = Plan::new(Metric::MedianLatencyNs, "request", 64 << 20);
    for (peer, name) in BOTH {
        plan.subjects.push(scale.subject(format!("{name} anticache"), peer, 0.25, tuning("anticache")));
        plan.subjects.push(scale.subject(format!("{name} pm-only"), peer, super::ALL, tuning("static")));
    }
    plan.subjects.push(scale.subject("ext4", Peer::Ext4, 0.25, Tuning::default()));
    let sizes: [(u64, &str); 4] = [(4 << 10, "4K"), (40 << 10, "40K"), (400 << 10, "400K"), (1 << 20, "1M")];
    for (bytes, text) in sizes.into_iter().take(if scale.quick { 1 } else { 4 }) {
        for (write, what) in [(false, "read"), (true, "write")] {
            let kind = Kind::Random {
                write,
                sync: if write { Sync::Fsync } else { Sync::Never },
                files: 1,
                file_bytes: scale.dataset_bytes,
                io_bytes: bytes,
                theta: 0.0,
                single: None,
            };
            let first = plan.cells.len();
            plan.point(scale, bytes as f64, text, &kind, 1);
            plan.cells[first..].iter_mut().for_each(|cell| cell.series = format!("{} {what}", cell.series));
        }
    }
    for what in ["read", "write"] {
        let name = |subject: &str| format!("{subject} {what}");
        plan.claim("faster than ext4", &name("ext4"), &name("terrace anticache"), Must::AtLeast(1.0));
        plan.claim("not faster than PM only", &name("local anticache"), &name("local pm-only"), Must::Shown);
    }
    plan
}

/// Ten requests of 40 KiB, of which none to all are hot.
pub(crate) fn hotness(scale: &Scale) -> Plan {
    const FILE_BYTES: u64 = 40 << 10;
    let mut plan = Plan::new(Metric::MedianLatencyNs, "hot requests of ten", 64 << 20);
    // Cold files are four times PM, so PM never holds the least recently read file.
    let data = if scale.quick { 8 << 20 } else { 128 << 20 };
    let sized = Scale { dataset_bytes: data, ..*scale };
    for (peer, name) in BOTH {
        plan.subjects.push(sized.subject(format!("{name} anticache"), peer, 0.25, tuning("anticache")));
        plan.subjects.push(sized.subject(format!("{name} pm-only"), peer, super::ALL, tuning("static")));
    }
    plan.subjects.push(sized.subject("ext4", Peer::Ext4, 0.25, Tuning::default()));
    let steps: &[u64] = if scale.quick { &[0, 10] } else { &[0, 2, 4, 6, 8, 10] };
    for hot in steps {
        let kind = Kind::Hotness { files: data / FILE_BYTES, file_bytes: FILE_BYTES, hot: *hot };
        plan.point(scale, *hot as f64, format!("{} %", hot * 10), &kind, 1);
    }
    let text =
        "The hot requests of ext4 come from its page cache; in the publication all of them went to the disk.";
    plan.notes.push(text.to_string());
    for (text, ours, theirs, at, must) in [
        ("nothing hot: no slower than ext4", "ext4", "terrace anticache", "0 %", Must::AtLeast(0.9)),
        ("all hot: like PM only", "terrace anticache", "terrace pm-only", "100 %", Must::AtMost(1.1)),
        ("all hot: like PM only", "local anticache", "local pm-only", "100 %", Must::AtMost(1.1)),
    ] {
        plan.claim_at(text, ours, theirs, at, must);
    }
    let places: Vec<String> = steps.iter().map(|hot| format!("{} %", hot * 10)).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    for name in ["terrace anticache", "local anticache"] {
        plan.steps("falls all the way", name, &places, Must::AtMost(1.0));
    }
    plan
}

/// fileserver with fsync after writes, by the threshold as a share of the data.
pub(crate) fn threshold(scale: &Scale) -> Plan {
    const PM_SHARE: f64 = 1.4;
    let mut plan = Plan::new(Metric::BytesPerS, "threshold of the data", 64 << 20);
    let kind = scale.personality(Personality::Fileserver, true);
    plan.subjects.push(scale.subject("ext4", Peer::Ext4, 0.2, Tuning::default()));
    let steps: &[u64] = if scale.quick { &[100] } else { &[20, 40, 60, 80, 100] };
    for percent in steps {
        let (x, at) = (*percent as f64, format!("{percent} %"));
        let cell = |subject: usize, series: &str| {
            let work = Work::Load(scale.load(kind.clone(), 2));
            Cell { subject, series: series.to_string(), x, at: at.clone(), work }
        };
        plan.cells.push(cell(0, "ext4"));
        for (peer, name) in BOTH {
            let threshold_percent = Some((x / PM_SHARE) as u8);
            let tuning = Tuning { threshold_percent, ..tuning("anticache") };
            let subject = plan.subjects.len();
            plan.subjects.push(scale.subject(format!("{name} {percent}"), peer, PM_SHARE, tuning));
            plan.cells.push(cell(subject, name));
        }
    }
    plan.also = vec![
        ("evicted", Metric::EvictedPerOperation),
        ("evicted without a write", Metric::CleanEvictedPerOperation),
    ];
    plan.claim("always above ext4", "terrace", "ext4", Must::AtLeast(1.0));
    // Falling thresholds: from all of the data to a fifth.
    let places: Vec<String> = steps.iter().rev().map(|percent| format!("{percent} %")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    for (_, name) in BOTH {
        plan.steps("falls with the threshold", name, &places, Must::AtMost(1.0));
        // At 100 % no block is demoted; zero has no ratio, so the claim is about the difference.
        let evicted = format!("{name} evicted");
        plan.between("evictions grow", &evicted, ("100 %", "20 %"), Must::MoreByAtLeast(1.0));
        plan.steps("evictions grow", &evicted, &places, Must::MoreByAtLeast(0.0));
    }
    plan
}
