//! Volatile states of PM blocks beside the block table, for simulators: they judge when nothing is under way.

use super::BlockPool;
use crate::descriptor::State;
use std::collections::BTreeSet;
use terrace_format::PmBlock;
use terrace_format::table::{Owner, TABLE_ENTRY_SIZE};
use terrace_wal::Result;

/// PM blocks whose volatile state the block table does not explain. When nothing is under way, and the pool is not damaged,
/// all lists are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockAccounts {
    /// Taken, and nobody's: claims that were never given back.
    pub claimed: Vec<PmBlock>,
    /// Owned, and free or to become free all the same.
    pub given: Vec<PmBlock>,
    /// Freed, and never to become free again.
    pub lost: Vec<PmBlock>,
    /// Pinned, each as often as it is.
    pub pinned: Vec<(PmBlock, u16)>,
    /// The number of free blocks that the pool tells, where it is not that of the blocks that are free.
    pub miscounted: Option<u64>,
}

impl BlockPool {
    /// Compares the state of each block that is known with the block table. Reads all of the table.
    ///
    /// # Errors
    /// The medium's.
    pub fn accounts(&self) -> Result<BlockAccounts> {
        let space = self.space.lock();
        let mut accounts = BlockAccounts::default();
        let waiting: BTreeSet<PmBlock> = space.quarantine.iter().map(|(_, block)| *block).collect();
        assert!(self.first.0 <= self.count, "the first of {} blocks is block {}", self.count, self.first);
        let mut table = vec![0; ((self.count - self.first.0) * TABLE_ENTRY_SIZE) as usize];
        self.wal.pm().read(self.wal.geometry().table_entry(self.first), &mut table)?;
        let mut free = 0;
        for (block, entry) in (self.first.0..).map(PmBlock).zip(table.as_chunks::<16>().0) {
            let word = entry.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
            let is_owned = Owner::decode(word) != Some(Owner::Free);
            let descriptor = self.descriptor(block);
            match descriptor.state() {
                State::Used if !is_owned => accounts.claimed.push(block),
                State::Free | State::Quarantined if is_owned => accounts.given.push(block),
                State::Quarantined if !waiting.contains(&block) => accounts.lost.push(block),
                _ => {}
            }
            free += u64::from(descriptor.state() == State::Free);
            let pins = descriptor.pins();
            if pins > 0 {
                accounts.pinned.push((block, pins));
            }
        }
        let told = space.free.count();
        accounts.miscounted = (told != free || self.free_hint() + space.promised != free).then_some(told);
        Ok(accounts)
    }
}
