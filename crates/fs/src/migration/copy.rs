//! Copying a group: victims pinned with their versions, written as one device run, or where the device has no hole of that
//! size as few runs in flight together; one flush for all.

use super::Destination;
use super::complete::Below;
use super::plan::{LEAVING, Victim};
use super::turns::Turns;
use crate::courtesy::{Courtesy, LEAST_PIECE};
use crate::device::Device;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::slot::Inode;
use crate::types::BlockRange;
use terrace_catalog::DeviceRun;
use terrace_format::checksum::crc32c;
use terrace_format::device::{SUMMARY_ENTRIES, SummaryEntry, encode_summary};
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Ino, LineMask, PmBlock, TierId};
use terrace_map::Mapping;
use terrace_media::block::{AlignedBlock, Buffer, Run};
use terrace_media::{BlockMedium, MediaError};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{Clock, pause};
use terrace_wal::{Error, NoSpace};

/// Runs shorter than this get no summary: small hole fills (design 4.5), which it would make longer by more than a 12th.
const SUMMARY_FROM: usize = 12;

/// Summary blocks of a run.
pub(crate) fn summaries(blocks: usize) -> usize {
    if blocks < SUMMARY_FROM { 0 } else { blocks.div_ceil(SUMMARY_ENTRIES) }
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
    /// Allocated and never written: only its place moves.
    pub unwritten: bool,
    /// The lines that the PM block holds; for the others [`super::complete`] reads the cold copy.
    pub lines: LineMask,
    pub below: Option<Below>,
    /// Bytes of it before the end of the file; behind them zeros are written.
    pub valid: usize,
    /// Why its content cannot be read. Such a block stays where it is.
    pub lost: Option<FsError>,
    /// The tier that its file is pinned to.
    pub kept_on: Option<u8>,
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

fn places_of(copied: &[Copied<'_>]) -> Vec<(PmBlock, DeviceRun)> {
    let due = |candidate: &Candidate<'_>| !candidate.unwritten && candidate.lost.is_none();
    let written = copied.iter().filter(|copied| due(&copied.candidate));
    written.map(|copied| (copied.candidate.pm, copied.place)).collect()
}

/// A run on a device and how many blocks of a group it takes. Their summaries lie before them: behind them the next group
/// would begin in what counts as free, and overwrite them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub run: DeviceRun,
    pub data: usize,
    hints: usize,
}

impl Part {
    /// Cuts runs into blocks and summaries, as far as `left` blocks need them. `unwritten` ones have none.
    pub fn of(runs: Vec<DeviceRun>, left: &mut usize, unwritten: bool) -> impl Iterator<Item = Part> {
        let summaries = move |data| if unwritten { 0 } else { summaries(data) };
        runs.into_iter().map(move |run| {
            let mut data = (run.length as usize).min(*left);
            while data + summaries(data) > run.length as usize {
                data -= 1;
            }
            *left -= data;
            Part { run, data, hints: summaries(data) }
        })
    }

    /// A run whose blocks are written over, without a summary.
    pub fn over(run: DeviceRun) -> Part {
        Part { run, data: run.length as usize, hints: 0 }
    }

    /// The first of its blocks' places.
    fn first(self) -> DeviceBlock {
        self.run.start.plus(self.hints as u64)
    }

    /// What counts as free of it once it is written; all of it after a failure.
    pub fn free_of(self, is_written: bool) -> impl Iterator<Item = DeviceRun> {
        let (run, used) = (self.run, (self.hints + self.data) as u64);
        let before = DeviceRun { length: self.hints as u64, ..run };
        let behind = DeviceRun { start: run.start.plus(used), length: run.length - used, ..run };
        let free = if is_written { [before, behind] } else { [run, DeviceRun { length: 0, ..run }] };
        free.into_iter().filter(|free| free.length > 0)
    }

    /// The place of each of its blocks.
    pub fn places(self) -> impl Iterator<Item = DeviceRun> {
        (0..self.data as u64).map(move |at| DeviceRun { start: self.first().plus(at), length: 1, ..self.run })
    }
}

/// Blocks on their way to a device through a small buffer.
struct Outbox<'a> {
    medium: &'a dyn BlockMedium,
    courtesy: Option<&'a Courtesy>,
    clock: &'a dyn Clock,
    turns: &'a Turns,
    buffer: &'a mut Buffer,
    used: usize,
    /// Where what is in the buffer goes, and how many blocks of it.
    runs: Vec<(DeviceBlock, usize)>,
}

