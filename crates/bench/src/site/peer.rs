//! The compared file systems: how each is made on the device of the site, and which column of the
//! publications it stands for.
//!
//! | name | is | the publications' |
//! |---|---|---|
//! | `terrace` | Terrace through FUSE | TPFS-n, Ziggurat-n, AC-BPFS |
//! | `local` | Terrace in this process, without a kernel | – |
//! | `ext4` | ext4, data=ordered, on the device | ext4 |
//! | `ext4-dj` | ext4, data=journal, journal on a PM loop device | EXT4-DJ |
//! | `xfs-ml` | XFS, log on a PM loop device | XFS-ML |
//! | `ext4-pm`, `xfs-pm` | wholly on a PM loop device; with a page cache, which the originals lack | EXT4-DAX, XFS-DAX, NOVA |
//! | `btrfs` | btrfs on the device | – |
//! | `tmpfs` | ceiling of the kernel's path | – |
//! | `null` | FUSE server that answers for one file: floor of the FUSE path | – |
//! | `mergerfs` | files on a PM loop device first, then on the device | – |
//! | `device` | the device itself, without a file system | – |
//! | `given` | a directory that exists (`terrace bench run`) | – |

use super::Site;
use super::device::{Device, Served};
use super::dirty;
use super::teardown::{Held, Resource};
use crate::failure::Outcome;
use crate::process::{own_words, run};
use crate::trace::Recorder;
use crate::workload::local::LocalTarget;
use crate::workload::raw::RawTarget;
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_engine::{Ablation, Background, Engine, MountOptions, PolicyKind, PoolMedia};
use terrace_media::PmMedium;
use terrace_media::block::FileDevice;
use terrace_media::pm::{EmulatedPm, PmSpeed, RamPm};

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    Terrace,
    Local,
    Ext4,
    Ext4Dj,
    XfsMl,
    Ext4Pm,
    XfsPm,
    Btrfs,
    Tmpfs,
    Null,
    Mergerfs,
    Device,
    Given,
}

impl Peer {
    pub const ALL: [(Peer, &'static str); 13] = [
        (Peer::Terrace, "terrace"),
        (Peer::Local, "local"),
        (Peer::Ext4, "ext4"),
        (Peer::Ext4Dj, "ext4-dj"),
        (Peer::XfsMl, "xfs-ml"),
        (Peer::Ext4Pm, "ext4-pm"),
        (Peer::XfsPm, "xfs-pm"),
        (Peer::Btrfs, "btrfs"),
        (Peer::Tmpfs, "tmpfs"),
        (Peer::Null, "null"),
        (Peer::Mergerfs, "mergerfs"),
        (Peer::Device, "device"),
        (Peer::Given, "given"),
    ];

    pub fn parse(text: &str) -> Option<Peer> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(peer, _)| *peer)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(peer, _)| *peer == self).map_or("?", |(_, name)| name)
    }
}

/// Mount options of Terrace that differ from the defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tuning {
    pub policy: Option<&'static str>,
    pub cache_bytes: Option<u64>,
    pub group_bytes: Option<u64>,
    pub threshold_percent: Option<u8>,
    pub sync_blocks: Option<u32>,
    /// In process only.
    #[serde(skip)]
    pub ablation: Ablation,
    pub prefetch_bytes: Option<u64>,
    /// Speed of emulated PM, as the mount option `emulate-pm` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulate_pm: Option<String>,
    /// A partial write of a cold block reads the block first. In process only: there is no such mount option.
    pub read_first: bool,
}

impl Tuning {
    /// The argument of `terrace mount -o`.
    fn words(&self) -> String {
        let mut words = vec!["defaults".to_string()];
        words.extend(self.policy.map(|name| format!("policy={name}")));
        // The same cache size as in process, so rows do not depend on the memory of the machine.
        words.push(format!("cache={}", self.cache_bytes.unwrap_or(MountOptions::default().cache_bytes)));
        words.extend(self.group_bytes.map(|bytes| format!("group={bytes}")));
        words.extend(self.threshold_percent.map(|percent| format!("threshold={percent}")));
        words.extend(self.sync_blocks.map(|blocks| format!("sync_blocks={blocks}")));
        words.extend(self.prefetch_bytes.map(|bytes| format!("prefetch={bytes}")));
        words.extend(self.emulate_pm.as_ref().map(|speed| format!("emulate-pm={speed}")));
        words.join(",")
    }

