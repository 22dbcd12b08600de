//! Rows tpfs-11 to -13, zig-5, -6: filebench's personalities; tpfs-17 and zig-10: the size of migration
//! groups.

use super::{ALL, both, subjects};
use terrace_bench::comparison::plan::{Cell, FILESERVER_BYTES, Metric, Must, Plan, Scale, Work};
use terrace_bench::site::subject::{Peer, Tuning};
use terrace_bench::workload::load::Kind;
use terrace_bench::workload::personality::{Order, Personality};
use terrace_bench::workload::worker::Sync;

/// 16 GB of page cache for 60 to 100 GB of data; 10 GB in [Ziggurat].
const CACHE_SHARE: f64 = 0.2;

fn base(scale: &Scale, axis: &'static str) -> Plan {
    let cache = (scale.dataset_bytes as f64 * CACHE_SHARE) as u64;
    let mut plan = Plan::new(Metric::OperationsPerS, axis, cache);
    let shares = [(0.03, "3%"), (0.5, "50%"), (ALL, "200%")];
    subjects(&mut plan, scale, &shares, cache);
    both(&mut plan, "PM-rich is as fast as PM alone", "200%", "pm-only", Must::AtLeast(0.95));
    plan.notes.push("Terrace has at least 32 MiB of PM; operations are filebench's flow operations.".into());
    plan
}

fn by_threads(scale: &Scale, kind: &Kind) -> Plan {
    let mut plan = base(scale, "threads");
    let threads: &[u64] = if scale.quick { &[1] } else { &[1, 2, 4, 16] };
    for count in threads {
        plan.point(scale, *count as f64, count.to_string(), kind, *count);
    }
    plan
}

pub(crate) fn fileserver(scale: &Scale) -> Plan {
    let mut plan = by_threads(scale, &scale.personality(Personality::Fileserver, false));
    plan.claim("a little PM is like data journalling", "terrace 3%", "ext4-dj", Must::AtLeast(0.9));
    plan
}

pub(crate) fn webserver(scale: &Scale) -> Plan {
    let mut plan = by_threads(scale, &scale.personality(Personality::Webserver, false));
    both(&mut plan, "read-hot files in DRAM: published +13 to +15 %", "200%", "pm-only", Must::Shown);
    plan
}

/// As published: files of 2 MB, which the flow replaces by small files. The live data soon is a 64th of the
/// data set.
pub(crate) fn varmail(scale: &Scale) -> Plan {
    let file_bytes = if scale.quick { 64 << 10 } else { FILESERVER_BYTES };
    let files = (scale.dataset_bytes / file_bytes).max(32);
    let which = Personality::Varmail;
    let kind = Kind::Personality { which, files, file_bytes, sync_every_write: false, order: Order::Even };
    let mut plan = claimed(by_threads(scale, &kind));
    plan.notes.push("Files have 2 MiB at first; those that replace them are small.".into());
    plan
}

/// A data set of small files: on every subject nearly all reads go to the device.
pub(crate) fn mails(scale: &Scale) -> Plan {
    claimed(by_threads(scale, &scale.personality(Personality::Varmail, false)))
}

fn claimed(mut plan: Plan) -> Plan {
    plan.claim("a little PM: published 3.9 times", "terrace 3%", "ext4-dj", Must::AtLeast(3.9));
    plan.claim("a little PM: published 4.5 times", "terrace 3%", "xfs-ml", Must::AtLeast(3.9));
    both(&mut plan, "on Optane as with all data in PM", "3%", "200%", Must::AtLeast(0.9));
    plan
}

fn three(scale: &Scale, threads: u64) -> Plan {
    let mut plan = base(scale, "personality");
    let all = [Personality::Fileserver, Personality::Webproxy, Personality::Varmail];
    // The three file sets exist at the same time, and together are the data set.
    let third = Scale { dataset_bytes: scale.dataset_bytes / 3, ..*scale };
    for (number, which) in all.into_iter().enumerate() {
        plan.point(scale, number as f64, which.name(), &third.personality(which, false), threads);
    }
    for peer in ["ext4-dj", "xfs-ml"] {
        let at = Personality::Varmail.name();
        plan.claim_at("varmail: published 2.1 to 2.6 times", "terrace 3%", peer, at, Must::AtLeast(2.1));
    }
    plan
}

/// The publication has 16 threads and more on 20 cores.
pub(crate) fn ziggurat_many(scale: &Scale) -> Plan {
    three(scale, 4)
}
pub(crate) fn ziggurat_one(scale: &Scale) -> Plan {
    three(scale, 1)
}

