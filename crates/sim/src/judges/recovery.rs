//! The judgement of images after a loss of power: a mount must show one of the allowed states.

use crate::config::Config;
use crate::judges::comparison::Comparison;
use crate::media::Media;
use crate::world::World;
use crate::world::amid::Nesting;
use crate::world::known::Known;
use crate::world::power::Crash;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;
use terrace_engine::Simulation;
use terrace_format::Ino;
use terrace_reference::{CrashState, Id, Reference};

impl World {
    /// After a loss of power: judges images that the media may hold, and continues with one of them.
    pub fn recover(&mut self) {
        let Crash::Taken { seed, moment, states } = std::mem::replace(&mut self.power.crash, Crash::None)
        else {
            return;
        };
        self.counts.crashes.all += 1;
        self.note(format!("power failed, {} states allowed", states.len()));
        self.end_mount();
        self.amid.nesting = Nesting::None;
        self.pool.fault = None;
        self.pool.may_be_damaged |= std::mem::take(&mut self.pool.lied);
        let mut states = states;
        for state in &mut states {
            state.tree.drop_references();
        }
        let kept = (
            self.model.clone(),
            self.known.numbers.clone(),
            self.known.generations.clone(),
            self.known.cookies.clone(),
        );
        let mut choice = SmallRng::seed_from_u64(seed);
        let images = self.config.trouble.images;
        for side in 0..images + images_with_record_ahead(&self.config) {
            let (media, image) = match side.checked_sub(images) {
                None => {
                    let image: u64 = if side < 2 { side * 5 } else { choice.random() };
                    (Media::after(&moment, image, self.pool.media.setup()), format!("{image:#x}"))
                }
                Some(turn) => {
                    let media = Media::with_record_ahead(&moment, seed + turn, self.pool.media.setup());
                    (media, format!("with the record ahead, {turn}"))
                }
            };
            if !self.seen.borrow_mut().insert(media.hash()) {
                continue;
            }
            self.note(format!("  image {image}"));
            self.look_at(media, &states);
            self.pool.steps.clear();
            self.pool.unmount_engine();
            self.pool.fs = None;
            self.assert_clean();
            (self.model, self.known.numbers, self.known.generations, self.known.cookies) = kept.clone();
        }
        let image = choice.random();
        self.note(format!("  goes on with image {image:#x}"));
        let mut media = Media::after(&moment, image, self.pool.media.setup());
        while choice.random_ratio(1, 3) {
            media = self.crash_again(&media, &mut choice);
        }
        self.seen.borrow_mut().insert(media.hash());
        self.flip(&media, seed);
        self.look_at(media, &states);
        self.tolerance.pins_unsure = None;
        self.pool.clock.advance(Duration::from_millis(1));
        self.last_end = self.pool.now();
    }

    /// Recovers, loses power in the middle, and answers media that this crash may leave.
    fn crash_again(&mut self, media: &Media, choice: &mut SmallRng) -> Media {
        self.counts.crashes.amid_recovery += 1;
        let target = media.clock.now() + choice.random_range(0..80);
        media.clock.set_crash_at(Some(target));
        let fs = self.pool.mount(media);
        fs.run_background(choice.random_range(0..20));
        media.clock.set_crash_at(None);
        let moment = media.take_moment().unwrap_or_else(|| media.now());
        drop(fs);
        let image = choice.random();
        self.note(format!("  power fails again in recovery, image {image:#x}"));
        Media::after(&moment, image, self.pool.media.setup())
    }

    /// Checks, mounts, finds the mount's state among the allowed ones, and lets background work end.
    fn look_at(&mut self, media: Media, states: &[CrashState]) {
        self.counts.states += 1;
        self.pool.media = media;
        self.assert_clean();
        self.remount_media();
        self.settle_and_work(states);
    }

    /// Unmounts and mounts; the mount must show one of these states.
    pub fn remount_to(&mut self, mut states: Vec<CrashState>) {
        self.pool.steps.clear();
        self.pool.unmount_engine();
        self.end_mount();
        states.iter_mut().for_each(|state| state.tree.drop_references());
        let media = Media::after(&self.pool.media.now(), 1, &self.pool.media.setup().clone());
        self.look_at(media, &states);
    }

    /// Judges the media that a crash left, and unmounts.
    pub fn look_and_leave(&mut self, states: &[CrashState]) {
        let mut states = states.to_vec();
        states.iter_mut().for_each(|state| state.tree.drop_references());
        self.assert_clean();
        self.remount_media();
        self.settle_and_work(&states);
        self.unmount_and_check();
    }

