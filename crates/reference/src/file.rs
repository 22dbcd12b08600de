//! Content of files: read, write, truncate, fallocate, seek.

use crate::content::Content;
use crate::node::{Id, Kind, Node};
use crate::stamp::Stamp;
use crate::unwritten::{Shown, Unwritten};
use crate::{Outcome, Reference};

/// The mode of fallocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Mode 0.
    Extend,
    /// FALLOC_FL_KEEP_SIZE.
    KeepSize,
    /// FALLOC_FL_PUNCH_HOLE.
    PunchHole,
}

/// SEEK_DATA or SEEK_HOLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next data.
    Data,
    /// The next hole.
    Hole,
}

impl Node {
    /// The content, or why there is none: EISDIR, EINVAL.
    fn regular(&mut self) -> Outcome<&mut Content> {
        match &mut self.kind {
            Kind::Regular(content) => Ok(content),
            Kind::Directory { .. } => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    /// A write of at least one byte; see [`Reference::write`].
    ///
    /// # Errors
    /// EISDIR, EINVAL.
    pub fn write(&mut self, offset: u64, data: &[u8], kill_set_id: bool, when: Stamp) -> Outcome<()> {
        self.regular()?;
        if kill_set_id {
            self.drop_capability(when);
        }
        self.regular()?.write(offset, data);
        self.unwritten.iter_mut().for_each(|unwritten| unwritten.write(offset, data));
        if kill_set_id {
            self.kill_set_id();
        }
        self.modified(when);
        Ok(())
    }

    /// As [`Self::write`], but the bytes, their size and their times wait in DRAM; all other changes are
    /// durable.
    ///
    /// # Errors
    /// EISDIR, EINVAL.
    pub fn write_waiting(&mut self, offset: u64, data: &[u8], kill_set_id: bool, when: Stamp) -> Outcome<()> {
        self.regular()?;
        if kill_set_id {
            self.drop_capability(when);
        }
        let (mtime, ctime) = (self.mtime, self.ctime);
        if self.unwritten.is_none() {
            let durable = self.regular()?.clone();
            self.unwritten = Some(Box::new(Unwritten::new(durable, mtime, ctime)));
        }
        let content = self.regular()?;
        content.write(offset, data);
        let size = content.size();
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.add(self.waited, offset, data, size, when);
        }
        self.waited += 1;
        if kill_set_id {
            self.kill_set_id();
        }
        (self.mtime, self.ctime) = (when, when);
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Outcome<()> {
        let content = self.regular()?;
        let visible = content.size();
        content.truncate(size);
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.truncate(self.waited, size, visible);
            self.waited += 1;
        }
        Ok(())
    }

    fn raise_size(&mut self, size: u64) -> Outcome<()> {
        let content = self.regular()?;
        let visible = content.size();
        content.raise_size(size);
        if let Some(unwritten) = self.unwritten.as_mut().filter(|_| size > visible) {
            unwritten.raise_size(self.waited, size, visible);
            self.waited += 1;
        }
        Ok(())
    }

    fn punch(&mut self, offset: u64, length: u64) -> Outcome<()> {
        let content = self.regular()?;
        let size = content.size();
        content.punch(offset, length);
        self.unwritten.iter_mut().for_each(|unwritten| unwritten.punch(offset, length, size));
        self.waited += 1;
        Ok(())
    }

    /// Allocates a range's blocks without changing the size; see [`Reference::fallocate`].
    ///
    /// # Errors
    /// EISDIR, EINVAL.
    pub fn allocate(&mut self, offset: u64, length: u64, when: Stamp) -> Outcome<()> {
        let added = self.regular()?.allocate(offset, length) > 0;
        // A waiting write may have no location yet; to give it one is a change.
        let placed =
            self.unwritten.as_mut().is_some_and(|unwritten| unwritten.allocate(offset, length, when));
        if added {
            self.modified(when);
        } else if placed {
            (self.mtime, self.ctime) = (self.mtime.or(when), self.ctime.or(when));
        }
        Ok(())
    }
}

impl Reference {
    /// Reads up to `into.len()` bytes; fewer at the end of the file.
    ///
    /// # Errors
    /// EISDIR, EINVAL.
    pub fn read(&mut self, id: Id, offset: u64, into: &mut [u8], when: Stamp) -> Outcome<usize> {
        let count = self.node_mut(id)?.regular()?.read(offset, into);
        self.accessed(id, when);
        Ok(count)
    }

