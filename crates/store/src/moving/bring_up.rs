//! Promotion of a read-dominated file's cold blocks, one window at a time.

use crate::error::FsResult;
use crate::inode::load::load_regular;
use crate::lookup::cold_extents::cold_extents;
use crate::lookup::cold_read::{fetch_cold, promote_fetched};
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::{BlockRange, Wait};
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};

/// Blocks of a file that a step looks at.
const LOOK: u64 = 512;

/// Blocks that a step fetches and promotes at once.
pub const PIECE: u64 = 64;

/// Reads the first cold blocks at or behind `from` and queues them; where to go on, `None` at the end.
pub fn bring_up(store: &Store, ino: Ino, generation: u32, from: FileBlock) -> FsResult<Option<FileBlock>> {
    let window = BlockRange::new(from, from.plus(LOOK));
    let (found, end) = {
        let guard = store.inodes.locks().read(ino);
        let inode = load_regular(store, ino)?;
        if inode.slot.generation.get() != generation || !inode.slot.has(flag::HAS_COLD) {
            return Ok(None);
        }
        // A block with a clean page in DRAM is read there. If it were promoted, the page would be dropped,
        // DRAM would idle, and the block would be demoted again.
        let wanted = |block: FileBlock| -> FsResult<bool> {
            let (key, version) = (inode.page_key(block), store.dram.cold_versions().get(ino, block));
            Ok(store.persistent.map().lookup_with(&guard, &inode.map(), block)?.is_none()
                && !store.dram.cache().holds(key, version))
        };
        let mut found = None;
        'extents: for extent in cold_extents(store, ino, window)?.iter().filter(|extent| !extent.unwritten) {
            let (mut at, end) = (extent.first.max(window.first), extent.end().min(window.end));
            while at < end {
                let (first, most) = (at, end.min(at.plus(PIECE)));
                while at < most && wanted(at)? {
                    at = at.plus(1);
                }
                if at > first {
                    found = Some(BlockRange::new(first, at));
                    break 'extents;
                }
                at = at.plus(1);
            }
        }
        (found, inode.size().div_ceil(BLOCK_SIZE))
    };
    let next = match found {
        Some(range) => {
            let mut op = Op::new(Wait::Allowed);
            fetch_cold(store, &mut op, ino, range)?;
            promote_fetched(store, &mut op, ino, generation);
            range.end
        }
        None => window.end,
    };
    assert!(next > from, "inode {ino} is brought up to {next} from {from}, again and again");
    Ok((next.0 < end).then_some(next))
}