    /// Judges other media in place of the present ones, and unmounts.
    pub fn look_at_and_leave(&mut self, media: Media, states: &[CrashState]) {
        self.pool.steps.clear();
        self.pool.fs = None;
        self.pool.media = media;
        self.look_and_leave(states);
    }

    /// Takes over the first allowed state that the mount shows.
    pub fn settle(&mut self, states: &[CrashState]) {
        self.settle_with_rivals(states);
    }

    /// Takes over the allowed state that the mount shows, now and after background work.
    ///
    /// A mount that has not yet freed the blocks of a removal may show the state before it as well, down to
    /// st_blocks: a cut of preallocated blocks past the durable end changes nothing else (C12). Such a removal
    /// is known by its blocks when background work has ended.
    fn settle_and_work(&mut self, states: &[CrashState]) {
        let rivals = self.settle_with_rivals(states);
        self.pool.fs().run_background(10_000);
        for rival in rivals {
            if crate::findings::caught(|| Comparison::of(self).compare_all()).is_ok() {
                return;
            }
            self.note(format!("  state after background work: {}", rival.name));
            rival.give_to(self);
        }
        Comparison::of(self).compare_all();
    }

    /// As [`Self::settle`]; answers the later states of fewer blocks that the mount shows as well.
    fn settle_with_rivals(&mut self, states: &[CrashState]) -> Vec<Fit> {
        let mut found = Vec::new();
        // States that fit exactly come first: st_blocks tells one prefix of an fallocate from another.
        let exactly = states.iter().enumerate().map(|state| (false, state));
        for (lenient, (index, state)) in exactly.chain(states.iter().enumerate().map(|state| (true, state))) {
            match self.compare_with(state, lenient) {
                Ok(()) => {
                    self.note(format!("  state: {}", state.name));
                    let fit = Fit::of(self);
                    let blocks = state.tree.allocated_blocks();
                    let later = states.get(index + 1..).unwrap_or_default().iter();
                    let fewer = later.filter(|later| later.tree.allocated_blocks() < blocks);
                    let rivals = fewer.filter_map(|state| {
                        let fits = self.compare_with(state, true).is_ok();
                        fits.then(|| Fit { name: state.name.clone(), ..Fit::of(self) })
                    });
                    let rivals = rivals.collect();
                    fit.give_to(self);
                    // On such PM an inode that was never durable may be made again with the same number and
                    // generation.
                    let there: BTreeMap<u64, u32> =
                        self.known.numbers.values().map(|(ino, generation)| (ino.0, *generation)).collect();
                    self.known
                        .generations
                        .retain(|ino, _| !self.config.persist_only() || there.contains_key(ino));
                    return rivals;
                }
                Err(error) if lenient => found.push(format!("not {:?}: {error}", state.name)),
                Err(_) => {}
            }
        }
        panic!("the mount shows none of the {} states allowed: {}", states.len(), found.join("; "));
    }

    /// Compares the mount with an allowed state, which the world then holds if it fits.
    fn compare_with(&mut self, state: &CrashState, lenient: bool) -> Result<(), String> {
        let before = Fit::of(self);
        self.model = state.tree.clone();
        self.tolerance.torn = state.torn.clone();
        self.forget_volatile();
        (self.tolerance.lenient, self.tolerance.settling) = (lenient, true);
        let compared = crate::findings::caught(|| Comparison::of(self).compare_all());
        (self.tolerance.lenient, self.tolerance.settling, self.tolerance.torn) = (false, false, None);
        if compared.is_err() {
            before.give_to(self);
        }
        compared
    }
}

/// Lazy write-back stores data in place and in new blocks before the record. Random images seldom have the whole record and
/// lack a line of the data.
fn images_with_record_ahead(config: &Config) -> u64 {
    if config.buffer.lazy && config.trouble.images > 0 { 2 } else { 0 }
}

/// A state that a mount showed, with the numbers and cookies that belong to it.
struct Fit {
    name: String,
    model: Reference,
    numbers: BTreeMap<Id, (Ino, u32)>,
    generations: BTreeMap<u64, u32>,
    cookies: BTreeMap<(Id, Vec<u8>), u64>,
}

impl Fit {
    /// The state that a world holds.
    fn of(world: &World) -> Fit {
        let Known { numbers, generations, cookies, .. } = world.known.durable();
        Fit { name: String::new(), model: world.model.clone(), numbers, generations, cookies }
    }

    /// Lets a world hold this state.
    fn give_to(self, world: &mut World) {
        (world.model, world.known.numbers) = (self.model, self.numbers);
        (world.known.generations, world.known.cookies) = (self.generations, self.cookies);
    }
}
