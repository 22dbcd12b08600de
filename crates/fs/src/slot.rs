//! Inodes as the operations see them: a copy of the slot and its address.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::types::Attributes;
use crate::unwritten::Pending;
use terrace_format::below::{Identity, is_below};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, slot_offset};
use terrace_format::table::Owner;
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock, PmOffset};
use terrace_map::{MapInode, Mapping};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_wal::{Error, PageBelow, Tx};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A loaded inode; valid while its lock is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inode {
    pub ino: Ino,
    /// Of its slot; [`MapInode::NOWHERE`] when it comes from a copy ([`Fs::load_to_read`]).
    pub place: PmOffset,
    pub slot: InodeSlot,
    /// What is only in DRAM.
    pub pending: Option<Pending>,
}

impl Inode {
    /// An inode that nothing is known of yet.
    #[inline]
    pub fn empty(ino: Ino) -> Inode {
        Inode { ino, place: MapInode::NOWHERE, slot: InodeSlot::new_zeroed(), pending: None }
    }

    /// What the file map needs.
    pub fn map(&self) -> MapInode {
        MapInode { ino: self.ino, slot: self.place }
    }

    /// Size in bytes, as callers see it.
    pub fn size(&self) -> u64 {
        self.pending.map_or(self.durable_size(), |pending| pending.size)
    }

    /// Size in bytes that a crash leaves.
    pub fn durable_size(&self) -> u64 {
        self.slot.size.get()
    }

    /// Puts the time of the last write into DRAM into a slot that is to be logged.
    pub fn log_pending_times(&self, slot: &mut InodeSlot) {
        if let Some(time) = self.pending.and_then(|pending| pending.mtime_ns) {
            slot.mtime = time.into();
            slot.ctime = time.max(slot.ctime.get()).into();
        }
    }

