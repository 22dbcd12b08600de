//! Which blocks to demote: the least recently used, by the tick of their last use; or what [`super::coldest`] finds.
//!
//! No list is kept: the ticks (4 bytes a block) are scanned when blocks are wanted. The result is that of
//! an LRU list at a grain of 10 ms, without a lock or a store per access.

use crate::errno::FsResult;
use crate::fs::Fs;
use crate::pressure::{Pressure, WORKERS};
use std::collections::VecDeque;
use terrace_blocks::{Descriptor, MARKS, State};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_placement::VictimOrder;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::sync::{Mutex, MutexGuard};
use terrace_wal::Error;

/// A PM block of a file that is to be demoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Victim {
    pub ino: Ino,
    pub block: FileBlock,
    pub pm: PmBlock,
}

/// Tick of blocks that are no victims: metadata. A block that gets a new owner gets a new tick.
const NEVER: u32 = u32::MAX;
/// Tick of victims that are queued or being moved: they are not picked again. Whoever uses such a block makes it
/// young again, as any other; picked twice it would be skipped at the commit.
pub(super) const LEAVING: u32 = MARKS;
/// At least so great a part of PM is picked at once, as far as a group takes it.
const LEAST_OF_PM: u64 = 32;
/// A group is at most so great a part of PM, but not so small that a device is slower by it.
const OF_PM: u64 = 16;
const LEAST_GROUP: u64 = 256;
/// Most blocks picked at once.
const MOST: u64 = 1 << 16;

/// What there is to demote.
pub(super) enum Victims {
    /// These.
    Group(Vec<Victim>),
    /// Others have them all.
    InFlight,
    /// None now; operations under way hold blocks that will have an owner, or be free, in a moment.
    Claimed,
    /// None.
    None,
}

/// Victims picked and not yet taken by a worker, sorted by file and block.
#[derive(Default)]
pub(crate) struct VictimQueue {
    queue: Mutex<VecDeque<Victim>>,
    /// Held by the thread that fills the queue; never waited for. Taken before the queue's.
    picking: Mutex<()>,
    /// Why owners of blocks could not be read when victims were picked the last time. Damage for good is not told here: a
    /// full PM is a full PM then, and writes go on into DRAM (I9).
    hidden: Mutex<Option<Error>>,
}

impl VictimQueue {
    /// The next group of those that were picked; `None` while so many blocks are in flight. Judged under the lock: writers
    /// that waited for it while others picked would all get one, and all be held by a device that hangs.
    pub fn pop_group(&self, pressure: &Pressure, most: u64, in_flight: u64) -> Option<Vec<Victim>> {
        let mut queue = self.queue.lock();
        if pressure.in_flight() >= in_flight {
            return None;
        }
        let count = queue.len().min(most as usize);
        let group: Vec<Victim> = queue.drain(..count).collect();
        pressure.begin_group(count);
        Some(group)
    }

    /// Whether no victim waits for a worker.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Takes all of them; the caller gives them back.
    pub fn take_all(&self) -> Vec<Victim> {
        self.queue.lock().drain(..).collect()
    }

    /// The right to fill the queue; `None` while another thread has it.
    pub fn try_pick(&self) -> Option<MutexGuard<'_, ()>> {
        self.picking.try_lock()
    }

    /// Puts what was picked there. The caller has the right to, and found the queue empty.
    pub fn fill(&self, picked: VecDeque<Victim>) {
        *self.queue.lock() = picked;
    }

    /// Notes why owners of blocks could not be read.
    pub fn set_hidden(&self, hidden: Option<Error>) {
        *self.hidden.lock() = hidden;
    }

    /// Why owners of blocks could not be read when victims were picked the last time.
    pub fn hidden(&self) -> Option<Error> {
        self.hidden.lock().clone()
    }
}

impl Fs {
    /// Takes the next group of victims, picking `wanted` new ones when none are queued; at most `groups` are in flight.
    pub(super) fn take_victims(&self, wanted: u64, groups: usize) -> FsResult<Victims> {
        // Writers that wait for space come here too: they must not each take a group and a copy buffer.
        // What a device that hangs holds does not count, or all others would wait for it.
        let most = self.demotion_blocks();
        let groups = groups as u64 + WORKERS as u64 * self.io.silent(self.clock.monotonic_ns());
        match self.migration.victims.pop_group(&self.pressure, most, groups * most) {
            None => return Ok(Victims::InFlight),
            Some(group) if !group.is_empty() => return Ok(Victims::Group(group)),
            Some(_) => {}
        }
        {
            // A look at all of PM: whoever comes meanwhile does not wait for its end.
            let Some(_picking) = self.migration.victims.try_pick() else { return Ok(Victims::InFlight) };
            if self.migration.victims.is_empty() {
                // Before looking: what they give back or give up is seen, or they are.
                let others = self.pressure.in_flight() > 0;
                let (mut picked, mut claimed) = (VecDeque::new(), false);
                if wanted > 0 {
                    while self.blocks.scan_step()? {}
                    let wanted = wanted.clamp(self.least_pick(), MOST);
                    (picked, claimed) = self.pick(wanted, self.takes_kept(false))?;
                    if picked.is_empty() && !claimed && !others && self.takes_kept(true) {
                        (picked, claimed) = self.pick(wanted, true)?;
                    }
                }
                if picked.is_empty() {
                    return Ok(match (others, claimed) {
                        (true, _) => Victims::InFlight,
                        (false, true) => Victims::Claimed,
                        (false, false) => Victims::None,
                    });
                }
                self.migration.victims.fill(picked);
            }
        }
        let group = self.migration.victims.pop_group(&self.pressure, most, groups * most);
        Ok(group.filter(|group| !group.is_empty()).map_or(Victims::InFlight, Victims::Group))
    }