    fn options(&self) -> Outcome<MountOptions> {
        let mut options = MountOptions::default();
        let named = |name| PolicyKind::named(name).ok_or_else(|| format!("no policy {name}"));
        options.policy = self.policy.map(named).transpose()?;
        options.cache_bytes = self.cache_bytes.unwrap_or(options.cache_bytes);
        options.group_bytes = self.group_bytes.unwrap_or(options.group_bytes);
        options.threshold_percent = self.threshold_percent;
        options.parameters.sync_blocks = self.sync_blocks.unwrap_or(options.parameters.sync_blocks);
        options.ablation = self.ablation;
        options.prefetch_bytes = self.prefetch_bytes.unwrap_or(options.prefetch_bytes);
        options.read_first = self.read_first;
        Ok(options)
    }
}

/// The two models of PM for rows in which its speed matters (docs/evaluation.md), by name. [HiNFS]: 200 ns
/// for each flushed line and 1 GB/s. [TPFS table 1]: 0.1 µs for each contiguous run and 15 GB/s, and 0.3 µs
/// for each run read.
pub const PM_MODELS: [(&str, &str); 2] =
    [("line", "line:200:1000000000"), ("run", "run:100:15000000000:300")];

/// The speed of a model's name, or of a speed in words.
///
/// # Errors
/// The error in the text.
pub fn pm_speed(text: &str) -> Result<String, String> {
    let named = PM_MODELS.iter().find(|(name, _)| *name == text).map_or(text, |(_, speed)| speed);
    PmSpeed::parse(named).map(|_| named.to_string())
}

/// A file system under test in a row.
#[derive(Debug, Clone, Serialize)]
pub struct Subject {
    /// Unique in the row.
    pub label: String,
    pub peer: Peer,
    /// PM of Terrace; for peers the size of the PM loop device.
    pub pm_bytes: u64,
    /// The slow device.
    pub device_bytes: u64,
    pub tuning: Tuning,
    /// For `given`: the directory that gets a new directory for the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given: Option<PathBuf>,
}

impl Subject {
    /// The label as part of names of files and mount points.
    fn file_name(&self) -> String {
        self.label.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
    }
}

/// A subject that is set up; dropping takes it down.
pub struct Mounted {
    /// For Terrace through FUSE the mount point that `terrace status` gets.
    pub status_of: Option<PathBuf>,
    pub place: Place,
    // `held` is dropped from the last to the first; a device is dropped after the mounts on it.
    served: Option<Served>,
    held: Vec<Held>,
    _device: Option<Device>,
}

/// Where a subject's files are.
pub enum Place {
    Directory(PathBuf),
    /// A device without a file system.
    Raw(Arc<RawTarget>),
    /// In this process, with the threads that migrate.
    Local {
        target: Arc<LocalTarget>,
        fs: Arc<Engine>,
        background: Option<Background>,
    },
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Without threads the pool has been unmounted.
        if let Place::Local { fs, background, .. } = &mut self.place
            && let Some(threads) = background.take()
        {
            drop(threads);
            let _ = fs.unmount();
        }
        self.served.take();
        while let Some(held) = self.held.pop() {
            drop(held);
        }
    }
}

/// Smallest block device for the peers: mkfs.xfs refuses less than 300 MiB.
const LEAST_DEVICE: u64 = 512 << 20;
/// Smallest journal or log outside.
const LEAST_JOURNAL: u64 = 64 << 20;

impl Site {
    /// Makes and mounts a subject. A failure takes everything down again.
    pub fn mount(&self, subject: &Subject, recorder: Option<Arc<Recorder>>) -> Outcome<Mounted> {
        match subject.peer {
            Peer::Local => return self.local(subject, recorder),
            Peer::Terrace => return self.terrace(subject),
            Peer::Device => return self.raw(subject),
            Peer::Given => return self.given(subject),
            _ => {}
        }
        let root = self.scratch.mount_point(&subject.file_name())?;
        let place = Place::Directory(root.clone());
        let mut mounted = Mounted { status_of: None, place, served: None, held: Vec::new(), _device: None };
        match subject.peer {
            Peer::Tmpfs => {
                let size = format!("size={}", subject.device_bytes);
                self.attach(&mut mounted, &["-t", "tmpfs", "-o", &size, "none"], &root)?;
            }
            Peer::Null => {
                let mut command = self.child(&std::env::current_exe()?);
                command.args(own_words()).args(["run", "--null-server"]).arg(&root);
                mounted.served = Some(self.serve(command, &root)?);
            }
            Peer::Mergerfs => self.mergerfs(&mut mounted, subject, &root)?,
            _ => self.on_a_loop(&mut mounted, subject, &root)?,
        }
        Ok(mounted)
    }

    /// mount(8), registered.
    fn attach(&self, mounted: &mut Mounted, options: &[&str], root: &Path) -> Outcome<()> {
        run("mount", options.iter().map(OsStr::new).chain([root.as_os_str()]))?;
        mounted.held.push(self.teardown.hold(Resource::Mount(root.to_path_buf()))?);
        Ok(())
    }

