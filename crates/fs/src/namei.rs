//! Names: lookup, create, link, unlink. Each change is one transaction.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Need, Op, SMALL_RECORD};
use crate::reclaim::log_freed_slot;
use crate::reclaim_queue::Job;
use crate::references::{OpenMode, Opening, Prefer};
use crate::slot::{Inode, log_slot, log_whole_slot};
use crate::types::{Attributes, Caller, SetAttributes, Wait};
use crate::write::Staged;
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use terrace_catalog::dentry::{self, Dentry};
use terrace_catalog::{Edit, symlink};
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::{Corrupt, Ino};
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use zerocopy::IntoBytes;

/// Longest name.
const NAME_MAX: usize = 255;
/// Longest symlink target.
const TARGET_MAX: usize = 4095;
/// Most links of a file, as ext4 has it.
pub(crate) const LINK_MAX: u32 = 65_000;

pub(crate) const S_IFMT: u32 = 0o170000;
pub(crate) const S_IFDIR: u32 = 0o040000;
const S_IFREG: u32 = 0o100000;
const S_IFLNK: u32 = 0o120000;
const S_ISGID: u32 = 0o2000;

/// Checks a name that a directory is to hold.
pub(crate) fn check_name(name: &[u8]) -> FsResult<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid);
    }
    Ok(())
}

/// What a new inode is.
struct NewInode<'a> {
    mode: u32,
    rdev: u32,
    target: Option<&'a [u8]>,
}

/// Files from here on are read in more than one request: 256 KiB.
const IN_PIECES: u64 = 256 << 10;

impl Fs {
    /// The entry of a name. The caller holds the directory's lock.
    pub(crate) fn find(&self, directory: Ino, name: &[u8]) -> FsResult<Option<Dentry>> {
        let shard = self.catalog.read(self.catalog.shard_of(directory.0));
        Ok(dentry::lookup(shard.reader(), &self.names, directory, name)?)
    }

    /// Takes a lookup reference on an inode of any type by its number, as "." of it: for file handles, whose number is
    /// whatever somebody remembered. The caller holds its lock.
    fn look_up_number(&self, ino: Ino) -> FsResult<()> {
        let inode = self.load_to_read(ino)?;
        // Nobody refers to it that the kernel does not know, or it is on its way out.
        if inode.slot.has(flag::ORPHAN) || inode.slot.nlink.get() == 0 {
            return Err(FsError::Stale);
        }
        self.references.looked_up(ino);
        Ok(())
    }

