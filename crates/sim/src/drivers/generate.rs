//! The generator of histories: each next action is drawn from a seed and from the state of the reference.

use crate::action::{Action, Entry, Fault};
use crate::choose::chooser::Chooser;
use crate::config::{Config, Mix};
use crate::world::Shared;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::time::Duration;
use terrace_engine::MoveRequest;
use terrace_media::block::{Operation, Times};
use terrace_media::pm::Access;
use terrace_reference::{Id, ROOT};

/// The operations of a device.
pub const OPERATIONS: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Flush];

/// Draws the entries of a history.
pub struct Generator {
    rng: SmallRng,
    /// Actions left before a fault heals.
    fault_for: u32,
}

impl Generator {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Generator {
        Generator { rng: SmallRng::seed_from_u64(seed), fault_for: 0 }
    }

    /// The next entry.
    pub fn next(&mut self, world: &Shared) -> Entry {
        let seed = self.rng.random();
        let config = world.borrow().config;
        if self.fault_for > 0 {
            self.fault_for -= 1;
            if self.fault_for == 0 {
                return Entry { action: Action::Fault(Fault::Heals), seed };
            }
        }
        // Background work amid a fault: no movement may retry its failure at once (M6).
        if self.fault_for > 0 && self.rng.random_ratio(1, 12) {
            return Entry { action: Action::Background(200), seed };
        }
        let weight = if config.trouble.power_fails { 60 } else { 10 };
        let action = match self.rng.random_range(0..4000) {
            0..=149 => Action::Background(*[1, 1, 2, 5, 200].choose(&mut self.rng).unwrap_or(&1)),
            150..=229 => Action::Step(self.rng.random_range(0..16)),
            230..=236 => Action::SyncDown,
            237..=239 => Action::Remount,
            240..=242 => Action::Compare,
            243..=292 => Action::Advance(self.some_time(config)),
            293..=302 => Action::Reuse,
            303..=312 => Action::Crash,
            at @ 313..=399 if config.trouble.power_fails && at - 313 < weight => {
                // In most cases soon: inside the next operation or background work.
                let most = *[8, 30, 30, 100, 400].choose(&mut self.rng).unwrap_or(&30);
                Action::PowerFails(self.rng.random_range(0..most))
            }
            400..=429 if config.trouble.faults && self.fault_for == 0 => {
                self.fault_for = self.rng.random_range(5..60);
                Action::Fault(self.fault(config))
            }
            // Faults that begin soon and end soon, so that descriptors have many failed write-backs to be
            // told of.
            430..=629 if config.mix == Mix::Descriptors && self.fault_for == 0 => {
                self.fault_for = self.rng.random_range(1..10);
                let operation = *OPERATIONS[1..].choose(&mut self.rng).unwrap_or(&Operation::Flush);
                Action::Fault(Fault::Fails { operation, errno: libc::EIO, times: Some(1) })
            }
            430..=449 if config.trouble.flips => Action::Remount,
            430..=629 if config.trouble.pm_faults => self.poisoned(world),
            630..=639 if config.buffers() => Action::Sync,
            640..=649 if config.buffers() => Action::WriteBack,
            650..=679 if config.by_hand => self.hand(world),
            680..=683 if config.by_hand || config.follows_reads() => Action::ReadOften(self.large(world)),
            684..=690 if config.has_metadata_below() => Action::LowerMetadata,
            650..=683 if config.tree.many_names => Action::LowerMetadata,
            700..=706 if config.mix == Mix::Streams => Action::ReadOften(self.large(world)),
            // A loss of power costs little time in so small a pool.
            700..=999 if config.mix == Mix::Rewrites && config.trouble.power_fails => {
                Action::PowerFails(*[8, 30, 60].choose(&mut self.rng).unwrap_or(&30))
            }
            _ => return Entry { action: self.operation(world), seed },
        };
        Entry { action, seed }
    }

    /// Time that passes. With waiting writes it may exceed their limits: write-back begins after 5 s, and
    /// takes all pages older than 30 s (design 8).
    fn some_time(&mut self, config: Config) -> Duration {
        let most = if config.buffers() {
            *[3000, 3000, 8000, 40_000].choose(&mut self.rng).unwrap_or(&3000)
        } else {
            3000
        };
        Duration::from_millis(self.rng.random_range(1..most))
    }

    /// A file, or sometimes a directory.
    fn node(&mut self, world: &Shared, directories: bool) -> Id {
        let directory = directories && self.rng.random_ratio(1, 4);
        let mut world = world.borrow_mut();
        let mut chooser = Chooser::drawing(&mut self.rng, &mut world);
        if directory { chooser.directory() } else { chooser.file() }
    }

    /// The largest of four files: its repeated reads soon outweigh the run's accesses of PM.
    fn large(&mut self, world: &Shared) -> Id {
        let some = [(); 4].map(|()| self.node(world, false));
        let world = world.borrow();
        some.into_iter().max_by_key(|id| world.model.size_of(*id).min(1 << 20)).unwrap_or(ROOT)
    }

    fn hand(&mut self, world: &Shared) -> Action {
        let tier = self.rng.random_range(0..=world.borrow().config.lowest_tier());
        let action = match self.rng.random_range(0..10) {
            0..=5 => MoveRequest::Migrate { to: tier },
            6..=7 => MoveRequest::Pin { tier },
            _ => MoveRequest::Unpin,
        };
        let finish = self.rng.random_ratio(2, 3);
        Action::Hand { id: self.node(world, true), action, finish }
    }

    fn operation(&mut self, world: &Shared) -> Action {
        Action::Op(Chooser::drawing(&mut self.rng, &mut world.borrow_mut()).choose())
    }

    fn poisoned(&mut self, world: &Shared) -> Action {
        let access = *[Access::Reads, Access::Stores].choose(&mut self.rng).unwrap_or(&Access::Reads);
        let most = *[3, 10, 10, 30, 300].choose(&mut self.rng).unwrap_or(&10);
        let action = match self.rng.random_range(0..8) {
            0 => Action::Background(20),
            1 => Action::SyncDown,
            _ => self.operation(world),
        };
        let after = self.rng.random_range(0..most);
        // PM fails once, or it fails at one place until the action has ended.
        let times = if self.rng.random() { Times::OnceAfter(after) } else { Times::WearsOutAfter(after) };
        Action::Poisoned { access, times, action: Box::new(action) }
    }

    fn fault(&mut self, config: Config) -> Fault {
        // A lying flush may lose waiting writes, and lost bytes look like bytes that were never written; of
        // metadata it may lose every name.
        let kinds = if config.buffers() || config.has_metadata_below() { 9 } else { 10 };
        match self.rng.random_range(0..kinds) {
            0..=5 => Fault::Fails {
                operation: *OPERATIONS.choose(&mut self.rng).unwrap_or(&Operation::Read),
                errno: if self.rng.random_ratio(1, 3) { libc::ENOSPC } else { libc::EIO },
                times: self.rng.random_ratio(2, 3).then(|| self.rng.random_range(1..4)),
            },
            6 => Fault::Stalls,
            7..=8 => Fault::Vanishes,
            _ => Fault::Lies,
        }
    }
}
