//! Resources of the setup, which must be released however the run ends.
//!
//! Invariant: a resource is registered before it exists or in the [step](Teardown::step) that makes it, and released
//! exactly once: by its holder, or after a signal by the signal thread. The signal thread begins between two steps, and
//! no step begins after it; the process ends with it. So nothing is made, forgotten or half released beside it.

use super::dirty;
use crate::failure::Outcome;
use crate::process::run;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;
use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::{Clock, SystemClock};

/// Tries to remove a directory, and the pause between two tries.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// The signal thread waits so long for the end of a step, which may hang with its server.
const STEP: Duration = Duration::from_secs(10);

/// Something outside this process's memory.
pub enum Resource {
    /// A server that is a child of this process; killed.
    Process(u32),
    /// A mount point.
    Mount(PathBuf),
    /// /dev/loopN, with its limit of dirty pages.
    Loop(String),
    /// An empty cgroup.
    Group(PathBuf),
    /// A directory; removed with its content.
    Directory(PathBuf),
    /// A file.
    File(PathBuf),
    /// A setting of the kernel, a file, and the text that it had.
    Setting(PathBuf, String),
}

impl Resource {
    /// Best effort: an error must not keep the remaining resources from being released.
    fn release(self) {
        match self {
            Resource::Process(pid) => {
                if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            Resource::Mount(path) => {
                if unmount(&path, UnmountFlags::empty()).is_err() {
                    let _ = unmount(&path, UnmountFlags::DETACH);
                }
            }
            Resource::Loop(device) => {
                dirty::lift(&dirty::of_loop(&device));
                let _ = run("losetup", ["--detach", &device]);
            }
            Resource::Group(path) => {
                let _ = fs::remove_dir(path);
            }
            Resource::Directory(path) => {
                // A killed server, a detached mount or an interrupted setup may still create files in the
                // directory.
                for _ in 0..TRIES {
                    if fs::remove_dir_all(&path).is_ok() || !path.exists() {
                        break;
                    }
                    SystemClock::default().sleep(PAUSE);
                }
            }
            Resource::File(path) => {
                let _ = fs::remove_file(path);
            }
            Resource::Setting(path, text) => {
                let _ = fs::write(path, text);
            }
        }
    }
}

#[derive(Default)]
struct Table {
    next: u64,
    resources: Vec<(u64, Resource)>,
    /// Set by a signal: no resource is registered any more.
    ending: bool,
    /// The signal thread waits for the end of the step under way: the next step is its own.
    awaited: bool,
    /// The thread with a step under way, and the number of its steps within each other.
    step: Option<(ThreadId, u32)>,
}

/// All resources of this process.
#[derive(Default)]
pub struct Teardown {
    table: Mutex<Table>,
    step_ended: Condvar,
}

impl Teardown {
    /// Starts a thread that on a signal releases all resources and ends the process.
    pub fn catching_signals() -> Outcome<Arc<Teardown>> {
        let teardown = Arc::new(Teardown::default());
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let shared = teardown.clone();
        terrace_runtime::thread::spawn("signals", move || {
            if let Some(signal) = signals.forever().next() {
                let _no_step = shared.all();
                std::process::exit(128 + signal);
            }
        })?;
        Ok(teardown)
    }

    /// Begins a step that makes resources and registers them, or releases them: the signal thread waits for its end.
    /// Steps of a thread may contain steps. After a signal no step begins: the caller waits for the end of the process.
    pub fn step(&self) -> Step<'_> {
        let own = thread::current().id();
        let mut table = self.table.lock();
        let depth = loop {
            match table.step {
                None if !table.awaited => break 1,
                Some((holder, depth)) if holder == own => break depth + 1,
                _ => self.step_ended.wait(&mut table),
            }
        };
        table.step = Some((own, depth));
        Step(self)
    }

    /// Registers a resource until the holder is dropped.
    ///
    /// # Errors
    /// When a signal has come: the resource is released at once.
    pub fn hold(self: &Arc<Self>, resource: Resource) -> Outcome<Held> {
        let _step = self.step();
        let mut table = self.table.lock();
        if table.ending {
            drop(table);
            resource.release();
            return Err("interrupted".into());
        }
        let number = table.next;
        table.next += 1;
        table.resources.push((number, resource));
        Ok(Held { teardown: self.clone(), number })
    }

    /// # Errors
    /// When a signal has come: figures measured since then are invalid.
    pub fn go_on(&self) -> Outcome<()> {
        if self.table.lock().ending { Err("interrupted".into()) } else { Ok(()) }
    }

    /// Releases all resources in the reverse order of their registration. No step begins while the result lives.
    fn all(&self) -> Step<'_> {
        let own = thread::current().id();
        let mut table = self.table.lock();
        (table.ending, table.awaited) = (true, true);
        while table.step.is_some_and(|(holder, _)| holder != own) {
            if self.step_ended.wait_for(&mut table, STEP).timed_out() {
                break;
            }
        }
        (table.step, table.awaited) = (Some((own, 1)), false);
        drop(table);
        loop {
            let Some((_, resource)) = self.table.lock().resources.pop() else { break };
            resource.release();
        }
        Step(self)
    }
}

