//! Hard links.

use crate::names::directory_change::stage_directory_change;
use crate::names::lookup::check_name;
use terrace_catalog::dentry;
use terrace_format::Ino;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::run::run_attempts;
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, load_directory, log_slot, wall_now};
use terrace_store::operation::op::{Op, SMALL_RECORD};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{Attributes, Wait};

/// Most links of a file, as ext4 has it.
pub(crate) const LINK_MAX: u32 = 65_000;

/// Gives a file another name. Takes a lookup reference.
///
/// # Errors
/// EPERM for a directory, EMLINK, EEXIST, ENOENT, ENOSPC, EIO.
pub fn link(store: &Store, ino: Ino, parent: Ino, name: &[u8], wait: Wait) -> FsResult<Attributes> {
    check_name(name)?;
    let mut op = Op::new(wait);
    run_attempts(store, &mut op, SMALL_RECORD, |reservation, _op| {
        store.persistent.blocks().probe()?;
        let _guards = store.inodes.locks().write_many(&[parent, ino]);
        let directory = load_directory(store, parent)?;
        let inode = load(store, ino)?;
        if inode.slot.is_directory() {
            return Err(FsError::NotPermitted.into());
        }
        if inode.slot.nlink.get() == 0 || directory.slot.nlink.get() == 0 {
            return Err(FsError::NotFound.into());
        }
        if inode.slot.nlink.get() >= LINK_MAX {
            return Err(FsError::TooManyLinks.into());
        }
        let mut staged = Staged::new(store, None, false);
        let mut shards = store.persistent.catalog().write(&[store.persistent.catalog().shard_of(parent.0)]);
        let file_type = (inode.slot.mode.get() >> 12) as u8;
        dentry::insert(
            &mut shards,
            &mut staged.tx,
            store.persistent.name_hash(),
            parent,
            name,
            ino,
            file_type,
        )?;
        let mut slot = inode.slot;
        slot.ctime = wall_now(store).into();
        let logged = slot;
        slot.nlink = (slot.nlink.get() + 1).into();
        let in_place = planted(Mistake::UnloggedLinkCount);
        log_slot(&mut staged.tx, inode.place, &inode.slot, if in_place { &logged } else { &slot });
        stage_directory_change(store, &mut staged, &directory, 1, 0);
        staged.commit(reservation)?;
        if in_place {
            wrong::count_in_place(store, &inode, &slot)?;
        }
        store.inodes.open_files().looked_up(ino);
        Ok(Inode { slot, ..inode }.attributes())
    })
}

/// Planted mistakes of this file.
mod wrong {
    use terrace_format::inode::InodeSlot;
    use terrace_store::operation::need::Attempt;
    use terrace_store::store::Store;
    use terrace_store::types::inode::Inode;
    use zerocopy::IntoBytes;

    /// `unlogged-link-count`.
    pub(super) fn count_in_place(store: &Store, inode: &Inode, slot: &InodeSlot) -> Attempt<()> {
        store.persistent.pm().write(inode.place, &slot.as_bytes()[..8])?;
        store.persistent.persist()?;
        Ok(())
    }
}
