//! Nodes of file maps in a page cache, the baseline of the publication ([HashFS] sections 2.2 and 4.7): a node is copied to
//! DRAM when it is read first, stores go to the copy, and the checkpoint writes their lines back.
//!
//! A medium does it, so the map is the one that works in place otherwise. As in the publication's baseline a lock guards
//! one list of all pages; a thread that goes on in the page that it read last does not ask the list again, as code that
//! holds a page does not.
//!
//! Invariants: a page is cached only while the block table says that it is a node of a file map. A copy is never older than
//! its node. For measurements alone: nothing limits the number of copies.
//! Lock order: the list's lock is the last.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use terrace_format::address::LINE_SIZE;
use terrace_format::table::{Owner, PageKind, TABLE_ENTRY_SIZE};
use terrace_format::{BLOCK_SIZE, Geometry, PmBlock, PmOffset};
use terrace_media::pm::PmCounters;
use terrace_media::{MediaError, PmMedium, Promise};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORDS: usize = BLOCK_SIZE as usize / 8;
/// Knowledge of a block.
const UNKNOWN: u8 = 0;
const NODE: u8 = 1;
const OTHER: u8 = 2;

/// A copy of a page, stored to and read word by word.
struct Page([AtomicU64; WORDS]);

#[derive(Default)]
struct Pages {
    by_block: HashMap<u64, (Arc<Page>, u64)>,
    /// The number of the last look-up: pages with lower ones are older.
    turn: u64,
}

thread_local! {
    /// The page that the thread asked for last: number of the state, block, copy.
    static LAST: RefCell<Option<(u64, u64, Arc<Page>)>> = const { RefCell::new(None) };
}

/// Numbers of states, over all caches: a thread's last page is believed in the state that it was found in.
static STATES: AtomicU64 = AtomicU64::new(1);

/// PM with a page cache of map nodes.
pub(crate) struct PageCachedPm {
    below: Arc<dyn PmMedium>,
    geometry: Geometry,
    kinds: Vec<AtomicU8>,
    pages: Mutex<Pages>,
    state: AtomicU64,
}

impl PageCachedPm {
    /// `below` with a page cache, of a pool with this geometry.
    pub(crate) fn new(below: Arc<dyn PmMedium>, geometry: Geometry) -> PageCachedPm {
        let kinds = (0..geometry.block_count()).map(|_| AtomicU8::new(UNKNOWN)).collect();
        let state = AtomicU64::new(STATES.fetch_add(1, Ordering::Relaxed));
        PageCachedPm { below, geometry, kinds, pages: Mutex::default(), state }
    }

    /// Pages in the cache.
    #[cfg(test)]
    fn cached(&self) -> usize {
        self.pages.lock().by_block.len()
    }

    fn is_node(&self, block: u64) -> bool {
        let Some(kind) = self.kinds.get(block as usize) else { return false };
        match kind.load(Ordering::Relaxed) {
            UNKNOWN => {
                let word = self.below.load_u64(self.geometry.table_entry(PmBlock(block)));
                let owner = word.ok().and_then(Owner::decode);
                let is_node = matches!(owner, Some(Owner::Page { kind: PageKind::MapNode, .. }));
                kind.store(if is_node { NODE } else { OTHER }, Ordering::Relaxed);
                is_node
            }
            known => known == NODE,
        }
    }

    /// Uses the copy of a range's page, if the range lies in a node.
    fn with_words<T>(
        &self,
        offset: PmOffset,
        length: usize,
        act: impl FnOnce(&[AtomicU64]) -> T,
    ) -> Option<T> {
        let block = offset.0 / BLOCK_SIZE;
        if offset < self.geometry.first_pool_block().offset()
            || offset.0 % BLOCK_SIZE + length as u64 > BLOCK_SIZE
            || !offset.0.is_multiple_of(8)
            || !length.is_multiple_of(8)
        {
            return None;
        }
        let state = self.state.load(Ordering::Acquire);
        LAST.with_borrow_mut(|last| {
            let is_last = last.as_ref().is_some_and(|(of, number, _)| (*of, *number) == (state, block));
            if !is_last {
                if !self.is_node(block) {
                    return None;
                }
                *last = Some((state, block, self.look_up(block)?));
            }
            last.as_ref().map(|(.., page)| act(page.words(offset, length)))
        })
    }

