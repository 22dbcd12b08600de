//! Running a load or a program on a subject: in this process, or in a child that the memory cgroup confines.

use super::Site;
use super::mounted::{Mounted, Place};
use super::teardown::{Held, Resource};
use crate::failure::Outcome;
use crate::failure::say;
use crate::workload::directory::Directory;
use crate::workload::load::Load;
use crate::workload::target::FileTarget;
use crate::workload::worker::Measure;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::Movements;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{Clock, SystemClock};

/// The job of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Makes the files.
    Populate,
    /// Makes all writes durable and drops the caches.
    Settle,
    /// Runs the load.
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

/// The child process: does the job in a directory and prints the measure.
pub fn child(directory: &Path, job: &str) -> Outcome<()> {
    let job: Job = serde_json::from_str(job)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let target: Arc<dyn FileTarget> = Arc::new(Directory::new(directory));
    say(serde_json::to_string(&perform(job.act, &job.load, &target, &clock)?)?)?;
    Ok(())
}

impl Site {
    /// Does a job on a subject.
    ///
    /// # Errors
    /// An error of the load, the child or the target.
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

    /// Begins a job on the files of a directory.
    ///
    /// # Errors
    /// When the child cannot be started.
    pub fn begin_load(&self, root: &Path, load: &Load, act: Act) -> Outcome<Running> {
        let job = serde_json::to_string(&Job { act, load: load.clone() })?;
        let mut args: Vec<OsString> = crate::process::own_words();
        args.extend(["run".into(), "--load".into(), root.into(), job.into()]);
        let patience = PATIENCE + Duration::from_nanos(load.limit_ns);
        self.begin(&std::env::current_exe()?, &args, patience)
    }

    /// Runs a program confined by the memory cgroup, if there is one, and gives its output.
    ///
    /// # Errors
    /// The message of the failed program. A program that does not end within `patience` is killed.
    pub fn confined(&self, program: &Path, args: &[OsString], patience: Duration) -> Outcome<String> {
        self.begin(program, args, patience)?.wait(self)
    }

    /// Begins a program confined by the memory cgroup, if there is one.
    ///
    /// # Errors
    /// When the program cannot be started.
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
        // The shell waits for a line, sent when its process is in the cgroup.
        let mut command: Command = self.child(Path::new("/bin/sh"));
        command.args(["-c", "read go && exec \"$@\"", "sh"]).arg(program).args(args);
        command.stdin(Stdio::piped()).stdout(File::create(&out)?).stderr(File::create(&complaint)?);
        let step = self.teardown.step();
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let held = self.teardown.hold(Resource::Process(child.id()));
        drop(step);
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

    /// Demotes all data of a Terrace subject. Peers hold data above their device in caches only, which are
    /// dropped before each figure.
    ///
    /// # Errors
    /// An error of Terrace.
    pub fn demote(&self, mounted: &Mounted) -> Outcome<()> {
        match &mounted.place {
            Place::Local { fs, .. } => Ok(fs.sync_to(1, &mut |_| {}).map(drop)?),
            _ => self.sync_terrace(mounted, &["--to", "1"]),
        }
    }

    /// Makes all that waits in the DRAM of a Terrace subject durable.
    ///
    /// # Errors
    /// An error of Terrace.
    pub fn write_back(&self, mounted: &Mounted) -> Outcome<()> {
        match &mounted.place {
            Place::Local { fs, .. } => Ok(fs.sync()?),
            _ => self.sync_terrace(mounted, &[]),
        }
    }

    /// `terrace sync` of a mount; nothing for a peer.
    fn sync_terrace(&self, mounted: &Mounted, words: &[&str]) -> Outcome<()> {
        let Some(root) = &mounted.status_of else { return Ok(()) };
        let words = ["sync"].iter().chain(words).map(OsString::from);
        let args: Vec<OsString> = words.chain([root.into()]).collect();
        self.start(&self.terrace, &args, PATIENCE, false)?.wait(self).map(drop)
    }

