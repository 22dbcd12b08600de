//! Running a load or a program on a subject: in this process, or in a child that the memory cgroup confines.

use super::Site;
use super::peer::{Mounted, Place};
use super::teardown::{Held, Resource};
use crate::Outcome;
use crate::workload::directory::Directory;
use crate::workload::load::{Load, Measure};
use crate::workload::target::FileTarget;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{Clock, SystemClock};

/// What a child is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Makes the files.
    Populate,
    /// Makes all durable and drops caches.
    Settle,
    Run,
}

/// A job for a child process, as its argument.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    act: Act,
    load: Load,
}

/// Beyond the limit of a load: filling a slow device takes long.
const PATIENCE: Duration = Duration::from_secs(1800);

fn perform(
    act: Act,
    load: &Load,
    target: &Arc<dyn FileTarget>,
    clock: &Arc<dyn Clock>,
) -> Outcome<Option<Measure>> {
    match act {
        Act::Populate => load.populate(&**target)?,
        Act::Settle => target.settle()?,
        Act::Run => return Ok(Some(load.run(target, clock)?)),
    }
    Ok(None)
}

/// The child: does the job in a directory and prints what it measured.
pub(crate) fn child(directory: &Path, job: &str) -> Outcome<()> {
    let job: Job = serde_json::from_str(job)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let target: Arc<dyn FileTarget> = Arc::new(Directory::new(directory));
    println!("{}", serde_json::to_string(&perform(job.act, &job.load, &target, &clock)?)?);
    Ok(())
}

impl Site {
    /// Does one thing with a subject.
    ///
    /// # Errors
    /// What the load, its child or its target says.
    pub fn perform(&self, mounted: &Mounted, load: &Load, act: Act) -> Outcome<Option<Measure>> {
        match &mounted.place {
            Place::Local { target, .. } => {
                let target: Arc<dyn FileTarget> = target.clone();
                perform(act, load, &target, &self.scratch.clock)
            }
            Place::Raw(target) => {
                let target: Arc<dyn FileTarget> = target.clone();
                perform(act, load, &target, &self.scratch.clock)
            }
            Place::Directory(root) => {
                let running = self.begin_load(root, load, act)?;
                Ok(serde_json::from_str(&running.wait(self)?)?)
            }
        }
    }

    /// Begins one thing with the files of a directory.
    ///
    /// # Errors
    /// When its child cannot be started.
    pub fn begin_load(&self, root: &Path, load: &Load, act: Act) -> Outcome<Running> {
        let job = serde_json::to_string(&Job { act, load: load.clone() })?;
        let mut args: Vec<OsString> = crate::process::own_words();
        args.extend(["paper".into(), "--load".into(), root.into(), job.into()]);
        let patience = PATIENCE + Duration::from_nanos(load.limit_ns);
        self.begin(&std::env::current_exe()?, &args, patience)
    }

    /// Runs a program confined by the memory cgroup, if there is one, and gives its output.
    ///
    /// # Errors
    /// Its complaint when it fails, and when it does not end within `patience`; it is killed then.
    pub fn confined(&self, program: &Path, args: &[OsString], patience: Duration) -> Outcome<String> {
        self.begin(program, args, patience)?.wait(self)
    }

