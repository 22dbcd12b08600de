//! Level hashing as a file map, for measurements beside the maps of pools ([HashFS] section 4.9; Zuo et al., "Write-Optimized and
//! High-Performance Hashing Index Scheme for Persistent Memory", OSDI 2018). mkfs does not offer the table.
//!
//! ```text
//! top level     | b0 | b1 | b2 | b3 | b4 | b5 | ..    a key has two buckets of the top level, by two hashes,
//! bottom level  |   b0    |   b1    |   b2    | ..    and the two buckets below them
//! ```
//! A bucket has four entries in one line. A key goes to the emptier of two top buckets, then to the emptier of two
//! bottom buckets. When the four are full, an entry moves to the second bucket of the same level: a movement at
//! most. The published table then grows; in the laboratory the size is fixed like the pool's, with a fifth of the places free when
//! every block is mapped. As published the table serves no ranges: a range is looked up block by block.
//! The lists of a file's blocks are kept in memory.
//!
//! Invariant: a key is in the table once. Not for several threads: a movement changes entries of other inodes.

use std::sync::Arc;
use terrace_blocks::{BlockPool, Presence, Purpose, Target};
use terrace_format::address::{LINE_SIZE, MAX_FILE_BLOCK};
use terrace_format::inode::InodeSlot;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, Corrupt, FileBlock, Ino, PmBlock, PmOffset};
use terrace_map::file_map::{Freed, MapChange, MapGuard, MapRecord, Mapped};
use terrace_map::{Cursor, FileMap, MapInode, Mapping};
use terrace_simd::hash::{HashKey, hash};
use terrace_wal::{Error, MapRoom, NoSpace, Result, Tx};

/// Entries of a bucket.
const ENTRIES: usize = 4;
const ENTRY_BYTES: u64 = LINE_SIZE / ENTRIES as u64;
const BUCKETS_OF_PAGE: u64 = BLOCK_SIZE / LINE_SIZE;
/// Pages that are claimed together when the table is made.
const PAGES_AT_ONCE: usize = 64;
/// Bytes of a change of a block in a record: the new entry, and a moved one with its old place.
const RECORD_BYTES: usize = 3 * 24 + 16;

/// A bucket as it is read: owner and block of each entry, zeros for a free one.
type Bucket = [[u64; 2]; ENTRIES];

/// The table.
pub(crate) struct LevelHash {
    blocks: Arc<BlockPool>,
    pages: Vec<PmBlock>,
    /// Buckets of the top level; the bottom level has half as many, behind them.
    top: u64,
    keys: [HashKey; 2],
    listed: Presence,
}

/// A place of an entry.
#[derive(Clone, Copy)]
struct Place {
    bucket: u64,
    entry: usize,
}

