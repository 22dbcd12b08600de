//! Writes the catalog: a sound shard that holds the right cells stays, every other shard is built anew.

use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::below::LeafBelow;
use crate::state::catalog::Cell;
use std::collections::BTreeMap;
use terrace_format::PmBlock;
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::table::{Owner, PageKind};

/// Bytes left free in new catalog pages, so that the first new keys need no split.
const SPARE_BYTES: usize = 400;

/// Writes all shards; `kept` has the cells of the new catalog.
pub(crate) fn emit_catalog(round: &mut Round<'_>, kept: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), Stuck> {
    let count = round.pool.geometry.catalog_shards as usize;
    let mut cells: Vec<Vec<(&Vec<u8>, &Vec<u8>)>> = vec![Vec::new(); count];
    for (key, value) in kept {
        let home = Key::split(key).map_or(0, |(ino, _, _)| ino as usize % count.max(1));
        if let Some(shard) = cells.get_mut(home) {
            shard.push((key, value));
        }
    }
    for (number, (shard, cells)) in
        std::mem::take(&mut round.catalog.shards).into_iter().zip(cells).enumerate()
    {
        let found = shard.found.iter().map(|(key, value)| (key, value));
        if !shard.broken && found.eq(cells.iter().copied()) {
            continue;
        }
        for block in shard.pages {
            round.owners.release(block);
        }
        let (before, after) = (shard.found.len(), cells.len());
        round.actions.add(format!("catalog shard {number}: built anew, {before} keys before, {after} now"));
        let root = build_shard(round, number as u32, &cells)?;
        round.pool.put(round.pool.geometry.shard_root(number as u32), &root.to_le_bytes());
    }
    Ok(())
}

/// Builds a B+tree over cells in key order; gives the location of its root.
fn build_shard(round: &mut Round<'_>, shard: u32, cells: &[(&Vec<u8>, &Vec<u8>)]) -> Result<u64, Stuck> {
    if cells.is_empty() {
        return Ok(0);
    }
    let leaves = round.below.take_leaves(shard);
    let mut children = build_leaves(round, shard, cells, &leaves)?;
    // A root must lie in PM.
    if let [(_, word)] = &children[..]
        && word.last().is_some_and(|device| *device != 0)
    {
        children = build_leaves(round, shard, cells, &BTreeMap::new())?;
    }
    let mut level = 1;
    while children.len() > 1 {
        children = build_level(round, shard, level, children)?;
        level += 1;
    }
    let root = children.pop().and_then(|(_, value)| <[u8; 8]>::try_from(value.as_slice()).ok());
    Ok(root.map_or(0, u64::from_le_bytes))
}

/// Builds the leaves of a shard, and leaves unchanged leaves below at their locations; gives the cells of
/// the next level.
fn build_leaves(
    round: &mut Round<'_>,
    shard: u32,
    cells: &[(&Vec<u8>, &Vec<u8>)],
    below: &BTreeMap<Vec<u8>, LeafBelow>,
) -> Result<Vec<Cell>, Stuck> {
    let (mut parents, mut rest) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some((key, value)) = cells.get(at) {
        let stays = below.get(*key).filter(|leaf| {
            let found = leaf.cells.iter().map(|(key, value)| (key, value));
            cells.get(at..at + leaf.cells.len()).is_some_and(|cells| found.eq(cells.iter().copied()))
        });
        if let Some(leaf) = stays {
            parents.extend(build_level(round, shard, 0, std::mem::take(&mut rest))?);
            parents.push(((*key).clone(), leaf.word.to_le_bytes().to_vec()));
            at += leaf.cells.len();
        } else {
            rest.push(((*key).clone(), (*value).clone()));
            at += 1;
        }
    }
    parents.extend(build_level(round, shard, 0, rest)?);
    Ok(parents)
}

/// Pages of one level; gives the cells of the next.
fn build_level(round: &mut Round<'_>, shard: u32, level: u8, cells: Vec<Cell>) -> Result<Vec<Cell>, Stuck> {
    let owner = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
    let mut parents = Vec::new();
    let mut rest = cells.into_iter().peekable();
    while let Some((first, _)) = rest.peek().cloned() {
        let mut page = Page::new(level);
        // An inner page wants two children at least, or a level may not shrink.
        while let Some((key, value)) = rest.next_if(|(key, value)| {
            let size = Page::cell_size(key, value.len());
            page.count() < 2 && page.gap() >= size || page.gap() >= size + SPARE_BYTES
        }) {
            let at = page.count();
            let key = if level > 0 && at == 0 { Vec::new() } else { key };
            if !page.insert(at, &key, &value) {
                return Err(Stuck(format!("a cell of {} bytes fits no page", key.len() + value.len())));
            }
        }
        if page.count() == 0 {
            return Err(Stuck("a cell fits no page".into()));
        }
        assert!(page.level() == level && page.count() > 0, "a page of another level, or an empty one");
        let block = round.allocate(owner)?;
        round.pool.put(PmBlock(block).offset(), &*page.0);
        parents.push((first, block.to_le_bytes().to_vec()));
    }
    Ok(parents)
}
