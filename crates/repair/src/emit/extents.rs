//! Builds extent maps in free blocks.

use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::maps::Mapped;
use terrace_format::extent_map::{
    Entry, Extent, ExtentRoot, INLINE_EXTENTS, MAX_HEIGHT, NodeHead, encode_child, entry_word, key_of,
};
use terrace_format::inode::InodeSlot;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, PmBlock};

/// Entries of a new node: a few places stay free.
const FILLED: usize = 220;

/// Builds the map of a file over its blocks in ascending order; the extents or the root go into the slot.
pub(crate) fn build_extents(
    round: &mut Round<'_>,
    slot: &mut InodeSlot,
    blocks: impl Iterator<Item = (u64, Mapped)>,
    owner: Owner,
) -> Result<(), Stuck> {
    let mut extents: Vec<Extent> = Vec::new();
    for (first, Mapped { block, unwritten }) in blocks {
        let next = Extent { first, length: 1, block: PmBlock(block), unwritten };
        match extents.last_mut() {
            Some(last) if last.is_continued_by(&next) => last.length += 1,
            _ => extents.push(next),
        }
    }
    assert!(extents.is_sorted_by_key(|extent| extent.first), "extents of a file are not in order");
    slot.direct = Default::default();
    let mut entries: Vec<Entry> = extents.iter().map(Extent::encode).collect();
    let root = match entries.len() {
        0 => ExtentRoot::Empty,
        count if count <= INLINE_EXTENTS => {
            let halves = entries.as_flattened().iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
            slot.direct.iter_mut().zip(halves).for_each(|(place, half)| place.set(half));
            ExtentRoot::Inline(count)
        }
        _ => {
            let mut level = 0;
            loop {
                assert!(level < MAX_HEIGHT, "a tree higher than the format allows");
                let mut above = Vec::new();
                for part in entries.chunks(FILLED) {
                    let block = PmBlock(round.allocate(owner)?);
                    round.pool.put(block.offset(), &node(level, part));
                    above.push(encode_child(part.first().map_or(0, |first| key_of(*first)), block));
                }
                level += 1;
                entries = above;
                if let [[_, block]] = entries.as_slice() {
                    break ExtentRoot::Tree { height: level, block: PmBlock(*block) };
                }
            }
        }
    };
    slot.root = root.encode().into();
    Ok(())
}

fn node(level: u8, entries: &[Entry]) -> Vec<u8> {
    let mut words = vec![0; BLOCK_SIZE as usize / 8];
    let head = NodeHead::of(level, entries.len()).encode();
    words.iter_mut().zip(head).for_each(|(word, value)| *word = value);
    for (place, entry) in (0..).zip(entries) {
        words.iter_mut().skip(entry_word(place)).zip(entry).for_each(|(word, value)| *word = *value);
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
