//! Tests of the registry and of the plans of its rows; no row is run.

use super::*;
use std::collections::BTreeSet;
use terrace_bench::comparison::plan::{Cell, Must, Plan, Scale, Work};

/// The rows that must exist. A row may state that it is not built, but may not be absent.
const WANTED: [&str; 77] = [
    "hashfs-8",
    "hashfs-12",
    "maps-hot",
    "maps-tiers",
    "hashfs-10",
    "hashfs-11",
    "hashfs-4.9",
    "maps-full",
    "hashfs-5",
    "hashfs-6",
    "hashfs-7",
    "hashfs-9",
    "maps-range",
    "maps-cold",
    "hinfs-1",
    "hinfs-2",
    "hinfs-4",
    "hinfs-7",
    "hinfs-8",
    "hinfs-10",
    "hinfs-11",
    "hinfs-12",
    "hinfs-13",
    "hinfs-14",
    "hinfs-synced",
    "hinfs-mount",
    "hinfs-foreground",
    "hinfs-memory",
    "hinfs-auto",
    "hashfs-13",
    "hashfs-14",
    "tpfs-8",
    "zig-4r",
    "tpfs-9",
    "zig-4w",
    "tpfs-10",
    "tpfs-11",
    "tpfs-12",
    "tpfs-13",
    "mails",
    "zig-5",
    "zig-6",
    "tpfs-14",
    "tpfs-15",
    "tpfs-16",
    "tpfs-17",
    "zig-10",
    "tpfs-predict",
    "tpfs-predict-n",
    "predictor-cost",
    "zig-7",
    "zig-8",
    "zig-9",
    "acbpfs-t1",
    "acbpfs-3",
    "acbpfs-4",
    "acbpfs-5",
    "acbpfs-6",
    "regret",
    "burst",
    "sync-write",
    "scan",
    "cold-small",
    "demoted-read",
    "dram-reads",
    "rich",
    "journal-fsync-in-process",
    "journal-fsync",
    "journal-flushes",
    "journal-programs",
    "journal-tail",
    "journal-burst",
    "journal-written",
    "journal-mount",
    "journal-stalled",
    "journal-ssd",
    "journal-flush-time",
];

#[test]
fn every_wanted_row_is_there_once() {
    let ids: Vec<&str> = ROWS.iter().map(|row| row.about.id).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len(), "an id twice");
    assert_eq!(unique, WANTED.into_iter().collect());
    for row in &ROWS {
        assert!(
            !row.about.sentence.is_empty() && !row.about.published.is_empty() && !row.about.shape.is_empty(),
            "{}",
            row.about.id
        );
    }
}

fn plans(quick: bool) -> impl Iterator<Item = (&'static str, Plan)> {
    let scale = Scale { dataset_bytes: 512 << 20, limit_ns: 1_000_000_000, quick, fio: true };
    ROWS.iter().filter_map(move |row| match row.built {
        Built::Plan(plan) => Some((row.about.id, plan(&scale))),
        Built::Own(_) => None,
    })
}

/// Labels name files and lines of the plot, so they must be unique. A claim about an unknown series would be
/// skipped without a message.
#[test]
fn plans_are_consistent() {
    for (id, plan) in plans(false).chain(plans(true)) {
        let labels: BTreeSet<&str> = plan.subjects.iter().map(|subject| subject.label.as_str()).collect();
        assert_eq!(labels.len(), plan.subjects.len(), "{id}: a label twice");
        assert!(!plan.cells.is_empty(), "{id}");
        let further = |cell: &Cell| -> Vec<String> {
            let also = plan.also.iter().map(|(words, _)| format!("{} {words}", cell.series));
            also.chain([cell.series.clone()]).collect()
        };
        let mut series: BTreeSet<String> = plan.cells.iter().flat_map(further).collect();
        for sum in &plan.sums {
            assert!(sum.of.iter().all(|(_, name)| series.contains(name)), "{id}: sum {}", sum.series);
            series.insert(sum.series.clone());
        }
        for claim in &plan.claims {
            assert!(!claim.theirs.is_empty() || !matches!(claim.must, Must::MoreByAtMost(_)), "{id}");
            for name in [&claim.ours, &claim.theirs].into_iter().filter(|name| !name.is_empty()) {
                assert!(series.contains(name), "{id}: claim about {name}");
            }
            for at in claim.at.iter().chain(&claim.from) {
                assert!(plan.cells.iter().any(|cell| cell.at == *at), "{id}: claim at {at}");
            }
            assert!(claim.from.is_none() || claim.from != claim.at && claim.ours == claim.theirs, "{id}");
        }
        for cell in &plan.cells {
            assert!(cell.subject < plan.subjects.len(), "{id}");
            let local = plan.subjects[cell.subject].peer == Peer::Local;
            let in_process = matches!(cell.work, Work::Load(_));
            assert!(in_process || !local, "{id}: a program in process");
        }
    }
}

#[test]
fn removing_a_peer_removes_its_cells() {
    for (id, mut plan) in plans(false) {
        plan.keep(&[Peer::Terrace, Peer::Ext4Dj]);
        for cell in &plan.cells {
            let subject = &plan.subjects[cell.subject];
            assert!(matches!(subject.peer, Peer::Terrace | Peer::Ext4Dj), "{id}");
            let own = cell.series.starts_with(subject.peer.name());
            assert!(own || id == "tpfs-17" || id == "zig-10", "{id}: {} on {}", cell.series, subject.label);
        }
        plan.keep(&[]);
        assert!(plan.cells.is_empty() && plan.subjects.is_empty(), "{id}");
    }
}

