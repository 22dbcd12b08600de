//! Making room: compaction and splits, each a transaction of its own (design T7).
//!
//! Pages are copied, never changed by halves: new contents are streamed to claimed blocks and fenced
//! before the record that links them. A split is planned over the present cells *and* the cells
//! to come, so that many puts near each other all find room.

use crate::edit::{Freed, Shortage};
use crate::node::{CAPACITY, MAX_LEVEL, Node, damaged};
use crate::tree::{Catalog, Path, Reader, ShardsWrite};
use terrace_blocks::{Claim, Purpose};
use terrace_format::PmBlock;
use terrace_format::keys::Key;
use terrace_format::page::{CELL_HEADER, Page};
use terrace_format::table::{Owner, PageKind};
use terrace_wal::{Error, NoSpace, Result, Tx};

/// Largest record of a structural change: a parent's shifted slots, a separator, a child pointer,
/// a root word, five block-table entries.
pub const STRUCTURAL_RECORD_BYTES: usize = 2048;

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

/// A page's new contents.
pub(crate) struct Copied {
    pub left: Page,
    /// A separator and the right half.
    pub right: Option<(Vec<u8>, Page)>,
}

/// The state of a structural change: the locked shard, its claim and its transaction.
pub(crate) struct Change<'a, 'b> {
    pub guard: &'a mut ShardsWrite<'b>,
    pub claim: &'a mut Claim<'b>,
    pub tx: &'a mut Tx,
    pub freed: &'a mut Freed,
    pub shard: u32,
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
        if shortage.room > CAPACITY {
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

    /// Claims, reserves, locks, changes, commits. The change says whether there is anything to commit.
    pub(crate) fn change(
        &self,
        shard: u32,
        pages: usize,
        purpose: Purpose,
        change: impl FnOnce(&mut Change<'_, '_>) -> Result<bool>,
    ) -> Result<bool> {
        let mut claim = self.claim(pages, purpose)?;
        let reservation = self.wal().reserve(STRUCTURAL_RECORD_BYTES)?;
        let mut guard = self.write(&[shard]);
        let (mut tx, mut freed) = (Tx::new(), Freed::default());
        let result = change(&mut Change {
            guard: &mut guard,
            claim: &mut claim,
            tx: &mut tx,
            freed: &mut freed,
            shard,
        });
        if !matches!(result, Ok(true)) {
            freed.abandoned(self.blocks());
            drop(guard);
            claim.give_back_all();
            return result;
        }
        // Survives a crash between here and the record: the new pages are nobody's yet.
        self.pm().order();
        match self.wal().commit(reservation, &tx) {
            Ok(lsn) => {
                freed.committed(self.blocks(), lsn);
                Ok(true)
            }
            Err(error) => {
                // The record may be half visible, so the claimed pages are not given back.
                freed.abandoned(self.blocks());
                Err(error)
            }
        }
    }

    fn claim(&self, pages: usize, purpose: Purpose) -> Result<Claim<'_>> {
        match self.blocks().claim(pages, purpose) {
            Err(Error::NoSpace(NoSpace::Pm)) => {
                self.wal().checkpoint()?;
                self.blocks().claim(pages, purpose)
            }
            other => other,
        }
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

    /// A whole page, every cell of it checked.
    pub(crate) fn page(&self, block: PmBlock, level: u8) -> Result<Page> {
        let node = self.node(block, Some(level))?;
        let mut page = Page::new(level);
        page.0.copy_from_slice(node.bytes());
        page.verify_header(&format!("catalog page {block}"))?;
        let mut last: Option<&[u8]> = None;
        for index in 0..node.count() {
            let (key, _) = page.cell(index)?;
            let first_inner = level > 0 && index == 0;
            if last.is_some_and(|last| last >= key) || (first_inner && !key.is_empty()) {
                return Err(damaged(block, "keys", "ascending keys", format!("cell {index}")));
            }
            last = Some(key);
        }
        Ok(page)
    }
}

/// Bytes of a page's cells, slots included.
pub(crate) fn live(page: &Page) -> Result<usize> {
    (0..page.count()).try_fold(0, |sum, index| {
        let (key, value) = page.cell(index)?;
        Ok(sum + Page::cell_size(key, value.len()))
    })
}

/// Appends cells `range` of `from` to `into`; the first key is replaced by `first_key` if given.
pub(crate) fn append(
    into: &mut Page,
    from: &Page,
    range: std::ops::Range<usize>,
    first_key: Option<&[u8]>,
    block: PmBlock,
) -> Result<()> {
    for index in range.clone() {
        let (key, value) = from.cell(index)?;
        let key = match first_key {
            Some(first) if index == range.start => first,
            _ => key,
        };
        let end = into.count();
        if !into.insert(end, key, value) {
            return Err(damaged(block, "cells", "cells that fit a page", "more"));
        }
    }
    Ok(())
}

/// The shortest prefix of `right` that is larger than `left`.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right.iter().take(common + 1).copied().collect()
}