    /// Begins a program confined by the memory cgroup, if there is one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin(&self, program: &Path, args: &[OsString], patience: Duration) -> Outcome<Running> {
        self.start(program, args, patience, self.confines.load(Ordering::Relaxed))
    }

    /// As [`Self::begin`]; in the cgroup only when `confine` says so.
    fn start(
        &self,
        program: &Path,
        args: &[OsString],
        patience: Duration,
        confine: bool,
    ) -> Outcome<Running> {
        let name = program.display().to_string();
        let number = self.programs.fetch_add(1, Ordering::Relaxed);
        let output = |kind| self.scratch.disk.join(format!("program-{number}.{kind}"));
        let (out, complaint) = (output("out"), output("err"));
        // It waits until it is in the cgroup.
        let mut command: Command = self.child(Path::new("/bin/sh"));
        command.args(["-c", "read go && exec \"$@\"", "sh"]).arg(program).args(args);
        command.stdin(Stdio::piped()).stdout(File::create(&out)?).stderr(File::create(&complaint)?);
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let held = self.teardown.hold(Resource::Process(child.id()));
        let begun = held.and_then(|held| {
            if let (Ok(group), true) = (&self.group, confine) {
                group.take(child.id())?;
            }
            child.stdin.take().ok_or("no input")?.write_all(b"go\n")?;
            Ok(held)
        });
        let held = match begun {
            Ok(held) => held,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        Ok(Running {
            child,
            held: Some(held),
            name,
            out,
            complaint,
            patience,
            begin_ns: self.scratch.now_ns(),
        })
    }

    /// Moves everything of Terrace below PM. Peers have nothing above their device but caches, which go before
    /// each figure.
    ///
    /// # Errors
    /// What Terrace says.
    pub fn demote(&self, mounted: &Mounted) -> Outcome<()> {
        match (&mounted.place, &mounted.status_of) {
            (Place::Local { fs, .. }, _) => Ok(fs.sync_to(1, &mut |_| {})?),
            (_, Some(root)) => {
                let args = ["sync".into(), "--to".into(), "1".into(), root.clone().into_os_string()];
                self.start(&self.terrace, &args, PATIENCE, false)?.wait(self).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Bytes that Terrace's devices were written, and bytes that migration moved below PM, since the mount.
    pub fn written_below(&self, mounted: &Mounted) -> Option<(u64, u64)> {
        let of = |tiers: &serde_json::Value, sums: bool| -> Option<u64> {
            let below = tiers.as_array()?.iter().filter(|tier| tier["id"].as_u64() > Some(0));
            let bytes = |tier: &serde_json::Value| {
                let from = if sums { &tier["sums"] } else { tier };
                from["write_bytes"].as_u64()
            };
            below.map(bytes).sum()
        };
        match (&mounted.place, &mounted.status_of) {
            (Place::Local { fs, .. }, _) => {
                let report = fs.io_report().ok()?;
                let tiers = serde_json::to_value(&report.tiers).ok()?;
                Some((of(&tiers, true)?, report.demoted_bytes))
            }
            (_, Some(root)) => {
                let args = ["iostat".as_ref(), "--json".as_ref(), root.as_os_str()];
                let text = crate::process::run(&self.terrace, args).ok()?;
                let found: serde_json::Value = serde_json::from_str(text.lines().next()?).ok()?;
                Some((of(&found["tiers"], false)?, found["migration"]["demoted_bytes"].as_u64()?))
            }
            _ => None,
        }
    }

    /// What Terrace says of itself; null of a peer.
    pub fn status(&self, mounted: &Mounted) -> serde_json::Value {
        let told = match (&mounted.place, &mounted.status_of) {
            (Place::Local { fs, .. }, _) => {
                fs.status().ok().and_then(|status| serde_json::to_value(status).ok())
            }
            (_, Some(root)) => {
                let args = ["status".as_ref(), "--json".as_ref(), root.as_os_str()];
                let text = crate::process::run(&self.terrace, args).ok();
                text.and_then(|text| serde_json::from_str(&text).ok())
            }
            _ => None,
        };
        told.unwrap_or_default()
    }
}

/// A program that was begun. Dropped before its end, it is killed.
pub(crate) struct Running {
    child: Child,
    held: Option<Held>,
    name: String,
    out: PathBuf,
    complaint: PathBuf,
    patience: Duration,
    pub begin_ns: u64,
}

impl Running {
    /// Waits for its end and gives its output.
    ///
    /// # Errors
    /// Its complaint when it fails, and when it does not end within its patience; it is killed then.
    pub fn wait(mut self, site: &Site) -> Outcome<String> {
        let end = self.begin_ns.saturating_add(self.patience.as_nanos() as u64);
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if site.scratch.now_ns() > end => {
                    return Err(
                        format!("{}: did not end within {} s", self.name, self.patience.as_secs()).into()
                    );
                }
                None => site.scratch.clock.sleep(Duration::from_millis(2)),
            }
        };
        if let Some(held) = self.held.take() {
            held.gone();
        }
        let complaint = fs::read_to_string(&self.complaint).unwrap_or_default();
        match status.success() {
            true => Ok(fs::read_to_string(&self.out)?),
            false => Err(format!("{}: {status}: {}", self.name, last_line(&complaint)).into()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            held.gone();
        }
        for file in [&self.out, &self.complaint] {
            let _ = fs::remove_file(file);
        }
    }
}

fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or("no message")
}
