//! A row as data: file systems, loads, what is compared with what. paper/measure.rs runs it.

use crate::site::peer::{Peer, Subject, Tuning};
use crate::site::programs::Program;
use crate::workload::load::{Kind, Load, Measure};
use crate::workload::personality::{Order, Personality};
use serde::Serialize;
use std::collections::BTreeMap;

/// "2 MB" on average.
pub const FILESERVER_BYTES: u64 = 2 << 20;
/// What varmail's flow makes of any files: two appends of 8 KiB on average when they are created, two more per life.
const VARMAIL_BYTES: u64 = 32 << 10;
/// One append of 8 KiB on average; webproxy appends nothing later.
const WEBPROXY_BYTES: u64 = 8 << 10;

/// What a row's figures are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Metric {
    /// Of the load or the program.
    OperationsPerS,
    /// Read and written.
    BytesPerS,
    /// Of one turn of the load.
    MedianLatencyNs,
    /// From begin to end.
    Seconds,
    /// What the offline optimum waits, divided by what is waited.
    ShareOfOptimum,
    P99LatencyNs,
    P999LatencyNs,
    MaxLatencyNs,
    /// The 99.9th percentile by the larger of 20 medians and 2 ms.
    TailByLimit,
    /// Writes that found no space.
    Failures,
    /// Time of all threads by operations.
    NsPerOperation,
    /// What Terrace's devices were written meanwhile.
    DeviceBytesPerS,
    /// The same by what migration moved below PM.
    Amplification,
    /// What left PM for each operation: written below, and given up because the copy below was still good.
    EvictedPerOperation,
    CleanEvictedPerOperation,
}

/// "p99.9 ≤ max(20 × median, 2 ms)".
const TAIL_MEDIANS: u64 = 20;
const TAIL_NS: u64 = 2_000_000;

impl Metric {
    pub fn unit(self) -> &'static str {
        match self {
            Metric::OperationsPerS => "operations/s",
            Metric::BytesPerS | Metric::DeviceBytesPerS => "bytes/s",
            Metric::Seconds => "s",
            Metric::ShareOfOptimum => "optimum / wait",
            Metric::Amplification => "bytes/byte",
            Metric::EvictedPerOperation | Metric::CleanEvictedPerOperation => "bytes/operation",
            Metric::TailByLimit => "of the limit",
            Metric::Failures => "writes",
            Metric::NsPerOperation => "ns/operation",
            _ => "ns",
        }
    }
    /// `threads` made the measure.
    pub fn of(self, measure: &Measure, threads: u64) -> f64 {
        match self {
            Metric::OperationsPerS => measure.operations_per_s(),
            Metric::BytesPerS => measure.bytes_per_s(),
            Metric::MedianLatencyNs => measure.latency_median_ns as f64,
            Metric::Seconds => measure.elapsed_ns as f64 / 1e9,
            // Of no load.
            Metric::ShareOfOptimum => f64::NAN,
            Metric::P99LatencyNs => measure.latency_p99_ns as f64,
            Metric::P999LatencyNs => measure.latency_p999_ns as f64,
            Metric::MaxLatencyNs => measure.latency_max_ns as f64,
            Metric::TailByLimit => {
                let limit = TAIL_NS.max(TAIL_MEDIANS * measure.latency_median_ns);
                measure.latency_p999_ns as f64 / limit as f64
            }
            Metric::DeviceBytesPerS => {
                measure.device_written_bytes as f64 / measure.elapsed_ns.max(1) as f64 * 1e9
            }
            Metric::Amplification => measure.device_written_bytes as f64 / measure.demoted_bytes as f64,
            Metric::EvictedPerOperation => measure.demoted_bytes as f64 / measure.operations.max(1) as f64,
            Metric::CleanEvictedPerOperation => {
                measure.clean_evicted_bytes as f64 / measure.operations.max(1) as f64
            }
            Metric::Failures => measure.failed as f64,
            Metric::NsPerOperation => {
                (measure.elapsed_ns * threads) as f64 / measure.operations.max(1) as f64
            }
        }
    }
}

/// What is run on a subject.
#[derive(Debug, Clone)]
pub enum Work {
    Load(Load),
    Program(Program),
    /// All of them at the same time, in a directory; loads and programs only.
    Together(Vec<Work>),
}

impl Work {
    /// The loads and programs that it is made of.
    pub fn parts(&self) -> &[Work] {
        match self {
            Work::Together(parts) => parts,
            alone => std::slice::from_ref(alone),
        }
    }
}

