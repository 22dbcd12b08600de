//! What a history is made of. Whatever an action decides by chance it decides by its own seed, so a history can be
//! repeated, and shortened, without the generator that made it.

use std::time::Duration;
use terrace_engine::HandMove;
use terrace_media::block::{Operation, Times};
use terrace_media::pm::Access;
use terrace_reference::{Id, Op};

/// One thing that happens to a pool.
#[derive(Debug, Clone)]
pub enum Action {
    /// An operation of a program.
    Op(Op),
    /// All background work, up to so many rounds, with operations in its middle.
    Background(usize),
    /// One step of one kind of background work, with operations in its middle.
    Step(usize),
    /// So much time passes that everything that waits in DRAM is due, and background work comes to rest.
    WriteBack,
    /// The barrier: everything written is made durable.
    Sync,
    /// Everything written is moved below PM.
    SyncDown,
    /// Metadata moves below PM, as far as it may, with operations in the middle.
    LowerMetadata,
    /// A user asks for a move of a file or directory, or a pin. `finish`: it is waited for.
    Hand { id: Id, action: HandMove, finish: bool },
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
    /// Blocks are freed and wanted again at once, by way of both lanes (T6).
    Reuse,
    /// The machine loses power so many persistence events later, in whatever runs then.
    PowerFails(u64),
    /// The daemon is killed between two operations.
    Crash,
    /// A medium misbehaves from now on, or well again.
    Fault(Fault),
    /// While this is done PM fails at such accesses, so often. See `pm_fault`.
    Poisoned { access: Access, times: Times, action: Box<Action> },
}

/// How the lower tier misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Operations fail with this errno, so many times or for good.
    Fails { operation: Operation, errno: i32, times: Option<u64> },
    /// Operations take for ever.
    Stalls,
    /// The device is gone.
    Vanishes,
    /// Flushes answer and do nothing.
    Lies,
    /// All is well again; a device that was gone may have lost what was not flushed.
    Heals,
}

/// An action and its seed.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What happens.
    pub action: Action,
    /// What its choices are drawn from.
    pub seed: u64,
}

/// What happens, in order.
pub type History = Vec<Entry>;
