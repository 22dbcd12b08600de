//! Checksums of file data in PM (feature data-checksums, docs/decisions/0026): the block table entry of a
//! whole written block holds the CRC32C of its content up to the end of the file. It is stored in the
//! transaction that gives the block to the file, and judged whenever the block's content is used: by reads,
//! by changes of a part of it, and before its demotion.
//!
//! Invariant: covered bytes of a sound block are never stored to in place. An append stores behind them and
//! extends the checksum in the transaction that raises the size; a change of a covered byte takes a new
//! block. So after a crash the checksum in the table matches the covered bytes, with or without the append's
//! transaction. Blocks without a checksum: unwritten blocks, partial shadows, and blocks that got their last
//! line by a small write.
//!
//! Locks: the inode's, for reads shared, as for the mask of lines (T2).

use crate::error::{FsError, FsResult};
use crate::store::Store;
use terrace_format::checksum::crc32c;
use terrace_format::table::DataChecksum;
use terrace_format::{BLOCK_SIZE, Corrupt, PmBlock};

const BLOCK: usize = BLOCK_SIZE as usize;

/// Bytes that the checksum of a new block covers which begins at byte `start` of a file, if that is durable up to byte `end`.
pub fn covered(start: u64, end: u64) -> usize {
    end.saturating_sub(start).clamp(1, BLOCK_SIZE) as usize
}

/// The checksum for a block of this content, if the pool has them.
#[inline]
pub fn checksum_of(store: &Store, content: &[u8], covered: usize) -> Option<DataChecksum> {
    if store.mode.has_checksums { DataChecksum::of(content, covered) } else { None }
}

/// Judges the content of a block, all of it as read from PM. The caller holds the inode's lock.
///
/// # Errors
/// EIO: it does not match its checksum.
#[inline]
pub(crate) fn verify_content(store: &Store, pm: PmBlock, content: &[u8]) -> FsResult<()> {
    if store.mode.has_checksums { judge(store, pm, content) } else { Ok(()) }
}

/// Whether the content of a block matches its checksum. Only under the inode's lock does a difference mean damage.
pub fn matches(store: &Store, pm: PmBlock, content: &[u8]) -> FsResult<bool> {
    let checksum = store.persistent.blocks().checksum(pm)?;
    Ok(checksum.is_none_or(|c| crc32c(content.get(..c.covered()).unwrap_or(content)) == c.crc()))
}

/// Whether a block matches its checksum. The caller holds the inode's lock.
pub fn is_sound(store: &Store, pm: PmBlock) -> FsResult<bool> {
    let mut content = [0; BLOCK];
    store.persistent.pm().read(pm.offset(), &mut content)?;
    matches(store, pm, &content)
}

fn judge(store: &Store, pm: PmBlock, content: &[u8]) -> FsResult<()> {
    let Some(checksum) = store.persistent.blocks().checksum(pm)? else { return Ok(()) };
    let found = crc32c(content.get(..checksum.covered()).unwrap_or(content));
    if found == checksum.crc() {
        return Ok(());
    }
    let times = store.persistent.note_damaged_data();
    let expected = format!("CRC {:#x} of {} bytes", checksum.crc(), checksum.covered());
    let error = Corrupt::new(format!("data in PM block {pm}"), expected, format!("{found:#x}"));
    // Logged at powers of two only, or a reader of the file could fill the log.
    if times.is_power_of_two() {
        tracing::error!("{error} ({times} times since mount, of all blocks)");
    }
    Err(FsError::Engine(error.into()))
}

/// Reads the content of a whole block and judges it. The caller holds the inode's lock.
///
/// # Errors
/// EIO.
pub(crate) fn read_verified(store: &Store, pm: PmBlock, content: &mut [u8]) -> FsResult<()> {
    store.persistent.pm().read(pm.offset(), content)?;
    verify_content(store, pm, content)
}

/// Reads consecutive whole blocks from byte `skip` of the first on, and judges each of them. The caller holds the
/// inode's lock.
///
/// # Errors
/// EIO.
#[inline(always)]
pub fn read_data(store: &Store, first: PmBlock, skip: u64, into: &mut [u8]) -> FsResult<()> {
    store.persistent.pm().read(first.offset().plus(skip), into)?;
    if store.mode.has_checksums { judge_blocks(store, first, skip as usize, into) } else { Ok(()) }
}

fn judge_blocks(store: &Store, first: PmBlock, skip: usize, read: &[u8]) -> FsResult<()> {
    let mut at = 0;
    for pm in (first.0..).map(PmBlock) {
        let begin = if at == 0 { skip } else { 0 };
        let length = (BLOCK - begin).min(read.len() - at);
        match read.get(at..at + length) {
            Some(content) if length == BLOCK => judge(store, pm, content)?,
            Some(part) if !part.is_empty() => judge_part(store, pm, begin, part)?,
            _ => return Ok(()),
        }
        at += length;
    }
    Ok(())
}

/// Judges a block of which only a part was read: those bytes, in the middle of the others.
fn judge_part(store: &Store, pm: PmBlock, begin: usize, part: &[u8]) -> FsResult<()> {
    let mut content = [0; BLOCK];
    store.persistent.pm().read(pm.offset(), &mut content)?;
    content.split_at_mut(begin).1.split_at_mut(part.len()).0.copy_from_slice(part);
    judge(store, pm, &content)
}
