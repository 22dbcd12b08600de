//! Completion of words in a shell: the shell's script asks this program, which names the pools, tiers and
//! mounts of the moment.
//!
//! A completion never waits for long and prints no error: a mount that does not answer is left out.

use crate::args::Cli;
use clap::CommandFactory;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use terrace_daemon::control::{Located, Request, locate};
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::mounts::{self, Mount};

/// The variable by which a shell's script asks.
const VARIABLE: &str = "COMPLETE";

/// Answers a shell that asks for words, and ends the process then.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The script that makes a shell ask this program.
pub fn script(shell: clap_complete::Shell) -> Outcome<String> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let shell = shells.completer(&name).ok_or_else(|| Failure::new(format!("{name}: no such shell")))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "terrace", "terrace", "terrace", &mut script)
        .map_err(|error| Failure::new(plain(&error)))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

fn our_mounts() -> Vec<Mount> {
    mounts::all().unwrap_or_default().into_iter().filter(Mount::is_ours).collect()
}

/// The known words that begin with the typed text, then names of files.
fn with_paths(
    known: impl Iterator<Item = (OsString, String)>,
    current: &OsStr,
    paths: &PathCompleter,
) -> Vec<CompletionCandidate> {
    let known = known.filter(|(value, _)| value.as_bytes().starts_with(current.as_bytes()));
    let mut found: Vec<CompletionCandidate> =
        known.map(|(value, help)| CompletionCandidate::new(value).help(Some(help.into()))).collect();
    found.extend(paths.complete(current));
    found
}

fn mounted_at(mount: Mount) -> (OsString, String) {
    (mount.source.into(), format!("pool, mounted at {}", mount.mountpoint.display()))
}

fn mount_of(mount: Mount) -> (OsString, String) {
    (mount.mountpoint.into(), format!("mount of {}", mount.source.display()))
}

/// Directories of mounts, and other directories.
pub fn mounted_directories(current: &OsStr) -> Vec<CompletionCandidate> {
    with_paths(our_mounts().into_iter().map(mount_of), current, &PathCompleter::dir())
}

/// Pools that are mounted, and files.
pub fn pools(current: &OsStr) -> Vec<CompletionCandidate> {
    with_paths(our_mounts().into_iter().map(mounted_at), current, &PathCompleter::any())
}

/// Directories of mounts, mounted pools, and files.
pub fn mounts_and_pools(current: &OsStr) -> Vec<CompletionCandidate> {
    let mounts = our_mounts();
    let known = mounts.clone().into_iter().map(mount_of).chain(mounts.into_iter().map(mounted_at));
    with_paths(known, current, &PathCompleter::any())
}

/// Files in mounts: names of files, the directories of mounts before them.
pub fn files(current: &OsStr) -> Vec<CompletionCandidate> {
    with_paths(our_mounts().into_iter().map(mount_of), current, &PathCompleter::any())
}

/// Numbers and kinds of the tiers of all mounted pools.
pub fn tiers(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found: Vec<(String, String)> = Vec::new();
    for mount in our_mounts() {
        let Ok(Located::Mounted(daemon)) = locate(&mount.mountpoint) else { continue };
        let Ok(status) = daemon.ask(&Request::Status, |_| {}) else { continue };
        for tier in status["tiers"].as_array().into_iter().flatten() {
            let (id, kind) = (tier["id"].to_string(), tier["kind"].as_str().unwrap_or("").to_string());
            found.push((id.clone(), kind.clone()));
            found.push((kind, format!("tier {id}")));
        }
    }
    found.sort();
    found.dedup_by(|one, other| one.0 == other.0);
    let begins = |(value, _): &(String, String)| value.as_bytes().starts_with(current.as_bytes());
    let candidate = |(value, help): (String, String)| CompletionCandidate::new(value).help(Some(help.into()));
    found.into_iter().filter(begins).map(candidate).collect()
}