impl Outbox<'_> {
    /// Room for at most `count` blocks that go to `at`: at least one.
    fn room(&mut self, at: DeviceBlock, count: usize) -> Result<&mut [AlignedBlock], MediaError> {
        if self.used == self.buffer.len() {
            self.send()?;
        }
        let count = count.min(self.buffer.len() - self.used);
        match self.runs.last_mut() {
            Some((start, length)) if start.plus(*length as u64) == at => *length += count,
            _ => self.runs.push((at, count)),
        }
        let begin = self.used;
        self.used += count;
        Ok(self.buffer.get_mut(begin..self.used).unwrap_or(&mut []))
    }

    /// Writes what is in the buffer.
    fn send(&mut self) -> Result<(), MediaError> {
        let mut rest = self.buffer.as_slice();
        let mut cut = |(at, count): (DeviceBlock, usize)| {
            let (part, tail) = rest.split_at(count);
            rest = tail;
            (at, part)
        };
        let runs: Vec<Run<'_>> = self.runs.drain(..).map(&mut cut).collect();
        self.used = 0;
        if runs.is_empty() || planted(Mistake::ExtentBeforeData) {
            return Ok(());
        }
        self.turns.away(|| self.write_politely(runs))
    }

    /// All at once, or while the device is being read in pieces one after the other.
    fn write_politely(&self, mut runs: Vec<Run<'_>>) -> Result<(), MediaError> {
        let Some(courtesy) = self.courtesy else { return self.medium.write_runs(&runs) };
        runs.reverse();
        let mut now_ns = self.clock.monotonic_ns();
        while let Some(piece) = courtesy.piece(now_ns).filter(|_| !runs.is_empty()) {
            let Some((at, blocks)) = runs.pop() else { break };
            let (now, later) = blocks.split_at(piece.min(blocks.len()));
            if !later.is_empty() {
                runs.push((at.plus(now.len() as u64), later));
            }
            self.medium.write(at, now)?;
            let begin_ns = std::mem::replace(&mut now_ns, self.clock.monotonic_ns());
            courtesy.wrote_piece(now_ns.saturating_sub(begin_ns));
        }
        runs.reverse();
        if runs.is_empty() { Ok(()) } else { self.medium.write_runs(&runs) }
    }
}

