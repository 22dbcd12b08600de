//! Extended attributes. Namespaces user, trusted and security are stored; the kernel checks who may.
//! POSIX ACLs (system.*) are not there yet and answer EOPNOTSUPP.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Fail, Need, Op};
use crate::pin::OWN_NAMESPACE;
use crate::slot::{Inode, log_slot};
use crate::turns::{Progress, TURN_ENTRIES, all_turns};
use crate::types::{Wait, XattrMode};
use crate::write::Staged;
use std::collections::HashMap;
use terrace_catalog::Reader;
use terrace_catalog::xattr::{self, SetMode};
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_runtime::sync::Mutex;

/// Longest name with its namespace.
const NAME_MAX: usize = 255;
/// Longest value that the kernel passes.
const VALUE_MAX: usize = 65536;
/// Most bytes of all names of an inode, each with a NUL behind it: the kernel lists no more (XATTR_LIST_MAX).
const LIST_MAX: usize = 65536;
/// Inodes whose bytes of names are remembered.
const REMEMBERED: usize = 1024;
/// What a program may do that others may not. Who changes a file without privilege must not keep it, as set-id bits.
const CAPABILITY: &[u8] = b"security.capability";

fn check(name: &[u8]) -> FsResult<()> {
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.len() > NAME_MAX {
        return Err(FsError::Range);
    }
    if name.contains(&0) {
        return Err(FsError::Invalid);
    }
    match known.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len()) {
        true => Ok(()),
        false => Err(FsError::NotSupported),
    }
}

/// How many bytes the names of some inodes have: whoever adds a name need not count them all under locks. Changed under
/// the inode's exclusive lock.
#[derive(Default)]
pub(crate) struct NameBytes(Mutex<HashMap<Ino, (u32, usize)>>);

impl NameBytes {
    fn get(&self, inode: &Inode) -> Option<usize> {
        let found = self.0.lock().get(&inode.ino).copied();
        found.filter(|(generation, _)| *generation == inode.slot.generation.get()).map(|(_, bytes)| bytes)
    }

    fn set(&self, inode: &Inode, bytes: Option<usize>) {
        let mut known = self.0.lock();
        known.remove(&inode.ino);
        let Some(bytes) = bytes else { return };
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(inode.ino, (inode.slot.generation.get(), bytes));
    }
}

/// Bytes of a name in a list; those that users do not see take none.
fn listed(name: &[u8]) -> usize {
    if name.starts_with(OWN_NAMESPACE) { 0 } else { name.len() + 1 }
}

impl Fs {
    /// Longest value: what one record holds beside a page's shift, at most 64 KiB. On large pools 64 KiB,
    /// on the smallest lanes 2 KiB.
    fn xattr_limit(&self) -> usize {
        (self.wal.max_record() / 2).min(VALUE_MAX)
    }