/// Resources are made or released; dropping ends the step.
pub struct Step<'a>(&'a Teardown);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table.lock();
        // The step that the signal thread did not wait for any longer has no entry.
        table.step = match table.step {
            Some((holder, depth)) if holder == thread::current().id() => {
                (depth > 1).then_some((holder, depth - 1))
            }
            other => other,
        };
        self.0.step_ended.notify_all();
    }
}

/// A resource in use; dropping releases it.
pub struct Held {
    teardown: Arc<Teardown>,
    number: u64,
}

impl Held {
    fn take(&self) -> Option<Resource> {
        let mut table = self.teardown.table.lock();
        let at = table.resources.iter().position(|(number, _)| *number == self.number)?;
        Some(table.resources.remove(at).1)
    }

    /// Forgets a resource that is gone already.
    pub fn gone(self) {
        let teardown = self.teardown.clone();
        let _step = teardown.step();
        drop(self.take());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let teardown = self.teardown.clone();
        let _step = teardown.step();
        if let Some(resource) = self.take() {
            resource.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that was ended during its setup sometimes left its directory behind.
    #[test]
    fn a_directory_is_removed_although_files_are_still_added() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a");
        fs::create_dir(&path).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let within = path.clone();
        let writer = terrace_runtime::thread::spawn("writer", move || {
            let clock = SystemClock::default();
            let until = clock.monotonic_ns() + 100_000_000;
            for number in 0.. {
                let gone = fs::write(within.join(format!("{number}")), "x").is_err();
                if number == 100 {
                    tell.send(()).unwrap();
                }
                if gone || clock.monotonic_ns() > until {
                    break;
                }
            }
        })
        .unwrap();
        told.recv().unwrap();
        Resource::Directory(path.clone()).release();
        writer.join().unwrap();
        assert!(!path.exists());
    }

    /// The bench that was interrupted while a server started sometimes left its scratch directory behind: the server
    /// was not registered yet, and its mount came after the signal thread had been there.
    #[test]
    fn the_signal_thread_waits_for_the_end_of_a_step() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a");
        let teardown = Arc::new(Teardown::default());
        let step = teardown.step();
        let signalled = teardown.clone();
        let thread = terrace_runtime::thread::spawn("signals", move || drop(signalled.all())).unwrap();
        while teardown.go_on().is_ok() {
            SystemClock::default().sleep(Duration::from_millis(1));
        }
        fs::create_dir(&path).unwrap();
        assert!(teardown.hold(Resource::Directory(path.clone())).is_err());
        assert!(!path.exists());
        let within = teardown.step();
        fs::create_dir(&path).unwrap();
        drop(within);
        teardown.table.lock().resources.push((7, Resource::Directory(path.clone())));
        drop(step);
        thread.join().unwrap();
        assert!(!path.exists(), "released after the end of the step");
    }

    /// The bench that was interrupted between two contestants sometimes left its scratch directory behind: its main
    /// thread forgot the directory before the signal thread came to it.
    #[test]
    fn a_holder_after_a_signal_waits_and_forgets_no_resource() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a");
        fs::create_dir(&path).unwrap();
        let teardown = Arc::new(Teardown::default());
        let held = teardown.hold(Resource::Directory(path.clone())).unwrap();
        let signalled = teardown.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = terrace_runtime::thread::spawn("signals", move || {
            let no_step = signalled.step();
            tell.send(()).unwrap();
            SystemClock::default().sleep(Duration::from_millis(50));
            drop((signalled.all(), no_step));
        })
        .unwrap();
        told.recv().unwrap();
        held.gone();
        assert!(!path.exists());
        thread.join().unwrap();
    }

    /// On a busy machine a bench that was interrupted in a step left its scratch directory behind: its main thread ended the
    /// step and forgot the directory before the signal thread, which waited for that end, was awake.
    #[test]
    fn no_step_begins_between_the_end_of_a_step_and_the_signal_thread() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a");
        fs::create_dir(&path).unwrap();
        let teardown = Arc::new(Teardown::default());
        let held = teardown.hold(Resource::Directory(path.clone())).unwrap();
        let step = teardown.step();
        let signalled = teardown.clone();
        let thread = terrace_runtime::thread::spawn("signals", move || drop(signalled.all())).unwrap();
        while teardown.go_on().is_ok() {
            SystemClock::default().sleep(Duration::from_millis(1));
        }
        drop(step);
        held.gone();
        assert!(!path.exists());
        thread.join().unwrap();
    }

    #[test]
    fn a_resource_is_released_with_its_holder_or_at_teardown() {
        let scratch = tempfile::tempdir().unwrap();
        let paths = ["a", "b", "c"].map(|name| scratch.path().join(name));
        let teardown = Arc::new(Teardown::default());
        let mut held = Vec::new();
        for path in &paths {
            fs::create_dir(path).unwrap();
            fs::write(path.join("file"), "x").unwrap();
            held.push(teardown.hold(Resource::Directory(path.clone())).unwrap());
        }
        drop(held.remove(0));
        assert!(!paths[0].exists() && paths[1].exists());
        fs::remove_dir_all(&paths[1]).unwrap();
        held.remove(0).gone();
        assert!(teardown.go_on().is_ok());
        teardown.all();
        assert!(teardown.go_on().is_err());
        assert!(!paths[2].exists());
        drop(held);
        let late = scratch.path().join("late");
        fs::create_dir(&late).unwrap();
        assert!(teardown.hold(Resource::Directory(late.clone())).is_err());
        assert!(!late.exists(), "what comes after the end goes at once");
    }
}