    fn look_up(&self, block: u64) -> Option<Arc<Page>> {
        let mut pages = self.pages.lock();
        pages.turn += 1;
        let turn = pages.turn;
        if let Some((page, used)) = pages.by_block.get_mut(&block) {
            *used = turn;
            return Some(page.clone());
        }
        let mut bytes = [0; BLOCK_SIZE as usize];
        self.below.read(PmBlock(block).offset(), &mut bytes).ok()?;
        let words = bytes.as_chunks::<8>().0;
        let page = Arc::new(Page(std::array::from_fn(|word| {
            AtomicU64::new(words.get(word).map_or(0, |bytes| u64::from_le_bytes(*bytes)))
        })));
        pages.by_block.insert(block, (page.clone(), turn));
        Some(page)
    }

    /// Notes stores to PM itself: entries of the block table may make nodes of blocks, and new content of a page is not in
    /// its copy.
    fn changed_below(&self, offset: PmOffset, length: usize) {
        let (begin, end) = (offset.0, offset.0 + length as u64);
        let table = self.geometry.table_offset().0..self.geometry.table_end().0;
        let blocks: Range<u64> = if table.contains(&begin) {
            let first = (begin - table.start) / TABLE_ENTRY_SIZE;
            first..(end.min(table.end) - table.start).div_ceil(TABLE_ENTRY_SIZE)
        } else if offset >= self.geometry.first_pool_block().offset() {
            begin / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE)
        } else {
            return;
        };
        let mut is_cached = false;
        for block in blocks.clone() {
            let kind = self.kinds.get(block as usize);
            is_cached |= kind.is_some_and(|kind| kind.swap(UNKNOWN, Ordering::AcqRel) == NODE);
        }
        if is_cached {
            // The stores that the copy has and PM lacks were overwritten, or the page is freed.
            let mut pages = self.pages.lock();
            blocks.for_each(|block| _ = pages.by_block.remove(&block));
            self.state.store(STATES.fetch_add(1, Ordering::Relaxed), Ordering::Release);
        }
    }
}

impl Page {
    fn words(&self, offset: PmOffset, length: usize) -> &[AtomicU64] {
        let first = (offset.0 % BLOCK_SIZE / 8) as usize;
        &self.0[first..first + length / 8]
    }
}

fn copy_out(words: &[AtomicU64], into: &mut [u8]) {
    for (bytes, word) in into.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Acquire).to_le_bytes();
    }
}

impl PmMedium for PageCachedPm {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn promise(&self) -> Promise {
        self.below.promise()
    }

