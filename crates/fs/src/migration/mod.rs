//! Migration between PM and the lower tiers (design 7).
//!
//! Demotion: [`plan`] and [`coldest`] pick victims, [`copy`] pins them with their versions and writes them in groups and
//! flushes, [`commit`] installs the cold extents and drops the PM entries whose version is unchanged.
//! M1: a PM copy is dropped only after a flush that was issued after its write has succeeded. M3: no
//! inode lock is held while copying. M6: a move that cannot run has a reason and backs off.
//! A partial shadow is completed first ([`complete`]); a few blocks of a large extent go over their cold copies
//! ([`in_place`]).
//! Between lower tiers: [`between`], asked for by hand ([`by_hand`]), by `sync --to` ([`drain`]) and by a tier that is nearly
//! full ([`spill`]).
//! Promotion: [`promote`] puts a clean copy of a cold block into PM; [`reverse`] asks for it while PM idles.
//! The coarse clock has a step of its own, [`ClockStep`]: every worker may hang with a device.

mod between;
pub(crate) mod by_hand;
mod coldest;
mod commit;
mod complete;
mod copy;
mod destination;
pub(crate) mod drain;
mod in_place;
mod job;
mod lower;
mod plan;
pub(crate) mod promote;
mod raise;
mod reverse;
mod shadow;
mod spill;
mod survey;
mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod to_dram;
pub(crate) mod turns;

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::Op;
use crate::pressure::WORKERS;
use crate::types::Wait;
pub use by_hand::{HandMove, HandPlan, HandReport, HandState};
pub(crate) use commit::demoting;
pub(crate) use copy::{Part, summaries};
pub(crate) use destination::Destination;
pub(crate) use plan::Victim;
use plan::VictimQueue;
use plan::{LEAVING, Victims};
use serde::Serialize;
pub(crate) use spill::SpillStep;
use spill::Spilling;
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_blocks::Purpose;
use terrace_format::BLOCK_SIZE;
use terrace_placement::Observation;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_runtime::{Next, Step};
use terrace_wal::{Error, NoSpace};

/// How often the policy is asked ([AC-BPFS] section 3.1).
const POLL: Duration = Duration::from_millis(10);
/// When a worker that found all victims taken looks again.
const BUSY: Duration = Duration::from_millis(1);
/// How often a worker looks that worker 0 wakes when there is something to do.
const IDLE: Duration = Duration::from_secs(1);
/// When worker 0 has not come by for so long, the others do what it does for all: it may hang with a device.
const LATE: Duration = Duration::from_secs(1);
/// How long after a move status speaks of it.
const LATELY: Duration = Duration::from_secs(1);
/// How often the rest doubles after rounds in which everything stayed: to 1.28 s.
const RESTS: u32 = 7;
/// Pause after a failure.
const BACK_OFF: Duration = Duration::from_secs(1);
/// How far ahead the policy sees: what a group takes on a slow disk.
const AHEAD: Duration = Duration::from_millis(100);
/// How often an operation waits for what others hold before metadata makes room.
const MOST_CLAIMED: u32 = 100;
/// A writer without room takes a group itself only while fewer are in flight: not all writers shall hang with a device.
const OF_WRITERS: usize = 3;
const NAMES: [&str; WORKERS] = [
    "terrace-move-0",
    "terrace-move-1",
    "terrace-move-2",
    "terrace-move-3",
    "terrace-move-4",
    "terrace-move-5",
];

/// Migration's state.
pub(crate) struct Migration {
    pub(crate) victims: VictimQueue,
    not_before_ns: AtomicU64,
    /// Rounds in a row in which all that was picked stayed, and until when the policy rests after the last of them.
    stayed: AtomicU32,
    rest_until_ns: AtomicU64,
    /// When worker 0 came by last.
    first_came_ns: AtomicU64,
    spilling: Spilling,
    pace: Mutex<Pace>,
    reverse: Mutex<reverse::Cursor>,
    to_dram: Mutex<reverse::Cursor>,
}

