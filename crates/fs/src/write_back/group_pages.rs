//! The pages of a group that is written back, and their durable copies.

use smallvec::SmallVec;
use terrace_cache::DirtyPage;
use terrace_format::{DeviceId, Ino};
use terrace_media::{Durable, Flushed};
use terrace_store::change::new_extent::DeviceCopy;
use terrace_store::moving::destination::Destination;
use terrace_store::store::Store;

/// Dirty pages of one file, as they were when they were looked at.
pub(super) struct Group<'a> {
    pub(super) store: &'a Store,
    pub(super) ino: Ino,
    pub(super) generation: u32,
    /// The visible size then.
    pub(super) size: u64,
    /// Where the file should lie.
    pub(super) to: Destination,
    pub(super) pages: Vec<DirtyPage>,
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        self.store.dram.cache().mark_in_flight(&self.pages, false);
    }
}

/// The devices of a group, each with the proof of its flush.
pub(super) type FlushedDevices = SmallVec<[(DeviceId, Flushed); 4]>;

/// A page with its durable copy.
pub(super) struct Placed {
    /// The page.
    pub(super) copy: DirtyPage,
    /// Its copy.
    pub(super) at: Durable<DeviceCopy>,
}

impl Placed {
    /// A page whose copy a flush of its device made durable.
    ///
    /// # Panics
    /// When the device of the copy was not flushed (M1).
    pub(super) fn new(copy: DirtyPage, at: DeviceCopy, flushed: &FlushedDevices) -> Placed {
        let Some((_, flushed)) = flushed.iter().find(|(device, _)| *device == at.place.device) else {
            unreachable!("a copy on device {} is installed before its flush (M1)", at.place.device)
        };
        Placed { copy, at: flushed.durable(at) }
    }
}