    /// Finds a name and takes a lookup reference; "." is an inode of any type itself, ".." a directory's parent.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENAMETOOLONG, EIO; ESTALE for "." and ".." of what was removed, or never was.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> FsResult<Attributes> {
        self.try_lookup(parent, name, Wait::Allowed)
    }

    /// As [`Self::lookup`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::lookup`]; `WouldBlock`.
    pub fn try_lookup(&self, parent: Ino, name: &[u8], wait: Wait) -> FsResult<Attributes> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let ino = self.reading(wait, || {
            let _guard = self.locks.read(parent);
            if name == b"." {
                self.look_up_number(parent)?;
                return Ok(parent);
            }
            let directory = self.load_directory_to_read(parent)?;
            let ino = match name {
                // The parent may be gone too, and its number another inode's.
                b".." if directory.slot.has(flag::ORPHAN) => return Err(FsError::Stale),
                b".." => Ino(u64::from(directory.slot.parent_or_rdev.get())),
                _ => self.find(parent, name)?.ok_or(FsError::NotFound)?.ino,
            };
            // Under the directory's lock: nobody can remove the last name before the reference counts.
            self.references.looked_up(ino);
            Ok(ino)
        })?;
        self.attributes_or_forget(ino, wait)
    }

    /// Attributes of an inode whose reference was just taken; gives the reference back on failure.
    pub(crate) fn attributes_or_forget(&self, ino: Ino, wait: Wait) -> FsResult<Attributes> {
        let found = self.reading(wait, || {
            let _guard = self.locks.read(ino);
            self.load_to_read(ino)
        });
        match found {
            Ok(inode) => Ok(inode.attributes()),
            Err(error) => {
                self.forget(ino, 1);
                Err(error)
            }
        }
    }

    /// Gives lookup references back.
    pub fn forget(&self, ino: Ino, count: u64) {
        if self.references.forget(ino, count) {
            self.queue_if_orphan(ino);
        }
    }

    /// Queues an inode for removal when it has no name left.
    fn queue_if_orphan(&self, ino: Ino) {
        // The flag is set before the last reference goes, or nobody needs it.
        let found = {
            let _guard = self.locks.read(ino);
            self.load_any(ino)
        };
        match found {
            Ok(inode) if !inode.slot.has(flag::ORPHAN) => {}
            // Pages with orphans stay in PM.
            Err(FsError::Engine(terrace_wal::Error::PageBelow(_))) => {}
            // What cannot be read now is looked at again by the reclaimer.
            _ => {
                self.reclaim.push(Job::Orphan(ino));
                self.help_reclaim();
            }
        }
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn getattr(&self, ino: Ino) -> FsResult<Attributes> {
        self.try_getattr(ino, Wait::Allowed)
    }

    /// As [`Self::getattr`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::getattr`]; `WouldBlock`.
    pub fn try_getattr(&self, ino: Ino, wait: Wait) -> FsResult<Attributes> {
        self.reading(wait, || {
            let _guard = self.locks.read(ino);
            Ok(self.load_to_read(ino)?.attributes())
        })
    }

    /// How to have the kernel drop all pages it has of an inode, true when it did: what was open directly can be cached
    /// by it then. Called by opens that may wait, which hold no lock; once for good.
    pub fn set_drop_pages(&self, drop_pages: impl Fn(Ino) -> bool + Send + Sync + 'static) {
        let _ = self.drop_pages.set(Box::new(drop_pages));
    }

    /// Opens; `truncate` as O_TRUNC. The mode is that of the first open until the last close.
    ///
    /// # Errors
    /// ESTALE, EIO, and truncate's; `WouldBlock`.
    pub fn open(&self, ino: Ino, truncate: bool, write: bool, wait: Wait) -> FsResult<OpenMode> {
        if write && self.read_only {
            return Err(FsError::ReadOnly);
        }
        if truncate {
            let change = SetAttributes { size: Some(0), kill_set_id: true, ..Default::default() };
            self.setattr(ino, &change, wait)?;
        }
        let drop_pages = self.drop_pages.get();
        let open = || {
            let _guard = self.locks.read(ino);
            let inode = self.load_to_read(ino)?;
            let has_cold = inode.slot.has(flag::HAS_COLD);
            // Of a set-id program each start is to be seen.
            let is_direct =
                write || truncate || inode.slot.is_regular() && inode.slot.mode.get() & 0o6000 != 0;
            let prefer = if is_direct { Prefer::Direct } else { self.preferred(&inode, has_cold)? };
            Ok((self.references.open(ino, prefer, drop_pages.is_some(), wait), has_cold))
        };
        let (mode, has_cold) = loop {
            match self.reading(wait, open)? {
                (Opening::Open(mode), has_cold) => break (mode, has_cold),
                (Opening::Drops, has_cold) => {
                    // Others wait for the end of it, whatever that is.
                    let drop_pages = || drop_pages.is_some_and(|drop_pages| drop_pages(ino));
                    let done = catch_unwind(AssertUnwindSafe(drop_pages)).unwrap_or(false);
                    break (self.references.dropped(ino, done), has_cold);
                }
                (Opening::Waits, _) if wait != Wait::Allowed => return Err(FsError::WouldBlock),
                (Opening::Waits, _) => self.references.wait_for_dropped(ino),
            }
        };
        if write
            && has_cold
            && let Err(error) = self.fetch_leaves(ino, wait)
        {
            self.release(ino);
            return Err(error);
        }
        Ok(mode)
    }

    /// How a file is opened for reading: through the kernel's cache, which no request leaves for what it has, when it lies
    /// below; and in PM, under a policy that moves what is read, when it is read again and again or a single request does not
    /// read it, as long as all those have room there: a page that the kernel has to fetch again costs more than one that it
    /// asks for each time. The predictors see the reads that the kernel sends.
    fn preferred(&self, inode: &Inode, has_cold: bool) -> FsResult<Prefer> {
        if has_cold && self.mostly_cold(inode)? {
            return Ok(Prefer::Cached);
        }
        let often = inode.size() >= IN_PIECES || self.is_read_dominated(inode);
        Ok(if often && self.policy.follows_reads() {
            Prefer::CachedWhileRoom { blocks: inode.size().div_ceil(terrace_format::BLOCK_SIZE) }
        } else {
            Prefer::Direct
        })
    }

    /// A file none of whose first blocks is in PM.
    fn mostly_cold(&self, inode: &Inode) -> FsResult<bool> {
        if inode.pending.is_some() {
            return Ok(false);
        }
        let end = terrace_format::FileBlock(inode.size().div_ceil(terrace_format::BLOCK_SIZE));
        Ok(self.next_mapped(inode, terrace_format::FileBlock(0), end)?.is_none())
    }

    /// Closes.
    pub fn release(&self, ino: Ino) {
        let left = self.references.release(ino);
        if !left.is_open {
            self.note_close(ino);
        }
        if !left.is_referenced {
            self.queue_if_orphan(ino);
        }
    }

    /// Makes a file of any type but directory and symlink. Takes a lookup reference.
    ///
    /// # Errors
    /// EEXIST, ENOENT and ENOTDIR of the directory, ENAMETOOLONG, ENOSPC, EIO.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
        caller: Caller,
        wait: Wait,
    ) -> FsResult<Attributes> {
        let mode = if mode & S_IFMT == 0 { mode | S_IFREG } else { mode };
        if mode & S_IFMT == S_IFDIR || mode & S_IFMT == S_IFLNK {
            return Err(FsError::Invalid);
        }
        self.make(parent, name, &NewInode { mode, rdev, target: None }, caller, wait)
    }

    /// Makes a directory. Takes a lookup reference.
    ///
    /// # Errors
    /// As [`Self::mknod`]; EMLINK.
    pub fn mkdir(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        caller: Caller,
        wait: Wait,
    ) -> FsResult<Attributes> {
        let mode = S_IFDIR | mode & 0o7777;
        self.make(parent, name, &NewInode { mode, rdev: 0, target: None }, caller, wait)
    }

    /// Makes a symbolic link. Takes a lookup reference.
    ///
    /// # Errors
    /// As [`Self::mknod`]; ENAMETOOLONG for a target over 4095 bytes.
    pub fn symlink(
        &self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        caller: Caller,
        wait: Wait,
    ) -> FsResult<Attributes> {
        // The smallest lanes cannot record the longest targets.
        if target.len() > TARGET_MAX.min(self.wal.max_record() / 2) {
            return Err(FsError::NameTooLong);
        }
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        let new = NewInode { mode: S_IFLNK | 0o777, rdev: 0, target: Some(target) };
        self.make(parent, name, &new, caller, wait)
    }

    fn make(
        &self,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        caller: Caller,
        wait: Wait,
    ) -> FsResult<Attributes> {
        check_name(name)?;
        let mut op = Op::new(wait);
        let record = if new.target.is_some() { self.large_record() } else { SMALL_RECORD };
        let mut number = None;
        self.run(&mut op, record, |reservation, op| {
            // Pages and slots exist already, but metadata alone must not take the reserve either.
            self.blocks.probe()?;
            // Kept between attempts, because room is made for its keys.
            if number.is_none() {
                number = Some(self.new_number()?);
            }
            let Some(number) = number.as_mut() else { return Err(Need::Again.into()) };
            interleave::point("number:taken");
            let _guards = self.locks.write_many(&[parent, number.ino]);
            let directory = self.load_directory(parent)?;
            if directory.slot.nlink.get() == 0 {
                return Err(FsError::NotFound.into());
            }
            let mut staged = Staged::new(self, None, false);
            let is_directory = new.mode & S_IFMT == S_IFDIR;
            if is_directory && directory.slot.nlink.get() >= LINK_MAX {
                return Err(FsError::TooManyLinks.into());
            }
            self.expect_use(number.ino);
            let inode = self.load_any(number.ino)?;
            if !inode.slot.is_free() {
                // Two pages of the inode file lie in one block; this number is not handed out again.
                number.kept = true;
                let site = format!("inode {}", number.ino);
                let error = Corrupt::new(site, "the free slot that was found", "one in use");
                return Err(FsError::from(error).into());
            }
            let mut slot = self.new_slot(&inode, &directory, new, caller);
            let pin = if is_directory || slot.is_regular() { self.pin_of(&directory)? } else { None };
            if pin.is_some() && op.record < self.large_record() {
                op.record = self.large_record();
                return Err(Need::Again.into());
            }
            let shards = [self.catalog.shard_of(parent.0), self.catalog.shard_of(number.ino.0)];
            let keys = new.target.is_some() || pin.is_some();
            let mut shards = self.catalog.write(&shards[..if keys { 2 } else { 1 }]);
            let file_type = (new.mode >> 12) as u8;
            dentry::insert(&mut shards, &mut staged.tx, &self.names, parent, name, number.ino, file_type)?;
            if let Some(target) = new.target {
                let made = symlink::create(&mut shards, &mut staged.tx, number.ino, target);
                if matches!(made, Err(Edit::Full(_))) {
                    // Both in one: the name may take the room in a leaf that they share.
                    let mut puts = symlink::create_puts(number.ino, target.len());
                    puts.push(dentry::insert_put(&self.names, parent, name));
                    return Err(Need::CatalogRooms(puts).into());
                }
                made?;
            }
            if let Some(tier) = pin {
                let made = self.stage_pin(&mut shards, &mut staged, number.ino, &mut slot, tier);
                if matches!(made, Err(Edit::Full(_))) {
                    let mut puts = Fs::pin_puts(number.ino);
                    puts.push(dentry::insert_put(&self.names, parent, name));
                    return Err(Need::CatalogRooms(puts).into());
                }
                made?;
            }
            log_whole_slot(&mut staged.tx, inode.place, &slot);
            self.stage_directory_change(&mut staged, &directory, 1, i32::from(is_directory));
            staged.commit(reservation)?;
            number.kept = true;
            self.references.looked_up(number.ino);
            let made = Inode { ino: number.ino, place: inode.place, slot, pending: None };
            self.note_made(&directory, name, &made);
            Ok(made.attributes())
        })
    }

    fn new_slot(&self, free: &Inode, directory: &Inode, new: &NewInode<'_>, caller: Caller) -> InodeSlot {
        let now = self.now();
        let is_directory = new.mode & S_IFMT == S_IFDIR;
        let mut slot = InodeSlot::zeroed();
        let mut mode = new.mode;
        slot.uid = caller.uid.into();
        slot.gid = caller.gid.into();
        if directory.slot.mode.get() & S_ISGID != 0 {
            slot.gid = directory.slot.gid;
            if is_directory {
                mode |= S_ISGID;
            }
        }
        slot.mode = mode.into();
        slot.nlink = if is_directory { 2 } else { 1 }.into();
        slot.generation = free.slot.generation.get().max(1).into();
        for time in [&mut slot.atime, &mut slot.mtime, &mut slot.ctime, &mut slot.btime] {
            *time = now.into();
        }
        slot.parent_or_rdev = if is_directory { directory.ino.0 as u32 } else { new.rdev }.into();
        if let Some(target) = new.target {
            slot.size = (target.len() as u64).into();
            slot.flags = flag::HAS_SYMLINK.into();
        }
        slot
    }

    /// Logs a directory's entry count, link count and times.
    pub(crate) fn stage_directory_change(
        &self,
        staged: &mut Staged<'_>,
        directory: &Inode,
        entries: i64,
        links: i32,
    ) {
        let mut slot = directory.slot;
        slot.size = slot.size.get().saturating_add_signed(entries).into();
        slot.nlink = slot.nlink.get().saturating_add_signed(links).into();
        let now = self.now();
        slot.mtime = now.into();
        slot.ctime = now.into();
        log_slot(&mut staged.tx, directory.place, &directory.slot, &slot);
    }

    /// Gives a file another name. Takes a lookup reference.
    ///
    /// # Errors
    /// EPERM for a directory, EMLINK, EEXIST, ENOENT, ENOSPC, EIO.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], wait: Wait) -> FsResult<Attributes> {
        check_name(name)?;
        let mut op = Op::new(wait);
        self.run(&mut op, SMALL_RECORD, |reservation, _op| {
            self.blocks.probe()?;
            let _guards = self.locks.write_many(&[parent, ino]);
            let directory = self.load_directory(parent)?;
            let inode = self.load(ino)?;
            if inode.slot.is_directory() {
                return Err(FsError::NotPermitted.into());
            }
            if inode.slot.nlink.get() == 0 || directory.slot.nlink.get() == 0 {
                return Err(FsError::NotFound.into());
            }
            if inode.slot.nlink.get() >= LINK_MAX {
                return Err(FsError::TooManyLinks.into());
            }
            let mut staged = Staged::new(self, None, false);
            let mut shards = self.catalog.write(&[self.catalog.shard_of(parent.0)]);
            let file_type = (inode.slot.mode.get() >> 12) as u8;
            dentry::insert(&mut shards, &mut staged.tx, &self.names, parent, name, ino, file_type)?;
            let mut slot = inode.slot;
            slot.ctime = self.now().into();
            let logged = slot;
            slot.nlink = (slot.nlink.get() + 1).into();
            let in_place = planted(Mistake::UnloggedLinkCount);
            log_slot(&mut staged.tx, inode.place, &inode.slot, if in_place { &logged } else { &slot });
            self.stage_directory_change(&mut staged, &directory, 1, 0);
            staged.commit(reservation)?;
            if in_place {
                self.pm.write(inode.place, &slot.as_bytes()[..8])?;
                self.pm.persist();
            }
            self.references.looked_up(ino);
            Ok(Inode { slot, ..inode }.attributes())
        })
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EIO. Never ENOSPC.
    pub fn unlink(&self, parent: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
        self.remove_name(parent, name, false, wait)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EIO.
    pub fn rmdir(&self, parent: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
        self.remove_name(parent, name, true, wait)
    }

    fn remove_name(&self, parent: Ino, name: &[u8], directory: bool, wait: Wait) -> FsResult<()> {
        check_name(name)?;
        let mut op = Op::reclaiming(wait);
        self.run(&mut op, SMALL_RECORD, |reservation, _op| {
            let entry = {
                let _guard = self.locks.read(parent);
                self.load_directory(parent)?;
                self.find(parent, name)?.ok_or(FsError::NotFound)?
            };
            let _guards = self.locks.write_many(&[parent, entry.ino]);
            let parent_inode = self.load_directory(parent)?;
            let mut staged = Staged::new(self, None, false);
            let mut shards = self.catalog.write(&[self.catalog.shard_of(parent.0)]);
            if !dentry::remove_same(&mut shards, &mut staged.tx, parent, &entry, name)? {
                drop(shards);
                // Between the locks somebody else was faster; or the page is damaged and would be so for ever.
                return Err(match self.find(parent, name)? {
                    Some(now) if now == entry => {
                        let site = format!("entry {:#x} of directory {parent}", entry.cookie);
                        FsError::from(Corrupt::new(site, "in its place in the leaf", "elsewhere")).into()
                    }
                    _ => Need::Again.into(),
                });
            }
            let inode = self.load(entry.ino)?;
            check_removable(&inode, directory)?;
            staged.unlink_emptied(&mut shards)?;
            self.stage_directory_change(&mut staged, &parent_inode, -1, -i32::from(directory));
            self.drop_link(reservation, staged, &inode)
        })?;
        self.help_reclaim();
        Ok(())
    }

    /// Takes one link (for a directory both) from an inode and commits. The last one frees a bare inode
    /// that nobody refers to, and makes any other an orphan.
    pub(crate) fn drop_link(
        &self,
        reservation: terrace_wal::Reservation<'_>,
        mut staged: Staged<'_>,
        inode: &Inode,
    ) -> Attempt<()> {
        let mut slot = inode.slot;
        let left = if slot.is_directory() { 0 } else { slot.nlink.get().saturating_sub(1) };
        slot.nlink = left.into();
        slot.ctime = self.now().into();
        if left > 0 {
            log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            staged.commit(reservation)?;
            return Ok(());
        }
        if self.is_bare(&slot) && !self.references.is_referenced(inode.ino) {
            self.begin_free(inode.ino);
            log_freed_slot(&mut staged, inode);
            let freed = staged.commit(reservation);
            self.end_free(inode.ino, freed.is_ok());
            if freed.is_ok() {
                self.forget_dirty(inode);
            }
            return freed.map(|_| ());
        }
        slot.flags = (slot.flags.get() | flag::ORPHAN).into();
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        let list = self.lock_orphans(inode.ino);
        self.link_orphan(&mut staged.tx, inode)?;
        staged.commit(reservation)?;
        drop(list);
        if !self.references.is_referenced(inode.ino) {
            self.reclaim.push(Job::Orphan(inode.ino));
        }
        Ok(())
    }

    /// Target of a symlink. The caller holds the inode's lock.
    pub(crate) fn symlink_target(&self, inode: &Inode) -> FsResult<Vec<u8>> {
        let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
        Ok(symlink::read(shard.reader(), inode.ino)?)
    }
}

/// Whether a name may be removed by unlink or rmdir.
pub(crate) fn check_removable(inode: &Inode, as_directory: bool) -> FsResult<()> {
    match (inode.slot.is_directory(), as_directory) {
        (true, false) => Err(FsError::IsDirectory),
        (false, true) => Err(FsError::NotDirectory),
        (true, true) if inode.size() > 0 => Err(FsError::NotEmpty),
        _ => Ok(()),
    }
}

/// Inodes of one operation, for locking.
pub(crate) type InodeList = SmallVec<[Ino; 4]>;
