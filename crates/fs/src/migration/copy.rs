//! Copying a group: victims pinned with their versions, one sequential write per device run, a flush.

use super::plan::Victim;
use super::{Migration, WORKERS};
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use std::sync::atomic::Ordering;
use terrace_catalog::DeviceRun;
use terrace_format::checksum::crc32c;
use terrace_format::device::{SUMMARY_ENTRIES, SummaryEntry, encode_summary};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_media::block::{AlignedBlock, Buffer};
use terrace_wal::{Error, NoSpace};

/// Runs shorter than this get no summary: small hole fills (design 4.5).
const SUMMARY_FROM: usize = 8;

/// Blocks copied through DRAM at once: large enough for the device, small enough to keep.
const SLICE: usize = 512;

/// Summary blocks of a run.
fn summaries(blocks: usize) -> usize {
    if blocks < SUMMARY_FROM { 0 } else { blocks.div_ceil(SUMMARY_ENTRIES) }
}

impl Migration {
    fn take_buffer(&self) -> Buffer {
        self.buffers.lock().pop().unwrap_or_else(|| vec![AlignedBlock::zeroed(); SLICE])
    }

    fn put_buffer(&self, buffer: Buffer) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < WORKERS {
            buffers.push(buffer);
        }
    }
}

/// A victim that was looked at under its inode's lock. Pinned until it was copied or is dropped.
pub(super) struct Candidate<'a> {
    fs: &'a Fs,
    pub ino: Ino,
    pub generation: u32,
    pub block: FileBlock,
    pub pm: PmBlock,
    pub version: u64,
    /// The cold copy is still good: nothing need be written.
    pub clean: bool,
    pinned: bool,
}

impl Candidate<'_> {
    /// Lets the block be reused once it is freed: its content was copied.
    fn unpin(&mut self) {
        if std::mem::take(&mut self.pinned) {
            self.fs.blocks.descriptor(self.pm).unpin();
        }
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        self.unpin();
    }
}

/// A candidate with its place on a device and the checksum of what was written there.
pub(super) struct Copied<'a> {
    pub candidate: Candidate<'a>,
    pub place: DeviceRun,
    pub crc: u32,
}

