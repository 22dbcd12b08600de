//! Writes the block table, and decides which blocks stay partial shadows.

use crate::state::Round;
use crate::state::sifted::Sifted;
use terrace_format::PmBlock;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::table::{MASK_FULL, Owner, PageKind};

/// Keeps the line masks of the blocks that stay partial shadows: written blocks over a written cold copy. A
/// damaged mask cannot be told from a sound one. If catalog keys were lost, the cold copy may have gone
/// with them: then the missing lines get zeros, because their bytes in PM may be those of another file.
/// Otherwise the mask was damaged, and the block counts as whole.
pub(crate) fn emit_partial_shadows(round: &mut Round<'_>, sifted: &Sifted) {
    for (block, lines) in round.owners.take_partial() {
        // A mask beside a damaged owner word is not believed.
        let owner = round.owners.kept_owner(block);
        let Some(Owner::File { ino, block: file_block, unwritten: false }) = owner else {
            continue;
        };
        let Ok(ino) = u32::try_from(ino.0) else { continue };
        let extents = sifted.extents.get(&ino).map_or(&[][..], Vec::as_slice);
        let below = |extent: &ColdExtent| extent.first <= file_block && file_block < extent.end();
        if extents.iter().any(|extent| !extent.unwritten && below(extent)) {
            round.owners.keep_partial(block, lines);
        } else if round.catalog.cells_lost
            && round.inodes.slots.get(&ino).is_some_and(|slot| slot.has(flag::HAS_COLD))
        {
            let text = format!("lines of block {file_block} went with its cold copy; they read as zeros");
            round.actions.lose(ino, text);
            for run in lines.missing().runs() {
                round.pool.put(PmBlock(block).offset().plus(run.start as u64), &vec![0; run.len()]);
            }
        }
    }
}

/// A block over a cold copy may have been a partial shadow: if its mask is lost, stale lines may show.
fn note_lost_mask(round: &mut Round<'_>, word: u64, mask: u64, entry: &[u8; 16]) {
    let was_whole = entry.ends_with(&MASK_FULL.to_le_bytes()) || round.pool.checksummed(entry).is_some();
    let Some(Owner::File { ino, block, unwritten: false }) = Owner::decode(word) else { return };
    let Ok(ino) = u32::try_from(ino.0) else { return };
    let has_cold = round.inodes.slots.get(&ino).is_some_and(|slot| slot.has(flag::HAS_COLD));
    if mask == MASK_FULL && !was_whole && has_cold && round.pool.superblock.has_partial_shadows() {
        round.actions.lose(ino, format!("all lines of block {block} are taken: which were written is lost"));
    }
}

/// Writes the entry of each block.
pub(crate) fn emit_table(round: &mut Round<'_>) {
    let fixed = Owner::Page { kind: PageKind::Fixed, datum: 0 }.encode();
    let first = round.pool.geometry.first_pool_block().0;
    let start = round.pool.geometry.table_offset();
    let new = round.owners.decided().to_vec();
    for (line, words) in (0u64..).zip(new.chunks(4)) {
        let mut found = [0; 64];
        let (found, _) = found.split_at_mut(words.len() * 16);
        let at = start.plus(line * 64);
        let readable = round.pool.read(at, found);
        let mut wanted = Vec::with_capacity(64);
        for (block, (word, entry)) in (line * 4..).zip(words.iter().zip(found.as_chunks::<16>().0)) {
            let word = if block < first { fixed } else { *word };
            let partial = round.owners.partial(block).map_or(MASK_FULL, |lines| lines.0);
            let mask = if word == 0 { 0 } else { partial };
            let stays = entry.starts_with(&word.to_le_bytes())
                && (word == 0 || entry.ends_with(&mask.to_le_bytes()))
                || mask == MASK_FULL
                    && round.pool.checksummed(entry).is_some_and(|owner| owner.encode() == word);
            if readable && stays {
                wanted.extend_from_slice(entry);
            } else {
                note_lost_mask(round, word, mask, entry);
                wanted.extend_from_slice(&word.to_le_bytes());
                wanted.extend_from_slice(&mask.to_le_bytes());
            }
        }
        round.pool.put(at, &wanted);
    }
}