/// Candidates by where they go, unwritten ones by themselves. What is pinned to a lower tier goes there if it may.
fn by_destination(candidates: Vec<Candidate<'_>>, to: Destination) -> Vec<(Destination, Vec<Candidate<'_>>)> {
    let mut lists: Vec<((Destination, bool), Vec<Candidate<'_>>)> = Vec::new();
    for candidate in candidates {
        let to = match candidate.kept_on {
            Some(tier) if tier > 0 && to == Destination::Any => Destination::Rather(TierId(tier)),
            _ => to,
        };
        let key = (to, candidate.unwritten);
        match lists.iter_mut().find(|(found, _)| *found == key) {
            Some((_, list)) => list.push(candidate),
            None => lists.push((key, vec![candidate])),
        }
    }
    lists.into_iter().map(|((to, _), list)| (to, list)).collect()
}

impl Fs {
    /// Demotes a group. Returns how many PM blocks it freed. Damage of a file or of a PM block holds back
    /// only what it concerns (I8): it is an error only when nothing else could be moved.
    pub(super) fn demote(&self, victims: &[Victim]) -> FsResult<u64> {
        self.demote_to(victims, Destination::Any)
    }

    /// As [`Self::demote`], to where `to` says.
    pub(super) fn demote_to(&self, victims: &[Victim], to: Destination) -> FsResult<u64> {
        let mut trouble = None;
        let candidates = self.look_at(victims, &mut trouble);
        let (clean, dirty): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.clean);
        let (unwritten, dirty): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|c| c.unwritten);
        let dirty = self.complete(dirty, &mut trouble);
        let mut freed = self.evict_clean(clean, &mut trouble)?;
        let (in_place, dirty) = self.write_in_place(dirty, to, &mut trouble);
        freed += in_place;
        let rest = unwritten.into_iter().chain(dirty).collect();
        for (to, mut rest) in by_destination(rest, to) {
            while !rest.is_empty() {
                let (copied, left) = match self.write_run(rest, to) {
                    // What there was room for has left PM: the writer that waits for it goes on.
                    Err(FsError::Engine(Error::NoSpace(_))) if freed > 0 => return Ok(freed),
                    written => written?,
                };
                if let Some(lost) = copied.iter().find_map(|copied| copied.candidate.lost.as_ref()) {
                    trouble.get_or_insert_with(|| lost.clone());
                }
                let late = planted(Mistake::ExtentBeforeData).then(|| places_of(&copied));
                freed += self.install(copied, &mut trouble)?;
                if let Some(places) = late {
                    self.write_late(&places)?;
                }
                rest = left;
            }
        }
        match trouble {
            Some(error) if freed == 0 => Err(error),
            Some(error) => {
                tracing::debug!("some blocks cannot be demoted: {error}");
                Ok(freed)
            }
            None => Ok(freed),
        }
    }

    /// Makes a victim young, so that it does not keep the others from being picked.
    pub(super) fn refuse(&self, pm: PmBlock) {
        let young = self.tick.load(Ordering::Relaxed).saturating_add(1).min(LEAVING - 1);
        self.blocks.descriptor(pm).touch_written(young);
    }

    /// Takes location, version and pin of each victim together under its inode's shared lock (S6, S7).
    /// Victims that moved, vanished, lie under an intent or whose file is damaged are left out; they count as
    /// just used, so that many of them do not keep the others from being picked.
    pub(super) fn look_at(&self, victims: &[Victim], trouble: &mut Option<FsError>) -> Vec<Candidate<'_>> {
        let mut candidates = Vec::with_capacity(victims.len());
        for group in victims.chunk_by(|a, b| a.ino == b.ino) {
            let ino = group[0].ino;
            let _guard = self.locks.read(ino);
            let loaded = match self.load(ino) {
                Ok(inode) => self.intents_of(&inode).map(|intents| (inode, intents)),
                Err(error) => Err(error),
            };
            let (inode, intents) = match loaded {
                Ok(found) => found,
                Err(error) => {
                    // Intents below PM: what they are about leaves with them.
                    if !matches!(error, FsError::Stale | FsError::Engine(Error::PageBelow(_))) {
                        trouble.get_or_insert(error);
                    }
                    group.iter().for_each(|victim| self.refuse(victim.pm));
                    continue;
                }
            };
            let kept_on = self.pin_of(&inode).unwrap_or(None);
            for victim in group {
                let found = self.victim_lines(&inode, &intents, victim).unwrap_or_else(|error| {
                    trouble.get_or_insert(error);
                    None
                });
                let Some((mapping, lines)) = found else {
                    self.refuse(victim.pm);
                    continue;
                };
                if kept_on == Some(0) && self.keeps(victim.pm) {
                    self.refuse(victim.pm);
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
                    clean: lines.is_full() && self.is_clean(&inode, victim.block, victim.pm),
                    unwritten: mapping.unwritten,
                    lines,
                    below: None,
                    valid: inode.durable_size().saturating_sub(victim.block.0 * BLOCK_SIZE).min(BLOCK_SIZE)
                        as usize,
                    lost: None,
                    kept_on,
                    pinned: true,
                });
            }
        }
        candidates
    }

    /// A victim's mapping, and the lines that it holds, when it can leave now.
    fn victim_lines(
        &self,
        inode: &Inode,
        intents: &[BlockRange],
        victim: &Victim,
    ) -> FsResult<Option<(Mapping, LineMask)>> {
        let Some(mapping) = self.mapped_to(inode, intents, victim.block, victim.pm)? else {
            return Ok(None);
        };
        if self.is_tail_in_use(inode, victim.block) {
            return Ok(None);
        }
        Ok(Some((mapping, self.lines_of(inode.ino, victim.block, mapping)?)))
    }

    /// The mapping of a file block when it is this PM block and no intent has taken it away.
    pub(crate) fn mapped_to(
        &self,
        inode: &Inode,
        intents: &[BlockRange],
        block: FileBlock,
        pm: PmBlock,
    ) -> FsResult<Option<Mapping>> {
        if intents.iter().any(|range| range.first <= block && block < range.end) {
            return Ok(None);
        }
        let mapping = self.map.lookup(None, &inode.map(), block)?;
        Ok(mapping.filter(|mapping| mapping.block == pm))
    }

    /// Writes as many candidates as there is room for on one device, with summaries, and flushes it (M1). All
    /// or none of them are unwritten; those only get their places. Returns what was written and what is left.
    fn write_run<'a>(
        &'a self,
        mut candidates: Vec<Candidate<'a>>,
        to: Destination,
    ) -> FsResult<(Vec<Copied<'a>>, Vec<Candidate<'a>>)> {
        let wanted = candidates.len();
        let unwritten = candidates.iter().any(|candidate| candidate.unwritten);
        let parts = match self.parts_for(wanted, unwritten, to) {
            Err(FsError::Engine(Error::NoSpace(_))) if self.free_below(&mut candidates)? > 0 => {
                self.parts_for(wanted, unwritten, to)?
            }
            other => other?,
        };
        let left = candidates.split_off(parts.iter().map(|part| part.data).sum());
        let written = match unwritten {
            true => Ok(vec![0; candidates.len()]),
            false => self.write_blocks(&mut candidates, &parts),
        };
        let crcs = self.settle_parts(&parts, written)?;
        let places = parts.iter().flat_map(|part| part.places());
        let copied = candidates.into_iter().zip(crcs).zip(places);
        Ok((copied.map(|((candidate, crc), place)| Copied { candidate, place, crc }).collect(), left))
    }

    /// Space on one device for as many of `wanted` blocks as there is room for, with their summaries unless they are
    /// `unwritten`.
    pub(super) fn parts_for(&self, wanted: usize, unwritten: bool, to: Destination) -> FsResult<Vec<Part>> {
        let (mut parts, mut left) = (Vec::new(), wanted);
        let hints = if unwritten { 0 } else { summaries(wanted) };
        let mut runs = self.allocate_runs_for((wanted + hints) as u64, to)?;
        while let Some(device) = runs.first().map(|run| run.device) {
            let several = runs.len() > 1;
            parts.extend(Part::of(std::mem::take(&mut runs), &mut left, unwritten));
            // Summaries of several runs took more than was thought.
            if left > 0 && several {
                runs = self.devices.space.allocate_runs(&[device], left as u64, false).unwrap_or_default();
            }
        }
        Ok(parts)
    }

    /// After a write of some parts: the summary blocks are hints in space that counts as free (docs/format.md); after a
    /// failure so is all else.
    pub(super) fn settle_parts<T>(&self, parts: &[Part], written: FsResult<T>) -> FsResult<T> {
        for part in parts {
            part.free_of(written.is_ok()).for_each(|free| self.devices.space.release_claim(free));
        }
        if let (Err(error), Some(part)) = (&written, parts.first()) {
            self.note_device_failure(part.run.device, error);
        }
        written
    }

    /// After a failure to write there: the next group goes elsewhere, if there is an elsewhere.
    pub(crate) fn note_device_failure(&self, device: DeviceId, error: &FsError) {
        // Once for each device that was sound: where all else is full, the failed one is tried again with a pause.
        if self.avoid_failed(device, error) && self.devices.is_any_sound(self.clock.monotonic_ns()) {
            self.pressure.note_other_device();
        }
    }

    /// Has a device be chosen last for a while when this is an error of it; true when it was sound until now.
    pub(crate) fn avoid_failed(&self, device: DeviceId, error: &FsError) -> bool {
        let (FsError::Engine(Error::Media(MediaError::Device(_))), Ok(found)) =
            (error, self.devices.device(device))
        else {
            return false;
        };
        let now_ns = self.clock.monotonic_ns();
        let fresh = !found.is_avoided(now_ns);
        found.avoid(now_ns);
        fresh
    }

    pub(super) fn write_blocks(
        &self,
        candidates: &mut [Candidate<'_>],
        parts: &[Part],
    ) -> FsResult<Vec<u32>> {
        let written =
            self.write_items(candidates, parts, Mistake::DropBeforeFlush, |slice, into, entries| {
                self.read_candidates(slice, into, entries);
            })?;
        self.pressure.moved().note_down(written.len() as u64, self.clock.monotonic_ns());
        Ok(written)
    }

    /// Reads blocks from PM into a buffer, with a summary entry for each.
    fn read_candidates(
        &self,
        slice: &mut [Candidate<'_>],
        into: &mut [AlignedBlock],
        entries: &mut Vec<SummaryEntry>,
    ) {
        let lsn = self.wal.next_lsn();
        for (index, (candidate, target)) in slice.iter_mut().zip(into.iter_mut()).enumerate() {
            if index % LEAST_PIECE == 0 {
                self.offer_processor();
            }
            let read = self.copy_content(candidate, &mut target.0);
            candidate.unpin();
            let mut crc = crc32c(&target.0);
            if let Err(error) = read {
                // Not installed; what is written in its stead must not look like its content.
                candidate.lost = Some(error);
                self.refuse(candidate.pm);
                crc = !crc;
            }
            let Candidate { ino, generation, block, .. } = *candidate;
            entries.push(SummaryEntry { ino, generation, block, crc, lsn });
        }
    }

    /// Copies blocks to their parts of a device through a small buffer, each with its summaries, then flushes (M1). `fill`
    /// puts the content of some into the buffer and adds a summary entry for each, whose checksums are returned.
    /// `careless`: the planted mistake that leaves the flush out.
    pub(super) fn write_items<T>(
        &self,
        items: &mut [T],
        parts: &[Part],
        careless: Mistake,
        fill: impl Fn(&mut [T], &mut [AlignedBlock], &mut Vec<SummaryEntry>),
    ) -> FsResult<Vec<u32>> {
        let Some(first) = parts.first() else { return Ok(Vec::new()) };
        let device = self.devices.device(first.run.device)?;
        let failed_before = device.failed_flushes();
        let crcs = self.send_parts(device, items, parts, fill)?;
        pause::at_unlocked("demotion:copied");
        if !planted(careless) {
            self.flush_run(device, failed_before)?;
        }
        pause::at_unlocked("demotion:flushed");
        Ok(crcs)
    }

    /// As [`Self::write_items`], without the flush.
    pub(crate) fn send_parts<T>(
        &self,
        device: &Device,
        items: &mut [T],
        parts: &[Part],
        fill: impl Fn(&mut [T], &mut [AlignedBlock], &mut Vec<SummaryEntry>),
    ) -> FsResult<Vec<u32>> {
        let first = parts.first();
        let mut buffer = self.pressure.take_buffer();
        let mut out = Outbox {
            medium: &*device.medium,
            courtesy: first.and_then(|part| self.io.courtesy(part.run.device)),
            clock: &*self.clock,
            turns: self.pressure.permits(),
            buffer: &mut buffer,
            used: 0,
            runs: Vec::new(),
        };
        let sent = self.send_through(&mut out, items, parts, fill);
        self.pressure.put_buffer(buffer);
        sent
    }

    fn send_through<T>(
        &self,
        out: &mut Outbox<'_>,
        items: &mut [T],
        parts: &[Part],
        fill: impl Fn(&mut [T], &mut [AlignedBlock], &mut Vec<SummaryEntry>),
    ) -> FsResult<Vec<u32>> {
        let mut entries = Vec::with_capacity(items.len());
        let mut rest = items;
        for part in parts {
            let (mut of_part, tail) = rest.split_at_mut(part.data);
            rest = tail;
            let (mut at, begin) = (part.first(), entries.len());
            while !of_part.is_empty() {
                let into = out.room(at, of_part.len())?;
                let (now, later) = of_part.split_at_mut(into.len());
                fill(now, into, &mut entries);
                at = at.plus(now.len() as u64);
                of_part = later;
            }
            if part.hints > 0 {
                let (mut at, mut first) = (part.run.start, part.first());
                for of_summary in entries.get(begin..).unwrap_or(&[]).chunks(SUMMARY_ENTRIES) {
                    if let [target] = out.room(at, 1)? {
                        let place = (part.run.device, at);
                        target.0.copy_from_slice(&encode_summary(&self.seal_key, place, first, of_summary));
                    }
                    first = first.plus(of_summary.len() as u64);
                    at = at.plus(1);
                }
            }
        }
        out.send()?;
        Ok(entries.into_iter().map(|entry| entry.crc).collect())
    }

    /// Makes what was written below durable, before anything names it (M1).
    pub(super) fn flush_run(&self, device: &Device, failed_before: u64) -> FsResult<()> {
        Ok(self.pressure.permits().away(|| device.flush(failed_before))?)
    }

    /// Copies blocks to places that their extents name already: [`Mistake::ExtentBeforeData`].
    fn write_late(&self, places: &[(PmBlock, DeviceRun)]) -> FsResult<()> {
        for (pm, place) in places {
            let mut block = [AlignedBlock::zeroed()];
            self.pm.read(pm.offset(), &mut block[0].0)?;
            self.devices.medium(place.device)?.write(place.start, &block)?;
        }
        self.devices.flush_all()
    }

    /// Space for a group on the fastest lower tier that has any, on a device that did not fail a moment ago if any
    /// other has.
    pub(crate) fn allocate(&self, blocks: u64) -> FsResult<DeviceRun> {
        self.allocate_for(blocks, Destination::Any)
    }

    /// Space on the first tier that has any, of those that the destination allows.
    pub(super) fn allocate_for(&self, blocks: u64, to: Destination) -> FsResult<DeviceRun> {
        for devices in self.choices_for(to) {
            if let Some(run) = self.devices.space.allocate(&devices, blocks)? {
                return Ok(run);
            }
        }
        Err(NoSpace::Tier.into())
    }

    /// As [`Self::allocate_for`], in several runs of one device where no hole is large enough.
    fn allocate_runs_for(&self, blocks: u64, to: Destination) -> FsResult<Vec<DeviceRun>> {
        for devices in self.choices_for(to) {
            let runs = self.devices.space.allocate_runs(&devices, blocks, false)?;
            if !runs.is_empty() {
                return Ok(runs);
            }
        }
        Err(NoSpace::Tier.into())
    }
}
