//! Loss of power: its moment, the states that it may leave, and the judgement of images.

use crate::media::{Media, Moment};
use crate::world::{Nesting, World};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;
use terrace_engine::Simulation;
use terrace_reference::{CrashState, Op};

/// The state of the simulated power supply.
pub enum Crash {
    /// No loss of power is planned.
    None,
    /// Power fails at an event of the clock; choices after it come from the seed.
    Armed { seed: u64 },
    /// Power has failed; `states` may be left.
    Taken { seed: u64, moment: Box<Moment>, states: Vec<CrashState> },
}

impl Crash {
    /// Whether power has failed: the work that still runs has no effect.
    pub fn is_taken(&self) -> bool {
        matches!(self, Crash::Taken { .. })
    }
}

impl World {
    /// Keeps the state before the first operation since the last persist.
    pub fn durable_start(&mut self) {
        if self.config.persist_only && self.unpersisted.is_empty() {
            self.unpersisted.push(self.earlier());
        }
    }

    /// The states since the last persist, on PM where only `persist` makes durable.
    pub fn unpersisted(&self) -> Vec<CrashState> {
        self.unpersisted.clone()
    }

    fn earlier(&self) -> CrashState {
        let name = "what was there before, not yet made durable".into();
        CrashState { tree: self.model.clone(), torn: None, name }
    }

    /// Keeps the states during and after an operation, on PM where only `persist` makes durable.
    pub fn durable_history(&mut self, op: &Op, inside: Vec<CrashState>, succeeded: bool) {
        if !self.config.persist_only {
            return;
        }
        self.unpersisted.extend(inside.into_iter().skip(1));
        let persists = matches!(op, Op::Fsync { .. } | Op::Write { sync: true, .. });
        if persists && succeeded {
            self.unpersisted.clear();
        }
        self.unpersisted.push(self.earlier());
    }

    /// Whether power failed in the work that just ended. Keeps the moment.
    pub fn take_crash(&mut self) -> bool {
        let Crash::Armed { seed } = self.crash else { return false };
        let Some(moment) = self.media.take_moment() else { return false };
        self.crash = Crash::Taken { seed, moment: Box::new(moment), states: Vec::new() };
        true
    }

    /// Notes the states that may be left of the operation in which power failed.
    pub fn power_failed(&mut self, mut found: Vec<CrashState>) {
        // On PM where only `persist` makes durable a crash may also lose any suffix of the returned
        // operations (C6).
        found.append(&mut self.unpersisted);
        if found.len() > 1 {
            self.counts.crashes_amid_operation += 1;
        }
        if let Crash::Taken { states, .. } = &mut self.crash {
            *states = found;
        }
    }

    /// The only state allowed if no visible operation is under way.
    pub fn state_now(&self) -> Vec<CrashState> {
        vec![CrashState { tree: self.model.clone(), torn: None, name: "now".into() }]
    }

    /// The state with all waiting writes durable, if writes wait.
    pub fn state_written_back(&self) -> Option<CrashState> {
        let mut tree = self.model.clone();
        tree.all_written_back();
        let waits = self.model.nodes().any(|(_, node)| node.unwritten.is_some());
        waits.then(|| CrashState { tree, torn: None, name: "everything written back".into() })
    }

    pub fn arm(&mut self, events: u64, seed: u64) {
        if matches!(self.crash, Crash::None) {
            self.note(format!("power fails after {events} more events"));
            self.media.clock.set_crash_at(Some(self.media.clock.now() + events));
            self.crash = Crash::Armed { seed };
        }
    }

    pub fn crash_now(&mut self, seed: u64) {
        let states = self.state_now();
        self.lose_power(seed, states);
    }

    /// Power fails now.
    pub fn lose_power(&mut self, seed: u64, states: Vec<CrashState>) {
        self.media.clock.set_crash_at(None);
        let _ = self.media.take_moment();
        self.crash = Crash::Taken { seed, moment: Box::new(self.media.now()), states: Vec::new() };
        self.power_failed(states);
    }

