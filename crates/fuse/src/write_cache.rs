//! The memory of an emulated disk: writes that no flush has covered, as sectors of 512 bytes over a backing file.
//!
//! A flush moves sectors to the backing file. A loss of power drops a random subset of the others: each sector keeps its
//! content in the backing file, its newest or an intermediate version. A durable write moves its own sectors only.
//!
//! Invariants: a flush that returns without an error has moved every version that was written before it began, unless a
//! later version of the sector is in the file. A flush during which power was lost fails. Files that were opened before a
//! loss of power give EIO, so a program that outlives its disk changes nothing. Above the limit sectors are written through
//! in the order of their addresses. One lock, held during accesses to the backing file.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Bound, Range};
use std::os::unix::fs::FileExt;
use terrace_runtime::sync::Mutex;

/// Bytes that a disk writes as one.
pub(crate) const SECTOR: u64 = 512;
/// Bytes of versions in memory, above which sectors are written through.
pub(crate) const LIMIT_BYTES: u64 = 256 << 20;
/// The largest write to the backing file.
const RUN_BYTES: usize = 1 << 20;

/// The content of a sector after a write.
struct Version {
    write: u64,
    bytes: Box<[u8; SECTOR as usize]>,
}

/// A moment of the cache: the writes before it, and how often power was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    write: u64,
    losses: u64,
}

/// The outcome of a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// The number of the loss, from 1.
    pub number: u64,
    /// Sectors with unflushed writes.
    pub unflushed: u64,
    /// Sectors that lost all of them.
    pub lost: u64,
    /// Sectors that lost only the last ones of several.
    pub intermediate: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "power lost, {}: of {} unflushed sectors {} keep the old content, {} an intermediate one",
            self.number, self.unflushed, self.lost, self.intermediate
        )
    }
}

struct State {
    /// Versions of each sector that the backing file does not have, oldest first; never an empty list.
    sectors: BTreeMap<u64, Vec<Version>>,
    versions: u64,
    writes: u64,
    losses: u64,
    random: u64,
    /// Where writing through goes on.
    hand: u64,
}

/// The cache over its backing file.
pub(crate) struct WriteCache {
    file: File,
    size_bytes: u64,
    limit_versions: u64,
    state: Mutex<State>,
}

/// Sectors side by side on their way to the backing file.
#[derive(Default)]
struct SectorRun {
    first: u64,
    bytes: Vec<u8>,
}

impl SectorRun {
    fn takes(&self, sector: u64) -> bool {
        let sectors = self.bytes.len() as u64 / SECTOR;
        sectors == 0 || (self.first + sectors == sector && self.bytes.len() < RUN_BYTES)
    }

    fn add(&mut self, sector: u64, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.first = sector;
        }
        self.bytes.extend_from_slice(bytes);
    }
}

/// The sectors that hold some bytes.
pub(crate) fn sectors_of(offset: u64, length: usize) -> Range<u64> {
    offset / SECTOR..(offset + length as u64).div_ceil(SECTOR)
}

impl WriteCache {
    /// A cache over a file of `size_bytes`. The seed decides what losses of power leave.
    pub(crate) fn new(file: File, size_bytes: u64, limit_bytes: u64, seed: u64) -> WriteCache {
        let sectors = BTreeMap::new();
        let state = State { sectors, versions: 0, writes: 0, losses: 0, random: seed, hand: 0 };
        WriteCache { file, size_bytes, limit_versions: limit_bytes / SECTOR, state: Mutex::new(state) }
    }

    /// The number of losses so far: the handle of a file that is opened now.
    pub(crate) fn losses(&self) -> u64 {
        self.state.lock().losses
    }

    /// Writes through a file with this handle; the bytes lie inside the device.
    pub(crate) fn write(&self, handle: u64, offset: u64, data: &[u8]) -> io::Result<Mark> {
        let inside = offset.checked_add(data.len() as u64).is_some_and(|end| end <= self.size_bytes);
        assert!(inside, "a write past the end of the device");
        let mut state = self.state.lock();
        state.admit(handle)?;
        state.writes += 1;
        let mut done = 0;
        for sector in sectors_of(offset, data.len()) {
            let from = (offset + done as u64) % SECTOR;
            let count = (data.len() - done).min((SECTOR - from) as usize);
            let mut bytes = Box::new([0; SECTOR as usize]);
            if count < bytes.len() {
                self.read_sectors(&state, sector * SECTOR, &mut bytes[..self.length_of(sector)])?;
            }
            bytes[from as usize..from as usize + count].copy_from_slice(&data[done..done + count]);
            state.add(sector, bytes);
            done += count;
        }
        let mark = state.mark();
        while state.versions > self.limit_versions {
            self.write_through(&mut state)?;
        }
        Ok(mark)
    }

    /// Reads through a file with this handle; the bytes lie inside the device.
    pub(crate) fn read(&self, handle: u64, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        state.admit(handle)?;
        self.read_sectors(&state, offset, data)
    }

