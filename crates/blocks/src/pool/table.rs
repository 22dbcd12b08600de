//! Entries of the block table: owners, valid lines, checksums.
//!
//! Invariant: an entry is changed by a transaction alone. The caller's lock on the owner keeps readers from a change.

use super::BlockPool;
use crate::descriptor::State;
use smallvec::SmallVec;
use terrace_format::table::{DataChecksum, Entry, MASK_FULL, Owner, TABLE_ENTRY_SIZE};
use terrace_format::{Corrupt, FileBlock, Ino, LineMask, PmBlock};
use terrace_wal::{Result, Tx};
use zerocopy::little_endian::U64;

impl BlockPool {
    /// Logs a block's owner.
    #[inline]
    pub fn set_owner(&self, tx: &mut Tx, block: PmBlock, owner: Owner) {
        let mask = if owner == Owner::Free { 0 } else { MASK_FULL };
        if matches!(owner, Owner::Page { .. }) {
            self.wal.checksums().open(block);
        }
        tx.write_words(self.wal.geometry().table_entry(block), [U64::new(owner.encode()), U64::new(mask)]);
    }

    /// Logs the entries of consecutive new blocks in one write.
    pub fn set_entries(&self, tx: &mut Tx, first: PmBlock, entries: &[Entry]) {
        let end = first.0 + entries.len() as u64;
        assert!(first >= self.first && end <= self.count, "entries of PM blocks {first} to {end}");
        let mut bytes: SmallVec<[u8; 256]> = SmallVec::new();
        for (block, entry) in (first.0..).zip(entries) {
            if matches!(entry.owner, Owner::Page { .. }) {
                self.wal.checksums().open(PmBlock(block));
            }
            if !entry.lines.is_full() {
                // Before anybody can see the block. If the transaction is given up, the next claim takes it back.
                self.descriptor(PmBlock(block)).set_partial(true);
            }
            entry.encode().iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        tx.write(self.wal.geometry().table_entry(first), &bytes);
    }

    /// Logs the owner of a whole block of a file with the checksum of its data, also of one that stays where it is. The
    /// caller holds its inode's exclusive lock.
    #[inline]
    pub fn set_checksum(&self, tx: &mut Tx, block: PmBlock, owner: Owner, checksum: Option<DataChecksum>) {
        let [word, second] = Entry::with_checksum(owner, checksum).encode();
        tx.write_words(self.wal.geometry().table_entry(block), [U64::new(word), U64::new(second)]);
    }

    /// The checksum of a block's data, if it has any. The caller holds its inode's lock.
    ///
    /// # Errors
    /// As [`Self::owner`].
    #[inline]
    pub fn checksum(&self, block: PmBlock) -> Result<Option<DataChecksum>> {
        Ok(self.entry(block)?.checksum)
    }

    /// Logs that a partial block holds these lines from now on. The caller holds its inode's exclusive lock.
    pub fn set_lines(&self, tx: &mut Tx, block: PmBlock, lines: LineMask) {
        tx.write_words(self.wal.geometry().table_entry(block).plus(8), [U64::new(lines.0)]);
    }

    /// The lines that a block holds which file block `of` of inode `ino` maps. The caller holds the inode's lock. Costs a
    /// look at the block table only where a block may be partial, was not scanned yet, or is met for the first time: its
    /// entry has to name the same file block, or one of the two is damaged, and nobody knows which (I6, I8). Such a block
    /// is handed out to nobody in this mount.
    ///
    /// # Errors
    /// The medium's; an entry that names another owner; an owned block without any line.
    #[inline]
    pub fn lines(&self, block: PmBlock, ino: Ino, of: FileBlock) -> Result<LineMask> {
        let descriptor = self.descriptor(block);
        // In this order: the scan marks a block before it makes it known.
        if descriptor.state() != State::Unknown && !descriptor.may_be_partial() && descriptor.is_confirmed() {
            return Ok(LineMask::FULL);
        }
        self.look_up_lines(block, ino, of)
    }

    fn look_up_lines(&self, block: PmBlock, ino: Ino, of: FileBlock) -> Result<LineMask> {
        let descriptor = self.descriptor(block);
        let entry = self.entry(block)?;
        match entry.owner {
            Owner::File { ino: owner, block: owned, .. } if (owner, owned) == (ino, of) => {}
            other => {
                self.withhold(block);
                let expected = format!("block {of} of inode {ino}");
                return Err(Corrupt::new(
                    format!("owner of PM block {block}"),
                    expected,
                    format!("{other:?}"),
                )
                .into());
            }
        }
        descriptor.set_confirmed();
        if descriptor.state() != State::Unknown && !descriptor.may_be_partial() {
            return Ok(LineMask::FULL);
        }
        if entry.lines.is_empty() {
            let site = format!("block table entry {block}");
            return Err(Corrupt::new(site, "lines of an owned block", "none").into());
        }
        Ok(entry.lines)
    }

    /// Takes a block out of the free ones for this mount: a map names it although the block table calls it free.
    fn withhold(&self, block: PmBlock) {
        let mut space = self.space.lock();
        let descriptor = self.descriptor(block);
        // Not scanned yet: the scan then leaves it alone.
        if self.learn(block, State::Used) {
            return;
        }
        if descriptor.state() == State::Free && space.free.take(block.0) {
            descriptor.set_state(State::Used);
            self.tell_free(&space);
        }
    }

    /// Reads a block's owner from the table.
    ///
    /// # Errors
    /// The medium's; an owner word that cannot be.
    #[inline]
    pub fn owner(&self, block: PmBlock) -> Result<Owner> {
        Ok(self.entry(block)?.owner)
    }

    #[inline]
    fn entry(&self, block: PmBlock) -> Result<Entry> {
        let at = self.wal.geometry().table_entry(block);
        self.wal.checksums().ensure_range(at, TABLE_ENTRY_SIZE as usize)?;
        let word = self.wal.pm().load_u64(at)?;
        Entry::decode([word, self.wal.pm().load_u64(at.plus(8))?]).ok_or_else(|| {
            let site = format!("block table entry {block}");
            Corrupt::new(site, "a known owner", format!("{word:#x}")).into()
        })
    }
}