/// One figure of each round.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Index into the plan's subjects.
    pub subject: usize,
    /// Line of the plot.
    pub series: String,
    /// Place on the axis: its number and its name.
    pub x: f64,
    pub at: String,
    pub work: Work,
}

/// A ratio of two series, place by place, or of two places of a series, that the row's shape is about.
#[derive(Debug, Clone)]
pub struct Claim {
    pub text: String,
    pub ours: String,
    /// Empty: `ours` itself is what has to hold, not a ratio.
    pub theirs: String,
    /// Only at this place; everywhere without.
    pub at: Option<String>,
    /// Where `theirs` is, when that is not where `ours` is.
    pub from: Option<String>,
    pub must: Must,
}

/// What a ratio has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Must {
    AtLeast(f64),
    AtMost(f64),
    /// In no round more than this. Only of a series itself.
    Never(f64),
    /// The interval holds 1, or lies below it, and does not reach 1.25.
    NotAbove,
    /// Neither more than so many times as much, nor less than that part.
    Within(f64),
    /// The difference, round by round, is at most this, in the unit of the series.
    MoreByAtMost(f64),
    /// The same, at least this: for what may be nothing at all, of which there is no ratio.
    MoreByAtLeast(f64),
    /// Shown beside the published one.
    Shown,
}

/// All of a row.
#[derive(Debug, Clone)]
pub struct Plan {
    pub subjects: Vec<Subject>,
    /// In the order of a round.
    pub cells: Vec<Cell>,
    pub metric: Metric,
    /// Further figures of each cell that is a load: series with these words behind their names.
    pub also: Vec<(&'static str, Metric)>,
    pub axis: &'static str,
    /// The device that the row is about, unless `--class` names one.
    pub class: Option<&'static str>,
    pub claims: Vec<Claim>,
    /// The page cache of what runs through the kernel.
    pub page_cache_bytes: u64,
    pub notes: Vec<String>,
    /// What is waited when the files have been made: for what depends on their age.
    pub pause_s: u64,
    /// Figures of the whole run, from the status of each Terrace subject before the first round and at the end.
    pub conclude: Option<Conclude>,
}

/// Of each Terrace subject.
pub type Status = BTreeMap<String, serde_json::Value>;
/// Names and values.
pub type Conclude = fn(&Status, &Status) -> Vec<(String, serde_json::Value)>;

/// How large and how long: what the rows derive their sizes from.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub dataset_bytes: u64,
    /// Of one figure in one round.
    pub limit_ns: u64,
    pub quick: bool,
    /// Rows of random reads and writes also through fio itself.
    pub fio: bool,
}

/// Terrace does not manage with less than this for logs, tables and the catalog of these data sets.
const LEAST_PM: u64 = 32 << 20;

impl Scale {
    /// PM for a share of the data set, whole MiB.
    pub fn pm(&self, share: f64) -> u64 {
        ((self.dataset_bytes as f64 * share) as u64).max(LEAST_PM).next_multiple_of(1 << 20)
    }

    /// A file system with PM for a share of the data set.
    pub fn subject(&self, label: impl Into<String>, peer: Peer, share: f64, tuning: Tuning) -> Subject {
        let least = if self.quick { 64 << 20 } else { 256 << 20 };
        let device_bytes = (self.dataset_bytes * 2).max(least);
        Subject { label: label.into(), peer, pm_bytes: self.pm(share), device_bytes, tuning, given: None }
    }

    /// The flow of a personality at this self.
    pub fn personality(&self, which: Personality, sync_every_write: bool) -> Kind {
        let file_bytes = match which {
            Personality::Varmail => VARMAIL_BYTES,
            Personality::Webproxy => WEBPROXY_BYTES,
            _ if self.quick => 64 << 10,
            _ => FILESERVER_BYTES,
        };
        let files = (self.dataset_bytes / file_bytes).clamp(32, 1 << 16);
        Kind::Personality { which, files, file_bytes, sync_every_write, order: Order::Even }
    }

    /// A load of this scale.
    pub fn load(&self, kind: Kind, threads: u64) -> Load {
        let operations = if self.quick { 50 } else { u64::MAX };
        Load { kind, threads, limit_ns: self.limit_ns, operations, seed: 1 }
    }
}

impl Plan {
    /// An empty plan.
    pub fn new(metric: Metric, axis: &'static str, page_cache_bytes: u64) -> Plan {
        Plan {
            subjects: Vec::new(),
            cells: Vec::new(),
            metric,
            also: Vec::new(),
            axis,
            class: None,
            claims: Vec::new(),
            page_cache_bytes,
            notes: Vec::new(),
            pause_s: 0,
            conclude: None,
        }
    }

