//! Journaled pools: tier 0 in DRAM, with its journal on the disk that the peers have.

use super::Site;
use super::block_counts::of_block_device;
use super::class::Class;
use super::mounted::Mounted;
use super::subject::{Journal, JournalPlace, Subject};
use crate::failure::Outcome;
use crate::process::run;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_format::BLOCK_SIZE;
use terrace_format::journal::Layout;
use terrace_media::PmMedium;
use terrace_media::block::FileDevice;
use terrace_media::pm::{JournalOptions, JournaledPm};
use terrace_runtime::SystemClock;

/// The shortest log that mkfs chooses.
const LEAST_LOG_BYTES: u64 = 256 << 20;

impl Journal {
    /// Bytes of the log for a memory.
    pub fn log_bytes(&self, memory_bytes: u64) -> u64 {
        self.log_bytes.unwrap_or_else(|| (2 * memory_bytes).max(LEAST_LOG_BYTES))
    }
}

impl Site {
    /// A device of the site that belongs to `mounted`: a loop device, whose requests are counted, or the file itself.
    pub(super) fn place(
        &self,
        mounted: &mut Mounted,
        (name, bytes): (&str, u64),
        class: &Class,
        place: JournalPlace,
    ) -> Outcome<PathBuf> {
        let device = self.device_of(class, name, bytes)?;
        let path = match place {
            JournalPlace::File => {
                // Several files may lie on one disk.
                let disk = disk_below(&device.path).filter(|disk| !mounted.counted.contains(disk));
                mounted.counted.extend(disk);
                device.path.clone()
            }
            JournalPlace::Loop => {
                let (name, held) = self.loop_over(&device.path, true)?;
                mounted.held.push(held);
                mounted.counted.push(of_block_device(&name));
                PathBuf::from(name)
            }
        };
        mounted.devices.push(device);
        Ok(path)
    }

    /// The class of the disk of a journal.
    pub(super) fn journal_class(&self, journal: Journal) -> Class {
        journal.class.map_or_else(|| self.class.clone(), Class::parse)
    }

    /// A loop device for the journal of a peer, as large as a pool's.
    pub(super) fn journal_device(
        &self,
        mounted: &mut Mounted,
        subject: &Subject,
        journal: Journal,
    ) -> Outcome<String> {
        let bytes = journal.log_bytes(subject.pm_bytes).max(LEAST_LOG_BYTES);
        let name = format!("{}-journal", subject.file_name());
        let class = self.journal_class(journal);
        let path = self.place(mounted, (&name, bytes), &class, JournalPlace::Loop)?;
        Ok(path.display().to_string())
    }

    /// A new pool with a journal. Gives the paths of the journal and of tier 1.
    pub(super) fn journaled_pool(
        &self,
        mounted: &mut Mounted,
        subject: &Subject,
        journal: Journal,
    ) -> Outcome<(PathBuf, PathBuf)> {
        let (memory, log) = (subject.pm_bytes, journal.log_bytes(subject.pm_bytes));
        let layout = Layout::new(memory, log).ok_or_else(|| format!("no journal for {memory} bytes"))?;
        let name = |part: &str| format!("{}{part}", subject.file_name());
        let bytes = layout.total_blocks() * BLOCK_SIZE;
        let path =
            self.place(mounted, (&name("-journal"), bytes), &self.journal_class(journal), journal.place)?;
        let bytes = subject.device_bytes.max(memory);
        let class = journal.tier_class.map_or_else(|| self.class.clone(), Class::parse);
        let tier = self.place(mounted, (&name(""), bytes), &class, journal.place)?;
        let mut words = path.clone().into_os_string();
        words.push(format!(",memory={memory},log={log}"));
        let mut args: Vec<OsString> = ["mkfs", "--force", "--tier"].map(OsString::from).into();
        args.extend([tier.clone().into(), "--journal".into(), words]);
        args.extend(subject.tuning.map.iter().flat_map(|map| ["--map".into(), (*map).into()]));
        run(&self.terrace, args.iter().map(OsStr::new))?;
        Ok((path, tier))
    }
}

/// Opens the journal of a pool in this process.
pub(super) fn open(journal: &Path) -> Outcome<Arc<dyn PmMedium>> {
    let device = FileDevice::open(journal, true, false)?;
    Ok(Arc::new(
        JournaledPm::open(Arc::new(device), JournalOptions::default(), Arc::new(SystemClock::default()))?.pm,
    ))
}

/// The kernel's directory of the disk that a file lies on; none of a file system without a disk of its own.
fn disk_below(file: &Path) -> Option<PathBuf> {
    let device = rustix::fs::stat(file).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    path.join("stat").exists().then_some(path)
}
