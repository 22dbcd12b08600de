//! The choice of victims in PM, and of dirty pages for write-back, by the rules of the engine.

use super::blocks::Memory;
use super::machine::Machine;
use super::work::Kind;
use terrace_placement::VictimOrder;
use terrace_placement::temperature::{Portion, Times, coldest};

/// Ticks after which a dirty page is written back.
const OLD_TICKS: u32 = 2500;

impl Machine<'_> {
    /// Begins a demotion of `wanted` blocks; whether there is a victim.
    pub(super) fn begin_demotion(&mut self, wanted: u64) -> bool {
        let wanted = wanted.clamp(1, self.setup.group_blocks) as usize;
        let mut victims = match self.policy.victims() {
            VictimOrder::LeastRecentlyUsed => Vec::new(),
            order => self.coldest(wanted, order),
        };
        if victims.is_empty() {
            let used = |id: &u32| {
                let location = self.blocks.location(*id);
                location.written.max(location.read)
            };
            victims = self.blocks.in_pm().iter().filter(|id| self.is_movable(*id)).collect();
            victims.sort_unstable_by_key(|id| (used(id), *id));
            victims.truncate(wanted);
        }
        self.demote(Kind::Demote, victims)
    }

    fn is_movable(&self, id: u32) -> bool {
        !self.blocks.location(id).leaving && !self.blocks.kept(Memory::Pm).holds(id)
    }

    /// The victims that the engine would choose (`Engine::pick_coldest`).
    fn coldest(&self, wanted: usize, order: VictimOrder) -> Vec<u32> {
        let now = self.tick();
        let mut files = vec![Times::default(); self.steps.files.len()];
        let movable = || self.blocks.in_pm().iter().filter(|id| self.is_movable(*id));
        let file_of = |id: u32| self.steps.places[id as usize].0;
        let used = |id: u32| {
            let location = self.blocks.location(id);
            order.tick(location.written, location.read)
        };
        movable().for_each(|id| files[file_of(id) as usize].add(used(id)));
        let some = (0..).zip(&files).filter(|(_, times)| times.blocks > 0);
        let mut chosen: Vec<Option<(usize, Portion)>> = vec![None; files.len()];
        for (rank, (file, portion)) in
            coldest(some, wanted as u64, (now, self.parameters.whole_after())).into_iter().enumerate()
        {
            chosen[file as usize] = Some((rank, portion));
        }
        let mut found = Vec::new();
        for id in movable() {
            if let Some((rank, portion)) = chosen[file_of(id) as usize]
                && portion.holds(used(id))
            {
                found.push((rank, used(id), id));
            }
        }
        found.sort_unstable();
        found.truncate(wanted);
        found.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Begins a write-back of the file written longest ago: from 95 % of the limit on until 80 %, and for old
    /// dirty pages.
    pub(super) fn begin_write_back(&mut self) -> bool {
        let (dirty, limit) = (self.blocks.dirty().len() as u64 * 100, self.setup.dirty_blocks());
        self.work.draining = if self.work.draining { dirty > limit * 80 } else { dirty > limit * 95 };
        let Some(oldest) = self.blocks.dirty().oldest() else { return false };
        let is_old = self.tick().saturating_sub(self.blocks.location(oldest).written) >= OLD_TICKS;
        (self.work.draining || is_old) && self.write_back_oldest()
    }

    /// Begins a write-back of the file written longest ago; whether there is a dirty page.
    pub(super) fn write_back_oldest(&mut self) -> bool {
        let Some(oldest) = self.blocks.dirty().oldest() else { return false };
        let steps = self.steps;
        let own = steps.files[steps.places[oldest as usize].0 as usize].iter().copied();
        let most = self.setup.group_blocks as usize;
        let ids: Vec<u32> = own.filter(|id| self.blocks.dirty().holds(*id)).take(most).collect();
        self.begin_writing(Kind::WriteBack, &ids)
    }
}