impl LevelHash {
    /// A table for the blocks of a new pool, in pages of the pool without kept content: the pool is mounted once.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn make(blocks: &Arc<BlockPool>) -> Result<Box<dyn FileMap>> {
        let total = blocks.end_block().0 - blocks.first_block().0;
        // Six entries for each bucket of the top level.
        let top = (total * 5 / 4).div_ceil(6).next_multiple_of(2);
        let count = (top + top / 2).div_ceil(BUCKETS_OF_PAGE) as usize;
        let mut pages = Vec::new();
        while pages.len() < count {
            let mut claim = blocks.claim((count - pages.len()).min(PAGES_AT_ONCE), Purpose::Reclaim)?;
            while let Some(page) = claim.take(Target::Page) {
                blocks.wal().pm().write_streaming(page.offset(), &[0; BLOCK_SIZE as usize])?;
                pages.push(page);
            }
        }
        blocks.wal().pm().order();
        let keys = [HashKey::new([0x11; 16]), HashKey::new([0x77; 16])];
        Ok(Box::new(LevelHash { blocks: blocks.clone(), pages, top, keys, listed: Presence::default() }))
    }

    fn at(&self, place: Place) -> Result<PmOffset> {
        let page = self.pages.get((place.bucket / BUCKETS_OF_PAGE) as usize);
        let page = page.ok_or_else(|| Corrupt::new("level hash", "a bucket", place.bucket.to_string()))?;
        let line = place.bucket % BUCKETS_OF_PAGE * LINE_SIZE;
        Ok(page.offset().plus(line + place.entry as u64 * ENTRY_BYTES))
    }

    /// The four buckets of a key: two of the top level, and the buckets below.
    fn buckets(&self, ino: Ino, block: FileBlock) -> [u64; 4] {
        let [one, other] = self.keys.each_ref().map(|key| {
            let hash = hash(key, ino.0 as u32, block.0 as u32);
            ((hash >> 32) * self.top) >> 32
        });
        [one, other, self.top + one / 2, self.top + other / 2]
    }

    fn read(&self, tx: Option<&Tx>, bucket: u64) -> Result<Bucket> {
        let (at, pm) = (self.at(Place { bucket, entry: 0 })?, self.blocks.wal().pm());
        let mut bytes = [0; LINE_SIZE as usize];
        match tx {
            Some(tx) => tx.read(&**pm, at, &mut bytes)?,
            None => pm.read(at, &mut bytes)?,
        }
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(std::array::from_fn(|_| std::array::from_fn(|_| words.next().unwrap_or(0))))
    }

    fn find(&self, tx: Option<&Tx>, ino: Ino, block: FileBlock) -> Result<Option<(Place, Mapping)>> {
        let key = key_of(ino, block, false) >> 1;
        for bucket in self.buckets(ino, block) {
            let found = self.read(tx, bucket)?;
            let at = found.iter().position(|[owner, _]| owner >> 1 == key);
            if let Some((entry, [owner, to])) = at.and_then(|at| found.get(at).map(|words| (at, words))) {
                let unwritten = key_of(ino, block, true) == *owner;
                let block = self.blocks.verify(PmBlock(*to), "level hash")?;
                return Ok(Some((Place { bucket, entry }, Mapping { block, unwritten })));
            }
        }
        Ok(None)
    }

    /// A free place for a key, after one movement at most.
    fn make_place(&self, tx: &mut Tx, ino: Ino, block: FileBlock) -> Result<Place> {
        let [one, other, below_one, below_other] = self.buckets(ino, block);
        let levels = [[one, other], [below_one, below_other]];
        for [one, other] in levels {
            let (first, second) = (self.read(Some(tx), one)?, self.read(Some(tx), other)?);
            let free = |bucket: &Bucket| bucket.iter().filter(|[owner, _]| *owner == 0).count();
            let (bucket, found) = if free(&first) >= free(&second) { (one, first) } else { (other, second) };
            if let Some(entry) = found.iter().position(|[owner, _]| *owner == 0) {
                return Ok(Place { bucket, entry });
            }
        }
        for (level, buckets) in levels.into_iter().enumerate() {
            for bucket in buckets {
                for (entry, words) in self.read(Some(tx), bucket)?.into_iter().enumerate() {
                    let place = Place { bucket, entry };
                    if self.move_away(tx, place, words, level)? {
                        return Ok(place);
                    }
                }
            }
        }
        Err(NoSpace::Pm.into())
    }

    /// Moves an entry to the second bucket of the level; false when the bucket is full.
    fn move_away(&self, tx: &mut Tx, place: Place, words: [u64; 2], level: usize) -> Result<bool> {
        let Some(Owner::File { ino, block, .. }) = Owner::decode(words[0]) else { return Ok(false) };
        let buckets = self.buckets(ino, block);
        let pair = buckets.get(2 * level..2 * level + 2).unwrap_or_default();
        let Some(other) = pair.iter().copied().find(|bucket| *bucket != place.bucket) else {
            return Ok(false);
        };
        let free = self.read(Some(tx), other)?.iter().position(|[owner, _]| *owner == 0);
        let Some(entry) = free else { return Ok(false) };
        self.store(tx, Place { bucket: other, entry }, words)?;
        Ok(true)
    }

    fn store(&self, tx: &mut Tx, place: Place, words: [u64; 2]) -> Result<()> {
        tx.write_words(self.at(place)?, words.map(Into::into));
        Ok(())
    }

    fn set(&self, tx: &mut Tx, ino: Ino, block: FileBlock, new: Option<Mapping>) -> Result<Option<Mapping>> {
        let old = self.find(Some(tx), ino, block)?;
        match (old, new) {
            (Some((place, old)), Some(new)) if old != new => {
                self.store(tx, place, [key_of(ino, block, new.unwritten), new.block.0])?;
            }
            (Some((place, _)), None) => {
                self.store(tx, place, [0; 2])?;
                self.listed.remove(ino, block);
            }
            (None, Some(new)) => {
                let place = self.make_place(tx, ino, block)?;
                self.store(tx, place, [key_of(ino, block, new.unwritten), new.block.0])?;
                self.listed.insert(ino, block);
            }
            _ => {}
        }
        Ok(old.map(|(_, mapping)| mapping))
    }
}

fn key_of(ino: Ino, block: FileBlock, unwritten: bool) -> u64 {
    Owner::File { ino, block, unwritten }.encode()
}

impl FileMap for LevelHash {
    fn lookup(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if block > MAX_FILE_BLOCK {
            return Ok(None);
        }
        Ok(self.find(None, inode.ino, block)?.map(|(_, mapping)| mapping))
    }

    fn lookup_run(&self, inode: &MapInode, first: FileBlock, out: &mut [Option<Mapping>]) -> Result<()> {
        for (block, out) in (first.0..).zip(out) {
            *out = self.lookup(inode, FileBlock(block))?;
        }
        Ok(())
    }

    fn mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        let mut blocks = Vec::new();
        let next = self.listed.list(inode.ino, (from, to), most, &mut blocks);
        for block in blocks {
            out.extend(self.lookup(inode, block)?.map(|mapping| (block, mapping)));
        }
        Ok(next)
    }

    fn is_empty(&self, ino: Ino, _: &InodeSlot) -> bool {
        self.listed.is_empty(ino)
    }

    fn missing_room(&self, _: &[MapChange], _: &MapChange) -> Result<Option<MapRoom>> {
        Ok(None)
    }

    fn make_room(
        &self,
        _: &mut Tx,
        _: &MapInode,
        _: &MapRoom,
        _: &mut terrace_blocks::Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        Ok(MapGuard::default())
    }

    fn record(&self) -> MapRecord {
        MapRecord { run: 0, block: RECORD_BYTES, most_blocks: 128 }
    }

    fn change(&self, tx: &mut Tx, changes: &[MapChange], _: usize, _: &mut Freed) -> Result<MapGuard<'_>> {
        for change in changes {
            for (block, mapping) in (change.first.0..).zip(&change.mappings) {
                self.set(tx, change.inode.ino, FileBlock(block), *mapping)?;
            }
        }
        Ok(MapGuard::default())
    }

    fn exchange<'s>(
        &'s self,
        _: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        _: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        match self.set(tx, inode.ino, block, Some(new)) {
            Err(Error::NoSpace(_)) => Ok(None),
            old => old.map(Some),
        }
    }

    fn prune(
        &self,
        _: &mut Tx,
        _: &MapInode,
        _: (FileBlock, usize),
        _: usize,
        _: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        Ok(None)
    }

    fn visit_pages(&self, _: &MapInode, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        self.pages.iter().for_each(|page| visit(*page, 0));
        Ok(())
    }
}