#[test]
fn pm_journal_gives_each_pool_a_journal_and_asks_for_its_disk() {
    for (id, mut plan) in plans(false) {
        if id.starts_with("journal-") {
            continue;
        }
        let (memory, disk) = plan.needs();
        plan.journal();
        let pools = plan.subjects.iter().filter(|subject| subject.peer.is_terrace());
        let logs: u64 = pools.clone().map(|subject| subject.pm_bytes * 3).sum();
        assert!(pools.clone().all(|subject| subject.tuning.journal.is_some()), "{id}");
        let peers = plan.subjects.iter().filter(|subject| !subject.peer.is_terrace());
        assert!(peers.clone().all(|subject| subject.tuning.journal.is_none()), "{id}");
        assert!(plan.needs().0 <= memory && plan.needs().1 >= disk + logs && plan.writes_whole, "{id}");
    }
}

/// A row at the scale of docs/evaluation.md fits a machine with 24 GiB of memory and leaves 6 GiB free.
#[test]
fn rows_fit_the_machine() {
    for (id, plan) in plans(false) {
        let (memory, disk) = plan.needs();
        assert!(memory <= 16 << 30, "{id} needs {} MiB of memory", memory >> 20);
        assert!(disk <= 32 << 30, "{id} needs {} MiB of disk", disk >> 20);
    }
}

/// The published shapes of these rows are trends of a series along its axis; a ratio to another series shows
/// no trend.
#[test]
fn rows_about_an_axis_compare_its_places() {
    const ALONG: [&str; 9] = [
        "tpfs-8",
        "zig-4r",
        "tpfs-9",
        "zig-4w",
        "tpfs-10",
        "tpfs-17",
        "acbpfs-5",
        "acbpfs-6",
        "journal-fsync-in-process",
    ];
    for (id, plan) in plans(false) {
        let along = plan.claims.iter().any(|claim| claim.from.is_some());
        assert_eq!(along, ALONG.contains(&id) || id == "zig-10", "{id}");
    }
}

/// From 1 : 32 to 4 : 1.
#[test]
fn pm_is_measured_from_a_32nd_of_the_data_to_four_times_it() {
    let scale = Scale { dataset_bytes: 2 << 30, limit_ns: 1, quick: false, fio: false };
    let mut shares = Vec::new();
    for (id, plan) in ROWS.iter().filter_map(|row| match row.built {
        Built::Plan(plan) => Some((row.about.id, plan(&scale))),
        _ => None,
    }) {
        // The data set of these rows is as large as the scale says.
        if matches!(id, "tpfs-8" | "tpfs-9" | "tpfs-13") {
            let terrace = plan.subjects.iter().filter(|subject| subject.peer == Peer::Terrace);
            shares.extend(terrace.map(|subject| subject.pm_bytes as f64 / scale.dataset_bytes as f64));
        }
    }
    assert!(shares.iter().any(|share| *share <= 1.0 / 32.0), "{shares:?}");
    assert!(shares.iter().any(|share| *share >= 4.0), "{shares:?}");
}

#[test]
fn must_show_entries_name_existing_rows_and_claims() {
    let mut names = BTreeSet::new();
    for entry in &must_show::ENTRIES {
        assert!(names.insert(entry.name), "{} twice", entry.name);
        assert!(ROWS.iter().any(|row| row.about.id == entry.row), "{}", entry.name);
        let words = [entry.row].iter().chain(entry.args).map(OsString::from).collect::<Vec<_>>();
        let Ok(Asked::Row(options)) = Options::parse(&words) else { panic!("{}", entry.name) };
        let row = ROWS.iter().find(|row| row.about.id == entry.row).unwrap();
        let mut plan = match row.built {
            Built::Plan(plan) => plan(&scale(&options)),
            Built::Own(_) => continue,
        };
        if let Some(peers) = &options.peers {
            plan.keep(peers);
        }
        assert!(!plan.cells.is_empty(), "{}", entry.name);
        // A missing claim would leave the line of the table empty without a message.
        for begin in entry.claims {
            let of_these = |name: &str| name.is_empty() || plan.cells.iter().any(|cell| cell.series == name);
            let there = |claim: &&plan::Claim| of_these(&claim.ours) && of_these(&claim.theirs);
            let found = plan.claims.iter().filter(there).any(|claim| claim.text.starts_with(begin));
            assert!(found, "{}: {begin}", entry.name);
        }
    }
}

/// Users got the result of a replay as JSON without asking for it.
#[test]
fn a_replay_is_told_in_a_line() {
    let found = serde_json::json!({
        "operations": 3000, "elapsed_ns": 1_500_000_000u64,
        "status": { "migration": { "demoted_bytes": 3 << 19, "promoted_bytes": 1 << 20 } },
    });
    let line = "3000 operations in 1.500 s, 2000 operations/s; moved down 1.5 MiB, up 1.0 MiB";
    assert_eq!(replay::replayed(&found), line);
}
