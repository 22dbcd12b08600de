//! Groups of background movements: their beginning and their end. A single group moves at a time.

use super::blocks::Memory;
use super::machine::Machine;
use super::setup::transfer_ns;
use super::work::{Group, Kind};

impl Machine<'_> {
    /// Begins a movement from the device.
    pub(super) fn begin_reading(&mut self, kind: Kind, ids: &[u32]) {
        let device = self.setup.device;
        self.begin(kind, ids, device.read_latency_ns, device.read_bytes_per_s);
    }

    /// Begins a movement to the device; whether there is a block to move.
    pub(super) fn begin_writing(&mut self, kind: Kind, ids: &[u32]) -> bool {
        let device = self.setup.device;
        self.waits.blocks_down += ids.len() as u64;
        self.begin(kind, ids, device.write_latency_ns, device.write_bytes_per_s)
    }

    fn begin(&mut self, kind: Kind, ids: &[u32], latency_ns: u64, bytes_per_s: u64) -> bool {
        if ids.is_empty() {
            return false;
        }
        let left_ns = latency_ns + transfer_ns(ids.len() as u64, bytes_per_s);
        let blocks = ids.iter().map(|id| (*id, self.blocks.location(*id).version)).collect();
        self.work.group = Some(Group { left_ns, kind, blocks });
        true
    }

    /// Demotes victims: a victim with a valid cold copy is dropped at once, the remaining victims move as a
    /// group. Whether there is a victim.
    pub(super) fn demote(&mut self, kind: Kind, victims: Vec<u32>) -> bool {
        let (clean, newer): (Vec<u32>, Vec<u32>) =
            victims.into_iter().partition(|id| self.blocks.location(*id).below);
        clean.iter().for_each(|id| self.drop_from_pm(*id, kind == Kind::ToDram));
        newer.iter().for_each(|id| self.blocks.location_mut(*id).leaving = true);
        self.begin_writing(kind, &newer) || !clean.is_empty()
    }

    /// Drops a PM block whose cold copy is valid.
    fn drop_from_pm(&mut self, id: u32, to_dram: bool) {
        let counted = !self.blocks.kept(Memory::Pm).holds(id);
        self.blocks.leave_pm(id);
        self.work.pace.left += u64::from(counted);
        if to_dram || self.belongs_in_dram(id) {
            self.keep_clean(id);
        }
    }

    /// Ends the group under way.
    pub(super) fn complete(&mut self) {
        let Some(group) = self.work.group.take() else { return };
        for (id, version) in group.blocks {
            let location = self.blocks.location(id);
            let same = location.version == version;
            match group.kind {
                Kind::Demote if same && location.pm && self.keeps_copies() => {
                    let location = self.blocks.location_mut(id);
                    (location.below, location.leaving) = (true, false);
                    self.blocks.kept_mut(Memory::Pm).put(id);
                    self.work.pace.left += 1;
                }
                Kind::Demote | Kind::ToDram if same && location.pm => {
                    self.blocks.location_mut(id).below = true;
                    self.drop_from_pm(id, group.kind == Kind::ToDram);
                }
                Kind::WriteBack if same => self.written_back(id),
                Kind::ToPm if same && location.is_cold() && self.blocks.empty_pm() > 0 => self.promote(id),
                // The block was written or removed meanwhile.
                _ => self.blocks.location_mut(id).leaving = false,
            }
        }
    }
}