    /// The part of `data` below the largest size.
    fn fitting<'a>(&self, offset: u64, data: &'a [u8]) -> Outcome<&'a [u8]> {
        match self.limits.file_bytes.saturating_sub(offset) {
            0 if !data.is_empty() => Err(libc::EFBIG),
            room => Ok(&data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))]),
        }
    }

    /// Writes the part of `data` below the largest size. A write of no byte changes nothing, not even times.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL.
    pub fn write(
        &mut self,
        id: Id,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
        when: Stamp,
    ) -> Outcome<usize> {
        let data = self.fitting(offset, data)?;
        if !data.is_empty() {
            self.node_mut(id)?.write(offset, data, kill_set_id, when)?;
        }
        Ok(data.len())
    }

    /// As [`Self::write`], but the bytes wait in DRAM until they are written back.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL.
    pub fn write_waiting(
        &mut self,
        id: Id,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
        when: Stamp,
    ) -> Outcome<usize> {
        let data = self.fitting(offset, data)?;
        if !data.is_empty() {
            self.node_mut(id)?.write_waiting(offset, data, kill_set_id, when)?;
        }
        Ok(data.len())
    }

    /// The number of waiting changes that the file has had, for [`Self::written_back`].
    pub fn waited(&self, id: Id) -> u64 {
        self.nodes.get(&id).map_or(0, |node| node.waited)
    }

    /// Makes the file's waiting writes with a number below `waited` durable.
    pub fn written_back(&mut self, id: Id, waited: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(unwritten) = &mut node.unwritten {
            unwritten.written_back(waited);
            if unwritten.is_empty() {
                node.unwritten = None;
            }
        }
    }

    /// Makes all waiting writes durable.
    pub fn all_written_back(&mut self) {
        self.nodes.values_mut().for_each(|node| node.unwritten = None);
    }

    /// Takes over the file that a mount shows after a crash that found waiting writes.
    ///
    /// # Errors
    /// A description of the difference, if no crash may leave the shown file.
    pub fn take_over(&mut self, id: Id, shown: &Shown) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(()) };
        let Some(unwritten) = node.unwritten.take() else { return Ok(()) };
        unwritten.judge(shown)?;
        node.kind = Kind::Regular(unwritten.shown(shown));
        (node.mtime, node.ctime) = (Stamp::at(shown.mtime), Stamp::at(shown.ctime));
        Ok(())
    }

    /// Takes over bytes that a crash left torn, once they were judged (C16). Sizes and times stay as they
    /// are.
    ///
    /// # Errors
    /// EISDIR, EINVAL.
    pub fn adopt(&mut self, id: Id, offset: u64, data: &[u8]) -> Outcome<()> {
        self.node_mut(id)?.regular()?.write(offset, data);
        Ok(())
    }

    /// Sets the size.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL.
    pub fn truncate(&mut self, id: Id, size: u64, kill_set_id: bool, when: Stamp) -> Outcome<()> {
        if size > self.limits.file_bytes {
            return Err(libc::EFBIG);
        }
        let node = self.node_mut(id)?;
        node.truncate(size)?;
        if kill_set_id {
            node.drop_capability(when);
            node.kill_set_id();
        }
        node.modified(when);
        Ok(())
    }

    /// Allocates blocks, or makes a hole. Allocating blocks that are allocated already changes no times.
    ///
    /// # Errors
    /// EINVAL for an empty range, EFBIG, EISDIR, EINVAL.
    pub fn fallocate(
        &mut self,
        id: Id,
        offset: u64,
        length: u64,
        mode: Allocate,
        when: Stamp,
    ) -> Outcome<()> {
        if length == 0 {
            return Err(libc::EINVAL);
        }
        let end = offset.checked_add(length).filter(|end| *end <= self.limits.file_bytes);
        let end = end.ok_or(libc::EFBIG)?;
        let node = self.node_mut(id)?;
        match mode {
            Allocate::PunchHole => {
                node.punch(offset, length)?;
                node.modified(when);
            }
            Allocate::KeepSize => node.allocate(offset, length, when)?,
            Allocate::Extend => {
                node.allocate(offset, length, when)?;
                node.raise_size(end)?;
                node.modified(when);
            }
        }
        Ok(())
    }

    /// The next data or hole. A block is data once it was written, whatever its bytes are.
    ///
    /// # Errors
    /// ENXIO at or past the end, and when no data follows; EISDIR, EINVAL.
    pub fn seek(&mut self, id: Id, offset: u64, what: Seek) -> Outcome<u64> {
        let content = self.node_mut(id)?.regular()?;
        if offset >= content.size() {
            return Err(libc::ENXIO);
        }
        match what {
            Seek::Data => content.next_data(offset).ok_or(libc::ENXIO),
            Seek::Hole => Ok(content.next_hole(offset)),
        }
    }
}
