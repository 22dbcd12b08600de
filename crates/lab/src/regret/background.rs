//! The background work of the machine, in the bus time that the foreground leaves: demotion, write-back,
//! promotion of touched blocks, and promotion of read-dominated files into PM and into DRAM. A single group
//! at a time, chosen by the rules of the engine. The thread waits here when it needs room.

use super::machine::Machine;
use super::work::POLL_NS;
use terrace_placement::Observation;

impl Machine<'_> {
    /// Lets time pass; during the first `bus_ns` the foreground has the bus.
    pub(super) fn advance(&mut self, ns: u64, bus_ns: u64) {
        let end = self.now_ns + ns;
        self.now_ns += bus_ns.min(ns);
        loop {
            match &mut self.work.group {
                Some(group) => {
                    let part = group.left_ns.min(end - self.now_ns);
                    self.now_ns += part;
                    group.left_ns -= part;
                    if group.left_ns > 0 {
                        break;
                    }
                    self.complete();
                    self.work.next_poll_ns = self.now_ns;
                }
                None if self.work.next_poll_ns > end => break,
                None => {
                    self.now_ns = self.now_ns.max(self.work.next_poll_ns);
                    self.work.next_poll_ns = self.now_ns + POLL_NS;
                    self.poll();
                }
            }
        }
        self.now_ns = end;
    }

    fn poll(&mut self) {
        self.histories.close_seconds(self.now_ns);
        self.promote_some();
        let seen = self.observe();
        let wanted = self.policy.blocks_to_demote(&seen);
        let begun = self.begin_write_back() || (wanted > 0 && self.begin_demotion(wanted));
        if !begun && !self.begin_to_dram() {
            self.begin_to_pm();
        }
    }

    /// The thread waits for the end of the group under way.
    fn wait_for_group(&mut self) {
        let left_ns = self.work.group.as_ref().map_or(0, |group| group.left_ns);
        self.waits.room_ns += left_ns;
        self.advance(left_ns, 0);
    }

    /// Waits until PM has a free block; false when the policy never frees PM.
    pub(super) fn make_pm_room(&mut self) -> bool {
        while self.blocks.free_pm() == 0 {
            if self.work.group.is_some() {
                self.wait_for_group();
            } else if self.policy.threshold_percent(&Observation::default()).is_none()
                || !self.begin_demotion(64)
            {
                return false;
            }
        }
        true
    }

    /// Waits until the limit of dirty pages has room for `pages` more.
    pub(super) fn make_dirty_room(&mut self, pages: u64) {
        while self.blocks.dirty().len() as u64 + pages > self.setup.dirty_blocks() {
            if self.work.group.is_some() {
                self.wait_for_group();
            } else if !self.write_back_oldest() {
                break;
            }
        }
    }
}
