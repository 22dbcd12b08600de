//! Rounds of demotion by policy (design 7).
//!
//! A round takes a group of victims (`demote::victims`, `demote::coldest`) and demotes it
//! (`terrace_store::moving::demote`): the store gives the blocks I/O pins with their versions, writes and
//! flushes the group, installs the cold extents, and drops the PM entries with unchanged versions.
//!
//! M1: a PM copy is dropped only after a flush that was issued after its write has succeeded. M3: no inode
//! lock is held while copying. M6: a demotion that cannot run has a reason in status and pauses.
//!
//! A partial shadow is completed first; a few blocks of a large extent are written in place, over their cold
//! copies. Relocation is requested (`requested::job`), part of `sync --to` (`requested::drain`), or a spill
//! (`spill::step`). Promotion puts a clean copy of a cold block into PM (`promote::on_touch`);
//! `promote::read_dominated` asks for it while PM idles. The coarse clock has a step of its own (`clock`),
//! because every worker may hang with a device.

use crate::demote::victims::{Victims, give_back_victims, take_victims};
use crate::migration::Migration;
use crate::pace::{BACK_OFF, POLL};
use std::time::Duration;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::error::{FsError, FsResult};
use terrace_store::moving::demote::demote;
use terrace_store::moving::victim::Victim;
use terrace_store::parts::pressure::WORKERS;
use terrace_wal::Error;

/// How often the pause doubles after rounds without a freed block: to 1.28 s.
const MAX_REST_DOUBLINGS: u32 = 7;

pub(crate) const NAMES: [&str; WORKERS] = [
    "terrace-move-0",
    "terrace-move-1",
    "terrace-move-2",
    "terrace-move-3",
    "terrace-move-4",
    "terrace-move-5",
];

/// The result of a demotion round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// Freed PM blocks.
    Progress,
    /// Another worker has all victims.
    InFlight,
    /// All victims stay in PM: they are in use, pinned, or have changed.
    AllRefused,
    /// No block can be demoted before operations under way have ended.
    BlocksClaimedByOthers,
    /// No block can be demoted.
    Nothing,
}

/// A demotion round: takes a group of victims and demotes it, unless other threads have `groups` groups in
/// flight. `wanted` is the number of victims to search for when the queue is empty.
pub fn demotion_round(migration: &Migration, wanted: u64, groups: usize) -> FsResult<Round> {
    if migration.store.devices.list().is_empty() || migration.store.mode.read_only {
        return Ok(Round::Nothing);
    }
    let victims = match take_victims(migration, wanted, groups)? {
        Victims::Group(victims) => victims,
        Victims::InFlight => return Ok(Round::InFlight),
        Victims::BlocksClaimedByOthers => return Ok(Round::BlocksClaimedByOthers),
        Victims::None => return Ok(Round::Nothing),
    };
    move_group(migration, &victims)
}

/// Demotes a group that counts as in flight.
pub fn move_group(migration: &Migration, victims: &[Victim]) -> FsResult<Round> {
    let done = demote(&migration.store, victims);
    give_back_victims(migration, victims);
    migration.store.pressure.end_group(victims.len());
    let result = match done {
        Ok(freed) => {
            migration.store.pressure.clear_reason();
            migration.not_before_ns.store(0, Ordering::Relaxed);
            // Freed blocks become usable when the checkpoint has passed them (T6).
            migration.store.persistent.wal().checkpoint_at_leisure()?;
            migration.store.persistent.blocks().drain_quarantine();
            if freed > 0 {
                migration.stayed.store(0, Ordering::Relaxed);
            }
            Ok(if freed > 0 { Round::Progress } else { Round::AllRefused })
        }
        Err(error) if migration.store.pressure.take_other_device() => {
            tracing::warn!("a group is moved elsewhere: {error}");
            Ok(Round::InFlight)
        }
        Err(error) => {
            note_stuck(migration, &error);
            Err(error)
        }
    };
    // A group without room helps no waiter: woken again and again, it would give up sooner.
    if !matches!(result, Err(FsError::Engine(Error::NoSpace(_)))) {
        migration.store.pressure.round_done();
    }
    result
}

/// The same reason is logged again after so long: on a full pool demotion ends and begins all the time.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// Whether a reason is to be logged now, which is noted.
fn is_news(warned: &Mutex<Option<(String, u64)>>, reason: &str, now_ns: u64) -> bool {
    let mut warned = warned.lock();
    let is_known = warned.as_ref().is_some_and(|(before, at_ns)| {
        before == reason && now_ns.saturating_sub(*at_ns) < WARN_AGAIN.as_nanos() as u64
    });
    if !is_known {
        *warned = Some((reason.to_string(), now_ns));
    }
    !is_known
}

pub(crate) fn note_stuck(migration: &Migration, error: &FsError) {
    migration.store.pressure.set_reason(error.clone());
    let now = migration.store.clock.monotonic_ns();
    if is_news(&migration.warned, &error.to_string(), now) {
        tracing::warn!("demotion cannot run: {error}");
    }
    let back_off = if planted(Mistake::MigrationSpins) { Duration::ZERO } else { BACK_OFF };
    let until = now + back_off.as_nanos() as u64;
    migration.not_before_ns.store(until, Ordering::Relaxed);
}

/// Whether the last victims all stayed in PM: another search at once would find the same (M6). False while PM
/// is short or is emptied, because more blocks may be demoted then.
pub fn rests(migration: &Migration, now_ns: u64) -> bool {
    now_ns < migration.rest_until_ns.load(Ordering::Relaxed)
        && migration.stayed.load(Ordering::Relaxed) > 0
        && !migration.store.pressure.is_draining()
        && migration.store.persistent.blocks().free_hint() >= migration.store.pressure.throttle_below()
}

/// Begins a pause after a round in which all victims stayed, twice as long as the last pause. Gives false
/// while queued victims have not been tried yet.
pub fn rest(migration: &Migration, now_ns: u64) -> bool {
    if !migration.victims.is_empty() {
        return false;
    }
    let before = migration.stayed.fetch_add(1, Ordering::Relaxed);
    let until = now_ns + (POLL.as_nanos() as u64) * (1 << before.min(MAX_REST_DOUBLINGS));
    migration.rest_until_ns.store(until, Ordering::Relaxed);
    true
}

#[cfg(test)]
mod tests {
    use super::{WARN_AGAIN, is_news};
    use terrace_runtime::sync::Mutex;

    #[test]
    fn a_reason_is_logged_once_a_minute() {
        let warned = Mutex::default();
        let minute = WARN_AGAIN.as_nanos() as u64;
        let said = [
            ("full", 0),
            ("full", 1),
            ("full", minute - 1),
            ("full", minute),
            ("hangs", minute),
            ("hangs", minute + 1),
        ]
        .map(|(reason, at_ns)| is_news(&warned, reason, at_ns));
        assert_eq!(said, [true, false, false, true, true, false]);
    }
}
