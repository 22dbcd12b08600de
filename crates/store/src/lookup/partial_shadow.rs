//! Partial shadows (design 4.2, S5, decision 0008): a small write to a cold block stores its lines in PM and does not read
//! the lower tier; reads merge line by line.
//!
//! A PM block whose table entry has fewer than all lines shadows a written cold block; the missing lines are
//! those of the cold block. Invariants: while a PM block is partial, the cold extent under it stays
//! (demotion, truncation and completion end it only in the transaction that ends the partial block too), the
//! partial block is never clean, and a line becomes valid in the transaction that its bytes are durable with.
//! No reader sees a line that is not valid, so its bytes are stored in place under either data mode; a change
//! of a valid line takes a new block, or is made in place where data=ordered, or where only bytes past the
//! end of the file change (S5). The rest of an edge line is read from the cold block, and the write then
//! makes a whole block of the merged content: see docs/decisions/0008.
//!
//! Locks: the inode's, for reads shared. It is the lock of the table entries of its blocks (T2).

use crate::lookup::cold_extents::extent_below;
use crate::lookup::cold_read::cold_page;
use crate::lookup::data_checksum::read_data;
use crate::lookup::lines::Shadow;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::inode::Inode;
use terrace_cache::Page;
use terrace_format::{BLOCK_SIZE, FileBlock, LineMask};

/// Bytes of a block.
pub const BLOCK: usize = BLOCK_SIZE as usize;

/// Reads a block from byte `skip` on: a whole one judged by its checksum, a partial one merged. Looks at the lower tier
/// only for lines that PM lacks.
pub fn read_shadow(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    shadow: &Shadow,
    skip: usize,
    target: &mut [u8],
) -> Attempt<()> {
    let end = skip + target.len();
    if shadow.lines.is_full() {
        return Ok(read_data(store, shadow.pm, skip as u64, target)?);
    }
    assert!(end <= BLOCK, "bytes {skip}..{end} of partial block {}", shadow.block);
    if shadow.lines.contains(LineMask::touching(skip, end)) {
        store.persistent.pm().read(shadow.pm.offset().plus(skip as u64), target)?;
        return Ok(());
    }
    let page = page_below(store, op, inode, shadow.block, shadow.until)?;
    target.copy_from_slice(&page.bytes()[skip..end]);
    for run in shadow.lines.runs() {
        let (from, to) = (run.start.max(skip), run.end.min(end));
        if from < to {
            store
                .persistent
                .pm()
                .read(shadow.pm.offset().plus(from as u64), &mut target[from - skip..to - skip])?;
        }
    }
    Ok(())
}

/// The content of the cold copy under a partial block. The caller holds the inode's lock.
pub(crate) fn page_below(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    block: FileBlock,
    until: FileBlock,
) -> Attempt<Page> {
    extent_below(store, inode, block)?;
    cold_page(store, op, inode, block, until)
}
