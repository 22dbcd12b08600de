//! Loss of power on a world: the moment of the crash, and the states that the crash may leave.

use crate::world::World;
use crate::world::power::Crash;
use terrace_reference::{CrashState, Op, Stamp};

impl World {
    /// Keeps the state before the first operation since the last persist.
    pub fn durable_start(&mut self) {
        if self.config.persist_only() && self.power.unpersisted.is_empty() {
            self.power.keep_unpersisted(&self.model);
        }
    }

    /// Keeps the states during and after an operation, on PM where only `persist` makes durable.
    pub fn durable_history(&mut self, op: &Op, inside: Vec<CrashState>, succeeded: bool) {
        if !self.config.persist_only() {
            return;
        }
        self.power.unpersisted.extend(inside.into_iter().skip(1));
        let persists = matches!(op, Op::Fsync { .. } | Op::Write { sync: true, .. });
        if persists && succeeded {
            self.power.unpersisted.clear();
        }
        self.power.keep_unpersisted(&self.model);
    }

    /// The states that a crash inside an operation may leave.
    pub fn states_of(&self, op: &Op, when: Stamp) -> Vec<CrashState> {
        self.model.crash_states(op, self.config.crash_rules(), when)
    }

    /// Whether power failed in the work that just ended. Keeps the moment.
    pub fn take_crash(&mut self) -> bool {
        self.power.take_crash(&self.pool.media)
    }

    /// Notes the states that may be left of the operation in which power failed.
    pub fn power_failed(&mut self, mut found: Vec<CrashState>) {
        // On PM where only `persist` makes durable a crash may also lose any suffix of the returned
        // operations (C6).
        found.append(&mut self.power.unpersisted);
        if found.len() > 1 {
            self.counts.crashes.amid_operation += 1;
        }
        if let Crash::Taken { states, .. } = &mut self.power.crash {
            *states = found;
        }
    }

    /// Plans a loss of power so many events from now, unless one is planned.
    pub fn arm(&mut self, events: u64, seed: u64) {
        if matches!(self.power.crash, Crash::None) {
            self.note(format!("power fails after {events} more events"));
            self.pool.media.clock.set_crash_at(Some(self.pool.media.clock.now() + events));
            self.power.crash = Crash::Armed { seed };
        }
    }

    /// Power fails now, between two operations.
    pub fn crash_now(&mut self, seed: u64) {
        let states = vec![CrashState::now(&self.model)];
        self.lose_power(seed, states);
    }

    /// Power fails now.
    pub fn lose_power(&mut self, seed: u64, states: Vec<CrashState>) {
        self.pool.media.clock.set_crash_at(None);
        let _ = self.pool.media.take_moment();
        self.power.crash = Crash::Taken { seed, moment: Box::new(self.pool.media.now()), states: Vec::new() };
        self.power_failed(states);
    }

    /// After background work: if power failed in it, the present state is the only one allowed.
    pub(crate) fn background_ended(&mut self) {
        if self.take_crash() {
            self.counts.crashes.amid_background += 1;
            let states = vec![CrashState::now(&self.model)];
            self.power_failed(states);
        }
    }
}