/// How fast use of PM grows.
#[derive(Default)]
struct Pace {
    /// When and how many blocks had come into PM, when last looked at.
    last: Option<(u64, u64)>,
    /// Negative while more is removed than comes. Without the sign files that come and go would be a stream that goes on.
    blocks_per_s: i64,
}

impl Pace {
    /// Takes notice of how many blocks have come into PM until now, those that left again included, promoted ones not.
    fn observe(&mut self, now_ns: u64, come: u64) {
        let (begin_ns, before) = *self.last.get_or_insert((now_ns, come));
        let passed_ns = now_ns.saturating_sub(begin_ns);
        if passed_ns < POLL.as_nanos() as u64 / 2 {
            return;
        }
        let grown = (i128::from(come) - i128::from(before)) * 1_000_000_000 / i128::from(passed_ns);
        // Three quarters of the past: neither does one pause end a stream nor one burst make one.
        let pace = (3 * i128::from(self.blocks_per_s) + grown) / 4;
        self.blocks_per_s = i64::try_from(pace).unwrap_or_default();
        self.last = Some((now_ns, come));
    }
}

/// What status shows.
#[derive(Debug, Clone, Serialize)]
pub struct MigrationReport {
    /// idle, demoting, promoting, spilling (also when it was so a moment ago), waiting.
    pub state: &'static str,
    /// Why something is stuck.
    pub reason: Option<String>,
    /// Bytes written to lower tiers since mount.
    pub demoted_bytes: u64,
    /// Of them, those that were written over their old copies.
    pub in_place_bytes: u64,
    /// Bytes brought into PM since mount.
    pub promoted_bytes: u64,
    /// Bytes moved from one lower tier to another since mount.
    pub moved_below_bytes: u64,
    /// Of them, those that a tier gave away because it was nearly full.
    pub spilled_bytes: u64,
    /// Attempts of that which moved nothing, or failed.
    pub spill_failures: u64,
    /// Why a tier that is nearly full stays so.
    pub spill_reason: Option<String>,
    /// Bytes of PM given up without a write, because the cold copy was still good.
    pub clean_evicted_bytes: u64,
    /// Bytes copied in vain, because they changed meanwhile.
    pub skipped_bytes: u64,
    /// Bytes of read-dominated files of which a copy stayed in DRAM when they went below PM.
    pub to_dram_bytes: u64,
    /// When it was first decided that some should, in seconds since mount.
    pub to_dram_first_seconds: Option<f64>,
}

/// What one round of demotion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Freed PM blocks.
    Progress,
    /// Another worker has all victims.
    InFlight,
    /// All that was picked stays where it is for now: in use, pinned, or changed meanwhile.
    Stayed,
    /// Nothing can be demoted before operations under way have ended.
    Claimed,
    /// There is nothing that could be demoted.
    Nothing,
}

impl Migration {
    pub fn new() -> Migration {
        Migration {
            victims: VictimQueue::default(),
            not_before_ns: AtomicU64::new(0),
            stayed: AtomicU32::new(0),
            rest_until_ns: AtomicU64::new(0),
            first_came_ns: AtomicU64::new(0),
            spilling: Spilling::new(),
            pace: Mutex::default(),
            reverse: Mutex::default(),
            to_dram: Mutex::default(),
        }
    }

