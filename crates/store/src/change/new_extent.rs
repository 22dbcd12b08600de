//! Cold extents that a change may install. Written blocks come in as [`Durable`] copies alone, so no extent names a copy
//! that a crash may lose (M1).
//!
//! Invariants: the blocks of an extent follow one another on one device; an unwritten extent names no copy.

use terrace_catalog::DeviceRun;
use terrace_format::FileBlock;
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};
use terrace_media::Durable;

/// The copy of a block on a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceCopy {
    /// Its device block.
    pub place: DeviceRun,
    /// Its CRC32C.
    pub crc: u32,
}

/// The new location of a block that a movement copied or, for an unwritten block, only allocated.
#[derive(Debug, Clone)]
pub enum NewLocation {
    /// A durable copy.
    Written(Durable<DeviceCopy>),
    /// The device block of an unwritten block.
    Unwritten(DeviceRun),
}

impl NewLocation {
    /// The device block.
    pub fn place(&self) -> DeviceRun {
        match self {
            NewLocation::Written(copy) => copy.get().place,
            NewLocation::Unwritten(place) => *place,
        }
    }

    /// The durable copy, if the block is written.
    pub fn copy(&self) -> Option<&Durable<DeviceCopy>> {
        match self {
            NewLocation::Written(copy) => Some(copy),
            NewLocation::Unwritten(_) => None,
        }
    }
}

/// True when block `b` lies behind block `a` on a device.
pub fn adjoins(a: DeviceRun, b: DeviceRun) -> bool {
    b.device == a.device && b.start == a.start.plus(1)
}

/// A cold extent whose written blocks are durable.
#[derive(Debug)]
pub struct NewExtent(ColdExtent);

impl NewExtent {
    /// An extent of unwritten blocks at a device run.
    pub fn unwritten(first: FileBlock, run: DeviceRun) -> NewExtent {
        let DeviceRun { device, start, length } = run;
        let crcs = Vec::new();
        NewExtent(ColdExtent { first, length: length as u32, device, start, unwritten: true, crcs })
    }

    /// The extent of copies that follow one another, from file block `first` on.
    ///
    /// # Panics
    /// Without a copy, and when two neighbours are not neighbours on the device.
    pub fn written<'c>(
        first: FileBlock,
        copies: impl IntoIterator<Item = &'c Durable<DeviceCopy>>,
    ) -> NewExtent {
        let mut copies = copies.into_iter().map(Durable::get);
        let (Some(begin), mut crcs) = (copies.next(), Vec::new()) else {
            unreachable!("an extent at {first} has at least one copy (M1)")
        };
        crcs.push(begin.crc);
        let mut last = begin.place;
        for copy in copies {
            assert!(adjoins(last, copy.place), "copies of an extent at {first} follow one another (I6)");
            crcs.push(copy.crc);
            last = copy.place;
        }
        let DeviceRun { device, start, .. } = begin.place;
        NewExtent(ColdExtent { first, length: crcs.len() as u32, device, start, unwritten: false, crcs })
    }

    /// The extent of adjoining locations of one kind, written or unwritten.
    ///
    /// # Panics
    /// As [`NewExtent::written`], and when both kinds are mixed.
    pub fn of<'l>(first: FileBlock, locations: impl IntoIterator<Item = &'l NewLocation>) -> NewExtent {
        let locations: smallvec::SmallVec<[&NewLocation; 32]> = locations.into_iter().collect();
        let copies = locations.iter().filter_map(|location| location.copy());
        match locations.first() {
            Some(NewLocation::Unwritten(place)) => {
                assert_eq!(copies.count(), 0, "written blocks among unwritten ones at {first} (M1)");
                NewExtent::unwritten(first, DeviceRun { length: locations.len() as u64, ..*place })
            }
            _ => {
                let extent = NewExtent::written(first, copies);
                let (named, wanted) = (extent.0.crcs.len(), locations.len());
                assert_eq!(named, wanted, "unwritten blocks among written ones at {first} (M1)");
                extent
            }
        }
    }

    /// A written extent of the file whose blocks were written over: the copies have new checksums.
    ///
    /// # Panics
    /// When a copy lies elsewhere than the extent says.
    pub fn overwritten<'c>(
        mut extent: ColdExtent,
        copies: impl IntoIterator<Item = (FileBlock, &'c Durable<DeviceCopy>)>,
    ) -> NewExtent {
        for (block, copy) in copies {
            let DeviceCopy { place, crc } = *copy.get();
            let at = block.0 - extent.first.0;
            let there = (extent.device, extent.start.plus(at)) == (place.device, place.start);
            assert!(there, "the copy of block {block} lies at {}, not in its extent (M5)", place.start);
            extent.crcs[at as usize] = crc;
        }
        NewExtent(extent)
    }

    /// This extent joined with a written extent of the same file that adjoins it on either side; `None` if none of the
    /// two goes on with the other, or both together are too long.
    pub fn joined(&self, beside: &ColdExtent) -> Option<NewExtent> {
        joined(beside, &self.0).or_else(|| joined(&self.0, beside)).map(NewExtent)
    }

    /// The blocks from `first` on; `None` when there are none.
    pub fn from(&self, first: FileBlock) -> Option<NewExtent> {
        self.0.slice(first, self.0.end()).map(NewExtent)
    }

    /// The extent.
    pub fn get(&self) -> &ColdExtent {
        &self.0
    }
}

/// Two written extents as one, where the second goes on with the first in the file and on its device.
fn joined(a: &ColdExtent, b: &ColdExtent) -> Option<ColdExtent> {
    let adjoins = a.end() == b.first && a.device == b.device && a.start.plus(u64::from(a.length)) == b.start;
    let fits = a.length + b.length <= MAX_EXTENT_BLOCKS;
    (adjoins && fits && !a.unwritten && !b.unwritten).then(|| ColdExtent {
        length: a.length + b.length,
        crcs: a.crcs.iter().chain(&b.crcs).copied().collect(),
        ..a.clone()
    })
}