    /// Runs `kind` on every subject, one after the other, at a place of the axis.
    pub fn point(&mut self, scale: &Scale, x: f64, at: impl Into<String>, kind: &Kind, threads: u64) {
        let at = at.into();
        for (subject, found) in self.subjects.iter().enumerate() {
            let mut kind = kind.clone();
            if let (Peer::Null, Kind::Random { file_bytes, single, .. }) = (found.peer, &mut kind) {
                (*file_bytes, *single) = (crate::null_server::FILE_BYTES, Some("file".to_string()));
            }
            let work = Work::Load(scale.load(kind, threads));
            self.cells.push(Cell { subject, series: found.label.clone(), x, at: at.clone(), work });
        }
    }

    /// Adds a claim about all places.
    pub fn claim(&mut self, text: &str, ours: &str, theirs: &str, must: Must) {
        let (ours, theirs) = (ours.to_string(), theirs.to_string());
        self.claims.push(Claim { text: text.to_string(), ours, theirs, at: None, from: None, must });
    }

    /// Adds a claim about one place.
    pub fn claim_at(&mut self, text: &str, ours: &str, theirs: &str, at: &str, must: Must) {
        self.claim(text, ours, theirs, must);
        if let Some(claim) = self.claims.last_mut() {
            claim.at = Some(at.to_string());
        }
    }

    /// Adds a claim about a series: what it is at `to`, by what it is at `from`. Nothing where the axis ends before.
    pub fn between(&mut self, text: &str, series: &str, (from, to): (&str, &str), must: Must) {
        let there = |at: &str| self.cells.iter().any(|cell| cell.at == at);
        if there(from) && there(to) {
            self.claim_at(text, series, series, to, must);
            if let Some(claim) = self.claims.last_mut() {
                claim.from = Some(from.to_string());
            }
        }
    }

    /// Adds [`Self::between`] for each two neighbours of `places`.
    pub fn steps(&mut self, text: &str, series: &str, places: &[&str], must: Must) {
        for two in places.windows(2) {
            self.between(text, series, (two[0], two[1]), must);
        }
    }

    /// Adds a claim about the figures of a series themselves.
    pub fn limit(&mut self, text: &str, ours: &str, must: Must) {
        self.claim(text, ours, "", must);
    }

    /// Runs `kind` on one subject under a name of its own.
    pub fn cell(&mut self, subject: usize, series: impl Into<String>, (x, at): (f64, &str), load: Load) {
        let (series, at) = (series.into(), at.to_string());
        self.cells.push(Cell { subject, series, x, at, work: Work::Load(load) });
    }

    /// Leaves only subjects of these peers.
    pub fn keep(&mut self, peers: &[Peer]) {
        let mut kept = Vec::new();
        let places: Vec<Option<usize>> = self
            .subjects
            .drain(..)
            .map(|subject| {
                peers.contains(&subject.peer).then(|| {
                    kept.push(subject);
                    kept.len() - 1
                })
            })
            .collect();
        self.subjects = kept;
        self.cells.retain_mut(|cell| match places.get(cell.subject).copied().flatten() {
            Some(place) => {
                cell.subject = place;
                true
            }
            None => false,
        });
    }

    /// Gives Terrace PM of this speed.
    pub fn emulate_pm(&mut self, speed: Option<&str>) {
        let Some(speed) = speed else { return };
        for subject in self.subjects.iter_mut() {
            if matches!(subject.peer, Peer::Terrace | Peer::Local) {
                subject.tuning.emulate_pm = Some(speed.to_string());
            }
        }
        self.notes.push(format!("PM of Terrace is emulated ({speed}); what peers have of PM is not."));
    }

    /// Sums of what the subjects need: memory, disk.
    pub fn needs(&self) -> (u64, u64) {
        let (mut memory, mut disk) = (self.page_cache_bytes, 0);
        for subject in &self.subjects {
            let device = subject.device_bytes.max(512 << 20);
            let (fast, slow) = match subject.peer {
                Peer::Null | Peer::Given => (0, 0),
                Peer::Tmpfs | Peer::Ext4Pm | Peer::XfsPm => (device, 0),
                Peer::Ext4 | Peer::Btrfs | Peer::Device => (0, device),
                _ => (subject.pm_bytes.max(64 << 20), device),
            };
            memory += fast;
            disk += slow;
        }
        (memory, disk)
    }
}
