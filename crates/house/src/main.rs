//! `cargo run -p terrace-house`: the figures that the tests judge, and lists to mend them by.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use terrace_house::house::{House, limits_path};
use terrace_house::{checks, floors, reports};

/// Prints the figures that the tests of this crate judge by crates/house/limits.toml.
#[derive(Parser)]
struct Arguments {
    /// Show the N worst places of each figure too.
    #[arg(long, value_name = "N", default_value_t = 0)]
    worst: usize,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// List the vague sentences in comments and pages at or below PATH.
    Words {
        /// A file or a folder.
        path: PathBuf,
    },
    /// List the vague names of tests at or below PATH.
    Names {
        /// A file or a folder.
        path: PathBuf,
    },
    /// Show the arrows between the rooms of a crate, or between its files when rooms.toml has no rooms for it.
    Arrows {
        /// A folder of `crates`.
        name: String,
    },
    /// Set each limit of limits.toml that a figure betters to the figure.
    Tighten,
}

fn main() -> Result<(), String> {
    let arguments = Arguments::parse();
    let report = match arguments.command {
        None => checks::table(&House::read()?, arguments.worst),
        Some(Command::Words { path }) => reports::words(&path),
        Some(Command::Names { path }) => reports::names(&path),
        Some(Command::Arrows { name }) => floors::arrows_report(&House::read()?, &name),
        Some(Command::Tighten) => tighten().map_err(|error| error.to_string())?,
    };
    // A reader such as `head` may close the pipe early.
    let _ = std::io::stdout().write_all(report.as_bytes());
    Ok(())
}

fn tighten() -> Result<String, Box<dyn Error>> {
    let old = std::fs::read_to_string(limits_path())?;
    let new = checks::tightened(&House::read()?, &old);
    std::fs::write(limits_path(), &new)?;
    let changed = new.lines().zip(old.lines()).filter(|(new, old)| new != old);
    Ok(changed.map(|(new, old)| format!("{old}  ->  {new}\n")).collect())
}