    /// Bytes that passed through Terrace's tiers since the mount; `None` for a peer.
    pub fn passed(&self, mounted: &Mounted) -> Option<Passed> {
        let passed = match (&mounted.place, &mounted.status_of) {
            (Place::Local { fs, .. }, _) => {
                let report = fs.io_report().ok()?;
                let found = Passed {
                    seconds: report.at_ns.saturating_sub(report.mounted_at_ns) as f64 / 1e9,
                    dram_read_bytes: report.dram.read_bytes,
                    demoted_bytes: report.demoted_bytes,
                    ..Passed::default()
                };
                let tiers = report.tiers.iter();
                found.with(tiers.map(|tier| (tier.id, tier.sums.read_bytes, tier.sums.write_bytes)))
            }
            (_, Some(root)) => {
                let args = ["iostat".as_ref(), "--json".as_ref(), root.as_os_str()];
                let text = crate::process::run(&self.terrace, args).ok()?;
                Passed::told(text.lines().next()?)?
            }
            _ => return None,
        };
        // Read after the byte counters, which count on while blocks are demoted.
        let clean_evicted_bytes = self.status(mounted)["migration"]["clean_evicted_bytes"].as_u64()?;
        Some(Passed { clean_evicted_bytes, ..passed })
    }

    /// [`Self::status`] with [`Self::passed`] as `io`.
    pub fn whole_status(&self, mounted: &Mounted) -> serde_json::Value {
        let mut status = self.status(mounted);
        if let (Some(fields), Some(passed)) = (status.as_object_mut(), self.passed(mounted)) {
            fields.insert("io".to_string(), serde_json::to_value(passed).unwrap_or_default());
        }
        status
    }

    /// Terrace's status; null for a peer.
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

/// Sums since a mount of Terrace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Passed {
    /// Seconds since the mount.
    pub seconds: f64,
    /// Bytes read from PM.
    pub pm_read_bytes: u64,
    /// Bytes read from DRAM.
    pub dram_read_bytes: u64,
    /// Bytes read from devices.
    pub device_read_bytes: u64,
    /// Bytes written to devices.
    pub device_written_bytes: u64,
    /// Bytes demoted by a write to a device.
    pub demoted_bytes: u64,
    /// Bytes of clean blocks that were dropped from PM.
    pub clean_evicted_bytes: u64,
}

impl Passed {
    /// Adds the counters of tiers: number, bytes read, bytes written.
    fn with(mut self, tiers: impl Iterator<Item = (u8, u64, u64)>) -> Passed {
        for (id, read, written) in tiers {
            match id {
                0 => self.pm_read_bytes += read,
                _ => {
                    self.device_read_bytes += read;
                    self.device_written_bytes += written;
                }
            }
        }
        self
    }

    /// From `terrace iostat --json`.
    fn told(text: &str) -> Option<Passed> {
        let found: serde_json::Value = serde_json::from_str(text).ok()?;
        let passed = Passed {
            seconds: found["interval_seconds"].as_f64()?,
            dram_read_bytes: found["dram"]["read_bytes"].as_u64()?,
            demoted_bytes: found["migration"]["demoted_bytes"].as_u64()?,
            ..Passed::default()
        };
        let tier = |tier: &serde_json::Value| {
            let bytes = |name: &str| tier[name].as_u64();
            Some((u8::try_from(bytes("id")?).ok()?, bytes("read_bytes")?, bytes("write_bytes")?))
        };
        let tiers = found["tiers"].as_array()?.iter().map(tier).collect::<Option<Vec<_>>>()?;
        Some(passed.with(tiers.into_iter()))
    }
}

/// A program that was begun. Dropped before its end, it is killed.
pub struct Running {
    child: Child,
    held: Option<Held>,
    name: String,
    out: PathBuf,
    complaint: PathBuf,
    patience: Duration,
    /// Time at which the program began.
    pub begin_ns: u64,
}

impl Running {
    /// Waits for the program's end and gives its output.
    ///
    /// # Errors
    /// The message of the failed program. A program that does not end within its patience is killed.
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
    // A server prints further lines after the reason of its end, so the last line with an error word counts.
    let says = |line: &&str| ["rror", "FATAL", "PANIC"].iter().any(|word| line.contains(word));
    let mut lines = text.trim().lines();
    lines.clone().rfind(says).or_else(|| lines.next_back()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_iostat_is_summed_by_tier() {
        let text = r#"{"interval_seconds":2.5,"dram":{"read_bytes":7},"migration":{"demoted_bytes":9},"tiers":[
            {"id":0,"read_bytes":100,"write_bytes":50},{"id":1,"read_bytes":3,"write_bytes":4},
            {"id":2,"read_bytes":30,"write_bytes":40}]}"#;
        let expected = Passed {
            seconds: 2.5,
            pm_read_bytes: 100,
            dram_read_bytes: 7,
            device_read_bytes: 33,
            device_written_bytes: 44,
            demoted_bytes: 9,
            clean_evicted_bytes: 0,
        };
        assert_eq!(Passed::told(text), Some(expected));
        assert_eq!(Passed::told("{}"), None);
    }
}