    /// Whether a worker, which comes by now, does what one of them does for all.
    fn leads(&self, worker: usize, now_ns: u64) -> bool {
        if worker == 0 {
            self.first_came_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        let since_ns = self.first_came_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(since_ns) > LATE.as_nanos() as u64
    }
}

impl Fs {
    /// What is under way, queued, or was until a moment ago.
    fn migration_state(&self, now_ns: u64) -> &'static str {
        let moved = self.pressure.moved();
        let lately = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => false,
            at => now_ns.saturating_sub(at) < LATELY.as_nanos() as u64,
        };
        let queued = self.pressure.in_flight() > 0 || !self.migration.victims.is_empty();
        if self.pressure.is_stuck() {
            "waiting"
        } else if queued || lately(&moved.last_down) {
            "demoting"
        } else if lately(&moved.last_up) || !self.promotions.is_empty() {
            "promoting"
        } else if lately(&moved.last_spill) {
            "spilling"
        } else {
            "idle"
        }
    }

    /// What migration does and did.
    pub(crate) fn migration_report(&self, now_ns: u64) -> MigrationReport {
        let reason = self.pressure.reason().map(|error| error.to_string());
        let moved = self.pressure.moved();
        let bytes = |blocks: &AtomicU64| blocks.load(Ordering::Relaxed) * BLOCK_SIZE;
        MigrationReport {
            state: self.migration_state(now_ns),
            reason,
            demoted_bytes: bytes(&moved.demoted),
            in_place_bytes: bytes(&moved.in_place),
            promoted_bytes: bytes(&moved.promoted),
            moved_below_bytes: bytes(&moved.relocated),
            spilled_bytes: bytes(&moved.spilled),
            spill_failures: self.migration.spilling.failures(),
            spill_reason: self.migration.spilling.reason(),
            clean_evicted_bytes: bytes(&moved.evicted_clean),
            skipped_bytes: bytes(&moved.skipped),
            to_dram_bytes: self.kept_copies.bytes(),
            to_dram_first_seconds: self.kept_copies.first_seconds(),
        }
    }
}

impl Fs {
    /// What the policy sees.
    pub(crate) fn observe(&self) -> Observation {
        let usage = self.blocks.usage();
        // Victims already taken will be free soon.
        let leaving = self.pressure.in_flight();
        let free = usage.free + usage.quarantined + usage.unknown + leaving;
        let mut pace = self.migration.pace.lock();
        // Until the table was read, what is found in it is not growth.
        if usage.unknown == 0 {
            let there = usage.total - usage.free - usage.quarantined;
            // What is promoted is no arrival: it stops by itself when room gets short, and must push nothing out.
            let left = self.pressure.moved().left.load(Ordering::Relaxed);
            let promoted = self.pressure.moved().promoted.load(Ordering::Relaxed);
            let come = (there + left).saturating_sub(promoted);
            pace.observe(self.clock.monotonic_ns(), come);
        }
        let arriving_blocks = pace.blocks_per_s.max(0) as u64 * AHEAD.as_millis() as u64 / 1000;
        let (total_blocks, free_blocks) = (usage.total, free.min(usage.total));
        self.with_flows(Observation { total_blocks, free_blocks, arriving_blocks, ..Observation::default() })
    }

    /// One round: takes a group of victims and demotes it. `wanted` is how many blocks to pick when the
    /// queue is empty.
    /// Not while others have as many as `groups` in flight.
    pub(crate) fn demotion_round(&self, wanted: u64, groups: usize) -> FsResult<Round> {
        if self.devices.list.is_empty() || self.read_only {
            return Ok(Round::Nothing);
        }
        let victims = match self.take_victims(wanted, groups)? {
            Victims::Group(victims) => victims,
            Victims::InFlight => return Ok(Round::InFlight),
            Victims::Claimed => return Ok(Round::Claimed),
            Victims::None => return Ok(Round::Nothing),
        };
        self.move_group(&victims)
    }

    /// Demotes a group that counts as in flight.
    fn move_group(&self, victims: &[Victim]) -> FsResult<Round> {
        let done = self.demote(victims);
        self.give_back_victims(victims);
        self.pressure.end_group(victims.len());
        let result = match done {
            Ok(freed) => {
                self.pressure.clear_reason();
                self.migration.not_before_ns.store(0, Ordering::Relaxed);
                // Freed blocks become usable when the checkpoint has passed them (T6).
                self.wal.checkpoint_at_leisure()?;
                self.blocks.drain_quarantine();
                if freed > 0 {
                    self.migration.stayed.store(0, Ordering::Relaxed);
                }
                Ok(if freed > 0 { Round::Progress } else { Round::Stayed })
            }
            Err(error) if self.pressure.take_other_device() => {
                tracing::warn!("a group is moved elsewhere: {error}");
                Ok(Round::InFlight)
            }
            Err(error) => {
                self.note_stuck(&error);
                Err(error)
            }
        };
        self.pressure.round_done();
        result
    }

