//! Writes the words of the packed map: the owners of blocks that files have, as they were decided.

use crate::state::Round;
use terrace_format::PmBlock;
use terrace_format::table::Owner;

/// Words in a line.
const LINE_WORDS: u64 = 8;

/// Writes the lines whose words differ from the decided owners.
pub(crate) fn emit_packed(round: &mut Round<'_>) {
    let first = round.pool.geometry.first_pool_block().0;
    let decided = round.owners.decided().to_vec();
    let word_of = |block: u64| {
        let owner = decided.get(block as usize).copied().and_then(Owner::decode);
        if let Some(owner @ Owner::File { .. }) = owner { owner.encode() } else { 0 }
    };
    let mut changed = 0;
    for block in (first / LINE_WORDS * LINE_WORDS..round.pool.geometry.block_count()).step_by(8) {
        let blocks = block.max(first)..(block + LINE_WORDS).min(round.pool.geometry.block_count());
        let Some(at) = round.pool.geometry.map_word(PmBlock(blocks.start)) else { return };
        let wanted: Vec<u8> = blocks.clone().flat_map(|block| word_of(block).to_le_bytes()).collect();
        let mut found = vec![0; wanted.len()];
        if !round.pool.read(at, &mut found) || found != wanted {
            let words = wanted.as_chunks::<8>().0.iter().zip(found.as_chunks::<8>().0);
            changed += words.filter(|(wanted, found)| wanted != found).count();
            round.pool.put(at, &wanted);
        }
    }
    if changed > 0 {
        round.actions.add(format!("{changed} words of the packed map are written anew"));
    }
}
