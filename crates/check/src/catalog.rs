//! Catalog shards: pages, order and bounds of keys (format.md "Catalog pages"). Module `keys` judges the
//! meaning of the keys, in key order, shard by shard.

use crate::checker::Checker;
use crate::code::Code;
use crate::keys::KeyRun;
use terrace_format::below::{Identity, is_below};
use terrace_format::keys::{Key, Kind};
use terrace_format::page::{CELL_HEADER, PAGE_SIZE, Page};
use terrace_format::table::{Owner, PageKind};

/// Level of the highest root: 15 levels of two children are more than any pool holds.
const MAX_LEVEL: u8 = 15;

impl Checker<'_> {
    /// Walks all shards.
    pub fn catalog(&mut self) {
        for shard in 0..self.geometry.catalog_shards {
            let mut run = KeyRun::new(shard);
            match self.word(self.geometry.shard_root(shard)) {
                None | Some(0) => {}
                Some(root) if self.in_pool(root) => {
                    let place = Place { block: root, level: None, low: Vec::new(), high: None };
                    self.subtree(&mut run, &place);
                }
                Some(root) => self.report(Code::CatalogRoot, || format!("shard {shard}: {root:#x}")),
            }
            self.end_of_inode(&mut run);
            self.step();
        }
    }

    /// Recursion is bounded: a child's level is one below its parent's, which is at most 15.
    fn subtree(&mut self, run: &mut KeyRun, place: &Place) {
        let owner = Owner::Page { kind: PageKind::CatalogPage, datum: run.shard };
        let mut site = format!("catalog shard {}, page at block {}", run.shard, place.block);
        let below = self.superblock.has_metadata_below() && is_below(place.block);
        let bytes = if below {
            site = format!("catalog shard {}, page below, {:#x}", run.shard, place.block);
            self.below(place.block, Identity::Catalog { shard: run.shard }, &site)
        } else if self.claim(place.block, owner, &site) {
            self.block(place.block)
        } else {
            None
        };
        let Some(bytes) = bytes else {
            return;
        };
        let page = Page(bytes);
        if below {
            self.leaf_below(&page, &site);
        }
        if let Err(corrupt) = page.verify_header(&site) {
            self.report(Code::CatalogPage, || corrupt.to_string());
            return;
        }
        let level = page.level();
        if place.level.map_or(level > MAX_LEVEL, |expected| expected != level)
            || (level > 0 && page.count() == 0)
        {
            self.report(Code::CatalogLevel, || format!("{site}: level {level}, {} cells", page.count()));
            return;
        }
        assert!(level <= MAX_LEVEL, "{site}: level {level} was not judged");
        self.page_space(&page, &site);
        if level == 0 {
            self.leaf_page(run, place, &page, &site);
        } else {
            self.inner_page(run, place, &page, &site);
        }
    }

    /// Only leaves without chunk keys may lie below: a fetch needs inner pages and chunk keys in PM.
    fn leaf_below(&mut self, page: &Page, site: &str) {
        let chunk = |index| {
            let (key, _) = page.cell(index).ok()?;
            Key::split(key).filter(|(_, kind, _)| *kind == Kind::Chunk as u8)
        };
        if page.level() > 0 || (0..page.count()).any(|index| chunk(index).is_some()) {
            self.report(Code::MetadataPlace, || format!("{site}: level {} or a chunk key", page.level()));
        }
    }

    /// Cells lie between heap and page end, do not overlap, and with the dead bytes fill that space.
    fn page_space(&mut self, page: &Page, site: &str) {
        let mut cells: Vec<(usize, usize)> = Vec::new();
        for index in 0..page.count() {
            if let Ok((key, value)) = page.cell(index) {
                cells.push((page.cell_offset(index), CELL_HEADER + key.len() + value.len()));
            }
        }
        cells.sort_unstable();
        let mut end = page.heap();
        for (at, size) in &cells {
            if *at < end {
                self.report(Code::CatalogCell, || format!("{site}: cell at {at} overlaps"));
                return;
            }
            end = at + size;
        }
        let live: usize = cells.iter().map(|(_, size)| size).sum();
        if cells.len() == page.count() && page.heap() + live + page.dead() != PAGE_SIZE {
            self.report(Code::CatalogSpace, || {
                format!("{site}: heap at {}, {live} live, {} dead", page.heap(), page.dead())
            });
        }
    }

    fn leaf_page(&mut self, run: &mut KeyRun, place: &Place, page: &Page, site: &str) {
        for index in 0..page.count() {
            let (key, value) = match page.cell(index) {
                Ok(cell) => cell,
                Err(corrupt) => {
                    self.report(Code::CatalogCell, || format!("{site}: {corrupt}"));
                    continue;
                }
            };
            if !place.bounds(key) {
                self.report(Code::CatalogBound, || format!("{site}: key {key:02x?}"));
            }
            if run.last.as_deref().is_some_and(|last| last >= key) {
                self.report(Code::CatalogOrder, || format!("{site}: key {key:02x?}"));
            }
            run.last = Some(key.to_vec());
            self.key(run, key, value);
        }
    }

    fn inner_page(&mut self, run: &mut KeyRun, place: &Place, page: &Page, site: &str) {
        assert!(page.level() > 0, "{site}: a leaf has no children");
        let level = page.level() - 1;
        let mut children: Vec<Place> = Vec::new();
        for index in 0..page.count() {
            let (key, value) = match page.cell(index) {
                Ok(cell) => cell,
                Err(corrupt) => {
                    self.report(Code::CatalogCell, || format!("{site}: {corrupt}"));
                    continue;
                }
            };
            let Ok(child) = <[u8; 8]>::try_from(value) else {
                self.report(Code::CatalogCell, || {
                    format!("{site}: cell {index}: a location of {} bytes", value.len())
                });
                continue;
            };
            if index == 0 && !key.is_empty() {
                self.report(Code::CatalogFirstKey, || format!("{site}: key {key:02x?}"));
            }
            if index > 0 && !place.bounds(key) {
                self.report(Code::CatalogBound, || format!("{site}: separator {key:02x?}"));
            }
            let low = if index == 0 { place.low.clone() } else { key.to_vec() };
            if let Some(before) = children.last_mut() {
                if before.low.as_slice() >= key {
                    self.report(Code::CatalogOrder, || format!("{site}: separator {key:02x?}"));
                }
                before.high = Some(low.clone());
            }
            children.push(Place {
                block: u64::from_le_bytes(child),
                level: Some(level),
                low,
                high: place.high.clone(),
            });
        }
        for child in &children {
            self.subtree(run, child);
        }
    }
}

/// A page to visit, with the level and key bounds that its parent gives.
struct Place {
    block: u64,
    level: Option<u8>,
    /// No key of the page is less than this key.
    low: Vec<u8>,
    /// Each key of the page is less than this key.
    high: Option<Vec<u8>>,
}

impl Place {
    fn bounds(&self, key: &[u8]) -> bool {
        key >= self.low.as_slice() && self.high.as_deref().is_none_or(|high| key < high)
    }
}