    fn note_stuck(&self, error: &FsError) {
        let before = self.pressure.set_reason(error.clone());
        if before.is_none_or(|before| before.to_string() != error.to_string()) {
            tracing::warn!("demotion cannot run: {error}");
        }
        let back_off = if planted(Mistake::MigrationSpins) { Duration::ZERO } else { BACK_OFF };
        let until = self.clock.monotonic_ns() + back_off.as_nanos() as u64;
        self.migration.not_before_ns.store(until, Ordering::Relaxed);
    }

    /// Gets PM blocks for an operation that found none: the checkpoint frees what waits for it, else this
    /// thread demotes, or waits for those that do. Called without locks.
    ///
    /// # Errors
    /// ENOSPC when nothing can be moved down; `WouldBlock`.
    pub(crate) fn make_pm_space(&self, op: &mut Op) -> FsResult<()> {
        let reclaimed = self.reclaim.ended_so_far();
        match self.make_room(op) {
            Err(error @ (FsError::Engine(Error::NoSpace(_)) | FsError::SpaceHidden(_))) => {
                self.last_resort(op, reclaimed, error)
            }
            made => made,
        }
    }

    /// Nothing leaves PM any more. What was removed and is not yet free is waited for; and what may be an overwrite goes into a
    /// share of the reserve, which comes back when such blocks are written to the places below that they hide.
    ///
    /// # Errors
    /// Why there is no space.
    fn last_resort(&self, op: &mut Op, reclaimed: u64, error: FsError) -> FsResult<()> {
        if !matches!(op.purpose, Purpose::User | Purpose::Overwrite) {
            return Err(error);
        }
        if op.starved <= MOST_STARVED && self.reclaim_for_space(reclaimed, op.wait)? {
            op.starved += MOST_STARVED / 50;
            return Ok(());
        }
        if op.purpose == Purpose::User && op.may_overwrite {
            op.refused = Some(error);
            (op.purpose, op.starved) = (Purpose::Overwrite, 0);
            return Ok(());
        }
        if op.purpose == Purpose::Overwrite && op.starved <= MOST_STARVED && self.shadow_round(op)? {
            return Ok(());
        }
        Err(op.refused.take().unwrap_or(error))
    }

