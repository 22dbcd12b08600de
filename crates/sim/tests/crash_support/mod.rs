//! Crash tests: a pool whose media crash at one instant, a canonical dump of a tree, and the judgement of a
//! crash image (check, mount, compare, background, check again). docs/semantics.md says what may be left.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::panic,
    clippy::type_complexity,
    unused_imports
)]

mod calls;
mod case;
mod dump;
mod explore;
mod pool;
pub use terrace_sim::old_content;

pub use calls::*;
pub use case::*;
pub use dump::*;
pub use explore::*;
pub use pool::*;

use terrace_engine::{Caller, Wait};
use terrace_format::Ino;

pub const ROOT: Ino = Ino(1);
pub const CALLER: Caller = Caller { uid: 0, gid: 0 };
pub const W: Wait = Wait::Allowed;
pub const BLOCK: u64 = 4096;
