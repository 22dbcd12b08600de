//! Orphans: inodes without a name whose content is not yet removed, linked through their slots in 64
//! lists (design C3). The list's lock owns its head word and the link words of its members (T2).

use crate::error::FsResult;
use crate::inode::slot::slot_place;
use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::inode::Inode;
use terrace_format::Ino;
use terrace_format::inode::{InodeSlot, ORPHAN_LISTS};
use terrace_runtime::sync::RankedGuard;
use terrace_wal::Tx;

fn list_of(ino: Ino) -> usize {
    ino.0 as usize % ORPHAN_LISTS
}

fn links(next: u64, previous: u64) -> u64 {
    next | previous << 32
}

/// Locks the list of an inode.
pub fn lock_orphans(store: &Store, ino: Ino) -> RankedGuard<'_, ()> {
    store.inodes.lock_orphans(list_of(ino))
}

/// Puts an inode at the head of its list. The caller holds the list and sets the ORPHAN flag.
pub fn link_orphan(store: &Store, tx: &mut Tx, inode: &Inode) -> Attempt<()> {
    assert!(store.inodes.are_orphans_locked(list_of(inode.ino)), "orphan {} joins unlocked (T2)", inode.ino);
    let head_word = store.persistent.wal().geometry().orphan_head(list_of(inode.ino));
    let head = tx.read_u64(store.persistent.pm(), head_word)?;
    tx.write_u64(inode.place.plus(InodeSlot::ORPHAN), links(head, 0));
    if head != 0 {
        let place = slot_place(store, Ino(head))?.plus(InodeSlot::ORPHAN);
        let word = tx.read_u64(store.persistent.pm(), place)?;
        tx.write_u64(place, links(word & 0xffff_ffff, inode.ino.0));
    }
    tx.write_u64(head_word, inode.ino.0);
    Ok(())
}

/// Takes an inode out of its list. The caller holds the list; the slot's own word is the caller's.
pub fn unlink_orphan(store: &Store, tx: &mut Tx, inode: &Inode) -> Attempt<()> {
    assert!(store.inodes.are_orphans_locked(list_of(inode.ino)), "orphan {} leaves unlocked (T2)", inode.ino);
    let word = tx.read_u64(store.persistent.pm(), inode.place.plus(InodeSlot::ORPHAN))?;
    let (next, previous) = (word & 0xffff_ffff, word >> 32);
    if next != 0 {
        let place = slot_place(store, Ino(next))?.plus(InodeSlot::ORPHAN);
        let word = tx.read_u64(store.persistent.pm(), place)?;
        tx.write_u64(place, links(word & 0xffff_ffff, previous));
    }
    if previous == 0 {
        tx.write_u64(store.persistent.wal().geometry().orphan_head(list_of(inode.ino)), next);
    } else {
        let place = slot_place(store, Ino(previous))?.plus(InodeSlot::ORPHAN);
        let word = tx.read_u64(store.persistent.pm(), place)?;
        tx.write_u64(place, links(next, word >> 32));
    }
    Ok(())
}

/// Whether a list has members, as seen without its lock. A list whose head cannot be read has none: an operation that looks for
/// space is not to fail for the damage.
pub fn has_orphans(store: &Store, list: usize) -> bool {
    let head = store.persistent.wal().geometry().orphan_head(list);
    store.persistent.pm().load_u64(head).is_ok_and(|first| first != 0)
}

/// The members of a list, for the reclaimer after mount. Bounded by the number of inodes.
pub fn orphans_of(store: &Store, list: usize) -> FsResult<Vec<Ino>> {
    let _guard = store.inodes.lock_orphans(list);
    let mut members = Vec::new();
    let mut next = store.persistent.pm().load_u64(store.persistent.wal().geometry().orphan_head(list))?;
    let limit = store.inodes.numbers().lock().pages * terrace_format::inode::SLOTS_PER_PAGE;
    while next != 0 {
        if members.len() as u64 > limit {
            let site = format!("orphan list {list}");
            return Err(terrace_format::Corrupt::new(site, "a list that ends", "a circle").into());
        }
        members.push(Ino(next));
        let place = slot_place(store, Ino(next))?.plus(InodeSlot::ORPHAN);
        next = store.persistent.pm().load_u64(place)? & 0xffff_ffff;
    }
    Ok(members)
}