/// Group sizes from one block on. A group is at most a chunk (16 MiB) and at most a sixteenth of PM: larger
/// sizes, or less PM, would only repeat the last point. Published are sizes up to 1 GiB.
const GROUPS: [(u64, &str); 6] = [
    (4 << 10, "4K"),
    (64 << 10, "64K"),
    (512 << 10, "512K"),
    (2 << 20, "2M"),
    (4 << 20, "4M"),
    (8 << 20, "8M"),
];
/// PM whose sixteenth, without logs and tables, holds the largest group.
const GROUP_PM_BYTES: u64 = 144 << 20;
/// Data by PM.
const GROUP_DATA_PER_PM: u64 = 7;

pub(crate) fn group_size(scale: &Scale) -> Plan {
    const THREADS: u64 = 2;
    // The data set is so large that PM holds a small part only.
    let least = if scale.quick { 0 } else { GROUP_DATA_PER_PM * GROUP_PM_BYTES };
    let scale = &Scale { dataset_bytes: scale.dataset_bytes.max(least), ..*scale };
    let cache = (scale.dataset_bytes as f64 * CACHE_SHARE) as u64;
    let mut plan = Plan::new(Metric::OperationsPerS, "group", cache);
    let random = |write: bool| Kind::Random {
        write,
        sync: if write { Sync::Flag } else { Sync::Never },
        files: THREADS,
        file_bytes: scale.dataset_bytes / 2 / THREADS,
        io_bytes: 4096,
        theta: 0.71,
        single: None,
    };
    let half = Scale { dataset_bytes: scale.dataset_bytes / 2, ..*scale };
    let works = [
        ("random read", random(false)),
        ("random write", random(true)),
        ("fileserver", half.personality(Personality::Fileserver, false)),
    ];
    for (group_bytes, text) in GROUPS.iter().take(if scale.quick { 1 } else { GROUPS.len() }) {
        let tuning =
            Tuning { group_bytes: Some(*group_bytes), cache_bytes: Some(cache), ..Tuning::default() };
        let index = plan.subjects.len();
        let mut subject = scale.subject(format!("local group {text}"), Peer::Local, 1.0 / 16.0, tuning);
        if !scale.quick {
            subject.pm_bytes = subject.pm_bytes.max(GROUP_PM_BYTES);
        }
        plan.subjects.push(subject);
        for (name, kind) in &works {
            let work = Work::Load(scale.load(kind.clone(), THREADS));
            let (series, at) = ((*name).to_string(), (*text).to_string());
            plan.cells.push(Cell { subject: index, series, x: *group_bytes as f64, at, work });
        }
    }
    let places = GROUPS.map(|(_, text)| text);
    for (name, _) in &works {
        plan.steps("rises up to a knee", name, &places[..4], Must::AtLeast(1.0));
        plan.steps("behind the knee", name, &places[3..], Must::Shown);
        plan.between("the largest beside one block", name, ("4K", "8M"), Must::Shown);
    }
    plan.notes.push("In process: the kernel's path would hide a part of it.".to_string());
    plan.notes.push(format!(
        "Groups end at a chunk (16 MiB) and at a sixteenth of PM; PM has at least {} MiB here and the data {} times \
         that, so that all these sizes are different ones. Larger ones, published up to 1 GiB, would not be.",
        GROUP_PM_BYTES >> 20,
        GROUP_DATA_PER_PM
    ));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In PM of 32 MiB the sizes 64M and 256M measured the same groups as 4M.
    #[test]
    fn the_engine_takes_every_group_size() {
        const CHUNK: u64 = 16 << 20;
        let scale = Scale { dataset_bytes: 512 << 20, limit_ns: 1, quick: false, fio: false };
        let plan = group_size(&scale);
        let mut sizes: Vec<u64> = GROUPS.map(|(bytes, _)| bytes).into();
        assert!(sizes.is_sorted());
        for subject in &plan.subjects {
            // Logs and tables take less than a sixteenth of PM; a sixteenth of the rest is the largest group.
            let largest = CHUNK.min(subject.pm_bytes * 15 / 16 / 16);
            sizes.iter_mut().for_each(|bytes| *bytes = (*bytes).min(largest));
        }
        sizes.dedup();
        assert_eq!(sizes, GROUPS.map(|(bytes, _)| bytes));
        assert_eq!(plan.subjects.len(), GROUPS.len());
    }
}
