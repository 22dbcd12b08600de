//! Making room: compaction and splits, each a transaction of its own (design T7).
//!
//! A split is planned over the present cells *and* the cells to come, so that many puts near each other all find room.

use crate::catalog::Catalog;
use crate::change::Change;
use crate::divide::{Copied, divide_inner, divide_leaf};
use crate::edit::Shortage;
use crate::node::{CAPACITY_BYTES, Node};
use crate::reader::{Path, Reader};
use terrace_blocks::Purpose;
use terrace_format::PmBlock;
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_wal::{Error, Result};

/// A put for which a leaf must have room.
#[derive(Debug, Clone)]
struct Want {
    key: Key,
    need: Need,
}

#[derive(Debug, Clone, Copy)]
enum Need {
    /// A put with a value of this many bytes.
    Put(usize),
    /// This many bytes in all.
    Room(usize),
}

/// The first leaf that lacks room.
enum Lack {
    /// The tree is empty.
    Tree,
    /// A leaf without room, and the bytes that each key takes in it.
    Leaf { path: Path, leaf: PmBlock, keys: Vec<(Key, usize)> },
}

impl Catalog {
    /// Makes room for a put of `value_length` bytes at `key`. Call it without locks, then start over.
    ///
    /// # Errors
    /// `NoSpace::Pm`; a damaged page; the medium's.
    pub fn make_room(&self, key: &Key, value_length: usize, purpose: Purpose) -> Result<()> {
        self.make_room_many(&[(key.clone(), value_length)], purpose)
    }

    /// Makes room as an `Edit::Full` demands.
    ///
    /// # Errors
    /// As [`Self::make_room`]; `Refused` when one transaction puts more into one leaf than a page holds
    /// (use [`Self::make_room_many`] first).
    pub fn make_room_for(&self, shortage: &Shortage, purpose: Purpose) -> Result<()> {
        if shortage.room > CAPACITY_BYTES {
            return Err(Error::Refused(
                "a transaction puts more into one catalog leaf than a page holds".into(),
            ));
        }
        let want = Want { key: shortage.key.clone(), need: Need::Room(shortage.room) };
        self.ensure(vec![want], purpose)
    }

    /// Makes room for all of these puts at once: (key, value length).
    ///
    /// # Errors
    /// As [`Self::make_room`].
    pub fn make_room_many(&self, puts: &[(Key, usize)], purpose: Purpose) -> Result<()> {
        let want = |(key, length): &(Key, usize)| Want { key: key.clone(), need: Need::Put(*length) };
        self.ensure(puts.iter().map(want).collect(), purpose)
    }

    fn ensure(&self, mut wants: Vec<Want>, purpose: Purpose) -> Result<()> {
        let shard = |want: &Want| self.shard_of_key(&want.key.0);
        wants.sort_by(|a, b| (shard(a), &a.key).cmp(&(shard(b), &b.key)));
        for group in wants.chunk_by(|a, b| shard(a) == shard(b)) {
            let Some(shard) = group.first().map(shard) else {
                continue;
            };
            // Each round changes one page. A few rounds serve a key, unless puts of other threads fill the
            // leaf meanwhile.
            for _ in 0..64 + 16 * group.len() {
                if self.read(shard).reader().first_lack(shard, group)?.is_none() {
                    break;
                }
                self.change(shard, 3, purpose, |change| change.make_space(group))?;
            }
        }
        Ok(())
    }
}

impl Reader<'_> {
    /// The first leaf that lacks room for the wants (sorted, of one shard) that fall into it.
    fn first_lack(&self, shard: u32, wants: &[Want]) -> Result<Option<Lack>> {
        if self.root(shard)?.is_none() {
            return Ok(Some(Lack::Tree));
        }
        let mut rest = wants;
        let mut leaf = Node::empty();
        while let Some(first) = rest.first() {
            let Some(path) = self.descend(&first.key.0, &mut leaf)? else {
                return Ok(Some(Lack::Tree));
            };
            let end = self.upper_bound(&path)?;
            let here = rest.partition_point(|want| end.as_ref().is_none_or(|end| want.key.0 < *end));
            let (inside, after) = rest.split_at(here.max(1));
            let mut keys: Vec<(Key, usize)> = Vec::with_capacity(inside.len());
            for want in inside {
                let bytes = match want.need {
                    Need::Put(length) => leaf.growth(&want.key.0, length)?,
                    Need::Room(bytes) => bytes,
                };
                match keys.last_mut() {
                    Some((key, most)) if *key == want.key => *most = bytes.max(*most),
                    _ => keys.push((want.key.clone(), bytes)),
                }
            }
            if keys.iter().map(|(_, bytes)| bytes).sum::<usize>() > leaf.gap() {
                let leaf = leaf.block;
                return Ok(Some(Lack::Leaf { path, leaf, keys }));
            }
            rest = after;
        }
        Ok(None)
    }

    /// The separator behind the leaf at the end of `path`; `None` for the last leaf.
    fn upper_bound(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        for step in path.iter().rev() {
            if step.index + 1 < step.count {
                let node = self.node(step.block, Some(step.level))?;
                return Ok(Some(node.key(&node.cell(step.index + 1)?).to_vec()));
            }
        }
        Ok(None)
    }
}

impl Change<'_, '_> {
    fn make_space(&mut self, wants: &[Want]) -> Result<bool> {
        match self.guard.committed().first_lack(self.shard, wants)? {
            None => Ok(false),
            Some(Lack::Tree) => {
                let root = self.new_page(&Page::new(0))?;
                self.guard.write_root(self.tx, self.shard, Some(root));
                Ok(true)
            }
            Some(Lack::Leaf { path, leaf, keys }) => {
                let page = self.guard.committed().page(leaf, 0)?;
                let copied = divide_leaf(&page, &keys, leaf)?;
                self.install_upward(&path, leaf, copied)?;
                Ok(true)
            }
        }
    }

    /// Installs a page's new contents, or, where its parent has no room for the separator, makes room
    /// in the parent instead (the next round comes back to the page).
    fn install_upward(&mut self, path: &Path, block: PmBlock, copied: Copied) -> Result<()> {
        let (mut block, mut copied) = (block, copied);
        let mut above = path.as_slice();
        while let (Some((step, rest)), Some((key, _))) = (above.split_last(), &copied.right) {
            let parent = self.guard.committed().node(step.block, Some(step.level))?;
            let needed = Page::cell_size(key, 8);
            if parent.gap() >= needed {
                break;
            }
            let page = self.guard.committed().page(step.block, step.level)?;
            copied = divide_inner(&page, needed, step.block)?;
            (block, above) = (step.block, rest);
        }
        self.install(above, block, &copied)
    }
}