impl Fs {
    /// Demotes a group. Returns how many PM blocks it freed.
    pub(super) fn demote(&self, victims: Vec<Victim>) -> FsResult<u64> {
        let candidates = self.look_at(&victims)?;
        let (clean, dirty): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.clean);
        let mut freed = self.evict_clean(clean)?;
        let mut rest = dirty;
        while !rest.is_empty() {
            let (copied, left) = self.write_run(rest)?;
            freed += self.install(copied)?;
            rest = left;
        }
        Ok(freed)
    }

    /// Takes location, version and pin of each victim together under its inode's shared lock (S6, S7).
    /// Victims that moved, vanished or lie under an intent are left out.
    fn look_at(&self, victims: &[Victim]) -> FsResult<Vec<Candidate<'_>>> {
        let mut candidates = Vec::with_capacity(victims.len());
        for group in victims.chunk_by(|a, b| a.ino == b.ino) {
            let ino = group[0].ino;
            let _guard = self.locks.read(ino);
            let Ok(inode) = self.load(ino) else { continue };
            let intents = self.intents_of(&inode)?;
            for victim in group {
                let gone = intents.iter().any(|r| r.first <= victim.block && victim.block < r.end);
                let mapping = self.map.lookup(None, &inode.map(), victim.block)?;
                if gone || mapping.is_none_or(|m| m.block != victim.pm || m.unwritten) {
                    continue;
                }
                let descriptor = self.blocks.descriptor(victim.pm);
                descriptor.pin();
                candidates.push(Candidate {
                    fs: self,
                    ino,
                    generation: inode.slot.generation.get(),
                    block: victim.block,
                    pm: victim.pm,
                    version: descriptor.version(),
                    clean: descriptor.is_clean(),
                    pinned: true,
                });
            }
        }
        Ok(candidates)
    }

    /// Writes as many candidates as one device run takes, with summaries, and flushes the device (M1).
    /// Returns what was written and what is left.
    fn write_run<'a>(
        &'a self,
        mut candidates: Vec<Candidate<'a>>,
    ) -> FsResult<(Vec<Copied<'a>>, Vec<Candidate<'a>>)> {
        let wanted = candidates.len();
        let blocks = (wanted + summaries(wanted)) as u64;
        let run = match self.allocate(blocks) {
            Err(FsError::Engine(Error::NoSpace(_))) if self.drop_shadowed(&candidates)? > 0 => {
                self.allocate(blocks)?
            }
            other => other?,
        };
        let mut data = (run.length as usize).min(wanted);
        while data + summaries(data) > run.length as usize {
            data -= 1;
        }
        let left = candidates.split_off(data);
        let mut crcs = Vec::with_capacity(data);
        let mut buffer = self.migration.take_buffer();
        let written = self.write_blocks(&mut candidates, run, &mut buffer, &mut crcs);
        self.migration.put_buffer(buffer);
        // The summary blocks are hints in space that counts as free; see docs/format.md.
        let spare = DeviceRun { start: run.start.plus(data as u64), length: run.length - data as u64, ..run };
        if spare.length > 0 {
            self.devices.space.release_claim(spare);
        }
        if let Err(error) = written {
            self.devices.space.release_claim(DeviceRun { length: data as u64, ..run });
            return Err(error);
        }
        self.migration.demoted_blocks.fetch_add(data as u64, Ordering::Relaxed);
        let copied = candidates.into_iter().zip(crcs).enumerate().map(|(index, (candidate, crc))| Copied {
            candidate,
            place: DeviceRun { device: run.device, start: run.start.plus(index as u64), length: 1 },
            crc,
        });
        Ok((copied.collect(), left))
    }

    /// Copies the blocks to the device through a small buffer, then the summaries, then flushes.
    fn write_blocks(
        &self,
        candidates: &mut [Candidate<'_>],
        run: DeviceRun,
        buffer: &mut Buffer,
        crcs: &mut Vec<u32>,
    ) -> FsResult<()> {
        let device = self.devices.device(run.device)?;
        let (medium, failed_before) = (&device.medium, device.failed_flushes());
        let lsn = self.wal.next_lsn();
        let mut entries = Vec::with_capacity(candidates.len());
        let mut at = run.start;
        for slice in candidates.chunks_mut(SLICE) {
            let part = buffer.get_mut(..slice.len()).unwrap_or(&mut []);
            for (candidate, target) in slice.iter_mut().zip(part.iter_mut()) {
                self.pm.read(candidate.pm.offset(), &mut target.0)?;
                candidate.unpin();
                let crc = crc32c(&target.0);
                crcs.push(crc);
                let Candidate { ino, generation, block, .. } = *candidate;
                entries.push(SummaryEntry { ino, generation, block, crc, lsn });
            }
            medium.write(at, part)?;
            at = at.plus(part.len() as u64);
        }
        if summaries(entries.len()) > 0 {
            let mut first = run.start;
            for (part, target) in entries.chunks(SUMMARY_ENTRIES).zip(buffer.iter_mut()) {
                target.0.copy_from_slice(&encode_summary(self.wal.pool_uuid(), first, part));
                first = first.plus(part.len() as u64);
            }
            medium.write(at, buffer.get(..summaries(entries.len())).unwrap_or(&[]))?;
        }
        Ok(device.flush(failed_before)?)
    }

    /// Space for a group on the fastest lower tier that has any.
    pub(crate) fn allocate(&self, blocks: u64) -> FsResult<DeviceRun> {
        for tier in self.devices.tiers() {
            let devices = self.devices.of_tier(tier);
            if let Some(run) = self.devices.space.allocate(&devices, blocks)? {
                return Ok(run);
            }
        }
        Err(NoSpace::Tier.into())
    }
}
