//! `terrace`: the command line of the file system (cli.md), and the daemon that serves a mount.
//!
//! The same binary is mkfs.terrace, mount.terrace and fsck.terrace by the name it is called with.
//! Every failure is one or two lines on standard error and an exit status; see failure.rs.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod control;
mod daemon;
mod failure;
mod mounts;
mod options;
mod output;
mod pool;
mod signature;

use args::Cli;
use clap::Parser;
use clap::error::ErrorKind;
use failure::status;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = rewrite(std::env::args_os().collect());
    let parsed = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, words.get(1).map(OsString::as_os_str)),
    };
    match commands::run(parsed.command) {
        Ok(status) => status,
        Err(failure) => {
            if !failure.text.is_empty() {
                output::warn(&failure.text);
            }
            ExitCode::from(failure.status)
        }
    }
}

/// mkfs.terrace, mount.terrace and fsck.terrace become the commands.
fn rewrite(mut words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().map(|word| Path::new(word).file_name().unwrap_or_default().to_os_string());
    let command = match name.as_deref().and_then(OsStr::to_str) {
        Some("mkfs.terrace") => "mkfs",
        Some("mount.terrace") => "mount",
        Some("fsck.terrace") => "check",
        _ => return words,
    };
    words.splice(1..1, [OsString::from(command)]);
    words
}

/// Help and version go out as they are; of an error the first lines, without clap's advice and usage.
fn usage(error: &clap::Error, command: Option<&OsStr>) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::print(error.render().to_string().trim_end());
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
    let command = command.and_then(OsStr::to_str).unwrap_or("").to_string();
    let known = <Cli as clap::CommandFactory>::command().find_subcommand(&command).is_some();
    let help = if known { format!("terrace {command} --help") } else { "terrace --help".to_string() };
    output::warn(format!("{}; see '{help}'", what.strip_prefix("error: ").unwrap_or(&what)));
    ExitCode::from(match command.as_str() {
        "check" => status::FSCK_USAGE,
        "mount" => status::MOUNT_USAGE,
        _ => status::FAILED,
    })
}