    /// Refuses a slot that no inode can have.
    #[inline]
    fn check_slot(&self) -> FsResult<()> {
        let (slot, ino) = (&self.slot, self.ino);
        if slot.flags.get() & !terrace_format::inode::flag::ALL != 0 {
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

/// Where pages of the inode file lie, as found last: a word each, by the low bits of the index. A page moves under
/// the locks of all its inodes, and who looks here holds one of them.
pub(crate) struct InodePages(Vec<AtomicU64>);

const CACHED_PAGES: u64 = 1 << 12;

impl InodePages {
    pub fn new() -> InodePages {
        InodePages((0..CACHED_PAGES).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        &self.0[(index % CACHED_PAGES) as usize]
    }

    fn get(&self, index: u64) -> Option<PmBlock> {
        let word = self.word(index).load(Ordering::Relaxed);
        (word != 0 && word >> 32 == index).then_some(PmBlock(word & 0xffff_ffff))
    }

    pub fn put(&self, index: u64, page: PmBlock) {
        if page.0 <= u64::from(u32::MAX) {
            self.word(index).store(index << 32 | page.0, Ordering::Relaxed);
        }
    }

    /// The page moves.
    pub fn forget(&self, index: u64) {
        self.word(index).store(0, Ordering::Relaxed);
    }
}

impl Fs {
    /// Refuses a mapping to a PM block that the block table does not give to this file block: what a damaged map
    /// names is not stored to and not freed, so that damage does not spread.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn check_owner(&self, inode: &Inode, block: FileBlock, pm: PmBlock) -> FsResult<()> {
        match self.blocks.owner(pm)? {
            Owner::File { ino, block: owned, .. } if (ino, owned) == (inode.ino, block) => Ok(()),
            other => {
                let expected = format!("block {block} of inode {}", inode.ino);
                Err(Corrupt::new(format!("owner of PM block {pm}"), expected, format!("{other:?}")).into())
            }
        }
    }

    /// The first block of a file that PM holds in `from..to`. Its owner is compared: in a damaged tree a node
    /// may stand for many, and a walk over it would find more blocks than a lifetime has seconds.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn next_mapped(
        &self,
        inode: &Inode,
        from: FileBlock,
        to: FileBlock,
    ) -> FsResult<Option<(FileBlock, Mapping)>> {
        let found = self.map.next_mapped(&inode.map(), from, to)?;
        if let Some((block, mapping)) = found {
            self.check_owner(inode, block, mapping.block)?;
        }
        Ok(found)
    }

    /// Address of an inode's slot. The caller holds its lock, or the list of an orphan: pages with orphans do not move.
    ///
    /// # Errors
    /// `PageBelow`; ESTALE; EIO.
    pub(crate) fn slot_place(&self, ino: Ino) -> FsResult<PmOffset> {
        if ino.0 == 0 || ino > terrace_format::address::MAX_INO {
            return Err(FsError::Stale);
        }
        let index = ino.0 / SLOTS_PER_PAGE;
        if let Some(page) = self.inode_pages.get(index) {
            self.blocks.descriptor(page).set_in_use();
            return Ok(slot_offset(page.offset(), ino.0));
        }
        let page = self.inode_map.lookup(None, index)?.ok_or(FsError::Stale)?;
        self.blocks.descriptor(page).set_in_use();
        self.inode_pages.put(index, page);
        Ok(slot_offset(page.offset(), ino.0))
    }

    /// As [`Self::load`], for a caller that only reads: the inode may come from a copy of a page below PM. Nothing is
    /// logged for it.
    pub(crate) fn load_to_read(&self, ino: Ino) -> FsResult<Inode> {
        let mut inode = Inode::empty(ino);
        self.fill_to_read(&mut inode)?;
        Ok(inode)
    }

    /// [`Self::load_to_read`] into an inode of the caller's: each copy of an inode takes a twentieth of a hot read.
    #[inline]
    pub(crate) fn fill_to_read(&self, inode: &mut Inode) -> FsResult<()> {
        match self.fill(inode) {
            Err(FsError::Engine(Error::PageBelow(page))) => self.fill_from_copy(inode, page)?,
            filled => filled?,
        }
        if inode.slot.is_free() { Err(FsError::Stale) } else { Ok(()) }
    }

    /// Fills an inode whose page lies below PM from a copy of the page.
    #[cold]
    fn fill_from_copy(&self, inode: &mut Inode, missing: Box<PageBelow>) -> FsResult<()> {
        let ino = inode.ino;
        let index = ino.0 / SLOTS_PER_PAGE;
        let location = self.inode_map.location(None, index)?.filter(|word| is_below(*word));
        let copy = location.and_then(|word| self.catalog.aside().get(Identity::Inodes { index }, word));
        let Some(copy) = copy else { return Err(Error::PageBelow(missing).into()) };
        let slots = copy.bytes.as_chunks::<{ SLOT_SIZE as usize }>().0;
        let raw = slots.get((ino.0 % SLOTS_PER_PAGE) as usize).ok_or(FsError::Stale)?;
        inode.place = MapInode::NOWHERE;
        inode.slot = InodeSlot::read_from_bytes(raw).map_err(|_| FsError::Stale)?;
        inode.check_slot()?;
        let slot = &inode.slot;
        if slot.root.get() != 0 || slot.direct.iter().any(|pointer| pointer.get() != 0) {
            let site = format!("inode {ino} below persistent memory");
            return Err(Corrupt::new(site, "no block in persistent memory", "some").into());
        }
        inode.pending = self.pending_of(inode);
        Ok(())
    }

    /// Loads an inode that must exist. The caller holds its lock.
    pub(crate) fn load(&self, ino: Ino) -> FsResult<Inode> {
        let inode = self.load_any(ino)?;
        if inode.slot.is_free() { Err(FsError::Stale) } else { Ok(inode) }
    }

    /// Loads a slot, free or not.
    pub(crate) fn load_any(&self, ino: Ino) -> FsResult<Inode> {
        let mut inode = Inode::empty(ino);
        self.fill(&mut inode)?;
        Ok(inode)
    }

    /// Reads a slot, free or not, from PM.
    #[inline]
    fn fill(&self, inode: &mut Inode) -> FsResult<()> {
        inode.place = self.slot_place(inode.ino)?;
        self.pm.read(inode.place, inode.slot.as_mut_bytes())?;
        inode.check_slot()?;
        inode.pending = self.pending_of(inode);
        Ok(())
    }

    /// The volatile part of an inode.
    #[inline]
    fn pending_of(&self, inode: &Inode) -> Option<Pending> {
        let pending = self.unwritten.get(inode.ino);
        pending.filter(|pending| pending.generation == inode.slot.generation.get())
    }

    /// Loads a directory.
    pub(crate) fn load_directory(&self, ino: Ino) -> FsResult<Inode> {
        let inode = self.load(ino)?;
        if inode.slot.is_directory() { Ok(inode) } else { Err(FsError::NotDirectory) }
    }

    /// As [`Self::load_directory`], for a caller that only reads.
    pub(crate) fn load_directory_to_read(&self, ino: Ino) -> FsResult<Inode> {
        let inode = self.load_to_read(ino)?;
        if inode.slot.is_directory() { Ok(inode) } else { Err(FsError::NotDirectory) }
    }

    /// Now, in nanoseconds since the epoch, as coarse as the kernel's own file systems take it.
    pub(crate) fn now(&self) -> i64 {
        self.clock.wall_coarse_ns()
    }
}

/// Logs the words that differ between `before` and `after`, neighbours as one write.
pub(crate) fn log_slot(tx: &mut Tx, place: PmOffset, before: &InodeSlot, after: &InodeSlot) {
    let (before, after) = (before.as_bytes(), after.as_bytes());
    let mut word = 0;
    let words = SLOT_SIZE as usize / 8;
    let differs = |word: usize| before[word * 8..word * 8 + 8] != after[word * 8..word * 8 + 8];
    while word < words {
        if !differs(word) {
            word += 1;
            continue;
        }
        let start = word;
        while word < words && differs(word) {
            word += 1;
        }
        tx.write(place.plus(start as u64 * 8), &after[start * 8..word * 8]);
    }
}

/// Logs what a write changes: size in bytes, blocks, and mtime and ctime, both `now`.
pub(crate) fn log_size_and_times(tx: &mut Tx, place: PmOffset, size: u64, blocks: u64, now: i64) {
    const _: () = assert!(InodeSlot::ATIME - InodeSlot::SIZE == 4 * 8);
    let now = now as u64;
    tx.write_words(place.plus(InodeSlot::SIZE), [size, blocks, now, now].map(U64::new));
}

/// Logs a whole slot (a new inode).
pub(crate) fn log_whole_slot(tx: &mut Tx, place: PmOffset, slot: &InodeSlot) {
    tx.write(place, slot.as_bytes());
}
