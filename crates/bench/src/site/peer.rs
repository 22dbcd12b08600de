//! Sets subjects up at a site: file systems on its device and in its memory, and their mounts.

use super::Site;
use super::block_counts::of_block_device;
use super::mounted::{Mounted, Place};
use super::subject::{Journal, JournalPlace, Peer, Subject};
use super::teardown::Resource;
use super::{dirty, journal};
use crate::failure::Outcome;
use crate::process::{own_words, run};
use crate::trace::Recorder;
use crate::workload::local::LocalTarget;
use crate::workload::raw::RawTarget;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_engine::{Engine, PoolMedia};
use terrace_fuse::Transport;
use terrace_media::PmMedium;
use terrace_media::block::FileDevice;
use terrace_media::pm::{EmulatedPm, PmSpeed, RamPm};

/// Smallest block device for the peers: mkfs.xfs refuses less than 300 MiB.
const LEAST_DEVICE_BYTES: u64 = 512 << 20;
/// Smallest journal or log outside.
const LEAST_JOURNAL_BYTES: u64 = 64 << 20;

impl Site {
    /// Makes and mounts a subject. A failure takes everything down again.
    pub fn mount(&self, subject: &Subject, recorder: Option<Arc<Recorder>>) -> Outcome<Mounted> {
        match subject.peer {
            Peer::Local => return self.local(subject, recorder),
            Peer::Terrace => return self.terrace(subject),
            Peer::Device | Peer::Raw => return self.raw(subject),
            Peer::Given => return self.given(subject),
            _ => {}
        }
        let root = self.scratch.mount_point(&subject.file_name())?;
        let place = Place::Directory(root.clone());
        let mut mounted = Mounted::at(place);
        match subject.peer {
            Peer::Tmpfs => {
                let size = format!("size={}", subject.device_bytes);
                self.attach(&mut mounted, &["-t", "tmpfs", "-o", &size, "none"], &root)?;
            }
            Peer::Null => {
                let mut command = self.child(&std::env::current_exe()?);
                command
                    .args(own_words())
                    .args(["run", "--null-server"])
                    .arg(&root)
                    .arg(Transport::Auto.name());
                mounted.served = Some(self.serve(command, &root)?);
            }
            Peer::Mergerfs => self.mergerfs(&mut mounted, subject, &root)?,
            _ => self.on_a_loop(&mut mounted, subject, &root)?,
        }
        Ok(mounted)
    }

    /// mount(8), registered.
    fn attach(&self, mounted: &mut Mounted, options: &[&str], root: &Path) -> Outcome<()> {
        let _step = self.teardown.step();
        run("mount", options.iter().map(OsStr::new).chain([root.as_os_str()]))?;
        mounted.held.push(self.teardown.hold(Resource::Mount(root.to_path_buf()))?);
        Ok(())
    }

    /// A loop device over the device of the site.
    fn slow_loop(&self, mounted: &mut Mounted, subject: &Subject) -> Outcome<String> {
        let device = self.device(&subject.file_name(), subject.device_bytes.max(LEAST_DEVICE_BYTES))?;
        let (name, held) = self.loop_over(&device.path, true)?;
        mounted.held.push(held);
        mounted.counted.push(of_block_device(&name));
        mounted.devices.push(device);
        Ok(name)
    }

    /// A loop device over memory.
    fn fast_loop(&self, mounted: &mut Mounted, subject: &Subject, bytes: u64) -> Outcome<String> {
        let (name, held) = self.memory_loop(&format!("{}.pm", subject.file_name()), bytes)?;
        mounted.held.extend(held);
        Ok(name)
    }

