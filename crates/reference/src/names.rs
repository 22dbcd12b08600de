//! Names: lookup, create, link, unlink, rename, reading directories.

use crate::content::Content;
use crate::node::{Id, Kind, Node};
use crate::stamp::Stamp;
use crate::{Outcome, ROOT, Reference};
use std::collections::BTreeMap;

const S_ISGID: u32 = 0o2000;

/// The type of a new inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum New {
    /// A regular file with these permission bits.
    Regular(u32),
    /// A directory with these permission bits.
    Directory(u32),
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A FIFO, socket or device node: st_mode and device number.
    Special(u32, u32),
}

/// An entry of a directory, without the cookie, which only the engine knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name.
    pub name: Vec<u8>,
    /// The inode that the entry names.
    pub id: Id,
    /// st_mode >> 12.
    pub file_type: u8,
}

fn check_name(name: &[u8]) -> Outcome<()> {
    if name.len() > 255 {
        return Err(libc::ENAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// Whether a name may be removed: EISDIR, ENOTDIR, ENOTEMPTY.
fn check_removable(node: &Node, as_directory: bool) -> Outcome<()> {
    match (node.entries(), as_directory) {
        (Some(_), false) => Err(libc::EISDIR),
        (None, true) => Err(libc::ENOTDIR),
        (Some(entries), true) if !entries.is_empty() => Err(libc::ENOTEMPTY),
        _ => Ok(()),
    }
}

impl Reference {
    fn directory(&self, id: Id) -> Outcome<&BTreeMap<Vec<u8>, Id>> {
        self.node(id)?.entries().ok_or(libc::ENOTDIR)
    }

    fn directory_mut(&mut self, id: Id) -> Outcome<&mut BTreeMap<Vec<u8>, Id>> {
        match &mut self.node_mut(id)?.kind {
            Kind::Directory { entries, .. } => Ok(entries),
            _ => Err(libc::ENOTDIR),
        }
    }

    /// The inode that ".." of a directory names.
    ///
    /// # Errors
    /// ENOTDIR.
    pub fn parent(&self, id: Id) -> Outcome<Id> {
        match &self.node(id)?.kind {
            Kind::Directory { parent, .. } => Ok(*parent),
            _ => Err(libc::ENOTDIR),
        }
    }

    /// Finds a name. Takes no reference.
    ///
    /// # Errors
    /// ENAMETOOLONG, ENOTDIR, ENOENT; ESTALE for ".." of a removed directory.
    pub fn lookup(&self, directory: Id, name: &[u8]) -> Outcome<Id> {
        if name.len() > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        // An inode of any type by its number.
        if name == b"." {
            let links = self.node(directory)?.links;
            return if links == 0 { Err(libc::ESTALE) } else { Ok(directory) };
        }
        let entries = self.directory(directory)?;
        let found = match name {
            b".." if self.node(directory)?.links == 0 => return Err(libc::ESTALE),
            b".." => self.parent(directory)?,
            _ => entries.get(name).copied().ok_or(libc::ENOENT)?,
        };
        self.node(found)?;
        Ok(found)
    }

    /// Makes an inode and its name. Takes no reference. A set-gid directory gives its group to new inodes,
    /// and its set-gid bit to new directories.
    ///
    /// # Errors
    /// ENAMETOOLONG, EINVAL, ENOTDIR, ENOENT in a removed directory, EMLINK, EEXIST; for a symlink ENOENT
    /// (empty target) and ENAMETOOLONG.
    pub fn make(
        &mut self,
        directory: Id,
        name: &[u8],
        new: &New,
        owner: (u32, u32),
        when: Stamp,
    ) -> Outcome<Id> {
        if let New::Symlink(target) = new {
            if target.len() > self.limits.target_bytes {
                return Err(libc::ENAMETOOLONG);
            }
            if target.is_empty() {
                return Err(libc::ENOENT);
            }
        }
        check_name(name)?;
        let is_directory = matches!(new, New::Directory(_));
        let taken = self.directory(directory)?.contains_key(name);
        let parent = self.node(directory)?;
        if parent.links == 0 {
            return Err(libc::ENOENT);
        }
        if is_directory && parent.links >= self.limits.links {
            return Err(libc::EMLINK);
        }
        if taken {
            return Err(libc::EEXIST);
        }
        let (mut mode, links, kind) = match new {
            New::Regular(mode) => (0o100000 | mode & 0o7777, 1, Kind::Regular(Content::default())),
            New::Directory(mode) => {
                let kind = Kind::Directory { entries: BTreeMap::new(), parent: directory };
                (0o040000 | mode & 0o7777, 2, kind)
            }
            New::Symlink(target) => (0o120777, 1, Kind::Symlink(target.clone())),
            New::Special(mode, rdev) => (*mode, 1, Kind::Special { rdev: *rdev }),
        };
        let (uid, mut gid) = owner;
        if parent.mode & S_ISGID != 0 {
            gid = parent.gid;
            mode |= if is_directory { S_ISGID } else { 0 };
        }
        let keeps = matches!(kind, Kind::Regular(_) | Kind::Directory { .. });
        let pin = self.node(directory)?.pin.filter(|_| keeps);
        let id = self.add(Node { pin, ..Node::new(kind, mode, links, (uid, gid), when) });
        self.directory_mut(directory)?.insert(name.to_vec(), id);
        let parent = self.node_mut(directory)?;
        parent.links += u32::from(is_directory);
        parent.modified(when);
        Ok(id)
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// ENAMETOOLONG, EINVAL, ENOTDIR, EPERM for a directory, ENOENT when the inode or the directory was
    /// removed, EMLINK, EEXIST.
    pub fn link(&mut self, id: Id, directory: Id, name: &[u8], when: Stamp) -> Outcome<()> {
        check_name(name)?;
        let taken = self.directory(directory)?.contains_key(name);
        let node = self.node(id)?;
        if node.is_directory() {
            return Err(libc::EPERM);
        }
        if node.links == 0 || self.node(directory)?.links == 0 {
            return Err(libc::ENOENT);
        }
        if node.links >= self.limits.links {
            return Err(libc::EMLINK);
        }
        if taken {
            return Err(libc::EEXIST);
        }
        self.directory_mut(directory)?.insert(name.to_vec(), id);
        self.node_mut(directory)?.modified(when);
        let node = self.node_mut(id)?;
        node.links += 1;
        node.changed(when);
        Ok(())
    }

    /// Removes a name: of an empty directory if `as_directory`, else of an inode that is no directory.
    ///
    /// # Errors
    /// ENAMETOOLONG, EINVAL, ENOTDIR, ENOENT, EISDIR, ENOTEMPTY.
    pub fn remove(&mut self, directory: Id, name: &[u8], as_directory: bool, when: Stamp) -> Outcome<()> {
        check_name(name)?;
        let id = self.directory(directory)?.get(name).copied().ok_or(libc::ENOENT)?;
        check_removable(self.node(id)?, as_directory)?;
        self.directory_mut(directory)?.remove(name);
        let parent = self.node_mut(directory)?;
        parent.links -= u32::from(as_directory);
        parent.modified(when);
        self.drop_link(id, when)
    }

    fn drop_link(&mut self, id: Id, when: Stamp) -> Outcome<()> {
        let node = self.node_mut(id)?;
        node.links = if node.is_directory() { 0 } else { node.links - 1 };
        node.changed(when);
        self.remove_if_unused(id);
        Ok(())
    }

    /// Renames. The inode that `to` named is replaced; with `no_replace` its existence is EEXIST. Two names
    /// of one inode stay as they are.
    ///
    /// # Errors
    /// ENAMETOOLONG, EINVAL (a bad name, a directory into itself), ENOTDIR, ENOENT, EEXIST, EISDIR,
    /// ENOTEMPTY.
    pub fn rename(
        &mut self,
        from: (Id, &[u8]),
        to: (Id, &[u8]),
        no_replace: bool,
        when: Stamp,
    ) -> Outcome<()> {
        check_name(from.1)?;
        check_name(to.1)?;
        let moved = self.directory(from.0)?.get(from.1).copied().ok_or(libc::ENOENT)?;
        let replaced = self.directory(to.0)?.get(to.1).copied();
        if self.node(to.0)?.links == 0 {
            return Err(libc::ENOENT);
        }
        if no_replace && replaced.is_some() {
            return Err(libc::EEXIST);
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        if from.0 != to.0 {
            self.refuse_loop(moved, to.0)?;
        }
        let is_directory = self.node(moved)?.is_directory();
        if let Some(replaced) = replaced {
            check_removable(self.node(replaced)?, is_directory)?;
        }
        let loses = replaced.is_some() && is_directory;
        if is_directory && from.0 != to.0 && !loses && self.node(to.0)?.links >= self.limits.links {
            return Err(libc::EMLINK);
        }
        self.directory_mut(from.0)?.remove(from.1);
        self.directory_mut(to.0)?.insert(to.1.to_vec(), moved);
        for (directory, gained) in [(from.0, -i64::from(is_directory)), (to.0, i64::from(is_directory))] {
            let node = self.node_mut(directory)?;
            node.links = node.links.saturating_add_signed(gained as i32);
            node.modified(when);
        }
        self.node_mut(to.0)?.links -= u32::from(loses);
        let node = self.node_mut(moved)?;
        node.changed(when);
        if let Kind::Directory { parent, .. } = &mut node.kind {
            *parent = to.0;
        }
        match replaced {
            Some(replaced) => self.drop_link(replaced, when),
            None => Ok(()),
        }
    }

    /// EINVAL when `moved` is `at` or an ancestor of it.
    fn refuse_loop(&self, moved: Id, mut at: Id) -> Outcome<()> {
        while at != moved {
            if at == ROOT {
                return Ok(());
            }
            at = self.parent(at)?;
        }
        Err(libc::EINVAL)
    }

    /// All entries but "." and "..", by name. A read of the directory.
    ///
    /// # Errors
    /// ENOTDIR.
    pub fn read_directory(&mut self, id: Id, when: Stamp) -> Outcome<Vec<Entry>> {
        let found = self.directory(id)?.iter().map(|(name, id)| {
            let file_type = (self.nodes[id].mode >> 12) as u8;
            Entry { name: name.clone(), id: *id, file_type }
        });
        let found = found.collect();
        self.accessed(id, when);
        Ok(found)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL for an inode that is no symbolic link.
    pub fn read_link(&mut self, id: Id, when: Stamp) -> Outcome<Vec<u8>> {
        let Kind::Symlink(target) = &self.node(id)?.kind else {
            return Err(libc::EINVAL);
        };
        let target = target.clone();
        self.accessed(id, when);
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    const AT: Stamp = Stamp { from: 1, to: 2 };

    fn empty() -> Reference {
        Reference::new(Limits::default(), true, AT)
    }

    #[test]
    fn links_and_references() -> Outcome<()> {
        let mut fs = empty();
        let file = fs.make(ROOT, b"a", &New::Regular(0o644), (0, 0), AT)?;
        fs.link(file, ROOT, b"b", AT)?;
        assert_eq!(fs.attributes(file)?.links, 2);
        fs.refer(file)?;
        fs.remove(ROOT, b"a", false, AT)?;
        fs.remove(ROOT, b"b", false, AT)?;
        assert_eq!(fs.attributes(file)?.links, 0);
        assert_eq!(fs.link(file, ROOT, b"c", AT), Err(libc::ENOENT));
        fs.release(file, 1)?;
        assert_eq!(fs.attributes(file), Err(libc::ESTALE));
        Ok(())
    }

    #[test]
    fn renames() -> Outcome<()> {
        let mut fs = empty();
        let a = fs.make(ROOT, b"a", &New::Directory(0o755), (0, 0), AT)?;
        let b = fs.make(a, b"b", &New::Directory(0o755), (0, 0), AT)?;
        assert_eq!(fs.rename((ROOT, b"a"), (b, b"x"), false, AT), Err(libc::EINVAL));
        assert_eq!(fs.rename((a, b"b"), (ROOT, b"a"), false, AT), Err(libc::ENOTEMPTY));
        fs.rename((a, b"b"), (ROOT, b"c"), false, AT)?;
        assert_eq!((fs.attributes(ROOT)?.links, fs.attributes(a)?.links), (4, 2));
        assert_eq!(fs.parent(b)?, ROOT);
        fs.rename((ROOT, b"c"), (ROOT, b"a"), false, AT)?;
        assert_eq!((fs.attributes(ROOT)?.links, fs.attributes(ROOT)?.size), (3, 1));
        assert_eq!(fs.attributes(a), Err(libc::ESTALE));
        Ok(())
    }
}
