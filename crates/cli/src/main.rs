//! `terrace`: the command line of the file system (cli.md), and the daemon that serves a mount.
//!
//! The same binary is mkfs.terrace, mount.terrace (mount.fuse.terrace) and fsck.terrace by the name it is
//! called with. Every failure is one or two lines on standard error and an exit status; see failure.rs.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod completion;
mod disk;
mod helpers;
mod manual;
mod measure;
mod mount_help;
mod signature;
mod taken;

use args::{Check, Cli, Command, Mkfs, Mount};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use helpers::{Helper, helper, helper_command};

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use terrace_daemon::failure::status;
use terrace_daemon::output;

fn main() -> ExitCode {
    completion::answer();
    let words: Vec<OsString> = std::env::args_os().collect();
    let helper = words.first().and_then(|word| helper(Path::new(word)));
    let parsed = match helper {
        Some((name, command)) => parse_helper(name, command, &words),
        None => Cli::try_parse_from(&words).map(|cli| cli.command),
    };
    let (status, unwritten) = match parsed {
        Ok(command) => {
            let unwritten =
                if matches!(command, Command::Check(_)) { status::FSCK_OPERATIONAL } else { status::FAILED };
            (run(command), unwritten)
        }
        Err(error) => (usage(&error, helper, words.get(1).map(OsString::as_os_str)), status::FAILED),
    };
    // A command whose report could not be written has failed.
    match output::trouble() {
        Some(trouble) => {
            output::warn(trouble);
            if status == ExitCode::SUCCESS { ExitCode::from(unwritten) } else { status }
        }
        None => status,
    }
}

fn run(command: Command) -> ExitCode {
    match commands::run(command) {
        Ok(status) => status,
        Err(failure) => {
            if !failure.text.is_empty() {
                output::warn(&failure.text);
            }
            ExitCode::from(failure.status)
        }
    }
}

/// Parses the words of a helper.
fn parse_helper(name: &'static str, command: &str, words: &[OsString]) -> Result<Command, clap::Error> {
    let found = helper_command(name, command).try_get_matches_from(words)?;
    Ok(match command {
        "mkfs" => Command::Mkfs(Mkfs::from_arg_matches(&found)?),
        "mount" => Command::Mount(Mount::from_arg_matches(&found)?),
        _ => Command::Check(Check::from_arg_matches(&found)?),
    })
}

/// Prints help and version unchanged; of an error only the first lines, without clap's advice and usage.
fn usage(error: &clap::Error, helper: Option<Helper>, first: Option<&OsStr>) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::print_raw(error.render().to_string().trim_end());
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        output::warn("no command; see 'terrace --help'");
        return ExitCode::from(status::FAILED);
    }
    let text = error.render().to_string();
    let paragraph: Vec<&str> =
        text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let what = paragraph.join(" ");
    let first = first.and_then(OsStr::to_str).unwrap_or("");
    let (help, command) = match helper {
        Some((name, command)) => (format!("{name} --help"), command),
        None if Cli::command().find_subcommand(first).is_some() => (format!("terrace {first} --help"), first),
        None => ("terrace --help".to_string(), first),
    };
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    // Clap names similar words: "tip: a similar subcommand exists: 'status'".
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")?.split_once("similar "));
    let tip = tip.map(|(begin, rest)| format!("; {begin}similar {rest}")).unwrap_or_default();
    output::warn(format!("{what}{tip}; see '{help}'"));
    ExitCode::from(match command {
        "check" => status::FSCK_USAGE,
        "mount" => status::MOUNT_USAGE,
        _ => status::FAILED,
    })
}