    /// A loop device over the device of the site.
    fn slow_loop(&self, mounted: &mut Mounted, subject: &Subject) -> Outcome<String> {
        let device = self.device(&subject.file_name(), subject.device_bytes.max(LEAST_DEVICE))?;
        let (name, held) = self.loop_over(&device.path, true)?;
        mounted.held.push(held);
        mounted._device = Some(device);
        Ok(name)
    }

    /// A loop device over memory.
    fn fast_loop(&self, mounted: &mut Mounted, subject: &Subject, bytes: u64) -> Outcome<String> {
        let (name, held) = self.memory_loop(&format!("{}.pm", subject.file_name()), bytes)?;
        mounted.held.extend(held);
        Ok(name)
    }

    fn on_a_loop(&self, mounted: &mut Mounted, subject: &Subject, root: &Path) -> Outcome<()> {
        let journal_bytes = subject.pm_bytes.max(LEAST_JOURNAL);
        let whole_bytes = subject.device_bytes.max(LEAST_DEVICE);
        let (kind, device, options) = match subject.peer {
            Peer::Ext4Dj => {
                let journal = self.fast_loop(mounted, subject, journal_bytes)?;
                run("mke2fs", ["-q", "-F", "-O", "journal_dev", "-b", "4096", &journal])?;
                let device = self.slow_loop(mounted, subject)?;
                let journal = format!("device={journal}");
                run("mkfs.ext4", ["-q", "-F", "-b", "4096", LAZY[0], LAZY[1], "-J", &journal, &device])?;
                ("ext4", device, "data=journal".to_string())
            }
            Peer::XfsMl => {
                let log = self.fast_loop(mounted, subject, journal_bytes)?;
                let device = self.slow_loop(mounted, subject)?;
                // The largest log of XFS is 2 GiB.
                let place = format!("logdev={log},size={}", journal_bytes.min(1 << 30));
                run("mkfs.xfs", ["-q", "-f", "-l", &place, &device])?;
                ("xfs", device, format!("logdev={log}"))
            }
            Peer::Ext4 | Peer::Ext4Pm => {
                let device = match subject.peer {
                    Peer::Ext4 => self.slow_loop(mounted, subject)?,
                    _ => self.fast_loop(mounted, subject, whole_bytes)?,
                };
                run("mkfs.ext4", ["-q", "-F", "-b", "4096", LAZY[0], LAZY[1], &device])?;
                ("ext4", device, "defaults".to_string())
            }
            Peer::XfsPm => {
                let device = self.fast_loop(mounted, subject, whole_bytes)?;
                run("mkfs.xfs", ["-q", "-f", &device])?;
                ("xfs", device, "defaults".to_string())
            }
            _ => {
                let device = self.slow_loop(mounted, subject)?;
                run("mkfs.btrfs", ["-q", "-f", &device])?;
                ("btrfs", device, "defaults".to_string())
            }
        };
        self.attach(mounted, &["-t", kind, "-o", &options, &device], root)?;
        match subject.peer {
            Peer::Btrfs if self.dirty_bytes.is_ok() => self.limit_dirty(&dirty::of_btrfs(&device)?),
            _ => Ok(()),
        }
    }

    fn mergerfs(&self, mounted: &mut Mounted, subject: &Subject, root: &Path) -> Outcome<()> {
        let fast = self.scratch.mount_point(&format!("{}-fast", subject.file_name()))?;
        let slow = self.scratch.mount_point(&format!("{}-slow", subject.file_name()))?;
        let upper = self.fast_loop(mounted, subject, subject.pm_bytes.max(LEAST_JOURNAL))?;
        let lower = self.slow_loop(mounted, subject)?;
        for (device, place) in [(upper, &fast), (lower, &slow)] {
            run("mkfs.ext4", ["-q", "-F", "-b", "4096", LAZY[0], LAZY[1], &device])?;
            self.attach(mounted, &["-t", "ext4", &device], place)?;
        }
        // A new file goes to the first branch with room; a file that outgrows its branch is moved.
        let options = "category.create=ff,minfreespace=4M,moveonenospc=true";
        let branches = format!("{}:{}", fast.display(), slow.display());
        run("mergerfs", ["-o", options, &branches].map(OsStr::new).into_iter().chain([root.as_os_str()]))?;
        mounted.held.push(self.teardown.hold(Resource::Mount(root.to_path_buf()))?);
        Ok(())
    }

    fn raw(&self, subject: &Subject) -> Outcome<Mounted> {
        let device = self.device(&subject.file_name(), subject.device_bytes)?;
        let place = Place::Raw(Arc::new(RawTarget::new(FileDevice::open(&device.path, true, false)?)));
        Ok(Mounted { status_of: None, place, served: None, held: Vec::new(), _device: Some(device) })
    }

