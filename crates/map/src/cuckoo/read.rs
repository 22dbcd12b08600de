//! Cuckoo map: look-ups, and lists of blocks.

use super::announce::Announced;
use super::group::Group;
use super::table::{CuckooMap, FirstLook, Key, run_of};
use crate::file_map::{MapInode, Mapped, Mapping};
use crate::hidden::{is_known_cold, is_whole, keep_shown};
use terrace_blocks::pool::Known;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::cuckoo_map::Entry;
use terrace_format::{Corrupt, FileBlock};
use terrace_wal::{Error, Result};

impl CuckooMap {
    /// The entry of a key; a block that has to be there and is not is damage.
    fn find(&self, key: &Key) -> Result<Option<Entry>> {
        let first = self.first_look(key);
        match first.entry(key) {
            Some(entry) => Ok(Some(entry)),
            None => self.find_from(key, first),
        }
    }

    fn find_from(&self, key: &Key, first: FirstLook) -> Result<Option<Entry>> {
        let hashed = self.hashed()?;
        // Before the rest of the search: the scan may end during it.
        let is_whole = is_whole(hashed, key.ino);
        let is_absent = || is_whole && !hashed.presence.contains(key.ino, key.block);
        let found = self.search_judged(key, first, &is_absent)?;
        if found.is_none() && hashed.presence.requires(key.ino, key.block) {
            let site = format!("cuckoo table, block {} of inode {}", key.block, key.ino);
            let expected = format!("an entry in bucket {} or {}", key.pair[0], key.pair[1]);
            return Err(Corrupt::new(site, expected, "none").into());
        }
        Ok(found.map(|found| found.entry))
    }

    pub(super) fn lookup_one(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if block > MAX_FILE_BLOCK {
            return Ok(None);
        }
        if is_known_cold(self.hashed()?, inode, block) {
            return Ok(None);
        }
        let key = self.key(inode.ino, block);
        let first = self.first_look(&key);
        // Without a copy of the entry, which costs as much as the search.
        if let Some(entry) = first.entry(&key) {
            return self.mapping(&entry, block).map(Some);
        }
        let entry = self.find_from(&key, first)?;
        entry.map(|entry| self.mapping(&entry, block)).transpose()
    }

    /// The run of an entry answers for all its blocks.
    pub(super) fn lookup_many(
        &self,
        inode: &MapInode,
        first: FileBlock,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        let end = first.0.saturating_add(out.len() as u64).min(MAX_FILE_BLOCK.0 + 1);
        let (out, behind) = out.split_at_mut(end.saturating_sub(first.0) as usize);
        behind.fill(None);
        let mut announced = Announced::new(self, inode.ino, first.0, first.0.max(end));
        let mut group: Option<Group> = None;
        let mut run: Option<Entry> = None;
        for (block, out) in (first.0..).zip(out) {
            if !run.is_some_and(|entry| run_of(&entry).contains(&block)) {
                let known = group.take().filter(|group| group.has(block));
                let known = known.unwrap_or_else(|| Group::of(self, inode.ino, block));
                announced.before(&known, block);
                run = self.find(&known.key(inode.ino, block))?;
                group = Some(known);
            }
            *out = run.map(|entry| self.mapping(&entry, FileBlock(block))).transpose()?;
        }
        Ok(())
    }

    pub(super) fn list(
        &self,
        inode: &MapInode,
        range: (FileBlock, FileBlock),
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        assert!(most > 0, "a list of no blocks never gets full");
        let hashed = self.hashed()?;
        match hashed.known() {
            Known::All => {}
            Known::Part => return Err(Error::TableUnread),
            Known::Doubtful => self.learn_all(hashed)?,
        }
        let mut blocks = Vec::new();
        let mut next = hashed.presence.list(inode.ino, range, most, &mut blocks);
        if hashed.known() == Known::Doubtful && !inode.is_nowhere() {
            next = keep_shown(hashed, inode.ino, range, next, &mut blocks)?;
        }
        let mut run: Option<Entry> = None;
        for block in blocks {
            if !run.is_some_and(|entry| run_of(&entry).contains(&block.0)) {
                run = self.find(&self.key(inode.ino, block))?;
            }
            if let Some(entry) = run {
                out.push((block, self.mapping(&entry, block)?));
            }
        }
        Ok(next)
    }
}
