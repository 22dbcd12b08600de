//! The failure of a command: its message and exit status.

use std::fmt::Display;
use std::path::Path;

/// Exit statuses of mount(8) and fsck(8) that are used here.
pub mod status {
    /// General failure of every other command.
    pub const FAILED: u8 = 1;
    /// mount(8): wrong usage.
    pub const MOUNT_USAGE: u8 = 1;
    /// mount(8): the system did not do its part.
    pub const MOUNT_SYSTEM: u8 = 2;
    /// mount(8): our own fault.
    pub const MOUNT_INTERNAL: u8 = 4;
    /// mount(8): interrupted by the user.
    pub const MOUNT_INTERRUPTED: u8 = 8;
    /// mount(8): the mount failed.
    pub const MOUNT_FAILED: u8 = 32;
    /// fsck(8): errors are left.
    pub const FSCK_ERRORS: u8 = 4;
    /// fsck(8): could not do its work.
    pub const FSCK_OPERATIONAL: u8 = 8;
    /// fsck(8): wrong usage.
    pub const FSCK_USAGE: u8 = 16;
}

/// The message for the user, one or two lines, and the exit status. An empty text prints nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit status of the process.
    pub status: u8,
    /// "<thing>: <what is wrong>; <what to do>".
    pub text: String,
}

/// The result of a command.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure with exit status 1.
    pub fn new(text: impl Into<String>) -> Failure {
        Failure { status: status::FAILED, text: text.into() }
    }
    /// A failure about a path.
    pub fn at(path: impl AsRef<Path>, what: impl Display) -> Failure {
        Failure::new(format!("{}: {what}", path.as_ref().display()))
    }
    /// A feature of cli.md that this version lacks.
    pub fn not_built(name: impl Display) -> Failure {
        Failure::new(format!("{name}: not built yet"))
    }
    /// The same with another exit status.
    #[must_use]
    pub fn with_status(mut self, status: u8) -> Failure {
        self.status = status;
        self
    }
}

/// The operating system's words without "(os error N)".
pub fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}