    /// After a loss of power: judges images that the media may hold, and continues with one of them.
    pub fn recover(&mut self) {
        let Crash::Taken { seed, moment, states } = std::mem::replace(&mut self.crash, Crash::None) else {
            return;
        };
        self.counts.crashes += 1;
        self.note(format!("power failed, {} states allowed", states.len()));
        self.end_mount();
        self.nesting = Nesting::None;
        self.fault = None;
        self.may_be_damaged |= std::mem::take(&mut self.lied);
        let mut states = states;
        for state in &mut states {
            state.tree.drop_references();
        }
        let kept = (self.model.clone(), self.numbers.clone(), self.generations.clone(), self.cookies.clone());
        let mut choice = SmallRng::seed_from_u64(seed);
        for side in 0..self.config.images {
            let image: u64 = if side < 2 { side * 5 } else { choice.random() };
            let media = Media::after(&moment, image, self.media.setup());
            if !self.seen.borrow_mut().insert(media.hash()) {
                continue;
            }
            self.note(format!("  image {image:#x}"));
            self.look_at(media, &states);
            self.steps.clear();
            self.unmount_engine();
            self.fs = None;
            self.assert_clean();
            (self.model, self.numbers, self.generations, self.cookies) = kept.clone();
        }
        let image = choice.random();
        self.note(format!("  goes on with image {image:#x}"));
        let mut media = Media::after(&moment, image, self.media.setup());
        while choice.random_ratio(1, 3) {
            media = self.crash_again(&media, &mut choice);
        }
        self.seen.borrow_mut().insert(media.hash());
        self.flip(&media, seed);
        self.look_at(media, &states);
        self.pins_unsure = None;
        self.clock.advance(Duration::from_millis(1));
        self.last_end = self.now();
    }

    /// Recovers, loses power in the middle, and answers media that this crash may leave.
    fn crash_again(&mut self, media: &Media, choice: &mut SmallRng) -> Media {
        self.counts.crashes_amid_recovery += 1;
        let target = media.clock.now() + choice.random_range(0..80);
        media.clock.set_crash_at(Some(target));
        let fs = self.mount(media);
        fs.run_background(choice.random_range(0..20));
        media.clock.set_crash_at(None);
        let moment = media.take_moment().unwrap_or_else(|| media.now());
        drop(fs);
        let image = choice.random();
        self.note(format!("  power fails again in recovery, image {image:#x}"));
        Media::after(&moment, image, self.media.setup())
    }

    /// Checks, mounts, finds the mount's state among the allowed ones, and lets background work end.
    fn look_at(&mut self, media: Media, states: &[CrashState]) {
        self.counts.states += 1;
        self.media = media;
        self.assert_clean();
        self.remount_media();
        self.settle(states);
        self.fs().run_background(10_000);
        self.compare_all();
    }

    /// Unmounts and mounts; the mount must show one of these states.
    pub fn remount_to(&mut self, mut states: Vec<CrashState>) {
        self.steps.clear();
        self.unmount_engine();
        self.end_mount();
        states.iter_mut().for_each(|state| state.tree.drop_references());
        let media = Media::after(&self.media.now(), 1, &self.media.setup().clone());
        self.look_at(media, &states);
    }

    /// Judges the media that a crash left, and unmounts.
    pub fn look_and_leave(&mut self, states: &[CrashState]) {
        let mut states = states.to_vec();
        states.iter_mut().for_each(|state| state.tree.drop_references());
        self.assert_clean();
        self.remount_media();
        self.settle(&states);
        self.fs().run_background(10_000);
        self.compare_all();
        self.unmount_and_check();
    }

    /// Judges other media in place of the present ones, and unmounts.
    pub fn look_at_and_leave(&mut self, media: Media, states: &[CrashState]) {
        self.steps.clear();
        self.fs = None;
        self.media = media;
        self.look_and_leave(states);
    }

    /// Takes over the first allowed state that the mount shows.
    pub fn settle(&mut self, states: &[CrashState]) {
        let mut found = Vec::new();
        // States that fit exactly come first: st_blocks tells one prefix of an fallocate from another.
        let turns = states.iter().map(|state| (false, state)).chain(states.iter().map(|state| (true, state)));
        for (lenient, state) in turns {
            self.lenient = lenient;
            self.model = state.tree.clone();
            self.torn = state.torn.clone();
            let kept = (self.numbers.clone(), self.generations.clone(), self.cookies.clone());
            self.forget_volatile();
            self.settling = true;
            let compared = crate::caught(|| self.compare_all());
            self.settling = false;
            match compared {
                Ok(()) => {
                    self.note(format!("  state: {}", state.name));
                    // On such PM an inode that was never durable may be made again with the same number and
                    // generation.
                    let there: BTreeMap<u64, u32> =
                        self.numbers.values().map(|(ino, generation)| (ino.0, *generation)).collect();
                    self.generations.retain(|ino, _| !self.config.persist_only || there.contains_key(ino));
                    (self.lenient, self.torn) = (false, None);
                    return;
                }
                Err(error) if lenient => found.push(format!("not {:?}: {error}", state.name)),
                Err(_) => {}
            }
            (self.numbers, self.generations, self.cookies) = kept;
        }
        panic!("the mount shows none of the {} states allowed: {}", states.len(), found.join("; "));
    }
}
