//! State of spills between two pieces.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use terrace_format::{FileBlock, Ino, TierId};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_store::error::FsError;
use terrace_store::moving::file_id::FileId;

/// Time of the last use of a file, inode number and generation.
pub type Coldness = (i64, Ino, u32);

/// The phase of the spill.
#[derive(Default)]
pub(crate) enum Phase {
    /// No tier has to spill, or all full tiers pause.
    #[default]
    Rest,
    /// A window of inodes is searched: the inodes left of it, and the coldest files so far, the warmest on
    /// top.
    Look { tier: TierId, left: u64, coldest: BinaryHeap<Coldness> },
    /// Files are relocated, the coldest first; the first file from a block on.
    Move { tier: TierId, files: VecDeque<FileId>, from: FileBlock },
}

/// The state of a tier above its mark.
#[derive(Default)]
pub(crate) struct OfTier {
    /// Inodes visited and blocks moved in this round.
    pub(crate) looked: u64,
    pub(crate) moved: u64,
    /// Files used lately spill too, because a whole round without them moved next to nothing.
    pub(crate) warm_too: bool,
    /// The first damage.
    pub(crate) trouble: Option<FsError>,
    /// Failures in a row, and when the next attempt may begin.
    pub(crate) failures: u32,
    pub(crate) due_ns: u64,
}

/// The state between two pieces.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// The inode after which the next window begins.
    hand: u64,
    pub(crate) tiers: BTreeMap<TierId, OfTier>,
}

/// The part of the state of migration that concerns spills.
pub struct Spilling {
    /// Taken out while a piece is being done.
    pub(crate) state: Mutex<Option<Box<State>>>,
    /// The reasons why tiers above their marks stay full.
    pub(crate) stuck: Mutex<BTreeMap<TierId, String>>,
    pub(crate) failures: AtomicU64,
}

impl Spilling {
    pub(crate) fn new() -> Spilling {
        Spilling {
            state: Mutex::new(Some(Box::default())),
            stuck: Mutex::default(),
            failures: AtomicU64::new(0),
        }
    }

    /// Attempts that failed since mount.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The reason why a tier above its mark stays full.
    pub(crate) fn reason(&self) -> Option<String> {
        let stuck = self.stuck.lock();
        let reasons: Vec<String> = stuck.iter().map(|(tier, text)| format!("tier {tier}: {text}")).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl State {
    pub(crate) fn of(&mut self, tier: TierId) -> &mut OfTier {
        self.tiers.entry(tier).or_default()
    }

    /// The next inode, going round.
    pub(crate) fn turn(&mut self, slots: u64) -> Ino {
        self.hand = if self.hand + 1 < slots { self.hand + 1 } else { 1 };
        Ino(self.hand)
    }
}

/// The reason why an attempt ends without a relocated block.
pub type Stuck = String;
