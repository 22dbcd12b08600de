//! Victims of `predictive` and `write-only`: the coldest files first ([TPFS] section 5.2), by the last use of
//! their blocks or by the last write ([`VictimOrder::tick`]).
//!
//! A file that was not used for `whole_after_s` (30 s) is demoted whole; of other files the blocks older than
//! the average of the file. No list is kept: the block table is scanned twice, once for the averages of the
//! files and once for their blocks. So an access costs nothing extra, and the result is exact
//! (docs/placement.md).

use crate::migration::Migration;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use terrace_blocks::Descriptor;
use terrace_placement::VictimOrder;
use terrace_placement::temperature::{Portion, Times, coldest};
use terrace_store::moving::victim::{LEAVING, Victim};

type ByFile<T> = FxHashMap<u64, T>;

/// About `wanted` blocks of the coldest files, sorted by file and block; none when no file is cold and every
/// file was used at one moment only. Blocks that `fits` refuses are left out.
pub fn pick_coldest(
    migration: &Migration,
    wanted: u64,
    order: VictimOrder,
    fits: &impl Fn(&Descriptor) -> bool,
) -> VecDeque<Victim> {
    let now = migration.store.steering.tick();
    // For a block that was marked meanwhile this is the last write.
    let tick = |descriptor: &Descriptor| order.tick(descriptor.written(), descriptor.read());
    let mut files: ByFile<Times> = FxHashMap::default();
    migration.store.persistent.blocks().visit_files(&mut |_, descriptor, ino, _| {
        if descriptor.touched() < LEAVING && fits(descriptor) {
            files.entry(ino.0).or_default().add(tick(descriptor));
        }
    });
    let chosen = coldest_files(&files, wanted, (now, migration.store.steering.parameters().whole_after()));
    let mut found = Vec::new();
    migration.store.persistent.blocks().visit_files(&mut |pm, descriptor, ino, block| {
        if let Some((rank, portion)) = chosen.get(&ino.0)
            && descriptor.touched() < LEAVING
            && fits(descriptor)
            && portion.holds(tick(descriptor))
        {
            found.push((*rank, tick(descriptor), Victim { ino, block, pm }));
        }
    });
    found.sort_unstable();
    found.truncate(wanted as usize);
    let mut victims: Vec<Victim> = found.into_iter().map(|(_, _, victim)| victim).collect();
    victims.sort_unstable();
    victims
        .iter()
        .for_each(|victim| migration.store.persistent.blocks().descriptor(victim.pm).touch_read(LEAVING));
    victims.into()
}

/// The coldest files that together have about `wanted` blocks: rank and demoted portion of each.
fn coldest_files(files: &ByFile<Times>, wanted: u64, now: (u32, u32)) -> ByFile<(u32, Portion)> {
    let order = coldest(files.iter().map(|(ino, times)| (*ino, times)), wanted, now);
    (0..).zip(order).map(|(rank, (ino, portion))| (ino, (rank, portion))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coldest_files_first_and_of_warm_ones_a_part() {
        const WHOLE_AFTER: u32 = 3000;
        let now = 10 * WHOLE_AFTER;
        let times = (now, WHOLE_AFTER);
        let mut files: ByFile<Times> = FxHashMap::default();
        let mut file = |ino, at: &[u32]| at.iter().for_each(|at| files.entry(ino).or_default().add(*at));
        file(1, &[now, now - 1, now - 2]);
        file(2, &[5, 6]);
        file(3, &[now - WHOLE_AFTER; 4]);
        file(4, &[now; 4]);
        let chosen = |wanted| {
            let mut list: Vec<_> = coldest_files(&files, wanted, times)
                .into_iter()
                .map(|(ino, (rank, _))| (rank, ino))
                .collect();
            list.sort_unstable();
            list.into_iter().map(|(_, ino)| ino).collect::<Vec<_>>()
        };
        assert_eq!(chosen(1), [2]);
        assert_eq!(chosen(3), [2, 3]);
        assert_eq!(chosen(100), [2, 3, 1], "the fourth was written all at once");
        assert_eq!(coldest_files(&files, 100, times)[&1].1, Portion::OlderThan(now - 1));
    }
}