    fn read_sectors(&self, state: &State, offset: u64, data: &mut [u8]) -> io::Result<()> {
        // A backing file that was cut off gives an error, not zeros.
        self.file.read_exact_at(data, offset)?;
        for (sector, versions) in state.sectors.range(sectors_of(offset, data.len())) {
            let Some(newest) = versions.last() else { continue };
            let start = sector * SECTOR;
            let (from, to) = (start.max(offset), (start + SECTOR).min(offset + data.len() as u64));
            data[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&newest.bytes[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    /// The moment at which a flush through a file with this handle begins.
    pub(crate) fn begin_flush(&self, handle: u64) -> io::Result<Mark> {
        let state = self.state.lock();
        state.admit(handle)?;
        Ok(state.mark())
    }

    /// Moves everything that was written up to a moment to the backing file.
    pub(crate) fn flush(&self, mark: Mark) -> io::Result<()> {
        self.flush_sectors(mark, 0..u64::MAX)
    }

    /// The same for some sectors.
    pub(crate) fn flush_sectors(&self, mark: Mark, sectors: Range<u64>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.admit(mark.losses)?;
        self.settle(&mut state, sectors, mark.write)
    }

    /// Discards whole sectors by `discard`, which changes the backing file.
    pub(crate) fn discard(
        &self,
        (offset, length): (u64, u64),
        discard: impl FnOnce(&File) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        // Bytes beside the range in the first and the last sector have to stay.
        let end = offset + length;
        let inside = offset.div_ceil(SECTOR)..(end / SECTOR).max(offset.div_ceil(SECTOR));
        for edge in [offset / SECTOR, end / SECTOR] {
            let settled = self.settle(&mut state, edge..edge + 1, u64::MAX);
            settled.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        discard(&self.file)?;
        let sectors: Vec<u64> = state.sectors.range(inside).map(|(sector, _)| *sector).collect();
        for sector in sectors {
            state.forget(sector, u64::MAX);
        }
        Ok(())
    }

    /// Drops a random subset of the sectors that no flush has covered; the others go to the backing file.
    pub(crate) fn lose_power(&self) -> io::Result<Loss> {
        let mut state = self.state.lock();
        state.losses += 1;
        let mut loss =
            Loss { number: state.losses, unflushed: state.sectors.len() as u64, lost: 0, intermediate: 0 };
        // From nothing to everything: near both ends lie states that even chances never show.
        let eighths = state.below(9);
        let sectors = std::mem::take(&mut state.sectors);
        let versions: u64 = sectors.values().map(|versions| versions.len() as u64).sum();
        assert_eq!(versions, std::mem::take(&mut state.versions), "versions are not counted");
        let mut run = SectorRun::default();
        for (sector, versions) in sectors {
            if state.below(8) >= eighths {
                loss.lost += 1;
                continue;
            }
            let newest = versions.len() - 1;
            let kept = if state.below(2) == 0 { newest } else { state.below(versions.len() as u64) as usize };
            loss.intermediate += u64::from(kept < newest);
            self.extend(&mut run, sector, &versions[kept])?;
        }
        self.store(&mut run)?;
        Ok(loss)
    }

    fn length_of(&self, sector: u64) -> usize {
        (self.size_bytes - sector * SECTOR).min(SECTOR) as usize
    }

    /// Adds a sector to a run; stores the run first where they do not fit together.
    fn extend(&self, run: &mut SectorRun, sector: u64, version: &Version) -> io::Result<()> {
        if !run.takes(sector) {
            self.store(run)?;
        }
        run.add(sector, &version.bytes[..self.length_of(sector)]);
        Ok(())
    }

    fn store(&self, run: &mut SectorRun) -> io::Result<()> {
        self.file.write_all_at(&run.bytes, run.first * SECTOR)?;
        run.bytes.clear();
        Ok(())
    }

    /// Moves versions up to a write to the backing file.
    fn settle(&self, state: &mut State, sectors: Range<u64>, write: u64) -> io::Result<()> {
        let (mut run, mut moved) = (SectorRun::default(), Vec::new());
        for (sector, versions) in state.sectors.range(sectors) {
            if let Some(version) = versions.iter().rev().find(|version| version.write <= write) {
                self.extend(&mut run, *sector, version)?;
                moved.push(*sector);
            }
        }
        self.store(&mut run)?;
        for sector in moved {
            state.forget(sector, write);
        }
        Ok(())
    }

    /// Writes some sectors through, from where the last call ended.
    fn write_through(&self, state: &mut State) -> io::Result<()> {
        const SECTORS: usize = RUN_BYTES / SECTOR as usize;
        let first = state.hand;
        let rest = state.sectors.range((Bound::Included(first), Bound::Unbounded));
        state.hand = rest.map(|(sector, _)| *sector).nth(SECTORS).unwrap_or(0);
        let end = if state.hand == 0 { u64::MAX } else { state.hand };
        self.settle(state, first..end, u64::MAX)
    }
}

impl State {
    fn admit(&self, handle: u64) -> io::Result<()> {
        if handle == self.losses { Ok(()) } else { Err(Errno::IO.into()) }
    }

    fn mark(&self) -> Mark {
        Mark { write: self.writes, losses: self.losses }
    }

    fn add(&mut self, sector: u64, bytes: Box<[u8; SECTOR as usize]>) {
        self.versions += 1;
        let versions = self.sectors.entry(sector).or_default();
        let is_later = versions.last().is_none_or(|last| last.write < self.writes);
        assert!(is_later, "versions out of order");
        versions.push(Version { write: self.writes, bytes });
    }

    /// Forgets versions of a sector up to a write.
    fn forget(&mut self, sector: u64, write: u64) {
        let Some(versions) = self.sectors.get_mut(&sector) else { return };
        let before = versions.len();
        assert!(before > 0, "a sector without a version");
        versions.retain(|version| version.write > write);
        self.versions -= (before - versions.len()) as u64;
        if versions.is_empty() {
            self.sectors.remove(&sector);
        }
    }

    /// A random number below another (splitmix64).
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

#[cfg(test)]
mod tests;
