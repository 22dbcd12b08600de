//! An unprivileged user may write a set-id program, and tries to run the written bytes with the rights of the
//! program's owner.

use crate::outcome::Outcome;
use crate::system;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A user without any privilege.
const NOBODY: u32 = 65534;
/// Attempts of each kind. A past bug let half of the attempts beside a start of the program succeed.
const ATTEMPTS: u32 = 30;
/// Changes of content that take set-id bits away.
const CHANGES: [&str; 4] = ["write", "truncate", "fallocate", "punch"];

/// Prints the effective user and the size of this program.
pub(crate) fn say_effective_user() -> Outcome<()> {
    let size = fs::metadata("/proc/self/exe").map_err(|error| format!("this program: {error}"))?.len();
    println!("{} {size}", system::effective_user());
    Ok(())
}

/// Runs a program repeatedly until the program has become longer; then prints its effective user.
pub(crate) fn run_until_longer(file: &Path) -> Outcome<()> {
    let size = fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.len().to_string();
    println!("ready");
    for _ in 0..2000 {
        // A program cannot be run while a writer has it open.
        let Ok(output) = Command::new(file).arg("effective-user").output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        match text.trim().split_once(' ') {
            Some((user, now)) if now != size => {
                println!("{user}");
                return Ok(());
            }
            _ => {}
        }
    }
    Err("the program stayed as it was".into())
}

fn change(file: &Path, how: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(how == "write").write(true).open(file)?;
    let size = file.metadata()?.len();
    match how {
        "write" => file.write_all(b"mine"),
        "truncate" => file.set_len(size + 1),
        "fallocate" => system::fallocate(&file, 0, size, 4096),
        _ => system::punch(&file, size, 4096),
    }
}

/// Writes to a program as soon as nobody runs it.
pub(crate) fn write_between(file: &Path) -> Outcome<()> {
    loop {
        match change(file, "write") {
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {}
            changed => return changed.map_err(|error| format!("write: {error}")),
        }
    }
}

/// Changes a program, then runs it at once.
pub(crate) fn attack(file: &Path, how: &str) -> Outcome<()> {
    change(file, how).map_err(|error| format!("{how}: {error}"))?;
    Err(format!("{}: {}", file.display(), Command::new(file).arg("effective-user").exec()))
}

fn as_nobody(program: &Path, arguments: &[&std::ffi::OsStr]) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
    let output = command.output()?;
    let text = if output.status.success() { output.stdout } else { output.stderr };
    Ok(String::from_utf8_lossy(&text).trim().to_string())
}

fn make_set_id(file: &Path) -> io::Result<()> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o6777))?;
    // The kernel knows the mode now.
    let mode = fs::metadata(file)?.permissions().mode();
    if mode & 0o6000 == 0o6000 { Ok(()) } else { Err(io::Error::other(format!("mode {mode:o} after chmod"))) }
}

/// A set-id program, of which the kernel knows the mode.
fn make_target(tool: &Path, file: &Path) -> Outcome<()> {
    fs::copy(tool, file).map_err(|error| format!("copy: {error}"))?;
    make_set_id(file).map_err(|error| format!("chmod: {error}"))?;
    let runs = as_nobody(file, &["effective-user".as_ref()]).map_err(|error| format!("run: {error}"))?;
    if runs.starts_with("0 ") {
        Ok(())
    } else {
        Err(format!("the set-id program runs as '{runs}': this mount shows nothing"))
    }
}

/// Changes the program and runs it at once in the same process; true if the run had the owner's rights.
fn then_run(tool: &Path, file: &Path, how: &str) -> Outcome<bool> {
    let words = ["set-id-attack".as_ref(), file.as_os_str(), how.as_ref()];
    let said = as_nobody(tool, &words).map_err(|error| format!("attack: {error}"))?;
    is_owner(said.split(' ').next().unwrap_or_default())
}

/// Writes the program while another process runs it repeatedly; true if a run had the owner's rights.
fn while_run(tool: &Path, file: &Path, _how: &str) -> Outcome<bool> {
    let start = |words: &[&std::ffi::OsStr]| {
        let mut command = Command::new(tool);
        command.args(words).uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map_err(|error| format!("start: {error}"))
    };
    let mut runner = start(&["set-id-runner".as_ref(), file.as_os_str()])?;
    let mut lines = BufReader::new(runner.stdout.take().ok_or("no output")?).lines();
    let mut line = || lines.next().transpose().map_err(|error| format!("runner: {error}"));
    line()?;
    let mut writer = start(&["set-id-writer".as_ref(), file.as_os_str()])?;
    let said = line()?.unwrap_or_default();
    let ends = [runner.wait(), writer.wait()];
    if !ends.iter().all(|end| end.as_ref().is_ok_and(|status| status.success())) {
        return Err(format!("a process failed: {ends:?}"));
    }
    is_owner(&said)
}

fn is_owner(user: &str) -> Outcome<bool> {
    match user {
        "0" => Ok(true),
        user if user == NOBODY.to_string() => Ok(false),
        _ => Err(format!("the attack says '{user}'")),
    }
}

fn attacks(tool: &Path, file: &Path, kind: Attack, how: &str) -> Outcome<()> {
    let mut with_rights = 0;
    for _ in 0..ATTEMPTS {
        make_target(tool, file)?;
        with_rights += u32::from(kind(tool, file, how)?);
        let mode = fs::metadata(file).map_err(|error| format!("stat: {error}"))?.permissions().mode();
        if mode & 0o6000 != 0 {
            return Err(format!("{how}: mode {mode:o} afterwards"));
        }
    }
    match with_rights {
        0 => Ok(()),
        _ => {
            Err(format!("the changed program had its owner's rights in {with_rights} of {ATTEMPTS} attempts"))
        }
    }
}

type Attack = fn(&Path, &Path, &str) -> Outcome<bool>;

/// All attempts, on files below `dir`; for root on a mount that honours set-id bits.
pub(crate) fn run(dir: &Path) -> Outcome<()> {
    let (tool, file) = (dir.join("tool"), dir.join("program"));
    let program = std::env::current_exe().map_err(|error| format!("current program: {error}"))?;
    fs::copy(program, &tool).map_err(|error| format!("copy: {error}"))?;
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("chmod: {error}"))?;
    let then_run = CHANGES.map(|how| (how, "then run", then_run as Attack));
    let while_run = ("write", "while it is run", while_run as Attack);
    let mut failures = Vec::new();
    for (how, name, attack) in then_run.into_iter().chain([while_run]) {
        match attacks(&tool, &file, attack, how) {
            Ok(()) => println!("ok      {how}, {name}: {ATTEMPTS} attempts"),
            Err(failure) => failures.push(format!("{how}, {name}: {failure}")),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}
