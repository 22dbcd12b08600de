//! The engine's side of a world: media, their faults, the clock, and the mount.

use crate::action::Fault;
use crate::bounds;
use crate::config::Config;
use crate::media::Media;
use std::cell::Cell;
use std::sync::Arc;
use terrace_engine::{
    Atime, BufferOptions, Engine, FsError, InPlace, LazyAblation, LazyOption, MountOptions, read_superblock,
};
use terrace_runtime::{Clock, ManualClock, Step, narrow};

/// The media of a pool, and its mount.
pub struct Pool {
    config: Config,
    /// The media.
    pub media: Media,
    /// The time that the engine sees.
    pub clock: Arc<ManualClock>,
    /// The mounted engine.
    pub fs: Option<Arc<Engine>>,
    /// The steps of background work of this mount; a step that runs is taken out.
    pub steps: Vec<Option<Box<dyn Step>>>,
    /// Bytes of PM that the last mount read before it answered.
    pub mount_read: Cell<u64>,
    /// The fault in force.
    pub fault: Option<Fault>,
    /// The devices that have the fault, or had the last one.
    pub failing: Vec<usize>,
    /// A device lied about a flush since the last loss of power.
    pub lied: bool,
    /// A device lied about a flush and then lost power.
    pub may_be_damaged: bool,
}

impl Pool {
    /// Media that are not mounted.
    pub fn new(config: Config, media: Media, clock: Arc<ManualClock>) -> Pool {
        Pool {
            config,
            media,
            clock,
            fs: None,
            steps: Vec::new(),
            mount_read: Cell::new(0),
            fault: None,
            failing: Vec::new(),
            lied: false,
            may_be_damaged: false,
        }
    }

    pub fn fs(&self) -> &Arc<Engine> {
        self.fs.as_ref().expect("mounted")
    }

    /// Whether an error may come from a metadata page on a failing lower tier.
    pub fn may_lie_below(&self, error: &FsError) -> bool {
        self.faulty() && self.config.has_metadata_below() && error.errno() == libc::EIO
    }

    /// Whether a lower tier has a fault now.
    pub fn faulty(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether a write-back may fail now. It may also fail after a device came back without its unflushed
    /// writes: the next flush reports the loss, once.
    pub fn may_fail(&self) -> bool {
        self.faulty() || self.media.devices.iter().any(|device| device.has_loss_to_tell())
    }

    pub fn mount(&self, media: &Media) -> Arc<Engine> {
        bounds::begin();
        narrow::set_name_hash_bits(self.config.hash_bits);
        let (superblock, warning) = read_superblock(&*media.tier0(), true).unwrap();
        assert_eq!(warning, None);
        let clock: Arc<dyn Clock> = self.clock.clone();
        let before = media.pm.bytes_read();
        let fs = Engine::mount(media.pool(), superblock, self.mount_options(), clock);
        let fs = fs.unwrap_or_else(|error| panic!("mount: {error}"));
        self.mount_read.set(media.pm.bytes_read() - before);
        fs
    }

    /// The options of each mount.
    pub fn mount_options(&self) -> MountOptions {
        MountOptions {
            atime: if self.config.relatime { Atime::Relative } else { Atime::Never },
            threshold_percent: Some(self.config.threshold_percent),
            promote_first_touch: self.config.promote_first_touch,
            home: self.config.home,
            metadata_moves: self.config.metadata,
            // Small, so that clean pages are dropped and prefetched pages expire.
            cache_bytes: 2 << 20,
            group_bytes: 256 << 10,
            parameters: self.config.parameters,
            // Small, because the files are small.
            in_place: InPlace { extent_blocks: 3, one_of: 3 },
            // Small, so that writers have to make room.
            buffer: BufferOptions {
                bytes: if self.config.buffers() { self.config.buffer.bytes } else { 0 },
                lazy: if self.config.buffer.lazy { LazyOption::On } else { LazyOption::Off },
                steps: 2,
                ablation: if self.config.buffer.always {
                    LazyAblation::Always
                } else {
                    LazyAblation::Nothing
                },
                ..BufferOptions::default()
            },
            ..MountOptions::default()
        }
    }

    /// Recovers, and drops the mount.
    pub fn only_mount(&self) {
        drop(self.mount(&self.media));
    }

    /// Unmounts.
    pub fn unmount_engine(&self) {
        self.fs().unmount().unwrap_or_else(|error| panic!("unmount: {error}"));
    }

    pub fn now(&self) -> i64 {
        self.clock.monotonic_ns() as i64
    }
}
