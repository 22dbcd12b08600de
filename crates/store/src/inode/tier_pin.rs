//! Tier pins: the tier that a user pinned a file to, read from its attributes, and the marks of pinned PM blocks.

use crate::attempt::with_pages::{reading, with_pages};
use crate::error::FsResult;
use crate::inode::slot::{load, load_to_read};
use crate::parts::devices::speeds::standing_in;
use crate::parts::inodes::tier_pins::{NONE, SOME, UNKNOWN};
use crate::store::Store;
use crate::types::Wait;
use crate::types::inode::Inode;
use std::time::Duration;
use terrace_catalog::xattr;
use terrace_format::address::ROOT_INO;
use terrace_format::inode::flag;
use terrace_format::{Corrupt, Ino, PmBlock};
use terrace_runtime::sync::atomic::Ordering;

/// Names that begin so are the file system's own.
pub const OWN_NAMESPACE: &[u8] = b"terrace.";

/// The tier, one byte.
pub const PIN: &[u8] = b"terrace.pin";

/// On the root directory: something was pinned to a lower tier, so that pinned files are looked for in PM.
pub const SWEPT: &[u8] = b"terrace.swept";

/// No operation of a user claims more PM blocks at once.
pub const MOST_CLAIMED: u64 = 512;

/// For how long the policy does not look for victims again when all that was left is kept.
pub const REST: Duration = Duration::from_millis(200);

/// An attribute of our own: the leaf that would hold it lies below PM only if it does not.
fn in_pm(found: terrace_wal::Result<Option<Vec<u8>>>) -> terrace_wal::Result<Option<Vec<u8>>> {
    match found {
        Err(terrace_wal::Error::PageBelow(_)) => Ok(None),
        found => found,
    }
}

/// The tier that an inode is pinned to. The caller holds its lock.
///
/// # Errors
/// EIO.
pub fn pin_of(store: &Store, inode: &Inode) -> FsResult<Option<u8>> {
    if !inode.slot.has(flag::HAS_XATTR) {
        return Ok(None);
    }
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(inode.ino.0));
    decode_pin(store, inode.ino, in_pm(xattr::get(shard.reader(), inode.ino, PIN))?)
}

fn decode_pin(store: &Store, ino: Ino, value: Option<Vec<u8>>) -> FsResult<Option<u8>> {
    match value.as_deref() {
        None => Ok(None),
        Some([tier]) => Ok(Some(standing_in(*tier, store.devices.tiers().iter().map(|tier| tier.0)))),
        Some(other) => {
            let found = format!("{} bytes", other.len());
            Err(Corrupt::new(format!("pin of inode {ino}"), "one byte", found).into())
        }
    }
}

/// The tier that a file or directory is pinned to.
///
/// # Errors
/// ESTALE, EIO.
pub fn pinned(store: &Store, ino: Ino) -> FsResult<Option<u8>> {
    reading(store, Wait::Allowed, || {
        let _guard = store.inodes.locks().read(ino);
        pin_of(store, &load_to_read(store, ino)?)
    })
}

/// Whether files may be pinned to a lower tier.
pub fn are_pins_below(store: &Store) -> FsResult<bool> {
    match store.inodes.tier_pins().below.load(Ordering::Acquire) {
        NONE => return Ok(false),
        SOME => return Ok(true),
        _ => {}
    }
    let look = || {
        let _guard = store.inodes.locks().read(ROOT_INO);
        let root = load(store, ROOT_INO)?;
        let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(ROOT_INO.0));
        let has_own = root.slot.has(flag::HAS_XATTR);
        Ok(has_own && in_pm(xattr::get(shard.reader(), ROOT_INO, SWEPT))?.is_some())
    };
    let found = with_pages(store, Wait::Allowed, look)?;
    let known = if found { SOME } else { NONE };
    // Unless the first such pin came meanwhile.
    let _ =
        store.inodes.tier_pins().below.compare_exchange(UNKNOWN, known, Ordering::AcqRel, Ordering::Acquire);
    Ok(found || store.inodes.tier_pins().below.load(Ordering::Acquire) == SOME)
}

/// PM blocks that pins may keep: half of them.
pub fn most_kept(store: &Store) -> u64 {
    store.persistent.blocks().usage().total / 2
}

/// Whether a block that is about to be demoted stays in PM because its file is pinned there. A block that was
/// marked as pinned before it was picked was picked on purpose, and is demoted.
pub fn keeps(store: &Store, pm: PmBlock) -> bool {
    let descriptor = store.persistent.blocks().descriptor(pm);
    let draining = store.pressure.is_draining();
    if draining
        || descriptor.is_kept()
        || store.inodes.tier_pins().kept.load(Ordering::Relaxed) >= most_kept(store)
    {
        return false;
    }
    descriptor.set_kept(true);
    store.inodes.tier_pins().kept.fetch_add(1, Ordering::Relaxed);
    true
}
