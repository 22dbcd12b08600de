//! Tier 0 of a new pool: a file of persistent memory, or a journal.

use super::old::Old;
use super::target::{CHUNK_BLOCKS, MIN_TIER, Target, check_minimum, check_pm, target};
use crate::args::Mkfs;
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::output::{self, human, parse_size};
use terrace_daemon::pool;
use terrace_format::geometry::MIN_PM_SIZE;
use terrace_format::journal::Layout;
use terrace_format::superblock::MAX_DEVICES;
use terrace_format::{BLOCK_SIZE, Geometry};
use terrace_media::block::FileDevice;
use terrace_media::found::is_in_memory;
use terrace_media::pm::{JournalOptions, JournaledPm, RamPm};
use terrace_media::{BlockMedium, OpenError, PmMedium, Promise, memory_available};
use terrace_runtime::SystemClock;

/// Most memory that a journal takes unless the user says how much.
const MOST_MEMORY: u64 = 16 << 30;
/// The smallest log that is chosen for the user.
const LEAST_LOG: u64 = 256 << 20;
/// Memory that a journal leaves to everybody else.
const MEMORY_RESERVE: u64 = 256 << 20;

/// Tier 0 of a new pool.
pub enum Tier0 {
    /// A file of persistent memory.
    Pm(Target),
    /// A device or file with a journal.
    Journal(Target, Layout),
}

impl Tier0 {
    /// The tier 0 that the arguments name.
    pub fn of(args: &Mkfs, old: Option<&Old>) -> Outcome<Tier0> {
        if let Some(text) = &args.journal {
            return journal(text, old);
        }
        let path = args.pm.as_ref().or(args.pool.as_ref());
        let path =
            path.ok_or_else(|| Failure::new("no path of a pool given; say --journal PATH or --pm PATH"))?;
        let size = args.pm_size.as_deref().or(args.size.as_deref());
        Ok(Tier0::Pm(target(path, size, "--pm-size SIZE", None)?))
    }

    /// Its file or device.
    pub fn target(&self) -> &Target {
        match self {
            Tier0::Pm(target) | Tier0::Journal(target, _) => target,
        }
    }

    /// Bytes of the tier.
    pub fn bytes(&self) -> u64 {
        match self {
            Tier0::Pm(target) => target.size,
            Tier0::Journal(_, layout) => layout.image_bytes(),
        }
    }

    /// Its promise.
    pub fn promise(&self) -> Promise {
        match self {
            Tier0::Pm(_) => Promise::ProcessCrash,
            Tier0::Journal(target, _) if is_in_memory(&target.path) => Promise::ProcessCrash,
            Tier0::Journal(..) => Promise::PowerFail,
        }
    }

    /// Checks its size.
    pub fn check_shape(&self) -> Outcome<()> {
        match self {
            Tier0::Pm(target) => check_pm(target),
            Tier0::Journal(target, layout) => {
                let bytes = layout.image_bytes();
                check_minimum(&target.path, (bytes, bytes), "tier 0", MIN_PM_SIZE)?;
                Geometry::choose(bytes, CHUNK_BLOCKS)
                    .map(drop)
                    .map_err(|error| Failure::at(&target.path, error))
            }
        }
    }

    /// Checks that the machine has the memory of a journal's image; `held` is memory that will be free.
    pub fn check_memory(&self, held: u64) -> Outcome<()> {
        let Tier0::Journal(target, layout) = self else { return Ok(()) };
        let needed = layout.image_bytes() + MEMORY_RESERVE;
        match memory_available().map(|available| available.saturating_add(held)) {
            Some(available) if needed > available => {
                let [needed, available] = output::distinct([needed, available]);
                let text = format!(
                    "tier 0 needs {needed} of memory, {available} are available; use a smaller memory="
                );
                Err(Failure::at(&target.path, text))
            }
            _ => Ok(()),
        }
    }

    /// Makes and opens the medium, locked from here on. An old pool at its place is gone then. Notes a file that it made.
    pub fn make(&self, made: &mut Vec<PathBuf>) -> Outcome<Arc<dyn PmMedium>> {
        let refused = |error: OpenError| pool::open_failure(&error);
        match self {
            Tier0::Pm(pm) => Ok(Arc::new(match &pm.existing {
                Some(existing) => RamPm::remake(&existing.found, pm.size).map_err(refused)?,
                None => {
                    let memory = RamPm::create(&pm.path, pm.size).map_err(refused)?;
                    made.push(pm.path.clone());
                    memory
                }
            })),
            Tier0::Journal(target, layout) => {
                let device: Arc<dyn BlockMedium> = Arc::new(whole_device(target, made)?);
                let failed = |error| pool::tier0_failure(&error);
                JournaledPm::create(&*device, *layout, uuid::Uuid::new_v4().into_bytes()).map_err(failed)?;
                let clock = Arc::new(SystemClock::default());
                let opened = JournaledPm::open(device, JournalOptions::default(), clock).map_err(failed)?;
                Ok(Arc::new(opened.pm))
            }
        }
    }
}

