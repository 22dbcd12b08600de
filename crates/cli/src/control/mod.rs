//! How commands reach the daemon: JSON lines over a Unix socket of mode 0600.
//!
//! One request per connection. Answers: any number of `{"progress": …}`, then `{"ok": …}` or
//! `{"error": "…"}`. The socket is found by an extended attribute of any file of the mount
//! (`terrace_fuse::CONTROL_XATTR`), so that neither the pool's path nor the state directory need be visible;
//! in another mount namespace it is reached through /proc/PID/root.

mod client;
mod server;
pub mod state;

pub use client::{Located, locate};
pub use server::{Server, Shared};

use serde::{Deserialize, Serialize};

/// Value of the attribute.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Contact {
    /// Absolute path of the socket.
    pub socket: String,
    /// The daemon, in its own PID namespace.
    pub pid: u32,
    /// The pool's UUID.
    pub uuid: String,
}

/// What a command asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The file system's status.
    Status,
    /// Where the blocks of an inode are.
    Where {
        /// Inode number.
        ino: u64,
    },
    /// Everything written so far durable.
    Sync,
    /// Everything written so far on a tier or below.
    SyncTo {
        /// Number or class.
        tier: String,
    },
    /// Answers when the mount has ended: whether the pool is clean.
    End,
    /// Flush, unmount, end.
    Stop,
}

/// What the daemon answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Blocks left to move; more answers follow.
    Progress(u64),
    /// The result.
    Ok(serde_json::Value),
    /// One line.
    Error(String),
}
