//! State of spilling between two pieces.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use terrace_format::{FileBlock, Ino, TierId};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_store::error::FsError;
use terrace_store::moving::file_id::FileId;

/// When a file was last used, then which it is.
pub type Coldness = (i64, Ino, u32);

/// What is under way.
#[derive(Default)]
pub(crate) enum Phase {
    /// No tier has to give anything, or those that have wait.
    #[default]
    Rest,
    /// A window is looked at: so many inodes are left of it, and the coldest files so far, the warmest on top.
    Look { tier: TierId, left: u64, coldest: BinaryHeap<Coldness> },
    /// Files are moved, the coldest first, the first of them from a block on.
    Move { tier: TierId, files: VecDeque<FileId>, from: FileBlock },
}

/// What is remembered of a tier above its mark.
#[derive(Default)]
pub(crate) struct OfTier {
    /// Inodes looked at in this round, and blocks moved.
    pub(crate) looked: u64,
    pub(crate) moved: u64,
    /// Files used lately go too: a whole round without them found next to nothing.
    pub(crate) warm_too: bool,
    /// Damage that was met; the first.
    pub(crate) trouble: Option<FsError>,
    /// Failures in a row, and when the next attempt may begin.
    pub(crate) failures: u32,
    pub(crate) due_ns: u64,
}

/// What is known between two pieces.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// The inode after which the next window begins.
    hand: u64,
    pub(crate) tiers: BTreeMap<TierId, OfTier>,
}

/// Spilling's part of migration's state.
pub struct Spilling {
    /// Taken out while a piece is done.
    pub(crate) state: Mutex<Option<Box<State>>>,
    /// Why tiers above their marks stay so.
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

    /// Why a tier above its mark stays so.
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

/// Why an attempt ends without having done what it was for.
pub type Stuck = String;
