//! Finds the cells of the catalog: by its trees, and on leaves that the block table names and no tree
//! reaches.

use super::below::{Copy, copy_below};
use crate::state::Round;
use crate::state::below::LeafBelow;
use crate::state::catalog::{Cell, Shard};
use terrace_format::below::{Below, Identity};
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::table::{Owner, PageKind};

/// Level of the highest root.
const MAX_LEVEL: u8 = 15;

/// Collects cells. If a key is found twice, the cell that its own shard's tree reaches counts.
pub(crate) fn salvage_catalog(round: &mut Round<'_>) {
    for shard in 0..round.pool.geometry.catalog_shards {
        let owner = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
        let mut found = Shard::default();
        match round.pool.word(round.pool.geometry.shard_root(shard)) {
            Some(0) => {}
            None => found.broken = true,
            Some(root) => {
                found.trusting = true;
                subtree(round, shard, root, None, &mut found);
                if found.doubtful && round.owners.has_unreached(owner) {
                    // The table names further pages of this tree: so a pointer is damaged, and not the
                    // table.
                    found.pages.iter().for_each(|block| round.owners.release(*block));
                    round.below.forget_leaves(shard);
                    found = Shard::default();
                    subtree(round, shard, root, None, &mut found);
                }
            }
        }
        // A damaged root word may be zero or name a leaf: its tree looks sound, but has fewer keys than
        // the shard had. The shard's inner pages always lie in PM, so the table names them.
        found.broken |= round.owners.has_unreached(owner);
        let ordered = found.found.windows(2).all(|pair| match pair {
            [(first, _), (second, _)] => first < second,
            _ => true,
        });
        found.broken |= !ordered;
        round.catalog.cells_lost |= found.broken;
        round.catalog.shards.push(found);
    }
    let unreached = unreached_leaves(round);
    drop_old_leaves(round, &unreached);
    let mut strays: Vec<Cell> = Vec::new();
    for (number, shard) in (0u64..).zip(&mut round.catalog.shards) {
        for (key, value) in &shard.found {
            let home = Key::split(key).map(|(ino, _, _)| ino % u64::from(round.pool.geometry.catalog_shards));
            if home == Some(number) {
                round.catalog.cells.entry(key.clone()).or_insert_with(|| value.clone());
            } else {
                shard.broken = true;
                strays.push((key.clone(), value.clone()));
            }
        }
    }
    strays.extend(unreached.into_iter().flat_map(|(_, cells)| cells));
    for (key, value) in strays {
        round.catalog.cells.entry(key).or_insert(value);
    }
}

fn subtree(round: &mut Round<'_>, shard: u32, block: u64, level: Option<u8>, found: &mut Shard) {
    let owner = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
    match copy_below(round, block, Identity::Catalog { shard }) {
        Copy::Elsewhere => {}
        Copy::Lost => {
            found.broken = true;
            return;
        }
        Copy::Intact(bytes) => {
            let cells = round.below.take_leaf(round.pool.geometry.catalog_shards.into(), shard, block, bytes);
            // A root does not lie below.
            found.broken |= cells.is_none() || level != Some(0);
            found.found.extend(cells.unwrap_or_default());
            return;
        }
    }
    round.owners.see(block);
    let trusted = match round.owners.owner(block) {
        Some(there) if there == owner => true,
        Some(Owner::Free) | None => {
            found.doubtful = true;
            found.trusting
        }
        Some(_) => false,
    };
    let mut page =
        if trusted && round.owners.is_open(block) { round.pool.block(block).map(Page) } else { None };
    if let Some(page) = page.as_mut().filter(|page| page.verify_header("").is_err()) {
        // Tree and table agree that it is a page of this shard: its cells count without magic number and
        // version.
        found.broken = true;
        let new = Page::new(0);
        page.0.iter_mut().zip(&*new.0).take(3).for_each(|(place, byte)| *place = *byte);
    }
    let page = page.filter(|page| {
        page.verify_header("").is_ok()
            && level.map_or(page.level() <= MAX_LEVEL, |level| level == page.level())
            && (page.level() == 0 || page.count() > 0)
    });
    let Some(page) = page else {
        found.broken = true;
        return;
    };
    round.owners.own(block, owner);
    found.pages.push(block);
    found.broken |= !sound_space(&page);
    let mut children = Vec::new();
    for index in 0..page.count() {
        let Ok((key, value)) = page.cell(index) else {
            found.broken = true;
            continue;
        };
        if page.level() == 0 {
            found.found.push((key.to_vec(), value.to_vec()));
        } else if let Ok(child) = <[u8; 8]>::try_from(value) {
            found.broken |= (index == 0) != key.is_empty();
            children.push((key.to_vec(), u64::from_le_bytes(child)));
        } else {
            found.broken = true;
        }
    }
    for (at, (low, child)) in children.iter().enumerate() {
        let start = found.found.len();
        subtree(round, shard, *child, page.level().checked_sub(1), found);
        let high = children.get(at + 1).map(|(key, _)| key);
        let mut keys = found.found.iter().skip(start).map(|(key, _)| key);
        found.broken |= keys.any(|key| key < low || high.is_some_and(|high| key >= high));
    }
}