/// New contents for a leaf that must take `keys`: a single page if compaction makes enough room, else two
/// pages.
fn divide_leaf(page: &Page, keys: &[(Key, usize)], block: PmBlock) -> Result<Copied> {
    let needed: usize = keys.iter().map(|(_, bytes)| bytes).sum();
    let mut left = Page::new(0);
    if live(page)? + needed <= CAPACITY {
        append(&mut left, page, 0..page.count(), None, block)?;
        return Ok(Copied { left, right: None });
    }
    // (key, bytes, existing cells before it)
    let mut items: Vec<(&[u8], usize, usize)> = Vec::with_capacity(page.count() + keys.len());
    let mut coming = keys.iter().peekable();
    for index in 0..page.count() {
        let (key, value) = page.cell(index)?;
        while let Some((new, bytes)) = coming.next_if(|(new, _)| new.0.as_slice() < key) {
            items.push((&new.0, *bytes, index));
        }
        let grows = coming.next_if(|(new, _)| new.0.as_slice() == key).map_or(0, |(_, bytes)| *bytes);
        items.push((key, Page::cell_size(key, value.len()) + grows, index));
    }
    items.extend(coming.map(|(new, bytes)| (new.0.as_slice(), *bytes, page.count())));
    let appended = items.iter().position(|(_, _, before)| *before == page.count());
    let at = match appended {
        // Ascending keys fill leaves instead of leaving halves behind.
        Some(first) if first > 0 && items.len() - first == keys.len() => first,
        _ => middle(items.iter().map(|(_, bytes, _)| *bytes)),
    };
    let (Some(before), Some(after)) = (items.get(at.wrapping_sub(1)), items.get(at)) else {
        return Err(damaged(block, "cells", "two keys to part", items.len()));
    };
    let mut right = Page::new(0);
    append(&mut left, page, 0..after.2, None, block)?;
    append(&mut right, page, after.2..page.count(), None, block)?;
    Ok(Copied { left, right: Some((separator(before.0, after.0), right)) })
}

/// New contents for an inner page that must take `needed` more bytes.
fn divide_inner(page: &Page, needed: usize, block: PmBlock) -> Result<Copied> {
    let mut left = Page::new(page.level());
    if live(page)? + needed <= CAPACITY {
        append(&mut left, page, 0..page.count(), None, block)?;
        return Ok(Copied { left, right: None });
    }
    let sizes: Result<Vec<usize>> = (0..page.count())
        .map(|index| Ok(page.cell(index).map(|(key, value)| Page::cell_size(key, value.len()))?))
        .collect();
    let at = middle(sizes?.into_iter());
    if at == 0 || at >= page.count() {
        return Err(damaged(block, "cells", "two children to part", page.count()));
    }
    let mut right = Page::new(page.level());
    append(&mut left, page, 0..at, None, block)?;
    append(&mut right, page, at..page.count(), Some(&[]), block)?;
    Ok(Copied { left, right: Some((page.cell(at)?.0.to_vec(), right)) })
}