    /// A new directory inside the given directory.
    fn given(&self, subject: &Subject) -> Outcome<Mounted> {
        let above = subject.given.as_ref().ok_or("no directory is given")?;
        let root = std::fs::canonicalize(above).map_err(|error| format!("{}: {error}", above.display()))?;
        let root = root.join(format!("terrace-bench-{}", std::process::id()));
        std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        let held = vec![self.teardown.hold(Resource::Directory(root.clone()))?];
        let place = Place::Directory(root);
        Ok(Mounted { status_of: None, place, served: None, held, _device: None })
    }

    /// PM file and device of a new pool; dropping `Held` deletes the PM file.
    fn pool(&self, subject: &Subject) -> Outcome<(PathBuf, Device, Held)> {
        let device = self.device(&subject.file_name(), subject.device_bytes.max(subject.pm_bytes))?;
        let pm = self.scratch.memory.join(format!("{}.pm", subject.file_name()));
        let held = self.teardown.hold(Resource::File(pm.clone()))?;
        let size = subject.pm_bytes.to_string();
        let words = ["mkfs", "--pm-size", &size, "--force", "--tier"].map(OsStr::new);
        let rest = [device.path.as_os_str(), OsStr::new("--pm"), pm.as_os_str()];
        run(&self.terrace, words.into_iter().chain(rest))?;
        Ok((pm, device, held))
    }

    fn terrace(&self, subject: &Subject) -> Outcome<Mounted> {
        let root = self.scratch.mount_point(&subject.file_name())?;
        let (pm, device, held) = self.pool(subject)?;
        let mut command = self.child(&self.terrace);
        command.args(["mount", "--foreground", "-o", &subject.tuning.words()]).arg(&pm).arg(&root);
        let served = self.serve(command, &root)?;
        Ok(Mounted {
            status_of: Some(root.clone()),
            place: Place::Directory(root),
            served: Some(served),
            held: vec![held],
            _device: Some(device),
        })
    }

    fn local(&self, subject: &Subject, recorder: Option<Arc<Recorder>>) -> Outcome<Mounted> {
        let options = subject.tuning.options()?;
        let (path, device, held) = self.pool(subject)?;
        let pm = Arc::new(RamPm::open(&path, false)?);
        pm.prepare(terrace_format::PmOffset(0), pm.size());
        let block = FileDevice::open(&device.path, true, false)?;
        let (superblock, _) = terrace_engine::read_superblock(&*pm, true)?;
        let pm: Arc<dyn PmMedium> = match &subject.tuning.emulate_pm {
            Some(speed) => {
                let speed = PmSpeed::parse(speed)?;
                Arc::new(EmulatedPm::new(pm, speed, self.scratch.clock.clone()))
            }
            None => pm,
        };
        let media = PoolMedia { pm, block: vec![Arc::new(block)] };
        let fs = Engine::mount(media, superblock, options, self.scratch.clock.clone())?;
        let background = Some(fs.start_background()?);
        let target = Arc::new(LocalTarget::new(fs.clone(), recorder));
        Ok(Mounted {
            status_of: None,
            place: Place::Local { target, fs, background },
            served: None,
            held: vec![held],
            _device: Some(device),
        })
    }
}

/// mkfs writes all inode tables and the journal, so the mount does not do it later in the background.
const LAZY: [&str; 2] = ["-E", "lazy_itable_init=0,lazy_journal_init=0"];

impl Mounted {
    /// Takes the subject down and gives the errors: an error of unmount may be the error of a write.
    pub fn finish(mut self, site: &Site) -> Outcome<()> {
        if let Place::Local { fs, background, .. } = &mut self.place {
            drop(background.take());
            fs.unmount()?;
        }
        match self.served.take() {
            Some(served) => served.stop(&site.scratch),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::pm::PmModel;

    #[test]
    fn both_models_of_pm_reach_the_mount_option() {
        let models = PM_MODELS.map(|(name, _)| pm_speed(name).unwrap());
        let parsed = models.each_ref().map(|text| PmSpeed::parse(text).unwrap().model);
        assert_eq!(parsed, [PmModel::Line, PmModel::Run]);
        for speed in models {
            let tuning = Tuning { emulate_pm: Some(speed.clone()), ..Tuning::default() };
            let words = tuning.words();
            assert!(words.starts_with("defaults,cache=") && words.ends_with(&format!(",emulate-pm={speed}")));
        }
        assert_eq!(pm_speed("run:300:2G"), Ok("run:300:2G".to_string()));
        assert!(pm_speed("fast").is_err());
    }
}