/// Drops the old copies below of leaves that were fetched into PM: an unreached leaf in PM has keys of
/// their range, and the chunk bitmap marks their device block as free. If that bitmap is lost, the copies
/// below stay.
fn drop_old_leaves(round: &mut Round<'_>, unreached: &[(u32, Vec<Cell>)]) {
    let meets = |shard: u32, leaf: &LeafBelow| {
        let range = leaf.cells.first().zip(leaf.cells.last());
        let keys = unreached.iter().filter(|(home, _)| *home == shard).flat_map(|(_, cells)| cells);
        let mut keys = keys.map(|(key, _)| key);
        range.is_some_and(|((first, _), (last, _))| keys.any(|key| first <= key && key <= last))
    };
    let suspects = round.below.leaves.iter().flat_map(|(shard, leaves)| {
        let suspects = leaves.iter().filter(|(_, leaf)| meets(*shard, leaf));
        suspects.filter_map(|(first, leaf)| Some((*shard, first.clone(), Below::decode(leaf.word)?)))
    });
    let suspects: Vec<(u32, Vec<u8>, Below)> = suspects.collect();
    let blocks = u64::from(round.pool.geometry.chunk_blocks);
    for (shard, first, place) in suspects {
        let (device, within) = (place.device, place.block.0 - FIRST_CHUNK_BLOCK.0);
        let key = Key::chunk(within / blocks, device).0;
        let reached = round.catalog.shards.iter().flat_map(|shard| &shard.found);
        let mut cells = reached.chain(unreached.iter().flat_map(|(_, cells)| cells));
        let bitmap = cells.find(|(found, _)| *found == key).map(|(_, bitmap)| bitmap);
        let byte = bitmap.and_then(|bitmap| bitmap.get((within % blocks / 8) as usize));
        if byte.is_none_or(|byte| byte >> (within % blocks % 8) & 1 == 1) {
            continue;
        }
        let leaf = round.below.leaves.get_mut(&shard).and_then(|leaves| leaves.remove(&first));
        let Some((leaf, found)) = leaf.zip(round.catalog.shards.get_mut(shard as usize)) else { continue };
        let at = found.found.windows(leaf.cells.len()).position(|cells| cells == leaf.cells);
        if let Some(at) = at {
            found.found.drain(at..at + leaf.cells.len());
        }
        found.broken = true;
        round.catalog.cells_lost = true;
        round.below.forget(leaf.word);
        round.actions.add(format!(
            "catalog shard {shard}: a leaf of device {device} came up; its old copy below goes"
        ));
    }
}

/// Cells of catalog leaves in PM that no tree reaches, leaf by leaf with their shards. A sound pool has
/// no such leaf.
fn unreached_leaves(round: &mut Round<'_>) -> Vec<(u32, Vec<Cell>)> {
    let owned = round.owners.owned().into_iter().filter_map(|(block, owner)| match owner {
        Owner::Page { kind: PageKind::CatalogPage, datum } => Some((block, datum)),
        _ => None,
    });
    // Only blocks that the table names: free space is full of leaves that were freed long ago.
    let blocks: Vec<(u64, u32)> = owned.collect();
    let mut leaves = Vec::new();
    for (block, shard) in blocks {
        if !round.owners.is_open(block) {
            continue;
        }
        let page = round.pool.block(block).map(Page);
        let Some(page) = page.filter(|page| page.verify_header("").is_ok() && page.level() == 0) else {
            continue;
        };
        let cells = (0..page.count()).filter_map(|index| page.cell(index).ok());
        leaves.push((shard, cells.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()));
    }
    leaves
}

/// Cells lie between heap and end, do not overlap, and with the dead bytes fill that space.
fn sound_space(page: &Page) -> bool {
    let mut cells = Vec::new();
    for index in 0..page.count() {
        if let Ok((key, value)) = page.cell(index) {
            cells.push((page.cell_offset(index), 4 + key.len() + value.len()));
        }
    }
    cells.sort_unstable();
    let mut end = page.heap();
    for (at, size) in &cells {
        if *at < end {
            return false;
        }
        end = at + size;
    }
    let live: usize = cells.iter().map(|(_, size)| size).sum();
    cells.len() != page.count() || page.heap() + live + page.dead() == 4096
}
