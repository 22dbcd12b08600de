//! The words of the packed map: each is the owner of a block that a file has (format.md "Packed map").

use crate::checker::Checker;
use crate::code::Code;
use crate::table_map::{PART_BLOCKS, read_part};
use terrace_format::PmBlock;
use terrace_format::table::{Entry, Owner, TABLE_ENTRY_SIZE};

/// Reports words that differ from the block table. Entries that cannot be read or decoded were reported before.
pub(crate) fn compare_packed_words(checker: &mut Checker<'_>) {
    let (first, end) = (checker.geometry.first_pool_block().0, checker.geometry.block_count());
    for start in (first..end).step_by(PART_BLOCKS as usize) {
        let Some(at) = checker.geometry.map_word(PmBlock(start)) else { return };
        let count = PART_BLOCKS.min(end - start);
        assert!(count > 0, "a part of no words from block {start} on");
        let mut words = vec![0; 8 * count as usize];
        if !checker.read(at, &mut words) {
            continue;
        }
        let mut bytes = vec![0; (count * TABLE_ENTRY_SIZE) as usize];
        let is_read = read_part(checker, start, &mut bytes);
        let entries = bytes.as_chunks::<16>().0.iter().zip(is_read);
        for ((block, word), (entry, is_read)) in (start..).zip(words.as_chunks::<8>().0).zip(entries) {
            let (word, entry) = (u64::from_le_bytes(*word), Entry::decode(Entry::words(entry)));
            let Some(entry) = entry.filter(|_| is_read) else { continue };
            let expected = match entry.owner {
                owner @ Owner::File { .. } => owner.encode(),
                _ => 0,
            };
            if word != expected {
                checker.report(Code::PackedWord, || {
                    format!("block {block}: {word:#x}, the table says {:?}", entry.owner)
                });
            }
        }
        checker.step();
    }
}
