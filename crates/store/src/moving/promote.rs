//! Promotion: a cold block comes into PM; its cold copy stays and is clean (S2).

use crate::attempt::run::run_attempts;
use crate::change::staged::Staged;
use crate::error::FsResult;
use crate::inode::load::load_regular;
use crate::inode::tier_pin::pin_of;
use crate::lookup::data_checksum::covered;
use crate::moving::complete_partial::promote_rest;
use crate::operation::op::{Op, SMALL_RECORD};
use crate::parts::dram::promotions::Promotion;
use crate::store::Store;
use crate::types::Wait;
use terrace_blocks::Target;
use terrace_format::BLOCK_SIZE;
use terrace_format::table::Owner;
use terrace_map::Mapping;

/// Brings a block into PM if its version is unchanged; whether it did.
///
/// # Errors
/// EIO; ENOSPC; ESTALE.
pub fn promote(store: &Store, promotion: &Promotion) -> FsResult<bool> {
    let (ino, block) = (promotion.key.ino, promotion.key.block);
    let mut op = Op::new(Wait::Never);
    run_attempts(store, &mut op, SMALL_RECORD, |reservation, op| {
        let claim = store.persistent.blocks().claim(1, op.purpose)?;
        let guard = store.inodes.locks().write(ino);
        let inode = load_regular(store, ino)?;
        let mapped = store.persistent.map().lookup_with(&guard, &inode.map(), block)?;
        let same = inode.slot.generation.get() == promotion.key.generation
            && store.dram.cold_versions().get(ino, block) == promotion.version;
        let kept_below = pin_of(store, &inode)?.is_some_and(|tier| tier > 0);
        if !same || kept_below || block.0 * BLOCK_SIZE >= inode.durable_size() {
            return Ok(false);
        }
        if let Some(mapping) = mapped {
            return promote_rest(store, reservation, &inode, block, mapping, promotion.page.bytes());
        }
        let mut staged = Staged::new(store, Some(claim), true);
        let new = staged.take(Target::File { ino, block })?;
        staged.change_map(&inode, block, [Some(Mapping::written(new))])?;
        let covered = covered(block.0 * BLOCK_SIZE, inode.durable_size());
        let checksum = staged.store_content(new, promotion.page.bytes().into(), covered)?;
        staged.own_content(new, Owner::File { ino, block, unwritten: false }, checksum);
        staged.commit(reservation)?;
        store.persistent.blocks().descriptor(new).set_clean(true);
        Ok(true)
    })
}
