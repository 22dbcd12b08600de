//! Access to the pages of file maps in PM: block numbers and owners are checked, checksums ensured.

use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_format::address::LINE_SIZE;
use terrace_format::table::Owner;
use terrace_format::{Corrupt, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_wal::{PageChecksums, Result, Tx};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Words of a line of PM.
pub(crate) const LINE_WORDS: usize = (LINE_SIZE / 8) as usize;

/// The pages of a kind of map.
pub(crate) struct Pages {
    pub blocks: Arc<BlockPool>,
    pub pm: Arc<dyn PmMedium>,
    checksums: Arc<PageChecksums>,
    first: u64,
    count: u64,
}

impl Pages {
    pub fn new(blocks: Arc<BlockPool>) -> Pages {
        let pm = Arc::clone(blocks.wal().pm());
        let checksums = Arc::clone(blocks.wal().checksums());
        let (first, end) = (blocks.first_block().0, blocks.end_block().0);
        Pages { blocks, pm, checksums, first, count: end - first }
    }

    /// `BlockPool::verify` with the sound case in line.
    #[inline]
    pub fn verify(&self, block: u64, site: &'static str) -> Result<PmBlock> {
        if block.wrapping_sub(self.first) < self.count {
            return Ok(PmBlock(block));
        }
        self.blocks.verify(PmBlock(block), site)
    }

    /// [`Self::verify`] of a page, which matches its checksum.
    #[inline]
    pub fn page(&self, block: u64, site: &'static str) -> Result<PmBlock> {
        let page = self.verify(block, site)?;
        self.checksums.ensure(page)?;
        Ok(page)
    }

    #[inline]
    pub fn word(&self, tx: Option<&Tx>, offset: PmOffset) -> Result<u64> {
        match tx {
            None => Ok(self.pm.load_u64(offset)?),
            Some(tx) => tx.read_u64(&*self.pm, offset),
        }
    }

    #[inline]
    pub fn words(&self, tx: Option<&Tx>, offset: PmOffset, into: &mut [U64]) -> Result<()> {
        self.bytes(tx, offset, into.as_mut_bytes())
    }

    #[inline]
    pub fn bytes(&self, tx: Option<&Tx>, offset: PmOffset, into: &mut [u8]) -> Result<()> {
        match tx {
            None => Ok(self.pm.read(offset, into)?),
            Some(tx) => tx.read(&*self.pm, offset, into),
        }
    }

    /// Reads words of the block table or of the roots, which match their checksums.
    #[inline]
    pub fn table_words(&self, offset: PmOffset, into: &mut [U64]) -> Result<()> {
        self.checksums.ensure_range(offset, into.len() * 8)?;
        Ok(self.pm.read(offset, into.as_mut_bytes())?)
    }

    /// Reads a line of a table, which matches its checksums, into native words.
    #[inline]
    pub fn table_line(&self, offset: PmOffset) -> Result<[u64; LINE_WORDS]> {
        let mut words = [0; LINE_WORDS];
        self.checksums.ensure_range(offset, size_of_val(&words))?;
        self.pm.read(offset, words.as_mut_bytes())?;
        words.iter_mut().for_each(|word| *word = u64::from_le(*word));
        Ok(words)
    }

    /// A word of a table, which matches its checksums.
    #[inline]
    pub fn table_word(&self, offset: PmOffset) -> Result<u64> {
        self.checksums.ensure_range(offset, 8)?;
        Ok(self.pm.load_u64(offset)?)
    }

    /// Reads entries of the block table, which match their checksums.
    #[inline]
    pub fn table_entries(&self, offset: PmOffset, into: &mut [[u64; 2]]) -> Result<()> {
        self.checksums.ensure_range(offset, into.len() * 16)?;
        self.pm.read(offset, into.as_mut_bytes())?;
        into.as_flattened_mut().iter_mut().for_each(|word| *word = u64::from_le(*word));
        Ok(())
    }

    /// Checks that a page about to be changed or freed has the owner that it must have; `page` names it in the error.
    pub fn check_owner(
        &self,
        tx: Option<&Tx>,
        block: PmBlock,
        expected: Owner,
        page: &dyn Fn() -> String,
    ) -> Result<()> {
        let found = self.word(tx, self.blocks.wal().geometry().table_entry(block))?;
        if found == expected.encode() {
            return Ok(());
        }
        Err(Corrupt::new(
            format!("owner of {}", page()),
            format!("{expected:?}"),
            Owner::decode(found).map_or(format!("{found:#x}"), |owner| format!("{owner:?}")),
        )
        .into())
    }
}
