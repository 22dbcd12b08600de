//! The step of a migration worker. Worker 0, or its replacement while it hangs, promotes touched blocks. Worker 0 alone
//! moves data of read-dominated files. Then every worker demotes; metadata pages go when no data has to.

use crate::demote::kept::{rest_for_pins, rests_for_pins};
use crate::metadata::lower_some;
use crate::migration::Migration;
use crate::observe::observe;
use crate::pace::POLL;
use crate::planner::{NAMES, Round, demotion_round, rest, rests};
use crate::promote::into_dram::to_dram_round;
use crate::promote::on_touch::promotion_round;
use crate::promote::read_dominated::reverse_round;
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{Next, Step};
use terrace_store::parts::pressure::WORKERS;

/// The pause of a worker that found all victims taken.
const BUSY: Duration = Duration::from_millis(1);

/// The pause of a worker that worker 0 wakes when there is work.
const IDLE: Duration = Duration::from_secs(1);

/// Background: one round of promotion or demotion per step.
pub struct MigrationStep {
    migration: Weak<Migration>,
    worker: usize,
}

impl MigrationStep {
    /// The step of one worker.
    pub fn new(migration: &Arc<Migration>, worker: usize) -> MigrationStep {
        migration.store.pressure.worker_begins();
        MigrationStep { migration: Arc::downgrade(migration), worker }
    }
}

impl Drop for MigrationStep {
    fn drop(&mut self) {
        if let Some(migration) = self.migration.upgrade() {
            migration.store.pressure.worker_ends();
        }
    }
}

impl Step for MigrationStep {
    fn name(&self) -> &'static str {
        NAMES[self.worker % WORKERS]
    }

    fn step(&mut self) -> Next {
        let Some(migration) = self.migration.upgrade() else {
            return Next::Done;
        };
        let now = migration.store.clock.monotonic_ns();
        let leads = migration.leads(self.worker, now);
        if leads && let Err(error) = promotion_round(&migration) {
            tracing::debug!("promotion: {error}");
        }
        // Other workers do not replace worker 0 here: they would hang with the same device one after the
        // other.
        if self.worker == 0 {
            reverse_round(&migration);
            if now >= migration.not_before_ns.load(Ordering::Relaxed)
                && !migration.store.persistent.wal().is_stopped()
            {
                to_dram_round(&migration);
            }
        }
        if now < migration.not_before_ns.load(Ordering::Relaxed)
            || migration.store.persistent.wal().is_stopped()
            || rests_for_pins(&migration, now)
            || rests(&migration, now)
        {
            return Next::After(POLL);
        }
        let wanted = match migration.store.pressure.is_draining() {
            false => migration.store.steering.policy().blocks_to_demote(&observe(&migration)),
            true => u64::MAX,
        };
        if wanted == 0 && migration.victims.is_empty() {
            if leads && lower_some(&migration, 0, false) {
                return Next::Again;
            }
            return Next::After(if leads { POLL } else { IDLE });
        }
        // Only worker 0 wakes the others. Workers that lead while it hangs would wake each other without end,
        // and look by themselves anyway.
        if self.worker == 0 {
            migration.store.pressure.wake_others();
        }
        let round = {
            let _turn = migration.store.pressure.permits().take();
            demotion_round(&migration, wanted, WORKERS)
        };
        // Data counts as moving also while another worker has the victims, or an operation holds claimed
        // blocks.
        let data_moves =
            matches!(round, Ok(Round::Progress | Round::InFlight | Round::BlocksClaimedByOthers));
        if leads && lower_some(&migration, wanted, data_moves) {
            return Next::Again;
        }
        match round {
            Ok(Round::Progress) => Next::Again,
            Err(_) if planted(Mistake::MigrationSpins) => Next::Again,
            Ok(Round::Nothing) => {
                rest_for_pins(&migration, now);
                Next::After(POLL)
            }
            Ok(Round::AllRefused) if rest(&migration, now) => Next::After(POLL),
            Ok(Round::AllRefused) => Next::Again,
            Ok(Round::InFlight) => Next::After(BUSY),
            _ => Next::After(POLL),
        }
    }
}