    /// Value of an attribute.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP for other namespaces, EIO.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        self.try_getxattr(ino, name, Wait::Allowed)
    }

    /// As [`Self::getxattr`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::getxattr`]; `WouldBlock`.
    pub fn try_getxattr(&self, ino: Ino, name: &[u8], wait: Wait) -> FsResult<Vec<u8>> {
        check(name)?;
        self.reading(wait, || {
            let _guard = self.locks.read(ino);
            let inode = self.load_to_read(ino)?;
            if !inode.slot.has(flag::HAS_XATTR) {
                return Err(FsError::NoAttribute);
            }
            let shard = self.catalog.read(self.catalog.shard_of(ino.0));
            xattr::get(shard.reader(), ino, name)?.ok_or(FsError::NoAttribute)
        })
    }

    /// Names of all attributes, each with a NUL behind it.
    ///
    /// # Errors
    /// EIO.
    pub fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>> {
        all_turns(|progress| self.listxattr_turn(ino, progress, Wait::Allowed))
    }

    /// A turn of [`Self::listxattr`]; it waits for metadata on a lower tier only if it may. Of more than 64 KiB, which
    /// only older versions let happen, it gives the first: no caller has room for more.
    ///
    /// # Errors
    /// As [`Self::listxattr`]; `WouldBlock`, `Unfinished`.
    pub fn listxattr_turn(&self, ino: Ino, progress: &mut Progress, wait: Wait) -> FsResult<Vec<u8>> {
        let names = &mut progress.names;
        let ended = self.reading(wait, || {
            let _guard = self.locks.read(ino);
            let inode = self.load_to_read(ino)?;
            if !inode.slot.has(flag::HAS_XATTR) {
                return Ok(true);
            }
            let shard = self.catalog.read(self.catalog.shard_of(ino.0));
            let last = names.strip_suffix(&[0]).map(|names| names.rsplit(|byte| *byte == 0).next());
            let last = last.flatten().map(<[u8]>::to_vec);
            Ok(xattr::list(shard.reader(), ino, last.as_deref(), TURN_ENTRIES, |name| {
                if !name.starts_with(OWN_NAMESPACE) {
                    names.extend_from_slice(name);
                    names.push(0);
                }
            })?)
        })?;
        if ended || names.len() > LIST_MAX { Ok(std::mem::take(names)) } else { Err(FsError::Unfinished) }
    }

    /// Bytes that the names of an inode's attributes have in a list. The caller holds its exclusive lock.
    fn name_bytes(&self, inode: &Inode, reader: Reader<'_>) -> FsResult<usize> {
        if let Some(bytes) = self.name_bytes.get(inode) {
            return Ok(bytes);
        }
        let mut bytes = 0;
        if inode.slot.has(flag::HAS_XATTR) {
            xattr::list(reader, inode.ino, None, usize::MAX, |name| bytes += listed(name))?;
        }
        self.name_bytes.set(inode, Some(bytes));
        Ok(bytes)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// EEXIST, ENODATA by mode; ERANGE, E2BIG as ENOSPC beyond what one transaction holds; ENOSPC, also when all names
    /// together would be longer than a list of them may be (64 KiB); EIO.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, wait: Wait) -> FsResult<()> {
        check(name)?;
        let mode = match mode {
            XattrMode::Any => SetMode::Any,
            XattrMode::Create => SetMode::Create,
            XattrMode::Replace => SetMode::Replace,
        };
        let mut op = Op::new(wait);
        self.change_xattrs(&mut op, ino, |staged, shards, inode| {
            self.blocks.probe()?;
            let mut bytes = self.name_bytes.get(inode);
            if xattr::length(shards.reader(&staged.tx), ino, name)?.is_none() && mode != SetMode::Replace {
                let sum = self.name_bytes(inode, shards.reader(&staged.tx))? + listed(name);
                if sum > LIST_MAX && listed(name) > 0 {
                    return Err(FsError::from(terrace_wal::NoSpace::Tier).into());
                }
                bytes = Some(sum);
            }
            xattr::set(shards, &mut staged.tx, ino, name, value, mode, self.xattr_limit()).map_err(
                |edit| match edit {
                    terrace_catalog::Edit::Full(_) => {
                        Need::CatalogRooms(xattr::set_puts(ino, name, value.len())).into()
                    }
                    terrace_catalog::Edit::Missing => FsError::NoAttribute.into(),
                    terrace_catalog::Edit::TooLarge => FsError::from(terrace_wal::NoSpace::Tier).into(),
                    other => Fail::from(other),
                },
            )?;
            Ok(bytes)
        })
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// ENODATA; EIO.
    pub fn removexattr(&self, ino: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
        check(name)?;
        let mut op = Op::reclaiming(wait);
        self.change_xattrs(&mut op, ino, |staged, shards, inode| {
            let there = inode.slot.has(flag::HAS_XATTR);
            match there && xattr::remove(shards, &mut staged.tx, ino, name)? {
                true => Ok(self.name_bytes.get(inode).map(|bytes| bytes.saturating_sub(listed(name)))),
                false => Err(FsError::NoAttribute.into()),
            }
        })
    }

    /// Whether a file has capabilities; on other inodes they mean nothing. The caller holds its lock.
    ///
    /// # Errors
    /// `PageBelow`; EIO.
    pub(crate) fn has_capability(&self, inode: &Inode) -> FsResult<bool> {
        if !inode.slot.has(flag::HAS_XATTR) || !inode.slot.is_regular() {
            return Ok(false);
        }
        let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
        Ok(xattr::length(shard.reader(), inode.ino, CAPABILITY)?.is_some())
    }

    /// Lacks the end of a file's capabilities where it has some: they go in a transaction of their own before the change,
    /// so that a crash leaves the old content without them, never the new one with them.
    pub(crate) fn expect_no_capability(&self, inode: &Inode) -> Attempt<()> {
        if self.has_capability(inode)? { Err(Need::RemoveCapability(inode.ino).into()) } else { Ok(()) }
    }

    /// Removes a file's capabilities, if it still has some.
    pub(crate) fn remove_capability(&self, ino: Ino, wait: Wait) -> FsResult<()> {
        match self.removexattr(ino, CAPABILITY, wait) {
            Err(FsError::NoAttribute) => Ok(()),
            removed => removed,
        }
    }

    /// Changes attributes in a transaction; `edit` gives how many bytes all names have then, if it knows.
    fn change_xattrs(
        &self,
        op: &mut Op,
        ino: Ino,
        mut edit: impl FnMut(
            &mut Staged<'_>,
            &mut terrace_catalog::ShardsWrite<'_>,
            &Inode,
        ) -> Attempt<Option<usize>>,
    ) -> FsResult<()> {
        self.run(op, self.large_record(), |reservation, _op| {
            let _guard = self.locks.write(ino);
            let inode = self.load(ino)?;
            let mut shards = self.catalog.write(&[self.catalog.shard_of(ino.0)]);
            let mut staged = Staged::new(self, None, false);
            let name_bytes = edit(&mut staged, &mut shards, &inode)?;
            staged.unlink_emptied(&mut shards)?;
            let mut slot = inode.slot;
            slot.flags = (slot.flags.get() | flag::HAS_XATTR).into();
            slot.ctime = self.now().into();
            log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            // Not known while it is not certain what is committed.
            self.name_bytes.set(&inode, None);
            staged.commit(reservation)?;
            self.name_bytes.set(&inode, name_bytes);
            Ok(())
        })
    }
}
