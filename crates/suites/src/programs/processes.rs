//! Checks with a second process: appends, locks, and a program that runs.

use super::steps::{At, helper, must, open, refused};
use crate::outcome::Outcome;
use crate::system;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Stdio;

/// Appends lines, for [`two_appenders`].
pub(crate) fn append(path: &Path, count: u64, letter: &str) -> Outcome<()> {
    let mut file = OpenOptions::new().append(true).open(path).at("open")?;
    for number in 0..count {
        let line = format!("{letter} {number} {}\n", letter.repeat((number % 97) as usize));
        file.write_all(line.as_bytes()).at("append")?;
    }
    Ok(())
}

pub(super) fn two_appenders(dir: &Path) -> Outcome<()> {
    const COUNT: u64 = 2000;
    let path = dir.join("append");
    File::create(&path).at("create")?;
    let start = |letter: &str| {
        let count = COUNT.to_string();
        let arguments = ["append".as_ref(), path.as_os_str(), count.as_ref(), letter.as_ref()];
        helper(&arguments, Stdio::null(), Stdio::inherit())
    };
    let (mut a, mut b) = (start("a")?, start("b")?);
    must(a.wait().at("wait")?.success() && b.wait().at("wait")?.success(), "an appender failed")?;
    let text = fs::read_to_string(&path).at("read")?;
    let mut next = HashMap::from([("a", 0), ("b", 0)]);
    for line in text.lines() {
        let letter = line.get(..1).unwrap_or("");
        let number = next.get_mut(letter).ok_or_else(|| format!("torn line '{line}'"))?;
        let expected = format!("{letter} {number} {}", letter.repeat((*number % 97) as usize));
        must(line == expected, format!("'{line}' instead of '{expected}'"))?;
        *number += 1;
    }
    must(next.values().all(|count| *count == COUNT), format!("lines lost: {next:?}"))
}

/// Holds a lock until standard input ends, for [`locks`]. Says "held".
pub(crate) fn hold(path: &Path, kind: &str) -> Outcome<()> {
    let file = open(path, 0)?;
    take(&file, kind).at("lock")?;
    println!("held");
    let mut rest = Vec::new();
    io::stdin().read_to_end(&mut rest).at("standard input")?;
    Ok(())
}

/// An exclusive lock without waiting.
fn take(file: &File, kind: &str) -> io::Result<()> {
    match kind {
        "flock" => system::flock(file, libc::LOCK_EX | libc::LOCK_NB),
        "fcntl" => system::range_lock(file, libc::F_SETLK, libc::F_WRLCK, 100, 50),
        _ => system::range_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, 100, 50),
    }
}

pub(super) fn locks(dir: &Path) -> Outcome<()> {
    for kind in ["flock", "fcntl", "ofd"] {
        let path = dir.join(format!("lock-{kind}"));
        let file = open(&path, 0)?;
        let arguments = ["hold".as_ref(), path.as_os_str(), kind.as_ref()];
        let mut holder = helper(&arguments, Stdio::piped(), Stdio::piped())?;
        let mut word = [0; 5];
        let output = holder.stdout.as_mut().ok_or("no output")?;
        output.read_exact(&mut word).at("holder")?;
        refused(&format!("{kind} held elsewhere"), take(&file, kind), libc::EAGAIN)?;
        if kind != "flock" {
            let command = if kind == "fcntl" { libc::F_SETLK } else { libc::F_OFD_SETLK };
            system::range_lock(&file, command, libc::F_WRLCK, 150, 10).at("lock of another range")?;
        }
        drop(holder.stdin.take());
        must(holder.wait().at("wait")?.success(), format!("{kind}: holder failed"))?;
        take(&file, kind).at(&format!("{kind} after its holder has gone"))?;
        let second = open(&path, 0)?;
        // Locks of a process do not exclude itself; locks of open files do.
        match kind {
            "fcntl" => take(&second, kind).at("fcntl by the same process")?,
            _ => refused(&format!("{kind} by the same process"), take(&second, kind), libc::EAGAIN)?,
        }
    }
    Ok(())
}

/// An open that is refused changes nothing. With FUSE_ATOMIC_O_TRUNC the daemon truncated before the kernel
/// compared the open with the program that runs: the caller got ETXTBSY, the program SIGSEGV.
pub(super) fn running_program(dir: &Path) -> Outcome<()> {
    let path = dir.join("program");
    fs::copy("/bin/sleep", &path).at("copy")?;
    let size = fs::metadata(&path).at("stat")?.len();
    let mut program = std::process::Command::new(&path).arg("60").spawn().at("run")?;
    let opened = system::open_truncating(&path);
    let size_then = fs::metadata(&path).at("stat")?.len();
    program.kill().at("kill")?;
    program.wait().at("wait")?;
    refused("O_RDONLY | O_TRUNC of a program that runs", opened, libc::ETXTBSY)?;
    must(size_then == size, format!("{size_then} of {size} bytes left of a program that runs"))?;
    drop(system::open_truncating(&path).at("open with O_TRUNC")?);
    must(fs::metadata(&path).at("stat")?.len() == 0, "O_RDONLY | O_TRUNC truncates")
}
