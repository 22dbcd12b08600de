//! A row as data: file systems, loads, and the claims about their figures. comparison/measure.rs runs the plan.

pub use super::metric::Metric;
use crate::site::programs::Program;
use crate::site::subject::{Peer, Subject, Tuning};
use crate::workload::load::{Kind, Load};
use crate::workload::personality::{Order, Personality};
use std::collections::BTreeMap;

/// "2 MB" on average.
pub const FILESERVER_BYTES: u64 = 2 << 20;
/// The mean size of a file under varmail's flow, whatever its first size: two appends of 8 KiB at its
/// creation and two later.
const VARMAIL_BYTES: u64 = 32 << 10;
/// The mean size of a file under webproxy's flow: an append of 8 KiB at its creation, no later append.
const WEBPROXY_BYTES: u64 = 8 << 10;

/// The work that a cell runs on a subject.
#[derive(Debug, Clone)]
pub enum Work {
    /// A load.
    Load(Load),
    /// A program.
    Program(Program),
    /// Several loads and programs at the same time, in a directory.
    Together(Vec<Work>),
}

impl Work {
    /// The loads and programs of the work.
    pub fn parts(&self) -> &[Work] {
        match self {
            Work::Together(parts) => parts,
            alone => std::slice::from_ref(alone),
        }
    }
}

/// A cell of the row: measured in each round, it gives a figure.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Index into the plan's subjects.
    pub subject: usize,
    /// Line of the plot.
    pub series: String,
    /// Number of the place on the axis.
    pub x: f64,
    /// Name of the place on the axis.
    pub at: String,
    /// The load or program of the cell.
    pub work: Work,
}

/// A statement about a ratio of two series, place by place, or of two places of a series. The claims of a row
/// express its published shape.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The sentence of the claim.
    pub text: String,
    /// The series that the claim is about.
    pub ours: String,
    /// Empty: the claim is about the figures of `ours`, not about a ratio.
    pub theirs: String,
    /// The only place of the claim; `None`: all places.
    pub at: Option<String>,
    /// The place of `theirs`, if it differs from the place of `ours`.
    pub from: Option<String>,
    /// The bound of the ratio.
    pub must: Must,
}

/// The bound that a ratio must meet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Must {
    /// The ratio is at least this.
    AtLeast(f64),
    /// The ratio is at most this.
    AtMost(f64),
    /// No round exceeds this value. For figures of a series, not for ratios.
    Never(f64),
    /// The interval holds 1, or lies below it, and does not reach 1.25.
    NotAbove,
    /// The ratio lies between 1 / n and n.
    Within(f64),
    /// The difference, round by round, is at most this, in the unit of the series.
    MoreByAtMost(f64),
    /// The difference is at least this. For figures that may be zero and so have no ratio.
    MoreByAtLeast(f64),
    /// The ratio is only shown beside the published ratio.
    Shown,
}

/// The whole plan of a row.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The file systems under test.
    pub subjects: Vec<Subject>,
    /// In the order of a round.
    pub cells: Vec<Cell>,
    /// The quantity of the figures.
    pub metric: Metric,
    /// Further figures of each cell that is a load: series with these words behind their names.
    pub also: Vec<(&'static str, Metric)>,
    /// Name of the axis.
    pub axis: &'static str,
    /// Figures that are sums of others.
    pub sums: Vec<Sum>,
    /// Files behind devices are written whole before the first figure.
    pub writes_whole: bool,
    /// The device that the row is about, unless `--class` names one.
    pub class: Option<&'static str>,
    /// The claims about the figures.
    pub claims: Vec<Claim>,
    /// Limit of the page cache for subjects that run through the kernel.
    pub page_cache_bytes: u64,
    /// Sentences below the figures.
    pub notes: Vec<String>,
    /// Pause after the files were made, for rows whose figures depend on the age of files.
    pub pause_s: u64,
    /// Figures of the whole run, from the status of each Terrace subject before the first round and at the
    /// end.
    pub conclude: Option<Conclude>,
}

/// A series whose figures are sums of those of other series, place by place.
#[derive(Debug, Clone)]
pub struct Sum {
    /// Its name.
    pub series: String,
    /// Each summand: its factor and its series.
    pub of: Vec<(f64, String)>,
}

