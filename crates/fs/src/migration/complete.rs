//! Completing partial shadows: before a block that holds some lines only leaves PM, the others are read from its cold
//! copy (design 11), whose checksum is verified. Usually the two are merged on their way down; where the lower tier
//! has no room beside the old copy, or the block is wanted in PM, the lines are put into PM and the block is full.
//!
//! Location and pin of the cold copy are taken under the inode's shared lock, the read holds none (S6, S7). That the
//! cold copy is still the block's needs no version of its own: it changes only in transactions that end the PM block
//! or its version, and that is compared by the commit. A failed read keeps the block where it is, readable as before.

use super::between::MOST_BAD;
use super::commit::demoting;
use super::copy::Candidate;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Need, SMALL_RECORD};
use crate::slot::Inode;
use crate::write::Staged;
use std::collections::HashMap;
use std::sync::Arc;
use terrace_format::checksum::crc32c;
use terrace_format::{BLOCK_SIZE, Corrupt, FileBlock, LineMask};
use terrace_map::Mapping;
use terrace_media::block::Buffer;
use terrace_wal::{Error, Reservation};

/// How long after its last change a file counts as being written.
const WRITE_HOT_NS: i64 = 30_000_000_000;
/// Last blocks of such files may stay while so many times as much is free as makes writers wait: half of PM.
const ROOM_FOR_TAILS: u64 = 8;

/// The content of a cold copy.
pub(super) struct Below {
    buffer: Arc<Buffer>,
    index: usize,
}

impl Below {
    fn bytes(&self) -> &[u8] {
        self.buffer.get(self.index).map_or(&[], |block| &block.0)
    }
}

impl Fs {
    /// Whether a block is the partly filled last one of a file that is open or was written a moment ago: it stays in
    /// PM, where the next append finds it, unless PM is to be emptied or is short. Those of closed files stay while half
    /// of PM is free, then go in the order of all victims, which spares what was just written. Where small files are made
    /// by the thousand they filled PM: writers waited, and migration looked at what stayed again and again.
    pub(super) fn is_tail_in_use(&self, inode: &Inode, block: FileBlock) -> bool {
        let size = inode.durable_size();
        if size.is_multiple_of(BLOCK_SIZE) || block.0 != size / BLOCK_SIZE {
            return false;
        }
        let (free, low) = (self.blocks.free_hint(), self.pressure.throttle_below());
        if self.pressure.is_draining() || self.pressure.is_pressed() || free < low {
            return false;
        }
        let age_ns = self.clock.wall_coarse_ns().saturating_sub(inode.slot.mtime.get());
        let is_hot = free >= low.saturating_mul(ROOM_FOR_TAILS) && (0..WRITE_HOT_NS).contains(&age_ns);
        is_hot || self.references.is_open(inode.ino)
    }

