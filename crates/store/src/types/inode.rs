//! A loaded inode: its slot as it is in PM, with the size and times that are not durable yet.

use crate::error::{FsError, FsResult};
use crate::types::Attributes;
use terrace_cache::PageKey;
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::{Corrupt, FileBlock, Ino, PmOffset};
use terrace_map::MapInode;
use zerocopy::FromZeros;

impl Inode {
    /// The name of one of its pages in the cache.
    #[inline]
    pub fn page_key(&self, block: FileBlock) -> PageKey {
        PageKey { ino: self.ino, generation: self.slot.generation.get(), block }
    }
}

/// A loaded inode; valid while its lock is held.
#[derive(Debug, Clone, Copy)]
pub struct Inode {
    /// The number.
    pub ino: Ino,
    /// Of its slot; [`MapInode::NOWHERE`] when it comes from a copy ([`load_to_read`]).
    pub place: PmOffset,
    /// The slot as it is in PM.
    pub slot: InodeSlot,
    /// The volatile size and times.
    pub pending: Option<Pending>,
}

impl Inode {
    /// An inode that nothing is known of yet.
    #[inline]
    pub fn empty(ino: Ino) -> Inode {
        Inode { ino, place: MapInode::NOWHERE, slot: InodeSlot::new_zeroed(), pending: None }
    }

    /// The inode as the file map takes it: number and slot address.
    #[inline]
    pub fn map(&self) -> MapInode {
        MapInode { ino: self.ino, slot: self.place, has_cold: self.slot.has(flag::HAS_COLD) }
    }

    /// Size in bytes, as callers see it.
    #[inline]
    pub fn size(&self) -> u64 {
        self.pending.map_or(self.durable_size(), |pending| pending.size)
    }

    /// Size in bytes that a crash leaves.
    #[inline]
    pub fn durable_size(&self) -> u64 {
        self.slot.size.get()
    }

    /// Puts the time of the last write into DRAM into a slot that is to be logged.
    #[inline]
    pub fn log_pending_times(&self, slot: &mut InodeSlot) {
        if let Some(time) = self.pending.and_then(|pending| pending.mtime_ns) {
            slot.mtime = time.into();
            slot.ctime = time.max(slot.ctime.get()).into();
        }
    }

    /// Refuses a slot that no inode can have.
    #[inline]
    pub(crate) fn check_slot(&self) -> FsResult<()> {
        let (slot, ino) = (&self.slot, self.ino);
        if slot.flags.get() & !flag::ALL != 0 {
            let found = format!("{:#x}", slot.flags.get());
            return Err(Corrupt::new(format!("inode {ino} flags"), "known flags", found).into());
        }
        if slot.size.get() > terrace_format::address::MAX_FILE_SIZE || slot.blocks.get() > u64::MAX / 8 {
            let found = format!("{} bytes, {} blocks", slot.size, slot.blocks);
            return Err(Corrupt::new(format!("inode {ino} size"), "one that a file can have", found).into());
        }
        Ok(())
    }

    /// Attributes for callers.
    #[inline]
    pub fn attributes(&self) -> Attributes {
        let mut slot = self.slot;
        self.log_pending_times(&mut slot);
        let new_blocks = self.pending.map_or(0, |pending| pending.new_blocks);
        Attributes {
            ino: self.ino,
            generation: slot.generation.get(),
            mode: slot.mode.get(),
            nlink: slot.nlink.get(),
            uid: slot.uid.get(),
            gid: slot.gid.get(),
            rdev: if slot.is_directory() { 0 } else { slot.parent_or_rdev.get() },
            size: self.size(),
            blocks: (slot.blocks.get() + new_blocks) * 8,
            atime_ns: slot.atime.get(),
            mtime_ns: slot.mtime.get(),
            ctime_ns: slot.ctime.get(),
            btime_ns: slot.btime.get(),
        }
    }
}

/// The volatile size and times of an inode: its slot does not have them yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The generation of the inode.
    pub generation: u32,
    /// Visible size in bytes.
    pub size: u64,
    /// mtime and ctime, when a write into DRAM was the last to set them.
    pub mtime_ns: Option<i64>,
    /// Dirty blocks that were not allocated on a medium, for st_blocks.
    pub new_blocks: u64,
}

#[inline]
/// Refuses anything but a regular file.
///
/// # Errors
/// EISDIR, EINVAL.
pub fn expect_regular(inode: &Inode) -> FsResult<()> {
    if inode.slot.is_directory() {
        Err(FsError::IsDirectory)
    } else if !inode.slot.is_regular() {
        Err(FsError::Invalid)
    } else {
        Ok(())
    }
}