    fn on_a_loop(&self, mounted: &mut Mounted, subject: &Subject, root: &Path) -> Outcome<()> {
        let journal_bytes = subject.pm_bytes.max(LEAST_JOURNAL_BYTES);
        let whole_bytes = subject.device_bytes.max(LEAST_DEVICE_BYTES);
        let (kind, device, options) = match subject.peer {
            Peer::Ext4Dj => {
                let journal = match subject.tuning.journal {
                    Some(own) => self.journal_device(mounted, subject, own)?,
                    None => self.fast_loop(mounted, subject, journal_bytes)?,
                };
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
            Peer::Ext4 | Peer::Ext4Journal | Peer::Ext4Pm => {
                let device = match subject.peer {
                    Peer::Ext4Pm => self.fast_loop(mounted, subject, whole_bytes)?,
                    _ => self.slow_loop(mounted, subject)?,
                };
                run("mkfs.ext4", ["-q", "-F", "-b", "4096", LAZY[0], LAZY[1], &device])?;
                let data = if subject.peer == Peer::Ext4Journal { "data=journal" } else { "defaults" };
                ("ext4", device, data.to_string())
            }
            Peer::XfsPm | Peer::Xfs => {
                let device = match subject.peer {
                    Peer::Xfs => self.slow_loop(mounted, subject)?,
                    _ => self.fast_loop(mounted, subject, whole_bytes)?,
                };
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
        let upper = self.fast_loop(mounted, subject, subject.pm_bytes.max(LEAST_JOURNAL_BYTES))?;
        let lower = self.slow_loop(mounted, subject)?;
        for (device, place) in [(upper, &fast), (lower, &slow)] {
            run("mkfs.ext4", ["-q", "-F", "-b", "4096", LAZY[0], LAZY[1], &device])?;
            self.attach(mounted, &["-t", "ext4", &device], place)?;
        }
        // A new file goes to the first branch with room; a file that outgrows its branch is moved.
        let options = "category.create=ff,minfreespace=4M,moveonenospc=true";
        let branches = format!("{}:{}", fast.display(), slow.display());
        let _step = self.teardown.step();
        run("mergerfs", ["-o", options, &branches].map(OsStr::new).into_iter().chain([root.as_os_str()]))?;
        mounted.held.push(self.teardown.hold(Resource::Mount(root.to_path_buf()))?);
        Ok(())
    }

    fn raw(&self, subject: &Subject) -> Outcome<Mounted> {
        let mut mounted = Mounted::at(Place::Directory(PathBuf::new()));
        let journal =
            subject.tuning.journal.unwrap_or(Journal { place: JournalPlace::File, ..Journal::default() });
        let (name, class) = (subject.file_name(), self.journal_class(journal));
        let path = self.place(&mut mounted, (&name, subject.device_bytes), &class, journal.place)?;
        mounted.place = Place::Raw(Arc::new(RawTarget::new(FileDevice::open(&path, true, false)?)));
        Ok(mounted)
    }

    /// A new directory inside the given directory.
    fn given(&self, subject: &Subject) -> Outcome<Mounted> {
        let above = subject.given.as_ref().ok_or("no directory is given")?;
        let root = std::fs::canonicalize(above).map_err(|error| format!("{}: {error}", above.display()))?;
        let root = root.join(format!("terrace-bench-{}", std::process::id()));
        let _step = self.teardown.step();
        std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        let held = self.teardown.hold(Resource::Directory(root.clone()))?;
        let mut mounted = Mounted::at(Place::Directory(root));
        mounted.held.push(held);
        Ok(mounted)
    }

    /// A new pool, whose files belong to `mounted`. Gives the paths of tier 0 and of tier 1.
    fn pool(&self, mounted: &mut Mounted, subject: &Subject) -> Outcome<(PathBuf, PathBuf)> {
        if let Some(journal) = subject.tuning.journal {
            return self.journaled_pool(mounted, subject, journal);
        }
        let device = self.device(&subject.file_name(), subject.device_bytes.max(subject.pm_bytes))?;
        let pm = self.scratch.memory.join(format!("{}.pm", subject.file_name()));
        mounted.held.push(self.teardown.hold(Resource::File(pm.clone()))?);
        let size = subject.pm_bytes.to_string();
        let words = ["mkfs", "--pm-size", &size, "--force", "--tier"].map(OsStr::new);
        let rest = [device.path.as_os_str(), OsStr::new("--pm"), pm.as_os_str()];
        let map = subject.tuning.map.iter().flat_map(|map| ["--map", map]).map(OsStr::new);
        run(&self.terrace, words.into_iter().chain(rest).chain(map))?;
        let tier = device.path.clone();
        mounted.devices.push(device);
        Ok((pm, tier))
    }

    fn terrace(&self, subject: &Subject) -> Outcome<Mounted> {
        let root = self.scratch.mount_point(&subject.file_name())?;
        let mut mounted = Mounted::at(Place::Directory(root.clone()));
        let (pm, _) = self.pool(&mut mounted, subject)?;
        let mut command = self.child(&self.terrace);
        command.args(["mount", "--foreground", "-o", &subject.tuning.words()]).arg(&pm).arg(&root);
        mounted.served = Some(self.serve(command, &root)?);
        mounted.status_of = Some(root);
        Ok(mounted)
    }

    fn local(&self, subject: &Subject, recorder: Option<Arc<Recorder>>) -> Outcome<Mounted> {
        let options = subject.tuning.options()?;
        let mut mounted = Mounted::at(Place::Directory(PathBuf::new()));
        let (path, tier) = self.pool(&mut mounted, subject)?;
        let pm: Arc<dyn PmMedium> = match subject.tuning.journal {
            Some(_) => journal::open(&path)?,
            None => Arc::new(RamPm::open(&path, false)?),
        };
        pm.prepare(terrace_format::PmOffset(0), pm.size());
        let block = FileDevice::open(&tier, true, false)?;
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
        mounted.place = Place::Local { target, fs, background };
        Ok(mounted)
    }
}

/// mkfs writes all inode tables and the journal, so the mount does not do it later in the background.
const LAZY: [&str; 2] = ["-E", "lazy_itable_init=0,lazy_journal_init=0"];
