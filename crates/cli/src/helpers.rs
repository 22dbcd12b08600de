//! Names that mount(8), mkfs(8) and fsck(8) call this binary by.

use crate::args::Cli;
use clap::CommandFactory;
use std::ffi::OsStr;
use std::path::Path;

/// A name that the binary is called with, and the command it stands for.
pub type Helper = (&'static str, &'static str);

/// mkfs.terrace, mount.terrace and fsck.terrace are commands. Of a mount that is there mount(8) knows the type
/// `fuse.terrace`.
pub const HELPERS: [Helper; 4] = [
    ("mkfs.terrace", "mkfs"),
    ("mount.terrace", "mount"),
    ("mount.fuse.terrace", "mount"),
    ("fsck.terrace", "check"),
];

pub fn helper(called: &Path) -> Option<Helper> {
    HELPERS.into_iter().find(|(name, _)| called.file_name() == Some(OsStr::new(name)))
}

/// The arguments of a helper, whose usage does not show the command.
pub fn helper_command(name: &'static str, command: &str) -> clap::Command {
    let whole = Cli::command();
    let arguments = whole.find_subcommand(command).unwrap_or(&whole).clone().name(name);
    arguments.bin_name(name).display_name(name)
}
