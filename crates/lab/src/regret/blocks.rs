//! The locations of all blocks on the cost machine: PM, dirty pages, clean copies, and the device.
//!
//! Nothing here chooses: room in PM and in DRAM is made above (copies.rs, background.rs).

use super::candidates::Copies;
use super::list::{Bag, Order};
use super::setup::Setup;
use super::steps::Steps;
use terrace_cache::{BlockCache, Page, PageKey};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};

/// The locations of a block. The newest content is in PM, else in a dirty page, else in the cold copy.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Location {
    pub pm: bool,
    /// The device has the newest content.
    pub below: bool,
    /// Chosen for a movement.
    pub leaving: bool,
    /// Rises with each change of the content.
    pub version: u32,
    /// Ticks of the last write and the last read.
    pub written: u32,
    pub read: u32,
}

impl Location {
    /// Whether the device alone has the newest content.
    pub fn is_cold(&self) -> bool {
        self.below && !self.pm
    }
}

/// The memory of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Pm = 0,
    Dram = 1,
}

/// The last use of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LastUse {
    #[default]
    None = 0,
    Read = 1,
    Written = 2,
}

/// The memory in which a read finds a block.
pub(super) enum Found {
    Pm,
    Dirty,
    /// A clean copy that DRAM keeps by worth.
    Kept,
    /// A page of the engine's cache, with the number of its requests.
    Cached {
        touches: u32,
    },
    /// Only the device has the block.
    Missed(LastUse),
}

/// The locations of all blocks.
pub(super) struct Blocks<'a> {
    steps: &'a Steps,
    setup: Setup,
    copies: Copies,
    locations: Vec<Location>,
    /// Blocks in PM, in the order of arrival, which no policy uses.
    in_pm: Order,
    /// Dirty pages by last write.
    dirty: Order,
    /// By [`Memory`]: clean copies that are kept by worth; copies in PM are in `in_pm` too.
    kept: [Bag; 2],
    /// Clean copies in DRAM: the engine's cache, with one page of zeros for all blocks.
    clean: BlockCache,
    zeros: Page,
    last_uses: Vec<LastUse>,
}

