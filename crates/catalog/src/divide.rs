//! New contents for pages: cells copied whole, or parted between two pages.
//!
//! Invariant: the cells of the new contents, in order, are the cells of the old page.

use crate::node::{CAPACITY_BYTES, damaged};
use terrace_format::PmBlock;
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_wal::Result;

/// A page's new contents.
pub(crate) struct Copied {
    pub left: Page,
    /// A separator and the right half.
    pub right: Option<(Vec<u8>, Page)>,
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
pub(crate) fn divide_leaf(page: &Page, keys: &[(Key, usize)], block: PmBlock) -> Result<Copied> {
    let needed: usize = keys.iter().map(|(_, bytes)| bytes).sum();
    let mut left = Page::new(0);
    if live(page)? + needed <= CAPACITY_BYTES {
        append(&mut left, page, 0..page.count(), None, block)?;
        return Ok(Copied { left, right: None });
    }
    let mut items: Vec<Item<'_>> = Vec::with_capacity(page.count() + keys.len());
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
    let at = match appended(&items, keys, page.count()) {
        // Ascending keys fill leaves instead of leaving halves behind.
        Some(first) => first,
        None => middle(items.iter().map(|(_, bytes, _)| *bytes)),
    };
    let (Some(before), Some(after)) = (items.get(at.wrapping_sub(1)), items.get(at)) else {
        return Err(damaged(block, "cells", "two keys to part", items.len()));
    };
    let mut right = Page::new(0);
    append(&mut left, page, 0..after.2, None, block)?;
    append(&mut right, page, after.2..page.count(), None, block)?;
    assert_eq!(left.count() + right.count(), page.count(), "each cell of a leaf is in one half");
    Ok(Copied { left, right: Some((separator(before.0, after.0), right)) })
}

/// An item of a leaf to part: key, bytes, existing cells before it.
type Item<'a> = (&'a [u8], usize, usize);

fn bytes_of(items: &[Item<'_>]) -> usize {
    items.iter().map(|(_, bytes, _)| bytes).sum()
}

/// Where `keys` begin among `items` if all are new and come last: of the page, or of the keys of their inode and kind.
/// Keys of other inodes lie behind those of a file that grows; if these take most of the page, the middle is better.
fn appended(items: &[Item<'_>], keys: &[(Key, usize)], old: usize) -> Option<usize> {
    let ([(first, _), ..], [.., (last, _)]) = (keys, keys) else { return None };
    let (first, last) = (first.0.as_slice(), last.0.as_slice());
    let at = items.partition_point(|(key, ..)| *key < first);
    let (before, new) = items.split_at_checked(at)?;
    let (new, behind) = new.split_at_checked(keys.len())?;
    let all_are_new = items.len() == old + keys.len() && new.last().is_some_and(|(key, ..)| *key == last);
    let previous = before.last()?.0;
    let ends = behind.first().is_none_or(|(next, ..)| {
        let kind = Key::of_kind(first);
        [previous, last].map(Key::of_kind) == [kind; 2]
            && Key::of_kind(next) != kind
            && bytes_of(before) >= bytes_of(behind)
    });
    (all_are_new && ends).then_some(at)
}

/// New contents for an inner page that must take `needed` more bytes.
pub(crate) fn divide_inner(page: &Page, needed: usize, block: PmBlock) -> Result<Copied> {
    let mut left = Page::new(page.level());
    if live(page)? + needed <= CAPACITY_BYTES {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeMap;
    use terrace_format::keys::Kind;
    use terrace_format::{FileBlock, Ino};

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
        let limit = rng.random_range(0..CAPACITY_BYTES);
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
            if live + coming.values().sum::<usize>() <= CAPACITY_BYTES {
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

    /// Each leaf of a file that grows is full, although keys of another inode lie behind.
    #[test]
    fn ascending_keys_before_keys_of_another_inode_fill_leaves() {
        let cold = |ino, block| Key::cold(Ino(ino), FileBlock(block));
        let value = [7; 528];
        let mut leaf = Page::new(0);
        assert!(leaf.insert(0, &cold(8, 0).0, &value) && leaf.insert(1, &cold(9, 0).0, &value));
        let mut full = Vec::new();
        for block in (128..128 * 100).step_by(128) {
            let key = cold(8, block);
            let place = (0..leaf.count()).find(|index| leaf.cell(*index).unwrap().0 > &key.0[..]).unwrap();
            if leaf.insert(place, &key.0, &value) {
                continue;
            }
            let copied =
                divide_leaf(&leaf, &[(key.clone(), Page::cell_size(&key.0, value.len()))], PmBlock(9));
            let copied = copied.unwrap();
            full.push(copied.left.count());
            leaf = copied.right.unwrap().1;
            assert_eq!(cells(&leaf), vec![(cold(9, 0).0, value.to_vec())]);
            assert!(leaf.insert(0, &key.0, &value));
        }
        let (first, others) = full.split_first().unwrap();
        assert!(*first == 6 && others.len() > 10 && others.iter().all(|count| *count == 6), "{full:?}");
    }

    #[test]
    fn keys_between_keys_of_the_same_kind_part_a_leaf_in_the_middle() {
        let cold = |ino, block| Key::cold(Ino(ino), FileBlock(block));
        let mut leaf = Page::new(0);
        for (index, key) in
            [cold(7, 9), cold(8, 0), cold(8, 1), cold(8, 3), cold(8, 4), cold(8, 8), cold(9, 0)]
                .iter()
                .enumerate()
        {
            assert!(leaf.insert(index, &key.0, &[7; 528]));
        }
        let left_of = |new: &[Key]| {
            let keys: Vec<_> = new.iter().map(|key| (key.clone(), 600)).collect();
            divide_leaf(&leaf, &keys, PmBlock(9)).unwrap().left.count()
        };
        // Behind the last of inode 8; between others; the first of inode 10, at the end; the first of inode 8's names.
        assert_eq!([cold(8, 9), cold(8, 2), cold(10, 0)].map(|key| left_of(&[key])), [6, 3, 7]);
        // Two behind the last; two with one between; one that exists.
        assert_eq!(left_of(&[cold(8, 9), cold(8, 10)]), 6);
        assert_eq!(left_of(&[cold(8, 7), cold(8, 9)]), 5);
        assert_eq!(left_of(&[cold(8, 8)]), 4);
        // Behind the only key of inode 7.
        assert_eq!(left_of(&[cold(7, 10)]), 3);
        // The first intent of inode 8, behind its cold extents.
        assert_eq!(left_of(&[Key::new(8, Kind::Intent, &[0; 4])]), 4);
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
            let whole = divide_inner(&page, CAPACITY_BYTES - live, PmBlock(9)).unwrap();
            assert!(whole.left.level() == 3 && cells(&whole.left) == old && whole.right.is_none());
            let parted = divide_inner(&page, CAPACITY_BYTES - live + 1, PmBlock(9)).unwrap();
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
        assert!(divide_inner(&page, CAPACITY_BYTES + 1, PmBlock(9)).is_err());
        assert!(page.insert(0, &[], &[1; 4000]));
        assert!(divide_inner(&page, 200, PmBlock(9)).is_err());
    }
}
