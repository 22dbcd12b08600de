//! Builds radix trees in free blocks.

use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::inodes::MAX_HEIGHT;
use std::collections::BTreeMap;
use terrace_format::PmBlock;
use terrace_format::inode::{RADIX_FANOUT, pack_root};
use terrace_format::table::Owner;

/// Builds a radix tree over entries in ascending order; gives its root word.
pub(crate) fn build_radix(
    round: &mut Round<'_>,
    entries: Vec<(u64, u64)>,
    owner: &dyn Fn(u64) -> Owner,
) -> Result<u64, Stuck> {
    let Some(last) = entries.last().map(|(index, _)| *index) else {
        return Ok(0);
    };
    assert!(entries.is_sorted_by_key(|(index, _)| *index), "entries of a tree are not in order");
    let (mut level, mut entries) = (0u64, entries);
    loop {
        let mut nodes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (index, entry) in entries {
            let node = nodes.entry(index / RADIX_FANOUT).or_insert_with(|| vec![0; RADIX_FANOUT as usize]);
            if let Some(place) = node.get_mut((index % RADIX_FANOUT) as usize) {
                *place = entry;
            }
        }
        entries = Vec::new();
        for (number, words) in nodes {
            let block = round.allocate(owner(level))?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            round.pool.put(PmBlock(block).offset(), &bytes);
            entries.push((number, block));
        }
        level += 1;
        assert!(level <= u64::from(MAX_HEIGHT), "a tree higher than the format allows");
        if last < RADIX_FANOUT.saturating_pow(level as u32) {
            let root = entries.first().map_or(0, |(_, block)| *block);
            return Ok(pack_root(level as u8, root));
        }
    }
}