    fn describe(&self) -> String {
        format!("nodes of file maps in a page cache; {}", self.below.describe())
    }

    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        let copied = self.with_words(offset, into.len(), |words| copy_out(words, into));
        copied.map_or_else(|| self.below.read(offset, into), Ok)
    }

    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let word = |words: &[AtomicU64]| words.first().map(|word| word.load(Ordering::Acquire));
        match self.with_words(offset, 8, word).flatten() {
            Some(word) => Ok(word),
            None => self.below.load_u64(offset),
        }
    }

    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.below.write(offset, bytes)?;
        self.changed_below(offset, bytes.len());
        Ok(())
    }

    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let store = |words: &[AtomicU64]| {
            for (bytes, word) in bytes.as_chunks::<8>().0.iter().zip(words) {
                word.store(u64::from_le_bytes(*bytes), Ordering::Release);
            }
        };
        if self.with_words(offset, bytes.len(), store).is_some() {
            return Ok(());
        }
        self.below.store(offset, bytes)?;
        self.changed_below(offset, bytes.len());
        Ok(())
    }

    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.below.write_streaming(offset, bytes)?;
        self.changed_below(offset, bytes.len());
        Ok(())
    }

    fn write_streaming_checked(&self, offset: PmOffset, bytes: &[u8]) -> Result<u32, MediaError> {
        let crc = self.below.write_streaming_checked(offset, bytes)?;
        self.changed_below(offset, bytes.len());
        Ok(crc)
    }

    fn expect_store(&self, offset: PmOffset) {
        self.below.expect_store(offset);
    }

    fn expect_load(&self, offset: PmOffset) {
        self.below.expect_load(offset);
    }

    /// Lines of copies go to PM; the medium below has no store of theirs to write back.
    fn write_back(&self, offset: PmOffset, length: u64) {
        let begin = offset.0 / LINE_SIZE * LINE_SIZE;
        for line in (begin..offset.0.saturating_add(length)).step_by(LINE_SIZE as usize) {
            let mut bytes = [0; LINE_SIZE as usize];
            match self.with_words(PmOffset(line), bytes.len(), |words| copy_out(words, &mut bytes)) {
                None => self.below.write_back(PmOffset(line), LINE_SIZE),
                Some(()) => {
                    // A write-back gives no error: a later access meets it.
                    let _ = self.below.write(PmOffset(line), &bytes);
                }
            }
        }
    }

    fn order_persists(&self) -> bool {
        self.below.order_persists()
    }

    fn order_at(&self, at: &'static Location<'static>) {
        self.below.order_at(at);
    }
    fn persist_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.below.persist_at(at)
    }

    fn counters(&self) -> PmCounters {
        self.below.counters()
    }

    fn error_count(&self) -> u64 {
        self.below.error_count()
    }

    fn condemn(&self, offset: PmOffset, length: u64) {
        self.below.condemn(offset, length);
    }

    fn prepare(&self, offset: PmOffset, length: u64) {
        self.below.prepare(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::pm::RecordedPm;

    /// Stores to a node are seen at once, reach PM by a write-back, and end with the node.
    #[test]
    fn a_node_is_read_from_its_copy_and_written_back() -> Result<(), MediaError> {
        let geometry = Geometry::choose(4 << 20, 16).unwrap();
        let below = Arc::new(RecordedPm::new(4 << 20));
        let pm = PageCachedPm::new(below.clone(), geometry);
        let node = PmBlock(geometry.first_pool_block().0 + 3);
        let owner = Owner::Page { kind: PageKind::MapNode, datum: 7 }.encode();
        pm.write_streaming(node.offset(), &[1; 4096])?;
        pm.store(geometry.table_entry(node), &owner.to_le_bytes())?;
        let at = node.offset().plus(64);
        assert_eq!((pm.load_u64(at)?, pm.cached()), (0x0101_0101_0101_0101, 1));
        pm.store(at, &9u64.to_le_bytes())?;
        assert_eq!((pm.load_u64(at)?, below.load_u64(at)?), (9, 0x0101_0101_0101_0101));
        let mut both = [0; 16];
        pm.read(at, &mut both)?;
        assert_eq!(both, [9, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
        pm.write_back(at, 8);
        assert_eq!(below.load_u64(at)?, 9);
        // Freed, and used for content.
        pm.store(geometry.table_entry(node), &[0; 8])?;
        pm.write_streaming(node.offset(), &[2; 4096])?;
        assert_eq!((pm.load_u64(at)?, pm.cached()), (0x0202_0202_0202_0202, 0));
        Ok(())
    }

    #[test]
    fn other_pages_are_not_cached() -> Result<(), MediaError> {
        let geometry = Geometry::choose(4 << 20, 16).unwrap();
        let below = Arc::new(RecordedPm::new(4 << 20));
        let pm = PageCachedPm::new(below.clone(), geometry);
        let block = geometry.first_pool_block();
        pm.store(block.offset(), &5u64.to_le_bytes())?;
        assert_eq!((pm.load_u64(block.offset())?, below.load_u64(block.offset())?, pm.cached()), (5, 5, 0));
        Ok(())
    }
}
