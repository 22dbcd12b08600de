//! Orphans: inodes without a name whose content is not yet removed, linked through their slots in 64
//! lists (design C3). The list's lock owns its head word and the link words of its members (T2).

use crate::errno::FsResult;
use crate::fs::Fs;
use crate::op::Attempt;
use crate::slot::Inode;
use terrace_format::Ino;
use terrace_format::inode::{InodeSlot, ORPHAN_LISTS};
use terrace_runtime::sync::MutexGuard;
use terrace_wal::Tx;

fn list_of(ino: Ino) -> usize {
    ino.0 as usize % ORPHAN_LISTS
}

fn links(next: u64, previous: u64) -> u64 {
    next | previous << 32
}

impl Fs {
    /// Locks the list of an inode.
    pub(crate) fn lock_orphans(&self, ino: Ino) -> MutexGuard<'_, ()> {
        self.orphan_locks[list_of(ino)].lock()
    }

    /// Puts an inode at the head of its list. The caller holds the list and sets the ORPHAN flag.
    pub(crate) fn link_orphan(&self, tx: &mut Tx, inode: &Inode) -> Attempt<()> {
        let head_word = self.wal.geometry().orphan_head(list_of(inode.ino));
        let head = tx.read_u64(&*self.pm, head_word)?;
        tx.write_u64(inode.place.plus(InodeSlot::ORPHAN), links(head, 0));
        if head != 0 {
            let place = self.slot_place(Ino(head))?.plus(InodeSlot::ORPHAN);
            let word = tx.read_u64(&*self.pm, place)?;
            tx.write_u64(place, links(word & 0xffff_ffff, inode.ino.0));
        }
        tx.write_u64(head_word, inode.ino.0);
        Ok(())
    }

    /// Takes an inode out of its list. The caller holds the list; the slot's own word is the caller's.
    pub(crate) fn unlink_orphan(&self, tx: &mut Tx, inode: &Inode) -> Attempt<()> {
        let word = tx.read_u64(&*self.pm, inode.place.plus(InodeSlot::ORPHAN))?;
        let (next, previous) = (word & 0xffff_ffff, word >> 32);
        if next != 0 {
            let place = self.slot_place(Ino(next))?.plus(InodeSlot::ORPHAN);
            let word = tx.read_u64(&*self.pm, place)?;
            tx.write_u64(place, links(word & 0xffff_ffff, previous));
        }
        if previous == 0 {
            tx.write_u64(self.wal.geometry().orphan_head(list_of(inode.ino)), next);
        } else {
            let place = self.slot_place(Ino(previous))?.plus(InodeSlot::ORPHAN);
            let word = tx.read_u64(&*self.pm, place)?;
            tx.write_u64(place, links(next, word >> 32));
        }
        Ok(())
    }

    /// The members of a list, for the reclaimer after mount. Bounded by the number of inodes.
    pub(crate) fn orphans_of(&self, list: usize) -> FsResult<Vec<Ino>> {
        let _guard = self.orphan_locks[list].lock();
        let mut members = Vec::new();
        let mut next = self.pm.load_u64(self.wal.geometry().orphan_head(list))?;
        let limit = self.numbers.lock().pages * terrace_format::inode::SLOTS_PER_PAGE;
        while next != 0 {
            if members.len() as u64 > limit {
                let site = format!("orphan list {list}");
                return Err(terrace_format::Corrupt::new(site, "a list that ends", "a circle").into());
            }
            members.push(Ino(next));
            let place = self.slot_place(Ino(next))?.plus(InodeSlot::ORPHAN);
            next = self.pm.load_u64(place)? & 0xffff_ffff;
        }
        Ok(members)
    }
}
