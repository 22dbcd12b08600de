//! Where a run keeps its files: a directory on the disk, a directory on /dev/shm, a private mount namespace.
//! Both directories are removed at the end; mounts that a row left behind go with the namespace.

use crate::failure::Outcome;
use crate::machine::{disk_available, memory_available};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
#[allow(deprecated)] // the safe form; no file descriptor table is unshared
use rustix::thread::{UnshareFlags, unshare};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_runtime::{Clock, SystemClock};

/// Memory that every row leaves to other processes.
const KEPT_MEMORY_BYTES: u64 = 6 << 30;
/// Disk space that every row leaves to other processes.
const KEPT_DISK_BYTES: u64 = 8 << 30;

/// The scratch directories of a run; removed when dropped.
pub struct Scratch {
    /// On the disk.
    pub disk: PathBuf,
    /// On /dev/shm.
    pub memory: PathBuf,
    /// The clock of all measurements.
    pub clock: Arc<dyn Clock>,
    /// The reason if there is no private mount namespace.
    namespace: Option<String>,
}

impl Scratch {
    /// Below `directory` on the disk; `run` names the kind of run.
    pub fn new(directory: &Path, run: &str) -> Outcome<Scratch> {
        let name = format!("{run}-{}", std::process::id());
        fs::create_dir_all(directory)?;
        let disk = fs::canonicalize(directory)?.join(&name);
        let memory = Path::new("/dev/shm").join(format!("terrace-{name}"));
        fs::create_dir(&disk)?;
        fs::create_dir(&memory)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        Ok(Scratch { disk, memory, clock, namespace: private_namespace().err().map(|e| e.to_string()) })
    }

    /// Mount points of a row need the private namespace, which needs privilege.
    pub fn need_mounts(&self) -> Outcome<()> {
        match &self.namespace {
            Some(reason) => Err(format!("no private mount namespace ({reason}); run as root").into()),
            None => Ok(()),
        }
    }

    /// Refuses a row whose memory or disk space other processes may need.
    pub fn need(&self, memory: u64, disk: u64) -> Outcome<()> {
        let short = |what: &str, have: u64, want: u64| {
            format!("{} MiB of {what} are available, {} MiB are needed", have >> 20, want >> 20)
        };
        if memory_available() < memory + KEPT_MEMORY_BYTES {
            return Err(short("memory", memory_available(), memory + KEPT_MEMORY_BYTES).into());
        }
        if disk_available(&self.disk) < disk + KEPT_DISK_BYTES {
            return Err(short("disk", disk_available(&self.disk), disk + KEPT_DISK_BYTES).into());
        }
        Ok(())
    }

    /// A fresh mount point.
    pub fn mount_point(&self, name: &str) -> Outcome<PathBuf> {
        self.need_mounts()?;
        let path = self.disk.join(name);
        if !path.exists() {
            fs::create_dir(&path)?;
        }
        Ok(path)
    }

    /// The time of the clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Mount points of failed rows; their daemons are dead.
        for entry in fs::read_dir(&self.disk).into_iter().flatten().flatten() {
            let _ = unmount(entry.path(), UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir_all(&self.memory);
        let _ = fs::remove_dir_all(&self.disk);
    }
}

fn private_namespace() -> Outcome<()> {
    #[allow(deprecated)] // the safe form; no file descriptor table is unshared
    unshare(UnshareFlags::NEWNS)?;
    // Mounts made inside are invisible outside. An unmount outside takes effect inside too: a remaining copy
    // of the mount would keep the daemon of another pool alive, and its pool in use.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}
