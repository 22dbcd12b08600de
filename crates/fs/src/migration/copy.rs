//! Copying a group: victims pinned with their versions, one sequential write per device run, a flush.

use super::plan::Victim;
use crate::errno::FsResult;
use crate::fs::Fs;
use std::sync::atomic::Ordering;
use terrace_catalog::DeviceRun;
use terrace_format::checksum::crc32c;
use terrace_format::device::{SUMMARY_ENTRIES, SummaryEntry, encode_summary};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_media::block::AlignedBlock;
use terrace_wal::NoSpace;

/// Runs shorter than this get no summary: small hole fills (design 4.5).
const SUMMARY_FROM: usize = 8;

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
        let summaries = |blocks: usize| {
            if blocks < SUMMARY_FROM { 0 } else { blocks.div_ceil(SUMMARY_ENTRIES) }
        };
        let run = self.allocate((wanted + summaries(wanted)) as u64)?;
        let mut data = (run.length as usize).min(wanted);
        while data + summaries(data) > run.length as usize {
            data -= 1;
        }
        let left = candidates.split_off(data);
        let mut buffer = vec![AlignedBlock::zeroed(); data + summaries(data)];
        let mut crcs = Vec::with_capacity(data);
        let filled = self.fill(&candidates, run, &mut buffer, &mut crcs);
        candidates.iter_mut().for_each(Candidate::unpin);
        let written = filled.and_then(|()| {
            let medium = self.devices.medium(run.device)?;
            medium.write(run.start, &buffer)?;
            Ok(medium.flush()?)
        });
        // The summary blocks are hints in space that counts as free; see docs/format.md.
        let spare = DeviceRun { start: run.start.plus(data as u64), length: run.length - data as u64, ..run };
        self.devices.space.release_claim(spare);
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

    fn fill(
        &self,
        candidates: &[Candidate<'_>],
        run: DeviceRun,
        buffer: &mut [AlignedBlock],
        crcs: &mut Vec<u32>,
    ) -> FsResult<()> {
        let mut entries = Vec::with_capacity(candidates.len());
        let lsn = self.wal.next_lsn();
        let (data, summaries) = buffer.split_at_mut(candidates.len());
        for (candidate, target) in candidates.iter().zip(data) {
            self.pm.read(candidate.pm.offset(), &mut target.0)?;
            let crc = crc32c(&target.0);
            crcs.push(crc);
            entries.push(SummaryEntry {
                ino: candidate.ino,
                generation: candidate.generation,
                block: candidate.block,
                crc,
                lsn,
            });
        }
        for (index, target) in summaries.iter_mut().enumerate() {
            let first = index * SUMMARY_ENTRIES;
            let part = &entries[first..entries.len().min(first + SUMMARY_ENTRIES)];
            let block = encode_summary(self.wal.pool_uuid(), run.start.plus(first as u64), part);
            target.0.copy_from_slice(&block);
        }
        Ok(())
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
