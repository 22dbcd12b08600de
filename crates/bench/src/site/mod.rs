//! Where a row is measured: scratch files, a private mount namespace, loop devices, a memory cgroup, and the
//! emulated device that Terrace and every peer get alike.
//!
//! Everything made here is registered with [`Teardown`] before it is used, and taken down in reverse order
//! when its holder is dropped, when the row fails, and on SIGINT, SIGTERM and SIGHUP. After SIGKILL the mount
//! namespace goes with its processes and loop devices clear themselves; files are removed by the next run
//! (`sweep`).

pub mod block_counts;
pub mod class;
pub(crate) mod device;
pub(crate) mod dirty;
pub(crate) mod group;
pub(crate) mod journal;
pub(crate) mod leveldb;
pub mod mounted;
pub mod peer;
pub(crate) mod postgres;
pub mod programs;
pub mod run;
pub(crate) mod sources;
pub mod subject;
pub mod teardown;

use crate::failure::Outcome;
use crate::scratch::Scratch;
use class::Class;
use group::MemoryGroup;
use rustix::thread::CpuSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subject::{Peer, Subject};
use teardown::{Held, Resource, Teardown};
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The options of a site.
#[derive(Debug)]
pub struct SiteOptions {
    /// The class of devices; without a class each row chooses its own.
    pub class: Option<Class>,
    /// The files behind devices are in memory.
    pub device_memory: bool,
    /// The directory of scratch files on the disk.
    pub dir: PathBuf,
    /// The program `terrace`.
    pub terrace: PathBuf,
}

/// A place to measure at.
pub struct Site {
    /// The files, mounts and processes that the site must take down.
    pub teardown: Arc<Teardown>,
    pub(crate) terrace: PathBuf,
    pub(crate) class: Class,
    /// The files behind devices are in memory.
    pub(crate) device_memory: bool,
    /// Files behind devices are written whole, so that a flush behind a first write commits no journal of the host.
    pub(crate) writes_whole: bool,
    /// The cores of emulated devices when all other threads are on one core: a hardware device would not use
    /// processor time.
    pub device_cores: Option<CpuSet>,
    /// The cgroup of the processes that read and write through the kernel, or the reason why there is none.
    pub(crate) group: Result<MemoryGroup, String>,
    /// Most dirty bytes of a peer's device, the kernel's default ratio of the cgroup's limit, or the reason
    /// why there is no limit.
    pub(crate) dirty_bytes: Result<u64, String>,
    /// Whether new processes go into the group.
    confines: AtomicBool,
    /// The scratch directories of the site.
    pub scratch: Scratch,
    /// Number of programs begun so far: part of the names of their output files.
    programs: AtomicU64,
    _files: Vec<Held>,
}

impl Site {
    /// Makes scratch directories below the directory of the options and on /dev/shm, makes a mount namespace
    /// if allowed, and begins to catch signals. `cap_bytes` limits the page cache of confined processes; 0
    /// means no limit. Devices have the class of the options, else the class of the row.
    pub fn new(options: &SiteOptions, cap_bytes: u64, class: Option<&str>) -> Outcome<Site> {
        sweep(&options.dir);
        sweep(Path::new("/dev/shm"));
        let scratch = Scratch::new(&options.dir, RUN)?;
        // After the namespace was made: a thread has the namespace of the thread that made it.
        let teardown = Teardown::catching_signals()?;
        let files = [&scratch.disk, &scratch.memory]
            .map(|path| teardown.hold(Resource::Directory(path.clone())))
            .into_iter()
            .collect::<Outcome<Vec<_>>>()?;
        let group = match cap_bytes {
            0 => Err(UNLIMITED.to_string()),
            _ => MemoryGroup::new(&teardown, &format!("terrace-{RUN}-{}", std::process::id()), cap_bytes)
                .map_err(|error| error.to_string()),
        };
        let dirty_bytes = match &group {
            Ok(group) => dirty::share_of(group.limit_bytes),
            Err(reason) => Err(reason.clone()),
        };
        Ok(Site {
            teardown,
            terrace: options.terrace.clone(),
            class: options.class.clone().unwrap_or_else(|| class.map_or(Class::Host, Class::parse)),
            device_memory: options.device_memory,
            writes_whole: false,
            device_cores: None,
            group,
            dirty_bytes,
            confines: AtomicBool::new(true),
            scratch,
            programs: AtomicU64::new(0),
            _files: files,
        })
    }
}

impl Site {
    /// Programs begun from now on work on this subject. Programs on tmpfs are not confined: files of tmpfs
    /// are memory of the group and no cache, so the kernel would kill the writer when they fill the group.
    pub fn turn_to(&self, subject: &Subject) {
        self.confines.store(subject.peer != Peer::Tmpfs, Ordering::Relaxed);
    }
}

/// The reason why a row without a page cache limit has none.
pub(crate) const UNLIMITED: &str = "this row does not ask for it";

/// First part of the names of scratch directories; the process id follows.
const RUN: &str = "paper";

/// Removes scratch directories of runs whose process is gone.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = name.strip_prefix("terrace-").unwrap_or(&name);
        let number = name.strip_prefix(RUN).and_then(|rest| rest.strip_prefix('-'));
        if let Some(number) = number
            && number.parse::<u32>().is_ok()
            && !Path::new("/proc").join(number).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