    /// Reads what partial candidates lack. Those for which that fails are left out: they stay where they are.
    pub(super) fn complete<'a>(
        &'a self,
        candidates: Vec<Candidate<'a>>,
        trouble: &mut Option<FsError>,
    ) -> Vec<Candidate<'a>> {
        if candidates.iter().all(|candidate| candidate.lines.is_full()) {
            return candidates;
        }
        let mut done = Vec::with_capacity(candidates.len());
        let mut rest = candidates.into_iter().peekable();
        while let Some(first) = rest.peek() {
            let ino = first.ino;
            let mut of_inode = Vec::new();
            while let Some(candidate) = rest.next_if(|candidate| candidate.ino == ino) {
                of_inode.push(candidate);
            }
            let (mut found, failed) = self.read_below(&of_inode);
            for mut candidate in of_inode {
                if !candidate.lines.is_full() {
                    candidate.below = found.remove(&candidate.block);
                }
                if candidate.lines.is_full() || candidate.below.is_some() {
                    done.push(candidate);
                } else {
                    self.refuse(candidate.pm);
                }
            }
            if let Some(error) = failed {
                trouble.get_or_insert(error);
            }
        }
        done
    }

    /// The cold copies under the partial ones of some candidates of one inode, as far as they can be read, and why
    /// others cannot.
    fn read_below(&self, candidates: &[Candidate<'_>]) -> (HashMap<FileBlock, Below>, Option<FsError>) {
        let (mut op, mut provided) = (demoting(), 0);
        loop {
            let read = self.try_read_below(candidates);
            match &read.1 {
                // The extents themselves lie below.
                Some(FsError::Engine(Error::PageBelow(page)))
                    if self.provide(&mut op, Need::MetadataPage(page.clone()), &mut provided).is_ok() => {}
                _ => return read,
            }
        }
    }

    fn try_read_below(&self, candidates: &[Candidate<'_>]) -> (HashMap<FileBlock, Below>, Option<FsError>) {
        let (mut found, mut failed) = (HashMap::new(), None);
        let partial = candidates.iter().filter(|candidate| !candidate.lines.is_full());
        let Some(first) = candidates.first() else { return (found, None) };
        let ino = first.ino;
        let mut reads = {
            let _guard = self.locks.read(first.ino);
            let inode = match self.load(first.ino) {
                Ok(inode) if inode.slot.generation.get() == first.generation => inode,
                // It is gone, and so are they.
                Ok(_) | Err(FsError::Stale) => return (found, None),
                Err(error) => return (found, Some(error)),
            };
            let mut extents = Vec::new();
            // What is another block by now may have nothing below.
            let same = partial.filter(|c| self.blocks.descriptor(c.pm).version() == c.version);
            for candidate in same {
                match self.extent_below(&inode, candidate.block) {
                    Ok(extent) => extents.push(extent),
                    Err(error) => failed = Some(error),
                }
            }
            self.devices.plan_reads(extents)
        };
        let mut failures = 0;
        while let Some(read) = reads.pop() {
            let buffer = match self.pressure.permits().away(|| read.read()) {
                Ok(buffer) => Arc::new(buffer),
                // A sector that cannot be read holds back no other.
                Err(_) if read.blocks.len() > 1 && failures < MOST_BAD => {
                    reads.extend((0..read.blocks.len()).filter_map(|index| read.part(index..index + 1)));
                    continue;
                }
                Err(error) => {
                    failures += 1;
                    failed = Some(error.into());
                    continue;
                }
            };
            for (index, (block, crc)) in read.blocks.iter().enumerate() {
                let below = Below { buffer: Arc::clone(&buffer), index };
                let computed = crc32c(below.bytes());
                if computed == *crc {
                    found.insert(*block, below);
                    continue;
                }
                let place = read.start.plus(index as u64);
                self.devices.note_damage(read.device, place, format_args!("inode {ino} file block {block}"));
                let site = format!("{} block {place}", read.name());
                failed = Some(Corrupt::new(site, format!("CRC {crc:#x}"), format!("{computed:#x}")).into());
            }
        }
        (found, failed)
    }

    /// Copies what a candidate is to be below: its lines, what it lacks from the cold copy, zeros past the end.
    pub(super) fn copy_content(&self, candidate: &Candidate<'_>, target: &mut [u8]) -> FsResult<()> {
        match &candidate.below {
            None => self.copy_verified(candidate, target)?,
            Some(below) => {
                target.copy_from_slice(below.bytes());
                self.read_lines(candidate.pm, candidate.lines, target)?;
            }
        }
        target.get_mut(candidate.valid..).unwrap_or(&mut []).fill(0);
        Ok(())
    }

    /// Copies a whole candidate. Its writers go on meanwhile: a checksum that does not match is that of other content unless
    /// it is the same under the lock.
    fn copy_verified(&self, candidate: &Candidate<'_>, target: &mut [u8]) -> FsResult<()> {
        self.pm.read(candidate.pm.offset(), target)?;
        if !self.has_checksums || candidate.unwritten || self.matches(candidate.pm, target)? {
            return Ok(());
        }
        let _guard = self.locks.read(candidate.ino);
        if self.blocks.descriptor(candidate.pm).version() == candidate.version {
            self.read_verified(candidate.pm, target)?;
        }
        // Else nobody installs it.
        Ok(())
    }

    /// Makes room below for candidates when there is none: the cold copies that they hide are given up, those of
    /// partial ones after their other lines were put into PM. Returns how many device blocks became free.
    pub(super) fn free_below(&self, candidates: &mut [Candidate<'_>]) -> FsResult<u64> {
        self.complete_in_pm(candidates)?;
        self.drop_shadowed(candidates)
    }

    /// Puts the lines that partial candidates lack into PM.
    pub(super) fn complete_in_pm(&self, candidates: &mut [Candidate<'_>]) -> FsResult<()> {
        for candidate in candidates.iter_mut().filter(|candidate| candidate.below.is_some()) {
            match self.complete_here(candidate) {
                Err(error) if error.concerns_one_file() && !self.concerns_all_files(&error) => {
                    self.hold_back(std::slice::from_ref(candidate), &error);
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Puts the lines that a candidate lacks into PM, unless it has changed.
    fn complete_here(&self, candidate: &mut Candidate<'_>) -> FsResult<()> {
        let mut op = demoting();
        let version = self.run(&mut op, SMALL_RECORD, |reservation, _| {
            let _guard = self.locks.write(candidate.ino);
            let Some(inode) = self.load_same(candidate)? else { return Ok(None) };
            if self.unchanged(&inode, std::iter::once(&*candidate))?.contains(&false) {
                return Ok(None);
            }
            let Some(below) = &candidate.below else { return Ok(None) };
            let place = (candidate.block, candidate.pm);
            self.commit_completion(reservation, &inode, place, candidate.lines, below.bytes())?;
            Ok(Some(self.blocks.descriptor(candidate.pm).version()))
        })?;
        if let Some(version) = version {
            (candidate.version, candidate.lines, candidate.below) = (version, LineMask::FULL, None);
        }
        Ok(())
    }

    /// Promotion of a block that PM has some lines of: it gets the others. The caller holds the inode's exclusive
    /// lock; `below` is the present content of the cold copy.
    pub(super) fn promote_rest(
        &self,
        reservation: Reservation<'_>,
        inode: &Inode,
        block: FileBlock,
        mapping: Mapping,
        below: &[u8],
    ) -> Attempt<bool> {
        let lines = self.lines_of(inode.ino, block, mapping)?;
        if lines.is_full() {
            return Ok(false);
        }
        self.commit_completion(reservation, inode, (block, mapping.block), lines, below)?;
        Ok(true)
    }

    fn commit_completion(
        &self,
        reservation: Reservation<'_>,
        inode: &Inode,
        place: (FileBlock, terrace_format::PmBlock),
        lines: LineMask,
        below: &[u8],
    ) -> Attempt<()> {
        let mut staged = Staged::new(self, None, false);
        self.stage_completion(inode, place, lines, below, &mut staged)?;
        staged.commit(reservation)?;
        Ok(())
    }
}
