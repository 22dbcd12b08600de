//! Child processes: programs that end by themselves, and servers that are killed by their id.

use crate::failure::Outcome;
use crate::scratch::Scratch;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use terrace_fuse::Transport;

/// Longest wait for a mount to answer or a daemon to end.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Runs a program to its end. Gives the output, or the error message of a failure.
pub fn run<I, S>(program: impl AsRef<OsStr>, args: I) -> Outcome<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let name = program.as_ref().display().to_string();
    let output = Command::new(program.as_ref())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}: {}", output.status, complaint.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A file system server in its own process; killed and unmounted when dropped.
pub struct Server {
    child: Child,
    /// The mount point of the server.
    pub mount: PathBuf,
}

impl Server {
    /// Starts a server in a session of its own, as a daemon is, and waits until `mount` is a mount point. In a session with
    /// the programs that it serves the kernel would schedule it otherwise (sched(7), autogroup).
    pub fn start(scratch: &Scratch, command: Command, mount: &Path) -> Outcome<Server> {
        let mut command = in_session(&command);
        let outside = std::fs::metadata(mount)?.dev();
        let log = scratch.disk.join("server.log");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .spawn()?;
        let mut server = Server { child, mount: mount.to_path_buf() };
        let begin = scratch.now_ns();
        loop {
            if std::fs::metadata(mount).is_ok_and(|found| found.dev() != outside) {
                return Ok(server);
            }
            let ended = server.child.try_wait()?.is_some();
            if ended || scratch.now_ns() - begin > PATIENCE_NS {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("server did not mount: {}", text.trim()).into());
            }
            scratch.clock.sleep(Duration::from_millis(1));
        }
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, then the dead mount is removed.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
    }

    /// Unmounts and waits for the end of the process.
    pub fn stop(mut self, scratch: &Scratch) -> Outcome<()> {
        rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::empty())?;
        let begin = scratch.now_ns();
        while self.child.try_wait()?.is_none() {
            if scratch.now_ns() - begin > PATIENCE_NS {
                return Err("server did not end after unmount".into());
            }
            scratch.clock.sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The same command in a session of its own and with the same process id.
fn in_session(command: &Command) -> Command {
    let mut new = Command::new("setsid");
    new.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => new.env(name, value),
            None => new.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        new.current_dir(directory);
    }
    new
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// The program `terrace`: this one, or the one beside the laboratory.
///
/// # Errors
/// When the kernel does not name this program.
pub fn terrace_program() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(if own.file_name().is_some_and(|name| name == "terrace-lab") {
        own.with_file_name("terrace")
    } else {
        own
    })
}

/// The arguments of this program before the command of the bench: `bench` for `terrace`, none for
/// `terrace-bench`.
pub fn own_words() -> Vec<OsString> {
    let command = |arg: &OsString| arg == "smoke" || arg == "paper" || arg == "run";
    std::env::args_os().skip(1).take_while(|arg| !command(arg)).collect()
}

/// The null server: this program again.
pub fn null_server(scratch: &Scratch, mount: &Path, transport: Transport) -> Outcome<Server> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(own_words()).args(["run", "--null-server"]).arg(mount).arg(transport.name());
    Server::start(scratch, command, mount)
}