/// The status of each Terrace subject.
pub type Status = BTreeMap<String, serde_json::Value>;
/// Computes named values from the status before and after.
pub type Conclude = fn(&Status, &Status) -> Vec<(String, serde_json::Value)>;

/// The scale of a run: the rows derive their sizes and times from it.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Bytes of data.
    pub dataset_bytes: u64,
    /// Longest time of a figure in a round.
    pub limit_ns: u64,
    /// A tiny and short run, whose figures mean nothing.
    pub quick: bool,
    /// Whether rows of random reads and writes also run the program fio.
    pub fio: bool,
}

/// The smallest PM that holds logs, tables and catalog of these data sets.
const LEAST_PM_BYTES: u64 = 32 << 20;

impl Scale {
    /// PM for a share of the data set, whole MiB.
    pub fn pm(&self, share: f64) -> u64 {
        ((self.dataset_bytes as f64 * share) as u64).max(LEAST_PM_BYTES).next_multiple_of(1 << 20)
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
            sums: Vec::new(),
            writes_whole: false,
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

    /// Adds a claim about a series: the ratio of its figures at `to` and at `from`. Adds no claim if the plan
    /// lacks a cell at either place.
    pub fn between(&mut self, text: &str, series: &str, (from, to): (&str, &str), must: Must) {
        let there = |at: &str| self.cells.iter().any(|cell| cell.at == at);
        if there(from) && there(to) {
            self.claim_at(text, series, series, to, must);
            if let Some(claim) = self.claims.last_mut() {
                claim.from = Some(from.to_string());
            }
        }
    }

    /// Adds [`Self::between`] for each pair of neighbours in `places`.
    pub fn steps(&mut self, text: &str, series: &str, places: &[&str], must: Must) {
        for two in places.windows(2) {
            self.between(text, series, (two[0], two[1]), must);
        }
    }

    /// Adds a claim about the figures of a series, not about a ratio.
    pub fn limit(&mut self, text: &str, ours: &str, must: Must) {
        self.claim(text, ours, "", must);
    }

    /// Runs `kind` on one subject under a name of its own.
    pub fn cell(&mut self, subject: usize, series: impl Into<String>, (x, at): (f64, &str), load: Load) {
        let (series, at) = (series.into(), at.to_string());
        self.cells.push(Cell { subject, series, x, at, work: Work::Load(load) });
    }

    /// Removes the subjects and cells of peers that are not in `peers`.
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
            if subject.peer.is_terrace() {
                subject.tuning.emulate_pm = Some(speed.to_string());
            }
        }
        self.notes.push(format!("PM of Terrace is emulated ({speed}); what peers have of PM is not."));
    }

    /// Gives each pool of Terrace a tier 0 with a journal on the disk of the peers.
    pub fn journal(&mut self) {
        for subject in self.subjects.iter_mut().filter(|subject| subject.peer.is_terrace()) {
            subject.tuning.journal.get_or_insert_default();
        }
        self.writes_whole = true;
        self.notes.push("Tier 0 of Terrace is DRAM with a journal on the disk that the peers have.".into());
    }

    /// Memory and disk that all subjects need together.
    pub fn needs(&self) -> (u64, u64) {
        let (mut memory, mut disk) = (self.page_cache_bytes, 0);
        for subject in &self.subjects {
            let device = subject.device_bytes.max(512 << 20);
            let log = subject.tuning.journal.map_or(0, |journal| journal.log_bytes(subject.pm_bytes));
            let (fast, slow) = match subject.peer {
                Peer::Null | Peer::Given => (0, 0),
                Peer::Tmpfs | Peer::Ext4Pm | Peer::XfsPm => (device, 0),
                Peer::Ext4 | Peer::Ext4Journal | Peer::Xfs | Peer::Btrfs | Peer::Device | Peer::Raw => {
                    (0, device)
                }
                _ if log > 0 => (subject.pm_bytes, device + subject.pm_bytes + log),
                _ => (subject.pm_bytes.max(64 << 20), device),
            };
            memory += fast;
            disk += slow;
        }
        (memory, disk)
    }
}
