//! Extended attributes. Namespaces user, trusted and security are stored; the kernel checks who may.
//! POSIX ACLs (system.*) are not there yet and answer EOPNOTSUPP.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Need, Op};
use crate::pin::OWN_NAMESPACE;
use crate::slot::{Inode, log_slot};
use crate::types::{Wait, XattrMode};
use crate::write::Staged;
use terrace_catalog::xattr::{self, SetMode};
use terrace_format::Ino;
use terrace_format::inode::flag;

/// Longest name with its namespace.
const NAME_MAX: usize = 255;
/// Longest value that the kernel passes.
const VALUE_MAX: usize = 65536;
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
        self.try_listxattr(ino, Wait::Allowed)
    }

    /// As [`Self::listxattr`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::listxattr`]; `WouldBlock`.
    pub fn try_listxattr(&self, ino: Ino, wait: Wait) -> FsResult<Vec<u8>> {
        self.reading(wait, || {
            let _guard = self.locks.read(ino);
            let inode = self.load_to_read(ino)?;
            let mut names = Vec::new();
            if inode.slot.has(flag::HAS_XATTR) {
                let shard = self.catalog.read(self.catalog.shard_of(ino.0));
                xattr::list(shard.reader(), ino, |name| {
                    if !name.starts_with(OWN_NAMESPACE) {
                        names.extend_from_slice(name);
                        names.push(0);
                    }
                })?;
            }
            Ok(names)
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// EEXIST, ENODATA by mode; ERANGE, E2BIG as ENOSPC beyond what one transaction holds; ENOSPC; EIO.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, wait: Wait) -> FsResult<()> {
        check(name)?;
        let mode = match mode {
            XattrMode::Any => SetMode::Any,
            XattrMode::Create => SetMode::Create,
            XattrMode::Replace => SetMode::Replace,
        };
        let mut op = Op::new(wait);
        self.change_xattrs(&mut op, ino, |staged, shards, _| {
            self.blocks.probe()?;
            xattr::set(shards, &mut staged.tx, ino, name, value, mode, self.xattr_limit()).map_err(|edit| {
                match edit {
                    terrace_catalog::Edit::Full(_) => {
                        Need::CatalogRooms(xattr::set_puts(ino, name, value.len())).into()
                    }
                    terrace_catalog::Edit::Missing => FsError::NoAttribute.into(),
                    terrace_catalog::Edit::TooLarge => FsError::from(terrace_wal::NoSpace::Tier).into(),
                    other => other.into(),
                }
            })
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
                true => Ok(()),
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

    fn change_xattrs(
        &self,
        op: &mut Op,
        ino: Ino,
        mut edit: impl FnMut(&mut Staged<'_>, &mut terrace_catalog::ShardsWrite<'_>, &Inode) -> Attempt<()>,
    ) -> FsResult<()> {
        self.run(op, self.large_record(), |reservation, _op| {
            let _guard = self.locks.write(ino);
            let inode = self.load(ino)?;
            let mut shards = self.catalog.write(&[self.catalog.shard_of(ino.0)]);
            let mut staged = Staged::new(self, None, false);
            edit(&mut staged, &mut shards, &inode)?;
            staged.unlink_emptied(&mut shards)?;
            let mut slot = inode.slot;
            slot.flags = (slot.flags.get() | flag::HAS_XATTR).into();
            slot.ctime = self.now().into();
            log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            staged.commit(reservation)?;
            Ok(())
        })
    }
}