    /// Blocks to pick at least: to pick few costs as much as to pick many, a look at all of PM.
    fn least_pick(&self) -> u64 {
        let usable = self.blocks.end_block().0 - self.blocks.first_block().0;
        (usable / LEAST_OF_PM).max(64).min(self.demotion_blocks())
    }

    /// Blocks of a group that leaves PM: of a small PM a part only, or writers would wait for the whole of a group before
    /// any of it is free, and the device for them afterwards.
    pub(crate) fn demotion_blocks(&self) -> u64 {
        let usable = self.blocks.end_block().0 - self.blocks.first_block().0;
        self.group_blocks.min((usable / OF_PM).max(LEAST_GROUP))
    }

    /// After a group: what stayed in PM is as old as its last write.
    pub(super) fn give_back_victims(&self, victims: &[Victim]) {
        for victim in victims {
            let descriptor = self.blocks.descriptor(victim.pm);
            if descriptor.touched() == LEAVING {
                descriptor.touch_read(0);
            }
        }
    }

    /// The `wanted` blocks that the policy wants to go first, sorted by file and block. A drain takes all, whatever
    /// their age; and where too few files are cold or uneven enough, the least recently used go with them: a pick looks
    /// at all of PM, however little it gives.
    /// Blocks that a pin keeps in PM are left out unless `kept_too`.
    fn pick(&self, wanted: u64, kept_too: bool) -> FsResult<(VecDeque<Victim>, bool)> {
        let fits = self.count_kept(kept_too);
        let draining = self.pressure.is_draining();
        let order = self.policy.victims();
        if !draining && order != VictimOrder::LeastRecentlyUsed {
            let mut coldest = self.pick_coldest(wanted, order, &fits);
            let missing = wanted - (coldest.len() as u64).min(wanted);
            if missing <= wanted / 2 {
                return Ok((coldest, false));
            }
            let (mut least_recent, claimed) = self
                .pick_least_recent(missing, &fits)
                .inspect_err(|_| self.give_back_victims(coldest.make_contiguous()))?;
            let mut all: Vec<Victim> = least_recent.drain(..).chain(coldest).collect();
            all.sort_unstable();
            // What a reader used between the two looks was found by both.
            all.dedup();
            return Ok((all.into(), claimed));
        }
        self.pick_least_recent(wanted, &fits)
    }

    /// The `wanted` least recently used file blocks, sorted by file and block; whether somebody has blocks that no file
    /// owns yet.
    /// Blocks that `fits` says no to are left out.
    fn pick_least_recent(
        &self,
        wanted: u64,
        fits: &impl Fn(&Descriptor) -> bool,
    ) -> FsResult<(VecDeque<Victim>, bool)> {
        let now = self.tick.load(Ordering::Relaxed);
        let age = |touched: u32| (now.saturating_sub(touched) + 1).ilog2() as usize;
        let mut histogram = [0u64; 33];
        let range = self.blocks.first_block().0..self.blocks.end_block().0;
        for block in range.clone() {
            let descriptor = self.blocks.descriptor(PmBlock(block));
            if descriptor.state() == State::Used && descriptor.touched() < LEAVING && fits(descriptor) {
                histogram[age(descriptor.touched())] += 1;
            }
        }
        let (mut cut, mut older) = (32, histogram[32]);
        while cut > 0 && older < wanted {
            cut -= 1;
            older += histogram[cut];
        }
        let (mut found, mut claimed, mut hidden) = (Vec::new(), false, None);
        for block in range.map(PmBlock) {
            let descriptor = self.blocks.descriptor(block);
            let touched = descriptor.touched();
            if descriptor.state() != State::Used
                || touched >= LEAVING
                || age(touched) < cut
                || !fits(descriptor)
            {
                continue;
            }
            match self.blocks.owner(block) {
                Ok(Owner::File { ino, block: file_block, .. }) => {
                    found.push((touched, Victim { ino, block: file_block, pm: block }));
                }
                // Claimed and not yet owned blocks are young again when they are.
                Ok(Owner::Free) => claimed = true,
                Ok(Owner::Page { .. }) => descriptor.touch_read(NEVER),
                // Damage of one entry must not keep the others in PM.
                Err(error @ Error::Corrupt(_)) => {
                    tracing::warn!("not demoted: {error}");
                    descriptor.touch_read(NEVER);
                }
                // PM may answer the next time: never picked, the block would be waited for by `sync_to` for ever.
                Err(error) => {
                    tracing::debug!("not demoted now: {error}");
                    self.refuse(block);
                    hidden = Some(error);
                }
            }
        }
        self.migration.victims.set_hidden(hidden);
        found.sort_unstable();
        found.truncate(wanted as usize);
        let mut victims: Vec<Victim> = found.into_iter().map(|(_, victim)| victim).collect();
        victims.sort_unstable();
        victims.iter().for_each(|victim| self.blocks.descriptor(victim.pm).touch_read(LEAVING));
        Ok((victims.into(), claimed))
    }
}