impl<'a> Blocks<'a> {
    pub fn new(steps: &'a Steps, setup: Setup, copies: Copies) -> Blocks<'a> {
        let blocks = steps.blocks();
        Blocks {
            steps,
            setup,
            copies,
            locations: vec![Location::default(); blocks],
            in_pm: Order::new(blocks),
            dirty: Order::new(blocks),
            kept: [Bag::new(blocks), Bag::new(blocks)],
            // DRAM for clean copies.
            clean: BlockCache::new(setup.clean_blocks() * BLOCK_SIZE, u64::MAX / 2),
            zeros: Page::zeroed(),
            last_uses: vec![LastUse::None; blocks],
        }
    }

    /// Makes every block cold; versions rise.
    pub fn demote_all(&mut self) {
        let mut cold = Blocks::new(self.steps, self.setup, self.copies);
        for (cold, old) in cold.locations.iter_mut().zip(&self.locations) {
            *cold = Location { below: true, version: old.version + 1, ..Location::default() };
        }
        *self = cold;
    }

    pub fn location(&self, id: u32) -> Location {
        self.locations[id as usize]
    }
    pub fn location_mut(&mut self, id: u32) -> &mut Location {
        &mut self.locations[id as usize]
    }
    pub fn in_pm(&self) -> &Order {
        &self.in_pm
    }
    pub fn dirty(&self) -> &Order {
        &self.dirty
    }
    pub fn kept(&self, memory: Memory) -> &Bag {
        &self.kept[memory as usize]
    }
    pub fn kept_mut(&mut self, memory: Memory) -> &mut Bag {
        &mut self.kept[memory as usize]
    }

    /// PM blocks in use, without clean blocks, which are dropped when room is needed.
    pub fn used_pm(&self) -> u64 {
        (self.in_pm.len() - self.kept(Memory::Pm).len()) as u64
    }
    pub fn free_pm(&self) -> u64 {
        self.setup.pm_blocks.saturating_sub(self.used_pm())
    }
    /// Blocks of PM without content.
    pub fn empty_pm(&self) -> u64 {
        self.setup.pm_blocks - self.in_pm.len() as u64
    }
    /// Blocks for which DRAM has room.
    pub fn dram_room(&self) -> u64 {
        if self.copies == Copies::Both {
            return self.setup.clean_blocks().saturating_sub(self.kept(Memory::Dram).len() as u64);
        }
        self.clean.budget_bytes().saturating_sub(self.clean.bytes()) / BLOCK_SIZE
    }

    /// Looks a block up for a read at `tick`, and notes the read.
    pub fn look_up(&mut self, id: u32, tick: u32, now_ns: u64) -> Found {
        let last_use = std::mem::replace(&mut self.last_uses[id as usize], LastUse::Read);
        let location = &mut self.locations[id as usize];
        if location.pm {
            (location.read, location.leaving) = (tick, false);
            Found::Pm
        } else if self.dirty.holds(id) {
            Found::Dirty
        } else if self.kept(Memory::Dram).holds(id) {
            Found::Kept
        } else if let Some(found) = self.clean.get(self.key(id), 0, now_ns) {
            Found::Cached { touches: found.touches }
        } else {
            Found::Missed(last_use)
        }
    }

    /// The key of a block in the engine's cache.
    fn key(&self, id: u32) -> PageKey {
        let (file, block) = self.steps.places[id as usize];
        PageKey { ino: Ino(file.into()), generation: 0, block: FileBlock(block) }
    }

    /// Inserts a clean page into the engine's cache.
    pub fn cache(&mut self, id: u32, now_ns: u64) {
        self.clean.insert(self.key(id), 0, self.zeros.clone(), true, now_ns);
    }

    pub fn drop_clean(&mut self, id: u32) {
        self.kept_mut(Memory::Dram).remove(id);
        self.clean.remove(self.key(id));
    }

    /// Notes a change of the content: the cold copy and the copy in DRAM are outdated.
    pub fn changed(&mut self, id: u32) {
        self.drop_clean(id);
        self.changed_in_pm(id);
    }

    /// As [`Self::changed`] for a store to PM. A clean page may stay in the engine's cache: when the block
    /// leaves PM the page gets the new content.
    pub fn changed_in_pm(&mut self, id: u32) {
        if self.copies == Copies::Both {
            self.drop_clean(id);
        }
        self.dirty.remove(id);
        self.kept_mut(Memory::Pm).remove(id);
        self.last_uses[id as usize] = LastUse::Written;
        let location = self.location_mut(id);
        (location.below, location.version) = (false, location.version + 1);
    }

    pub fn leave_pm(&mut self, id: u32) {
        self.in_pm.remove(id);
        self.kept_mut(Memory::Pm).remove(id);
        let location = self.location_mut(id);
        (location.pm, location.leaving) = (false, false);
    }

    /// Makes a block the newest in PM, which must have room.
    pub fn put_in_pm(&mut self, id: u32, tick: u32) {
        self.in_pm.put(id);
        assert!(self.in_pm.len() as u64 <= self.setup.pm_blocks, "more blocks in PM than it has");
        let location = self.location_mut(id);
        (location.pm, location.leaving, location.written) = (true, false, tick);
    }

    /// Makes a block the newest dirty page.
    pub fn put_dirty(&mut self, id: u32, tick: u32) {
        self.dirty.put(id);
        self.location_mut(id).written = tick;
    }

    /// Notes that a dirty page was written back; whether the block had a dirty page.
    pub fn clean_dirty(&mut self, id: u32) -> bool {
        let was_dirty = self.dirty.remove(id);
        if was_dirty {
            self.location_mut(id).below = true;
        }
        was_dirty
    }
}
