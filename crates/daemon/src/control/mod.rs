//! The control protocol between commands and daemon: JSON lines over a Unix socket of mode 0600.
//!
//! A connection carries a single request. Answers: any number of `{"progress": …}`, then `{"ok": …}` or
//! `{"error": "…"}`. The socket is found by an extended attribute of any file of the mount
//! (`terrace_fuse::CONTROL_XATTR`), so that neither the pool's path nor the state directory need be visible;
//! in another mount namespace it is reached through /proc/PID/root.

mod answers;
mod client;
mod locate;
mod server;
pub mod state;

pub use client::{Daemon, Pending, ends_within};
pub use locate::{Behind, Located, NOBODY, behind, clear, locate, of_pool, owner};
pub use server::{Server, Shared};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Value of the attribute.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Contact {
    /// Absolute path of the socket: text, or bytes where it is not UTF-8.
    #[serde(serialize_with = "write_path", deserialize_with = "read_path")]
    pub socket: PathBuf,
    /// The daemon, in its own PID namespace.
    pub pid: u32,
    /// Empty; commands of earlier versions need the field. Every user can read the attribute, and the UUID is
    /// secret.
    pub uuid: String,
}

/// The request of a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Whether the mount is still served, and by which connection of the kernel.
    Ping,
    /// The file system's status.
    Status,
    /// Where the blocks of an inode are.
    Where {
        /// Inode number.
        ino: u64,
    },
    /// Make all writes so far durable.
    Sync,
    /// Bring all writes so far to a tier or below it.
    SyncTo {
        /// Number or class.
        tier: String,
    },
    /// Report the effect that `Sync` (no tier) or `SyncTo` would have.
    SyncPlan {
        /// Number or class.
        tier: Option<String>,
    },
    /// The traffic of the tiers since the mount.
    Iostat,
    /// Move a file or a directory with all below it. Answers a number to ask for with `Moved`.
    Move {
        /// Inode number.
        ino: u64,
        /// migrate, pin or unpin.
        action: String,
        /// Number or class.
        tier: Option<String>,
        /// Report the movement without doing it.
        dry_run: bool,
        /// The path that the user gave, for status.
        #[serde(default)]
        path: Option<String>,
    },
    /// The progress of a movement.
    Moved {
        /// Its number.
        id: u64,
    },
    /// Answers when the mount has ended: whether the pool is clean, and under `lost` which files of it have
    /// no name.
    End,
    /// Flush, unmount, end; users of the mount in all namespaces are cut off.
    Stop,
}

/// An answer of the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Blocks left to move; more answers follow.
    Progress(u64),
    /// The result.
    Ok(serde_json::Value),
    /// The reason for a refusal, in a line.
    Error(String),
}

fn write_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => serializer.serialize_str(text),
        None => path.as_os_str().as_bytes().serialize(serializer),
    }
}

fn read_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(PathBuf),
        Bytes(Vec<u8>),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::Text(path) => path,
        Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_path_of_any_bytes() {
        for bytes in [&b"/run/user/1/terrace"[..], b"/run/\xff name\n"] {
            let socket = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let contact = Contact { socket: socket.clone(), pid: 7, uuid: "u".to_string() };
            let text = serde_json::to_vec(&contact).unwrap();
            let back: Contact = serde_json::from_slice(&text).unwrap();
            assert_eq!(back.socket, socket);
        }
        let text = r#"{"socket":"/run/x","pid":7,"uuid":"u"}"#;
        assert_eq!(serde_json::from_str::<Contact>(text).unwrap().socket, Path::new("/run/x"));
    }
}
