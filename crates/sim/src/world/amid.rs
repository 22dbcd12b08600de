//! The work under way: interleaving points run operations in its middle.

use terrace_reference::{Id, Op};

/// The work that may run at an interleaving point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Nesting {
    /// No work.
    #[default]
    None,
    /// Operations that need not wait.
    Operations,
    /// Operations and, except at device flushes, other background work.
    Background,
}

/// The operations under way, and the work that may run in their middle.
#[derive(Debug, Default)]
pub struct Amid {
    /// The work that may run at the next interleaving point.
    pub nesting: Nesting,
    /// The number of operations and steps that enclose the present one.
    pub depth: usize,
    /// Inodes of the operations in whose middle other operations run.
    pub under_way: Vec<Id>,
    /// The operation that ran last at an interleaving point of the operation under way, and the point.
    pub last_amid: Option<(&'static str, Op)>,
    /// The outermost operation under way, and the time at which it began.
    pub alone: Option<(Op, i64)>,
}
