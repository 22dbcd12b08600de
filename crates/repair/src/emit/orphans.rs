//! Writes the orphan lists.
//!
//! Invariant: each orphan is on the list of its number, once.

use crate::state::Round;
use std::collections::BTreeSet;
use terrace_format::inode::{ORPHAN_LISTS, flag};

/// Orphan lists that do not hold their orphans, or not in order, are linked anew.
pub(crate) fn emit_orphans(round: &mut Round<'_>) {
    for list in 0..ORPHAN_LISTS {
        let mine = |ino: &u32| *ino as usize % ORPHAN_LISTS == list;
        let slots = round.inodes.slots.iter().filter(|(ino, slot)| mine(ino) && slot.has(flag::ORPHAN));
        let members: BTreeSet<u32> = slots.map(|(ino, _)| *ino).collect();
        if is_linked(round, list, &members) {
            continue;
        }
        round.actions.add(format!("orphan list {list}: linked anew, {} members", members.len()));
        let order: Vec<u32> = members.iter().copied().collect();
        for (ino, slot) in round.inodes.slots.iter_mut().filter(|(ino, _)| mine(ino)) {
            let at = order.binary_search(ino).ok();
            let next = at.and_then(|at| order.get(at + 1)).copied().unwrap_or(0);
            let previous = at.and_then(|at| order.get(at.checked_sub(1)?)).copied().unwrap_or(0);
            (slot.orphan_next, slot.orphan_previous) = (next.into(), previous.into());
        }
        let head = u64::from(order.first().copied().unwrap_or(0));
        round.pool.put(round.pool.geometry.orphan_head(list), &head.to_le_bytes());
    }
}

fn is_linked(round: &Round<'_>, list: usize, members: &BTreeSet<u32>) -> bool {
    let Some(head) = round.pool.word(round.pool.geometry.orphan_head(list)) else {
        return false;
    };
    let mut seen = BTreeSet::new();
    let (mut at, mut previous) = (head, 0);
    while at != 0 {
        let Some(ino) = u32::try_from(at).ok().filter(|ino| members.contains(ino) && seen.insert(*ino))
        else {
            return false;
        };
        let Some(slot) = round.inodes.slots.get(&ino).filter(|slot| slot.orphan_previous.get() == previous)
        else {
            return false;
        };
        (at, previous) = (slot.orphan_next.get().into(), ino);
    }
    seen == *members
}
