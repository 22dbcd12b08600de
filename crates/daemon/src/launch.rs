//! Starts the daemon in the background: a second process of this program, with a pipe as its standard output.
//!
//! The child does all checks, mounts, and writes "ready" into the pipe; only then it closes standard error,
//! so that its errors and warnings reach the user. Exec instead of a bare fork: the child starts without the
//! threads and locks of its parent.

use crate::failure::{Failure, Outcome, plain, status};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_runtime::thread::spawn;

const READY: &str = "ready";
/// Exit status of a Rust program that panicked: its message went to the log.
const PANICKED: i32 = 101;

/// Limits of the C library's allocator for the daemon's memory, unless the user sets others. By default the
/// allocator learns to keep large pieces, with small ones between them, in many heaps: after a burst of large
/// waiting writes the daemon kept 400 MiB and used 60 of them. The threshold has its default value, but set
/// here it no longer grows.
const ALLOCATOR: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.arena_max=4:glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=2097152",
);

/// Runs `terrace mount --daemon …` and waits until the mount answers.
pub fn launch(pool: &Path, dir: &Path, options: &[OsString]) -> Outcome<()> {
    let mut words: Vec<&OsStr> = vec![OsStr::new("mount"), OsStr::new("--daemon")];
    for list in options {
        words.extend([OsStr::new("-o"), list]);
    }
    words.extend([OsStr::new("--"), pool.as_os_str(), dir.as_os_str()]);
    start(&words)
}

/// Runs this program with these words and waits until it is [`ready`].
pub fn start(words: &[&OsStr]) -> Outcome<()> {
    let system = |error: std::io::Error| {
        Failure::new(format!("cannot start the daemon: {}", plain(&error))).with_status(status::MOUNT_SYSTEM)
    };
    terrace_fuse::keep_descriptors_private();
    let mut command = Command::new(std::env::current_exe().map_err(system)?);
    command.args(words);
    if std::env::var_os(ALLOCATOR.0).is_none() {
        command.env(ALLOCATOR.0, ALLOCATOR.1);
    }
    // Signals are caught before the child exists, so that none is lost.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(system)?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(system)?;
    let interrupted = pass_on_interrupts(signals, &child).map_err(system)?;
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe).read_line(&mut line).map_err(system)?;
    }
    if line.trim() == READY && !interrupted.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(died(&mut child, &interrupted))
}

/// The child has printed the reason on standard error; this command ends with the child's status.
fn died(child: &mut Child, interrupted: &AtomicBool) -> Failure {
    let code = child.wait().ok().and_then(|ended| ended.code());
    let (status, text) = match code {
        _ if interrupted.load(Ordering::Relaxed) => (status::MOUNT_INTERRUPTED, "interrupted".to_string()),
        Some(code @ 1..=255) if code != PANICKED => (code as u8, String::new()),
        _ => (
            status::MOUNT_INTERNAL,
            "the daemon died while starting; see its log (log=PATH, else syslog)".to_string(),
        ),
    };
    Failure { status, text }
}

/// The child is a session of its own: an interrupt of this process must be passed on to it.
fn pass_on_interrupts(mut signals: Signals, child: &Child) -> std::io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let (flag, pid) = (Arc::clone(&interrupted), rustix::process::Pid::from_child(child));
    spawn("terrace-signals", move || {
        for _ in signals.forever() {
            flag.store(true, Ordering::Relaxed);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    })?;
    Ok(interrupted)
}

/// First thing in the child: leaves the terminal and the caller's directory.
pub fn detach() -> Outcome<()> {
    let system = |error: std::io::Error| Failure::new(plain(&error)).with_status(status::MOUNT_SYSTEM);
    rustix::process::setsid().map_err(|error| system(error.into()))?;
    // /dev/null is opened now, because later all descriptors may be in use.
    let null = File::options().read(true).write(true).open("/dev/null").map_err(system)?;
    rustix::stdio::dup2_stdin(null.as_fd()).map_err(|error| system(error.into()))?;
    std::env::set_current_dir("/").map_err(system)
}

/// Last thing before serving: tells the parent, closes the parent's terminal. [`detach`] has made standard
/// input /dev/null.
pub fn ready() {
    let _ = writeln!(std::io::stdout(), "{READY}");
    let _ = std::io::stdout().flush();
    let _ = rustix::stdio::dup2_stdout(rustix::stdio::stdin());
    let _ = rustix::stdio::dup2_stderr(rustix::stdio::stdin());
}
