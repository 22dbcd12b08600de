//! The decision trees of [TPFS] figure 3: the home of a write, and the movements that reads cause.

use crate::Home;
use crate::Parameters;
use crate::synchronicity::Synchronicity;
use crate::threshold::Idle;
use crate::write_size::Entry;

/// The free room of PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Hardly a free block.
    Hardly,
    /// Some free blocks.
    Some,
    /// Less is used than [`Parameters::large_pm`].
    Plenty,
}

impl Room {
    /// The room of a PM of `all` blocks of which `free` are; with fewer than `hardly` it has hardly any.
    #[inline]
    pub fn of(free: u64, all: u64, hardly: u64, parameters: &Parameters) -> Room {
        if free < hardly {
            Room::Hardly
        } else if (all - free.min(all)) * 100 < all * u64::from(parameters.large_pm()) {
            Room::Plenty
        } else {
            Room::Some
        }
    }
}

/// The input of the write tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSeen {
    /// Opened with O_SYNC or O_DSYNC.
    pub durable: bool,
    /// The synchronicity predictor's state of the file.
    pub synchronicity: Synchronicity,
    /// The entry that the write will leave.
    pub entry: Entry,
    /// The free room of PM.
    pub room: Room,
}

/// Synchronous → PM; else large and stable → block tier, unless PM has plenty of room (docs/decisions/0018); else PM, unless
/// hardly any of PM is free.
pub fn write_home(seen: &WriteSeen, parameters: &Parameters) -> Home {
    if seen.durable || seen.synchronicity.is_synchronous() {
        return Home::Pm;
    }
    match seen.room {
        Room::Hardly => Home::Block,
        Room::Some if seen.entry.is_large(parameters) => Home::Block,
        Room::Some | Room::Plenty => Home::Pm,
    }
}

/// The movement that a read causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadRule {
    /// Read where it lies.
    InPlace,
    /// PM data of a read-dominated file while DRAM bandwidth idles: demoted, with a clean page in DRAM.
    ToDram,
    /// Cold data of a read-dominated file while PM bandwidth idles: promoted.
    ToPm,
}

/// The read rules: only read-dominated files move, because each write of a file drops its cached blocks.
pub fn read_rule(read_dominated: bool, in_pm: bool, idle: Idle) -> ReadRule {
    match (read_dominated, in_pm, idle) {
        (true, true, Idle::Dram) => ReadRule::ToDram,
        (true, false, Idle::Pm) => ReadRule::ToPm,
        _ => ReadRule::InPlace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synchronicity::Judgement;

    #[test]
    fn the_write_tree() {
        let p = Parameters::default();
        let home = |judgement, counter, bytes, durable, pm_full| {
            let mut synchronicity = Synchronicity::default();
            synchronicity.judgement = judgement;
            let room = if pm_full { Room::Hardly } else { Room::Some };
            write_home(&WriteSeen { durable, synchronicity, entry: Entry { bytes, counter }, room }, &p)
        };
        let (sync, async_, new) = (Judgement::Synchronous, Judgement::Asynchronous, Judgement::Unjudged);
        assert_eq!(home(async_, 5, 1 << 20, false, false), Home::Block);
        assert_eq!(home(async_, 4, 1 << 20, false, false), Home::Pm, "not stable");
        assert_eq!(home(async_, 9, 32 << 10, false, false), Home::Pm, "not long");
        assert_eq!(home(async_, 9, 1 << 20, true, false), Home::Pm, "O_SYNC");
        assert_eq!(home(sync, 9, 1 << 20, false, false), Home::Pm);
        assert_eq!(home(new, 9, 1 << 20, false, false), Home::Pm);
        assert_eq!(home(async_, 0, 4096, false, true), Home::Block, "PM is full");
        assert_eq!(home(sync, 0, 4096, false, true), Home::Pm, "written through, not buffered");
    }

    #[test]
    fn large_writes_stay_in_pm_while_it_has_plenty_of_room() {
        let room = |free, percent| {
            let parameters = Parameters { large_pm_percent: Some(percent), ..Parameters::default() };
            let mut synchronicity = Synchronicity::default();
            synchronicity.judgement = Judgement::Asynchronous;
            let entry = Entry { bytes: 1 << 20, counter: 9 };
            let room = Room::of(free, 1000, 10, &parameters);
            let seen = WriteSeen { durable: false, synchronicity, entry, room };
            (room, write_home(&seen, &parameters))
        };
        assert_eq!(room(501, 50), (Room::Plenty, Home::Pm));
        assert_eq!(room(500, 50), (Room::Some, Home::Block));
        assert_eq!(room(9, 50), (Room::Hardly, Home::Block));
        assert_eq!(room(1000, 0), (Room::Some, Home::Block), "as published");
        assert_eq!(room(2000, 50).0, Room::Plenty, "more than all: counted while it changes");
    }

    #[test]
    fn the_read_rules() {
        assert_eq!(read_rule(true, true, Idle::Dram), ReadRule::ToDram);
        assert_eq!(read_rule(true, false, Idle::Pm), ReadRule::ToPm);
        assert_eq!(read_rule(false, true, Idle::Dram), ReadRule::InPlace);
        assert_eq!(read_rule(true, true, Idle::Neither), ReadRule::InPlace);
    }
}
