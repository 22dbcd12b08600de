//! A subject after its setup: the files, mounts, servers and devices, taken down in reverse order.

use super::Site;
use super::block_counts::BlockCounts;
use super::device::{Device, Served};
use super::teardown::Held;
use crate::failure::Outcome;
use crate::workload::local::LocalTarget;
use crate::workload::raw::RawTarget;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_engine::{Background, Engine};

/// A subject that is set up; dropping takes it down.
pub struct Mounted {
    /// For Terrace through FUSE the mount point that `terrace status` gets.
    pub status_of: Option<PathBuf>,
    /// The location of the files.
    pub place: Place,
    // `held` is dropped from the last to the first; devices are dropped after the mounts on them.
    pub(super) served: Option<Served>,
    pub(super) held: Vec<Held>,
    pub(super) devices: Vec<Device>,
    /// The kernel's directories of the block devices whose requests are counted.
    pub(super) counted: Vec<PathBuf>,
}

/// Where a subject's files are.
pub enum Place {
    /// A directory.
    Directory(PathBuf),
    /// A device without a file system.
    Raw(Arc<RawTarget>),
    /// In this process, with the threads that migrate.
    Local {
        /// The file system as a target of loads.
        target: Arc<LocalTarget>,
        /// The file system.
        fs: Arc<Engine>,
        /// The threads that migrate.
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

impl Mounted {
    /// A subject that has nothing to be taken down yet.
    pub(super) fn at(place: Place) -> Mounted {
        let (held, devices, counted) = (Vec::new(), Vec::new(), Vec::new());
        Mounted { status_of: None, place, served: None, held, devices, counted }
    }

    /// Requests that the block devices of the subject got so far.
    pub fn block_counts(&self) -> BlockCounts {
        BlockCounts::of(&self.counted)
    }

    /// The processes that serve emulated devices of the subject.
    pub fn device_processes(&self) -> impl Iterator<Item = u32> {
        self.devices.iter().filter_map(Device::process)
    }

    /// The process that serves the mount.
    pub fn process(&self) -> Option<u32> {
        self.served.as_ref().and_then(Served::process)
    }

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