    /// As [`Self::make_pm_space`], from the checkpoint and from demotion.
    fn make_room(&self, op: &mut Op) -> FsResult<()> {
        let (purpose, wait) = (op.purpose, op.wait);
        let before = self.blocks.usage().free;
        self.wal.checkpoint()?;
        while self.blocks.scan_step()? {}
        self.blocks.drain_quarantine();
        if self.blocks.usage().free > before {
            return Ok(());
        }
        // Demotion has its own share of the reserve (P1) and must not wait for itself.
        if purpose == Purpose::Demotion {
            return Err(final_no_space());
        }
        if wait != Wait::Allowed {
            return Err(FsError::WouldBlock);
        }
        let round = self.pressure.pressed(|| self.demotion_round(self.group_blocks, OF_WRITERS));
        // What operations under way hold is free in a moment; unless it never is.
        let no_data = match round {
            Ok(Round::Nothing) | Err(FsError::Engine(Error::NoSpace(_))) => true,
            Ok(Round::Claimed) => op.starved > MOST_CLAIMED,
            _ => false,
        };
        // Twice around: what was used lately is cold the second time.
        if no_data && self.lower_metadata(2 * self.blocks.end_block().0)? > 0 {
            return Ok(());
        }
        match round {
            Ok(Round::Progress) => Ok(()),
            Ok(Round::InFlight) => {
                self.pressure.wait_round(Duration::from_millis(10));
                Ok(())
            }
            Ok(Round::Stayed) => {
                op.starved += 1;
                if op.starved > MOST_STARVED {
                    return Err(self.why_no_space(op));
                }
                self.pressure.wait_round(Duration::from_millis(10));
                Ok(())
            }
            Ok(round @ (Round::Nothing | Round::Claimed)) => {
                // Another thread may just have finished the last round, and others have taken what it freed.
                self.wal.checkpoint()?;
                self.blocks.drain_quarantine();
                let freed = self.blocks.freed_so_far();
                let others_freed = std::mem::replace(&mut op.freed_seen, freed) != freed;
                op.starved += 1;
                if op.starved > MOST_STARVED || !others_freed && round == Round::Nothing {
                    return Err(self.why_no_space(op));
                }
                if round == Round::Claimed {
                    self.pressure.wait_round(Duration::from_millis(1));
                }
                Ok(())
            }
            // Others may have claimed more below than they will use, or free PM in a moment.
            Err(FsError::Engine(Error::NoSpace(_)))
                if op.starved < MOST_STARVED && self.pressure.in_flight() > 0 =>
            {
                op.starved += MOST_STARVED / 20;
                self.pressure.wait_round(Duration::from_millis(10));
                Ok(())
            }
            Err(FsError::Engine(Error::NoSpace(_))) => Err(final_no_space()),
            // All of a group was damaged: it is young now, and the next one is another. Who writes to a sound file has
            // nothing to do with it (I8).
            Err(ref failed @ FsError::Engine(ref error))
                if failed.concerns_one_file() && !self.wal.is_stopped() =>
            {
                op.starved += MOST_STARVED / 50;
                op.damage.get_or_insert_with(|| error.clone());
                if op.starved > MOST_STARVED {
                    return Err(self.why_no_space(op));
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// ENOSPC, unless damage hides what could be freed.
    fn why_no_space(&self, op: &mut Op) -> FsError {
        let picked = || self.migration.victims.hidden();
        let scanned = || self.blocks.unreadable();
        let hides = op.damage.take().or_else(picked).or_else(scanned);
        hides.map_or_else(final_no_space, FsError::SpaceHidden)
    }

    /// Whether the policy picked only what stays, the last times: picking again at once would find the same (M6). Not while
    /// PM runs low or is emptied: then more may leave.
    fn rests(&self, now_ns: u64) -> bool {
        now_ns < self.migration.rest_until_ns.load(Ordering::Relaxed)
            && self.migration.stayed.load(Ordering::Relaxed) > 0
            && !self.pressure.is_draining()
            && self.blocks.free_hint() >= self.pressure.throttle_below()
    }

    /// After such a round: whether to rest. Not before all that was picked had its turn; then twice as long as the last time.
    fn rest(&self, now_ns: u64) -> bool {
        if !self.migration.victims.is_empty() {
            return false;
        }
        let before = self.migration.stayed.fetch_add(1, Ordering::Relaxed);
        let until = now_ns + (POLL.as_nanos() as u64) * (1 << before.min(RESTS));
        self.migration.rest_until_ns.store(until, Ordering::Relaxed);
        true
    }

    /// Back-pressure: a writer waits a little for demotion before PM is full.
    pub(crate) fn wait_for_demotion(&self, wait: Wait) -> FsResult<()> {
        self.wal.checkpoint_if_idle()?;
        self.blocks.drain_quarantine();
        let (free, low) = (self.blocks.free_hint(), self.pressure.throttle_below());
        let threads = self.pressure.has_workers();
        let stuck = self.pressure.is_stuck();
        if free >= low || !threads || stuck {
            return Ok(());
        }
        if wait == Wait::Never {
            return Err(FsError::WouldBlock);
        }
        self.pressure.wake();
        // The emptier PM is of free blocks, the longer the pause, up to 20 ms.
        let missing = (low - free) * 20 / low.max(1);
        self.pressure.wait_round(Duration::from_millis(1 + missing));
        Ok(())
    }
}

/// How often an operation looks for space again because others took or hold what there was.
const MOST_STARVED: u32 = 1000;

/// ENOSPC that is final: `provide` would take `NoSpace::Pm` as a reason to try once more.
pub(crate) fn final_no_space() -> FsError {
    NoSpace::Tier.into()
}

/// Background: the coarse clock, by which blocks and files get colder. Waits for nothing.
pub(crate) struct ClockStep {
    fs: Weak<Fs>,
}

impl ClockStep {
    pub fn new(fs: &Arc<Fs>) -> ClockStep {
        ClockStep { fs: Arc::downgrade(fs) }
    }
}

impl Step for ClockStep {
    fn name(&self) -> &'static str {
        "terrace-clock"
    }

    fn step(&mut self) -> Next {
        let Some(fs) = self.fs.upgrade() else {
            return Next::Done;
        };
        let now = fs.clock.monotonic_ns();
        let ticks = now.saturating_sub(fs.mounted_ns) / POLL.as_nanos() as u64;
        // It stands still after 497 days: what is touched then must not look as if it were leaving.
        fs.tick.store(1 + ticks.min(u64::from(LEAVING - 2)) as u32, Ordering::Relaxed);
        fs.flows.tell_time(now);
        Next::After(POLL)
    }
}

/// Background: one round of promotion or demotion per step.
pub(crate) struct MigrationStep {
    fs: Weak<Fs>,
    worker: usize,
}

impl MigrationStep {
    pub fn new(fs: &Arc<Fs>, worker: usize) -> MigrationStep {
        fs.pressure.worker_begins();
        MigrationStep { fs: Arc::downgrade(fs), worker }
    }
}

impl Drop for MigrationStep {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.upgrade() {
            fs.pressure.worker_ends();
        }
    }
}

impl Step for MigrationStep {
    fn name(&self) -> &'static str {
        NAMES[self.worker % WORKERS]
    }

    fn step(&mut self) -> Next {
        let Some(fs) = self.fs.upgrade() else {
            return Next::Done;
        };
        let now = fs.clock.monotonic_ns();
        let leads = fs.migration.leads(self.worker, now);
        if leads && let Err(error) = fs.promotion_round() {
            tracing::debug!("promotion: {error}");
        }
        // Nobody does this instead of worker 0: they would hang with the same device one after the other.
        if self.worker == 0 {
            fs.reverse_round();
            if now >= fs.migration.not_before_ns.load(Ordering::Relaxed) && !fs.wal.is_stopped() {
                fs.to_dram_round();
            }
        }
        if now < fs.migration.not_before_ns.load(Ordering::Relaxed)
            || fs.wal.is_stopped()
            || fs.rests_for_pins(now)
            || fs.rests(now)
        {
            return Next::After(POLL);
        }
        let wanted = match fs.pressure.is_draining() {
            false => fs.policy.blocks_to_demote(&fs.observe()),
            true => u64::MAX,
        };
        if wanted == 0 && fs.migration.victims.is_empty() {
            if leads && fs.lower_some(0, false) {
                return Next::Again;
            }
            return Next::After(if leads { POLL } else { IDLE });
        }
        // Those who do its work while it hangs look by themselves: they would wake each other without end.
        if self.worker == 0 {
            fs.pressure.wake_others();
        }
        let round = {
            let _turn = fs.pressure.permits().take();
            fs.demotion_round(wanted, WORKERS)
        };
        // Also when another worker has what there is to move, or somebody has it in hand.
        let data_moves = matches!(round, Ok(Round::Progress | Round::InFlight | Round::Claimed));
        if leads && fs.lower_some(wanted, data_moves) {
            return Next::Again;
        }
        match round {
            Ok(Round::Progress) => Next::Again,
            Err(_) if planted(Mistake::MigrationSpins) => Next::Again,
            Ok(Round::Nothing) => {
                fs.rest_for_pins(now);
                Next::After(POLL)
            }
            Ok(Round::Stayed) if fs.rest(now) => Next::After(POLL),
            Ok(Round::Stayed) => Next::Again,
            Ok(Round::InFlight) => Next::After(BUSY),
            _ => Next::After(POLL),
        }
    }
}