/// Checks the sizes and number of the media, and that no medium is named twice.
pub fn check_shape(tier0: &Tier0, tiers: &[Target]) -> Outcome<()> {
    tier0.check_shape()?;
    if tiers.len() > MAX_DEVICES {
        return Err(Failure::new(format!("{} tiers given; use at most {MAX_DEVICES}", tiers.len())));
    }
    for tier in tiers {
        check_minimum(&tier.path, (tier.size, tier.given), "a tier", MIN_TIER)?;
    }
    let all: Vec<&Target> = std::iter::once(tier0.target()).chain(tiers).collect();
    for (index, one) in all.iter().enumerate() {
        for other in &all[..index] {
            let same_file = match (&one.existing, &other.existing) {
                (Some(one), Some(other)) => one.found.identity() == other.found.identity(),
                _ => false,
            };
            if one.path == other.path || same_file {
                return Err(Failure::at(&one.path, "given twice; every tier needs a device of its own"));
            }
        }
    }
    Ok(())
}

/// The device of a journal, open and locked. Notes a file that it made.
pub fn whole_device(target: &Target, made: &mut Vec<PathBuf>) -> Outcome<FileDevice> {
    match &target.existing {
        Some(existing) if existing.found.is_block_device() => {
            FileDevice::open_found(&existing.found, true, false).map_err(|error| pool::open_failure(&error))
        }
        Some(existing) => whole(FileDevice::remake(&existing.found, target.size), target),
        None => {
            let device = FileDevice::create(&target.path, target.size);
            if device.is_ok() {
                made.push(target.path.clone());
            }
            whole(device, target)
        }
    }
}

/// A progress bar for so many bytes.
pub fn bar(bytes: u64) -> ProgressBar {
    ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr())
}

/// Writes a new file whole: a flush behind a store into a hole would commit the host's own journal too.
fn whole(device: Result<FileDevice, OpenError>, target: &Target) -> Outcome<FileDevice> {
    let device = device.map_err(|error| pool::open_failure(&error))?;
    let bar = bar(target.size);
    device
        .write_whole(&mut |done| bar.set_position(done))
        .map_err(|error| Failure::at(&target.path, error))?;
    bar.finish_and_clear();
    sync_name(&target.path)?;
    Ok(device)
}

/// Makes the name of a new file durable: what is synced in the file would be lost with the name.
fn sync_name(path: &Path) -> Outcome<()> {
    let absolute = std::path::absolute(path);
    let synced = absolute.and_then(|path| match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    });
    synced.map_err(|error| Failure::at(path, plain(&error)))
}

/// `PATH[,memory=SIZE][,log=SIZE]`; an old pool decides the size of the memory.
fn journal(text: &OsStr, old: Option<&Old>) -> Outcome<Tier0> {
    let mut words = text.as_bytes().split(|&byte| byte == b',');
    let path = Path::new(OsStr::from_bytes(words.next().unwrap_or(&[])));
    let (mut memory, mut log) = (None, None);
    for word in words {
        let word = String::from_utf8_lossy(word).into_owned();
        let size = |value: &str| parse_size(value).map_err(|error| Failure::at(path, error));
        match word.split_once('=') {
            Some(("memory", value)) => memory = Some(size(value)?),
            Some(("log", value)) => log = Some(size(value)?),
            _ => return Err(Failure::at(path, format!("'{word}': use memory=SIZE or log=SIZE"))),
        }
    }
    let blocks = |bytes: u64| bytes / BLOCK_SIZE * BLOCK_SIZE;
    if let (Some(given), Some(old)) = (memory, old)
        && given != old.bytes()
    {
        let [given, has] = output::distinct([given, old.bytes()]);
        let text = format!(
            "memory={given}: --from takes a tier 0 over as it is, and it has {has}; leave memory= out"
        );
        return Err(Failure::at(path, text));
    }
    let memory = old.map_or_else(|| blocks(memory.unwrap_or_else(default_memory)), Old::bytes);
    let wanted = blocks(log.unwrap_or_else(|| (2 * memory).max(LEAST_LOG)));
    let impossible = || {
        let text = format!("no journal has a memory of {} and a log of {}", human(memory), human(wanted));
        Failure::at(
            path,
            format!("{text}; the log needs at least {}", human(JournaledPm::least_log_bytes(memory))),
        )
    };
    let layout = Layout::new(memory, wanted)
        .filter(|layout| layout.log_bytes() >= JournaledPm::least_log_bytes(memory))
        .ok_or_else(impossible)?;
    let total = layout.total_blocks() * BLOCK_SIZE;
    // A device is taken whole; its log is as long as the user says, or takes the rest.
    let size = (!is_block_device(path)).then(|| total.to_string());
    let target = target(path, size.as_deref(), "log=SIZE", None)?;
    let is_device = target.existing.as_ref().is_some_and(|existing| existing.found.is_block_device());
    if !is_device {
        return Ok(Tier0::Journal(target, layout));
    }
    let filling = Layout::filling(target.size / BLOCK_SIZE, memory)
        .filter(|filling| filling.log_bytes() >= JournaledPm::least_log_bytes(memory));
    let layout = if log.is_some() { Some(layout) } else { filling };
    let fits = |layout: &Layout| layout.total_blocks() * BLOCK_SIZE <= target.size;
    match layout.filter(fits) {
        Some(layout) => Ok(Tier0::Journal(target, layout)),
        None => {
            let [has, needed] = output::distinct([target.size, total]);
            let text = format!("has {has}, and this journal needs {needed}; use a smaller memory= or log=");
            Err(Failure::at(&target.path, text))
        }
    }
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// An eighth of the machine's memory.
fn default_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let bytes = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit).max(1));
    (bytes / 8).min(MOST_MEMORY) / (2 << 20) * (2 << 20)
}
