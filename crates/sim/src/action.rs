//! The actions of a history. An action draws its random choices from its own seed, so a history can be
//! repeated, and shortened, without the generator that made it.

use std::time::Duration;
use terrace_engine::MoveRequest;
use terrace_media::block::{Operation, Times};
use terrace_media::pm::Access;
use terrace_reference::{Id, Op};

/// An event in the life of a pool.
#[derive(Debug, Clone)]
pub enum Action {
    /// An operation of a program.
    Op(Op),
    /// Rounds of all background work, this many at most, with operations in the middle.
    Background(usize),
    /// A step of the background work with this number, with operations in the middle.
    Step(usize),
    /// So much time passes that every dirty page is due for write-back, and background work comes to rest.
    WriteBack,
    /// A `sync`: all writes that returned are made durable.
    Sync,
    /// A `sync --to` tier 1: all files are demoted from PM.
    SyncDown,
    /// Metadata pages are demoted as far as the rules allow, with operations in the middle.
    LowerMetadata,
    /// A user requests a movement of a file or directory, or sets or removes a tier pin. `finish`: the job is
    /// waited for.
    Hand { id: Id, action: MoveRequest, finish: bool },
    /// A file is read again and again, second after second.
    ReadOften(Id),
    /// Unmount, check, mount.
    Remount,
    /// Unmount, check: the last thing of a history.
    Unmount,
    /// Whole tree against the reference.
    Compare,
    /// Time passes.
    Advance(Duration),
    /// Blocks are freed and claimed again at once, by transactions of both lanes (T6).
    Reuse,
    /// The machine loses power this many persistence events later, in the work that runs then.
    PowerFails(u64),
    /// The daemon is killed between two operations.
    Crash,
    /// A medium begins to misbehave, or works well again.
    Fault(Fault),
    /// PM fails at this kind of access this often while the action runs. See `pm_fault`.
    Poisoned { access: Access, times: Times, action: Box<Action> },
}

/// How the lower tier misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Operations fail with this errno, this many times or for good.
    Fails { operation: Operation, errno: i32, times: Option<u64> },
    /// Operations never return.
    Stalls,
    /// The device is gone.
    Vanishes,
    /// Flushes succeed without making writes durable.
    Lies,
    /// The device works well again; a device that was gone may have lost unflushed writes.
    Heals,
}

/// An action and its seed.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The action.
    pub action: Action,
    /// The seed of its random choices.
    pub seed: u64,
}

/// Actions in their order.
pub type History = Vec<Entry>;
