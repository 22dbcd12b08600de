//! Inodes as the operations see them: a copy of the slot and its address.

use crate::error::{FsError, FsResult};
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::{Inode, Pending};
use terrace_format::below::{Identity, is_below};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, slot_offset};
use terrace_format::table::Owner;
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock, PmOffset};
use terrace_map::file_map::Mapped;
use terrace_map::{MapInode, Mapping};
use terrace_wal::{Error, PageBelow, Tx};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// Blocks that a walk over a file's map asks for at once.
const ENTRIES: usize = 64;

/// Refuses a mapping to a PM block that the block table does not give to this file block: what a damaged map
/// names is not stored to and not freed, so that damage does not spread.
///
/// # Errors
/// EIO.
#[inline]
pub fn check_owner(store: &Store, inode: &Inode, block: FileBlock, pm: PmBlock) -> FsResult<()> {
    match store.persistent.blocks().owner(pm)? {
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
pub fn next_mapped(
    store: &Store,
    inode: &Inode,
    from: FileBlock,
    to: FileBlock,
) -> FsResult<Option<(FileBlock, Mapping)>> {
    let mut found = Vec::with_capacity(1);
    let mut next = Some(from);
    while let Some(at) = next
        && found.is_empty()
    {
        next = mapped(store, inode, BlockRange::new(at, to), 1, &mut found)?;
    }
    Ok(found.pop())
}

/// The next blocks of a range that PM holds, ascending, at most `most`, appended to `found`. Gives the block to go on
/// at, which may come before `most` are found; `None` at the end of the range.
///
/// # Errors
/// As [`next_mapped`].
pub fn mapped(
    store: &Store,
    inode: &Inode,
    range: BlockRange,
    most: usize,
    found: &mut Vec<Mapped>,
) -> FsResult<Option<FileBlock>> {
    let before = found.len();
    let next = store.persistent.map().mapped(&inode.map(), range.first, range.end, most, found)?;
    for (block, mapping) in &found[before..] {
        debug_assert!(
            (range.first..range.end).contains(block),
            "the map of inode {} gives block {block} of {range:?}",
            inode.ino
        );
        check_owner(store, inode, *block, mapping.block)?;
    }
    Ok(next)
}

/// As [`mapped`], for all of a range.
pub fn for_each_mapped(
    store: &Store,
    inode: &Inode,
    range: BlockRange,
    mut visit: impl FnMut(FileBlock, Mapping),
) -> FsResult<()> {
    let mut found = Vec::new();
    let mut next = Some(range.first);
    while let Some(at) = next {
        next = mapped(store, inode, BlockRange::new(at, range.end), ENTRIES, &mut found)?;
        found.drain(..).for_each(|(block, mapping)| visit(block, mapping));
    }
    Ok(())
}

/// Address of an inode's slot. The caller holds its lock, or the list of an orphan: pages with orphans do not move.
///
/// # Errors
/// `PageBelow`; ESTALE; EIO.
#[inline]
pub(crate) fn slot_place(store: &Store, ino: Ino) -> FsResult<PmOffset> {
    if ino.0 == 0 || ino > terrace_format::address::MAX_INO {
        return Err(FsError::Stale);
    }
    let index = ino.0 / SLOTS_PER_PAGE;
    if let Some(page) = store.inodes.slot_pages().get(index) {
        store.persistent.blocks().descriptor(page).set_in_use();
        return Ok(slot_offset(page.offset(), ino.0));
    }
    let page = store.persistent.inode_map().lookup(None, index)?.ok_or(FsError::Stale)?;
    store.persistent.blocks().descriptor(page).set_in_use();
    store.inodes.slot_pages().put(index, page);
    Ok(slot_offset(page.offset(), ino.0))
}

/// As [`load`], for a caller that only reads: the inode may come from a copy of a page below PM. Nothing is
/// logged for it.
#[inline]
pub fn load_to_read(store: &Store, ino: Ino) -> FsResult<Inode> {
    let mut inode = Inode::empty(ino);
    fill_to_read(store, &mut inode)?;
    Ok(inode)
}

/// [`load_to_read`] into an inode of the caller's: each copy of an inode takes a twentieth of a hot read.
#[inline]
pub fn fill_to_read(store: &Store, inode: &mut Inode) -> FsResult<()> {
    match fill(store, inode) {
        Err(FsError::Engine(Error::PageBelow(page))) => fill_from_copy(store, inode, page)?,
        filled => filled?,
    }
    if inode.slot.is_free() { Err(FsError::Stale) } else { Ok(()) }
}

/// Fills an inode whose page lies below PM from a copy of the page.
#[cold]
fn fill_from_copy(store: &Store, inode: &mut Inode, missing: Box<PageBelow>) -> FsResult<()> {
    let ino = inode.ino;
    let index = ino.0 / SLOTS_PER_PAGE;
    let location = store.persistent.inode_map().location(None, index)?.filter(|word| is_below(*word));
    let copy =
        location.and_then(|word| store.persistent.catalog().aside().get(Identity::Inodes { index }, word));
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
    inode.pending = pending_of(store, inode);
    Ok(())
}

/// Loads an inode that must exist. The caller holds its lock.
#[inline]
pub fn load(store: &Store, ino: Ino) -> FsResult<Inode> {
    let inode = load_any(store, ino)?;
    if inode.slot.is_free() { Err(FsError::Stale) } else { Ok(inode) }
}

/// Loads a slot, free or not.
#[inline]
pub fn load_any(store: &Store, ino: Ino) -> FsResult<Inode> {
    let mut inode = Inode::empty(ino);
    fill(store, &mut inode)?;
    Ok(inode)
}

/// Reads a slot, free or not, from PM.
#[inline]
fn fill(store: &Store, inode: &mut Inode) -> FsResult<()> {
    inode.place = slot_place(store, inode.ino)?;
    store.persistent.pm().read(inode.place, inode.slot.as_mut_bytes())?;
    inode.check_slot()?;
    inode.pending = pending_of(store, inode);
    Ok(())
}

/// The volatile part of an inode.
#[inline]
fn pending_of(store: &Store, inode: &Inode) -> Option<Pending> {
    let pending = store.dram.volatile_sizes().get(inode.ino);
    pending.filter(|pending| pending.generation == inode.slot.generation.get())
}

/// Loads a directory.
#[inline]
pub fn load_directory(store: &Store, ino: Ino) -> FsResult<Inode> {
    let inode = load(store, ino)?;
    if inode.slot.is_directory() { Ok(inode) } else { Err(FsError::NotDirectory) }
}

/// As [`load_directory`], for a caller that only reads.
pub fn load_directory_to_read(store: &Store, ino: Ino) -> FsResult<Inode> {
    let inode = load_to_read(store, ino)?;
    if inode.slot.is_directory() { Ok(inode) } else { Err(FsError::NotDirectory) }
}

/// Now, in nanoseconds since the epoch, as coarse as the kernel's own file systems take it.
#[inline]
pub fn wall_now(store: &Store) -> i64 {
    store.clock.wall_coarse_ns()
}

/// Logs the words that differ between `before` and `after`, neighbours as one write.
#[inline]
pub fn log_slot(tx: &mut Tx, place: PmOffset, before: &InodeSlot, after: &InodeSlot) {
    assert!(place != MapInode::NOWHERE, "an inode that came from a copy is changed (C1)");
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
#[inline]
pub fn log_size_and_times(tx: &mut Tx, place: PmOffset, size: u64, blocks: u64, now: i64) {
    const _: () = assert!(InodeSlot::ATIME - InodeSlot::SIZE == 4 * 8);
    assert!(place != MapInode::NOWHERE, "an inode that came from a copy is changed (C1)");
    let now = now as u64;
    tx.write_words(place.plus(InodeSlot::SIZE), [size, blocks, now, now].map(U64::new));
}

/// Logs a whole slot (a new inode).
pub fn log_whole_slot(tx: &mut Tx, place: PmOffset, slot: &InodeSlot) {
    assert!(place != MapInode::NOWHERE, "an inode that came from a copy is made (C1)");
    tx.write(place, slot.as_bytes());
}