/// Where to part items so that both sides are as equal as can be; neither side is empty when there
/// are two or more.
fn middle(sizes: impl Iterator<Item = usize> + Clone) -> usize {
    let total: usize = sizes.clone().sum();
    let (mut before, mut best, mut place) = (0, usize::MAX, 0);
    for (index, size) in sizes.enumerate() {
        let uneven = total.abs_diff(2 * before);
        if index > 0 && uneven < best {
            (best, place) = (uneven, index);
        }
        before += size;
    }
    place
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

    /// Puts new pages in the place of `old`; `above` is the path to it.
    pub(crate) fn install(
        &mut self,
        above: &[crate::tree::Step],
        old: PmBlock,
        copied: &Copied,
    ) -> Result<()> {
        let left = self.new_page(&copied.left)?;
        let right = match &copied.right {
            Some((key, page)) => Some((key, self.new_page(page)?)),
            None => None,
        };
        let parent = match above.last() {
            Some(step) => Some((self.guard.committed().node(step.block, Some(step.level))?, step.index)),
            None => None,
        };
        self.guard.release(self.tx, self.freed, self.shard, old)?;
        match (parent, right) {
            (None, None) => self.guard.write_root(self.tx, self.shard, Some(left)),
            (None, Some((key, right))) => {
                let level = copied.left.level() + 1;
                if level > MAX_LEVEL {
                    return Err(damaged(old, "level of a root", "at most 15", level));
                }
                let mut root = Page::new(level);
                let whole =
                    root.insert(0, &[], &left.0.to_le_bytes()) && root.insert(1, key, &right.0.to_le_bytes());
                assert!(whole, "two children fit an empty page");
                let root = self.new_page(&root)?;
                self.guard.write_root(self.tx, self.shard, Some(root));
            }
            (Some((parent, index)), right) => {
                self.guard.set_child(self.tx, &parent, index, left.0)?;
                if let Some((key, right)) = right {
                    self.insert_child(&parent, index + 1, key, right);
                }
            }
        }
        Ok(())
    }

    fn insert_child(&mut self, parent: &Node, index: usize, key: &[u8], child: PmBlock) {
        assert!(parent.gap() >= 2 + CELL_HEADER + key.len() + 8, "room in the parent was checked");
        self.guard.insert_cell(self.tx, parent, index, key, &child.0.to_le_bytes());
    }

    /// Streams a page to a claimed block and logs its owner.
    pub(crate) fn new_page(&mut self, page: &Page) -> Result<PmBlock> {
        let block = self.claim.take().ok_or(NoSpace::Pm)?;
        let catalog = self.guard.catalog;
        catalog.pm().write_streaming(block.offset(), page.0.as_slice())?;
        let owner = Owner::Page { kind: PageKind::CatalogPage, datum: self.shard };
        catalog.blocks().set_owner(self.tx, block, owner);
        Ok(block)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeMap;

    type Cells = Vec<(Vec<u8>, Vec<u8>)>;

    fn cells(page: &Page) -> Cells {
        (0..page.count())
            .map(|index| page.cell(index).unwrap())
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .collect()
    }

    fn size((key, value): &(Vec<u8>, Vec<u8>)) -> usize {
        Page::cell_size(key, value.len())
    }

    fn random_key(rng: &mut StdRng) -> Vec<u8> {
        let mut key = vec![0, 0, 0, 1, 2];
        key.extend((0..rng.random_range(1..12)).map(|_| rng.random_range(0..4u8)));
        key
    }

    /// Where the bytes before are nearest to half, the first such place.
    fn nearest_to_half(sizes: &[usize]) -> usize {
        let total: usize = sizes.iter().sum();
        let uneven = |at: &usize| total.abs_diff(2 * sizes[..*at].iter().sum::<usize>());
        (1..sizes.len()).min_by_key(uneven).unwrap_or(0)
    }

    /// A full leaf of random cells, or of equal ones.
    fn random_leaf(rng: &mut StdRng) -> (Page, Cells) {
        let uniform = rng.random::<bool>().then(|| rng.random_range(0..400));
        let limit = rng.random_range(0..CAPACITY);
        let mut stored: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut used = 0;
        for _ in 0..400 {
            let cell = (random_key(rng), vec![7; uniform.unwrap_or_else(|| rng.random_range(0..500))]);
            if used + size(&cell) > limit {
                break;
            }
            used += size(&cell);
            if let Some(value) = stored.insert(cell.0.clone(), cell.1) {
                used -= size(&(cell.0, value));
            }
        }
        let mut page = Page::new(0);
        for (key, value) in &stored {
            assert!(page.insert(page.count(), key, value));
        }
        (page, stored.into_iter().collect())
    }

    #[test]
    fn a_leaf_splits_in_the_middle_of_old_and_new_cells_or_before_appended_cells() {
        let (mut whole, mut appended, mut parted) = (0, 0, 0);
        for seed in 0..6000 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (page, old) = random_leaf(&mut rng);
            let mut coming: BTreeMap<Key, usize> = BTreeMap::new();
            let append = rng.random_range(0..3) == 0;
            for _ in 0..rng.random_range(1..6) {
                let key = match rng.random_range(0..4) {
                    _ if append => [&[0, 0, 0, 1, 2, 9][..], &random_key(&mut rng)].concat(),
                    0 if !old.is_empty() => old[rng.random_range(0..old.len())].0.clone(),
                    1 if !old.is_empty() => [&old[old.len() - 1].0[..], &[1]].concat(),
                    _ => random_key(&mut rng),
                };
                coming.insert(Key(key), rng.random_range(20..1100));
            }
            let keys: Vec<(Key, usize)> = coming.clone().into_iter().collect();
            let found = divide_leaf(&page, &keys, PmBlock(9)).unwrap();
            let live: usize = old.iter().map(size).sum();
            if live + coming.values().sum::<usize>() <= CAPACITY {
                assert!(cells(&found.left) == old && found.right.is_none(), "seed {seed}");
                whole += 1;
                continue;
            }
            let mut items: BTreeMap<&[u8], usize> =
                old.iter().map(|cell| (&cell.0[..], size(cell))).collect();
            for (key, bytes) in &coming {
                *items.entry(&key.0).or_default() += bytes;
            }
            let behind = |key: &Key| old.last().is_some_and(|last| key.0 > last.0);
            let sizes: Vec<usize> = items.values().copied().collect();
            let at = if coming.keys().all(behind) {
                appended += 1;
                old.len()
            } else {
                parted += 1;
                nearest_to_half(&sizes)
            };
            let ordered: Vec<&[u8]> = items.keys().copied().collect();
            let (separator, right) = found.right.unwrap();
            let split = old.partition_point(|cell| &cell.0[..] < ordered[at]);
            assert_eq!(cells(&found.left), old[..split], "seed {seed}");
            assert_eq!(cells(&right), old[split..], "seed {seed}");
            assert!(ordered[at].starts_with(&separator) && ordered[at - 1] < &separator[..], "seed {seed}");
            assert!(ordered[at - 1] >= &separator[..separator.len() - 1], "the shortest, seed {seed}");
        }
        assert!(whole > 300 && appended > 300 && parted > 300, "{whole} {appended} {parted}");
    }

    #[test]
    fn an_inner_page_is_copied_whole_when_all_fits_and_else_parted_in_the_middle() {
        let key = |number: u8, length: usize| if number == 0 { vec![] } else { vec![number; length] };
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut page = Page::new(3);
            let count = rng.random_range(3..14);
            for number in 0..count {
                let key = key(number, rng.random_range(100..260));
                assert!(page.insert(page.count(), &key, &[number; 8]));
            }
            let old = cells(&page);
            let live: usize = old.iter().map(size).sum();
            let whole = divide_inner(&page, CAPACITY - live, PmBlock(9)).unwrap();
            assert!(whole.left.level() == 3 && cells(&whole.left) == old && whole.right.is_none());
            let parted = divide_inner(&page, CAPACITY - live + 1, PmBlock(9)).unwrap();
            let at = nearest_to_half(&old.iter().map(size).collect::<Vec<_>>());
            let (separator, right) = parted.right.unwrap();
            assert_eq!((cells(&parted.left), &separator), (old[..at].to_vec(), &old[at].0));
            let mut expected = old[at..].to_vec();
            expected[0].0.clear();
            assert_eq!((right.level(), parted.left.level(), cells(&right)), (3, 3, expected));
        }
    }

    #[test]
    fn an_inner_page_of_fewer_than_two_children_is_not_parted() {
        let mut page = Page::new(3);
        assert!(divide_inner(&page, CAPACITY + 1, PmBlock(9)).is_err());
        assert!(page.insert(0, &[], &[1; 4000]));
        assert!(divide_inner(&page, 200, PmBlock(9)).is_err());
    }
}
