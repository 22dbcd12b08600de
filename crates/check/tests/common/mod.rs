//! A pool built by hand from the format's encoders, and media in memory that may be damaged at will.
#![allow(dead_code)] // each test file uses a part

pub mod damages;
pub mod healing;

use std::sync::Arc;
use terrace_check::clustered_table::line_of;
use terrace_check::{Options, PoolView, Report, check};
use terrace_format::checkpoint::Checkpoint;
use terrace_format::checksum::{crc32c, record_seed};
use terrace_format::clustered_map::{Line, Lines, Piece, Place};
use terrace_format::cuckoo_map::{Buckets, Entry as BucketEntry};
use terrace_format::device::{DEVICE_MAGIC, DeviceHeader, SummaryEntry, encode_summary};
use terrace_format::extent_map::{Entry, Extent, ExtentRoot, NodeHead, encode_child, entry_at};
use terrace_format::geometry::{CHECKPOINT_COPIES, SUPERBLOCK_COPIES};
use terrace_format::inode::{ENTRY_UNWRITTEN, InodeSlot, SLOT_SIZE, flag, pack_root};
use terrace_format::keys::{ColdExtent, Key};
use terrace_format::map_kind::MapKind;
use terrace_format::page::Page;
use terrace_format::record::{HEADER_SIZE, seal};
use terrace_format::seal::SealKey;
use terrace_format::superblock::Superblock;
use terrace_format::table::{MASK_FULL, Owner, PageKind};
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Geometry, Ino, Lsn, PmBlock, PmOffset};
use terrace_media::block::AlignedBlock;
use terrace_media::{BlockMedium, DeviceError, MediaError, PmMedium, Promise};
use terrace_runtime::sync::RwLock;
use zerocopy::{FromBytes, IntoBytes};

pub const UUID: [u8; 16] = [7; 16];
pub const SECRET: [u8; 16] = [11; 16];
pub const SEAL_KEY: SealKey = SealKey::new(UUID, Some(SECRET));
pub const DEVICE_BLOCKS: u64 = 41;
pub const FILE: u64 = 2;
pub const DIRECTORY: u64 = 3;
pub const LINK: u64 = 4;
pub const CHILD: u64 = 5;
pub const ORPHANS: [u64; 2] = [6, 70];

/// PM in memory.
pub struct MemPm(pub RwLock<Vec<u8>>);

impl PmMedium for MemPm {
    fn size(&self) -> u64 {
        self.0.read().len() as u64
    }
    fn promise(&self) -> Promise {
        Promise::None
    }
    fn describe(&self) -> String {
        "memory".into()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        let length = into.len() as u64;
        let end = offset.0.saturating_add(length);
        let bytes = self.0.read();
        let Some(from) = bytes.get(offset.0 as usize..end as usize) else {
            return Err(MediaError::Pm { offset, length });
        };
        into.copy_from_slice(from);
        Ok(())
    }
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn write(&self, _: PmOffset, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("check writes nothing")
    }
    fn write_streaming(&self, _: PmOffset, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("check writes nothing")
    }
    fn write_back(&self, _: PmOffset, _: u64) {}
    fn order_at(&self, _: &'static std::panic::Location<'static>) {}
    fn persist_at(&self, _: &'static std::panic::Location<'static>) -> Result<(), MediaError> {
        Ok(())
    }
}

/// A device in memory; blocks listed in `bad` answer with an error.
pub struct MemDevice {
    pub bytes: Vec<u8>,
    pub bad: Vec<u64>,
}

impl BlockMedium for MemDevice {
    fn blocks(&self) -> u64 {
        self.bytes.len() as u64 / BLOCK_SIZE
    }
    fn name(&self) -> &str {
        "memory"
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        for (block, place) in (first.0..).zip(into) {
            let error = || {
                MediaError::from(DeviceError {
                    device: "memory".into(),
                    operation: "read",
                    offset: block * BLOCK_SIZE,
                    length: BLOCK_SIZE,
                    errno: 5,
                })
            };
            if self.bad.contains(&block) {
                return Err(error());
            }
            let from = self.bytes.chunks_exact(BLOCK_SIZE as usize).nth(block as usize);
            place.0.copy_from_slice(from.ok_or_else(error)?);
        }
        Ok(())
    }
    fn write(&self, _: DeviceBlock, _: &[AlignedBlock]) -> Result<(), MediaError> {
        unreachable!("check writes nothing")
    }
    fn flush_at(&self, _: &'static std::panic::Location<'static>) -> Result<(), MediaError> {
        Ok(())
    }
}

/// Cookie of a name that collides with no other; the pools of these tests have a hash key of zeros.
pub fn cookie(name: &[u8]) -> u64 {
    let hash = siphasher::sip::SipHasher13::new_with_key(&[0; 16]).hash(name);
    (hash & ((1 << 55) - 1)).max(1) << 8
}

/// The bytes of a pool with one device, and the locations of its structures.
#[derive(Clone)]
pub struct Image {
    pub pm: Vec<u8>,
    pub device: Vec<u8>,
    pub geometry: Geometry,
    pub next: u64,
    pub inode_node: u64,
    pub inode_pages: Vec<u64>,
    /// Radix nodes of the file: root, leaf 0, leaf 1.
    pub nodes: [u64; 3],
    /// Data blocks of the file: blocks 0, 1, 8, 21, 600.
    pub data: [u64; 5],
    /// First leaf page of each shard.
    pub leaves: Vec<u64>,
    /// Inner page of shard 2.
    pub inner: u64,
}

pub fn page(kind: PageKind, datum: u64) -> Owner {
    Owner::Page { kind, datum: datum as u32 }
}

pub fn file(ino: u64, block: u64, unwritten: bool) -> Owner {
    Owner::File { ino: Ino(ino), block: FileBlock(block), unwritten }
}

impl Image {
    /// An empty pool: the root directory alone, as mkfs makes it.
    pub fn empty() -> Image {
        Image::empty_with(MapKind::Radix)
    }

    /// As [`Self::empty`], in the layout of a pool with another map.
    fn empty_with(map: MapKind) -> Image {
        let geometry = Geometry::choose(2 << 20, 16).unwrap().with_map(map).unwrap();
        let mut image = Image {
            pm: vec![0; 2 << 20],
            device: vec![0; (DEVICE_BLOCKS * BLOCK_SIZE) as usize],
            geometry,
            next: geometry.first_pool_block().0,
            inode_node: 0,
            inode_pages: Vec::new(),
            nodes: [0; 3],
            data: [0; 5],
            leaves: Vec::new(),
            inner: 0,
        };
        for block in 0..geometry.first_pool_block().0 {
            image.own(block, page(PageKind::Fixed, 0));
        }
        image.superblock(|_| {});
        image.checkpoint(|_| {});
        image.device_header(|_| {});
        image.inode_node = image.take(page(PageKind::InodeNode, 0));
        image.put_u64(geometry.inode_root(), pack_root(1, image.inode_node));
        image.add_inode_page();
        image.slot(1, |slot| {
            (slot.mode, slot.nlink, slot.parent_or_rdev) = (0o040755.into(), 2.into(), 1.into());
        });
        image
    }

    /// A pool with each kind of structure.
    pub fn full() -> Image {
        Image::full_with(MapKind::Radix)
    }

    fn full_with(map: MapKind) -> Image {
        let mut image = Image::empty_with(map);
        image.add_inode_page();
        image.add_inode_page();
        image.slot(1, |slot| (slot.nlink, slot.size) = (3.into(), 4.into()));
        image.add_file();
        image.slot(DIRECTORY, |slot| {
            (slot.mode, slot.nlink, slot.parent_or_rdev) = (0o040700.into(), 2.into(), 1.into());
            slot.size = 1.into();
        });
        image.slot(LINK, |slot| {
            (slot.mode, slot.nlink, slot.size) = (0o120777.into(), 1.into(), 1030.into());
            slot.flags = flag::HAS_SYMLINK.into();
        });
        image.slot(CHILD, |slot| (slot.mode, slot.nlink) = (0o100600.into(), 2.into()));
        let orphan_block = image.take(file(70, 3, false));
        for (at, ino) in ORPHANS.into_iter().enumerate() {
            image.slot(ino, |slot| {
                slot.mode = 0o100600.into();
                slot.flags = (flag::ORPHAN | flag::HAS_INTENT).into();
                slot.generation = 9.into();
                if at == 0 {
                    slot.orphan_next = 70.into();
                } else {
                    slot.orphan_previous = 6.into();
                    slot.direct[3] = (orphan_block as u32).into();
                    slot.blocks = 1.into();
                }
            });
        }
        image.put_u64(image.geometry.orphan_head(6), 6);
        image.add_catalog();
        image.fill_device();
        image
    }

    fn add_file(&mut self) {
        self.data = [
            self.take(file(FILE, 0, false)),
            self.take(file(FILE, 1, true)),
            self.take(file(FILE, 8, false)),
            self.take(file(FILE, 21, false)),
            self.take(file(FILE, 600, true)),
        ];
        let node = page(PageKind::MapNode, FILE);
        self.nodes = [self.take(node), self.take(node), self.take(node)];
        let [root, low, high] = self.nodes;
        self.entry(root, 0, low);
        self.entry(root, 1, high);
        self.entry(low, 8, self.data[2]);
        self.entry(low, 21, self.data[3]);
        self.entry(high, 600 - 512, self.data[4] | ENTRY_UNWRITTEN);
        let data = self.data;
        self.slot(FILE, |slot| {
            (slot.mode, slot.nlink) = (0o100644.into(), 1.into());
            slot.size = (24 * BLOCK_SIZE).into();
            slot.blocks = 8.into();
            slot.flags = (flag::HAS_COLD | flag::HAS_XATTR).into();
            slot.direct[0] = (data[0] as u32).into();
            slot.direct[1] = (data[1] as u32 | 1 << 31).into();
            slot.root = pack_root(2, root).into();
        });
    }

    /// The same pool with the extent map: the file has a root and two leaves, the orphan an extent in its slot.
    pub fn with_extents(mut self) -> Image {
        self.geometry = self.geometry.with_map(MapKind::Extent).unwrap();
        self.superblock(|_| {});
        let extent = |at: usize, first: u64, unwritten: bool| {
            Extent { first, length: 1, block: PmBlock(self.data[at]), unwritten }.encode()
        };
        let low = [extent(0, 0, false), extent(1, 1, true), extent(2, 8, false)];
        let high = [extent(3, 21, false), extent(4, 600, true)];
        let [root, first, second] = self.nodes;
        let children = [encode_child(0, PmBlock(first)), encode_child(21, PmBlock(second))];
        self.extent_node(root, 1, &children);
        self.extent_node(first, 0, &low);
        self.extent_node(second, 0, &high);
        self.slot(FILE, |slot| {
            slot.direct = Default::default();
            slot.root = ExtentRoot::Tree { height: 2, block: PmBlock(root) }.encode().into();
        });
        self.slot(ORPHANS[1], |slot| {
            let block = slot.direct[3].get();
            slot.direct = [3, 1, block, 0, 0, 0, 0, 0].map(Into::into);
            slot.root = ExtentRoot::Inline(1).encode().into();
        });
        self
    }

    /// The same pool whose block table is the map: slots hold no words of a map, and no page is one of a map.
    pub fn with_table_map(mut self, map: MapKind) -> Image {
        self.geometry = self.geometry.with_map(map).unwrap();
        self.superblock(|_| {});
        self.nodes.into_iter().for_each(|node| self.own(node, Owner::Free));
        self.put_u64(self.geometry.map_reach(), 512);
        for ino in [FILE, ORPHANS[1]] {
            self.slot(ino, |slot| {
                slot.direct = Default::default();
                slot.root = 0.into();
            });
        }
        self
    }

    /// The pool of [`Self::full`] with a cuckoo table of all files; blocks 0 and 1 of the file are a run.
    pub fn with_cuckoo() -> Image {
        let mut image = Image::full_with(MapKind::Cuckoo);
        image.nodes.into_iter().for_each(|node| image.own(node, Owner::Free));
        let orphan = image.slot_place(ORPHANS[1]).plus(InodeSlot::DIRECT + 12).0 as usize;
        let orphan = u32::from_le_bytes(image.pm[orphan..][..4].try_into().unwrap());
        let data = image.data;
        image.own(data[1], file(FILE, 1, false));
        for ino in [FILE, ORPHANS[1]] {
            image.slot(ino, |slot| {
                slot.direct = Default::default();
                slot.root = 0.into();
            });
        }
        let entry = |block: u64, place: u64| BucketEntry {
            ino: Ino(FILE),
            block: FileBlock(block),
            place: PmBlock(place),
            unwritten: block == 600,
            before: u8::from(block == 1),
            behind: u8::from(block == 0),
        };
        for (block, place) in [0, 1, 8, 21, 600].into_iter().zip(data) {
            image.cuckoo_add(&entry(block, place), 0);
        }
        image.cuckoo_add(&BucketEntry { ino: Ino(ORPHANS[1]), ..entry(3, orphan.into()) }, 1);
        image
    }

    /// The same pool with a clustered table: the first eight blocks of files stay in slots.
    pub fn with_clustered() -> Image {
        let mut image = Image::full_with(MapKind::Clustered);
        image.nodes.into_iter().for_each(|node| image.own(node, Owner::Free));
        image.put_u64(image.geometry.map_reach(), 512);
        image.slot(FILE, |slot| slot.root = 0.into());
        for (block, place) in [8, 21, 600].into_iter().zip(image.data.into_iter().skip(2)) {
            image.clustered_add(
                FILE,
                block,
                Some(Place { block: PmBlock(place), unwritten: block == 600 }),
                0,
            );
        }
        image
    }

    pub fn lines(&self) -> Lines {
        Lines::new([0; 16], &self.geometry)
    }

    /// The address of the line at a distance from the home of a piece.
    pub fn clustered_line(&self, ino: u64, block: u64, distance: u64) -> PmOffset {
        let lines = self.lines();
        lines.at(lines.ahead(lines.home(Piece::of(Ino(ino), FileBlock(block))), distance))
    }

    /// Gives a block a place in the line at a distance from its home.
    pub fn clustered_add(&mut self, ino: u64, block: u64, place: Option<Place>, distance: u64) {
        let (piece, at) = (Piece::of(Ino(ino), FileBlock(block)), self.clustered_line(ino, block, distance));
        let bytes = &self.pm[at.0 as usize..][..64];
        let mut line = line_of(bytes.try_into().unwrap());
        assert!([0, piece.key()].contains(&line.key()), "the line is another's");
        if line.key() == 0 {
            line = Line::of(piece);
        }
        line.set((block % 16) as usize, place);
        self.put(at, &line.0.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    }

    pub fn buckets(&self) -> Buckets {
        Buckets::new([0; 16], &self.geometry)
    }

    /// Puts an entry into a free place of one of its two buckets.
    pub fn cuckoo_add(&mut self, entry: &BucketEntry, bucket: usize) {
        self.cuckoo_add_to(self.buckets().pair(entry.ino, entry.block)[bucket], entry.encode());
    }

    /// Puts words into a free place of a line.
    pub fn cuckoo_add_to(&mut self, line: u64, words: [u64; 2]) {
        let line = self.buckets().line(line);
        let is_free = |at: &PmOffset| self.pm[at.0 as usize..][..16] == [0; 16];
        let at = (0..4).map(|slot| line.plus(16 * slot)).find(is_free).unwrap();
        self.put_u64(at, words[0]);
        self.put_u64(at.plus(8), words[1]);
    }

    /// The address of the entry of a block of the file.
    pub fn cuckoo_place(&self, block: u64) -> PmOffset {
        let key = BucketEntry::key(Ino(FILE), FileBlock(block));
        let buckets = self.buckets();
        let word = |at: &PmOffset| u64::from_le_bytes(self.pm[at.0 as usize..][..8].try_into().unwrap());
        let lines = buckets.lines().flat_map(|line| (0..4).map(move |slot| (line, slot)));
        let mut places = lines.map(|(line, slot)| buckets.line(line).plus(16 * slot));
        places.find(|at| word(at) >> 1 == key).unwrap()
    }

    /// The entry of a block of the file.
    pub fn cuckoo_entry(&self, block: u64) -> BucketEntry {
        let at = self.cuckoo_place(block).0 as usize;
        let word = |at: usize| u64::from_le_bytes(self.pm[at..][..8].try_into().unwrap());
        BucketEntry::decode([word(at), word(at + 8)]).unwrap()
    }

    pub fn extent_node(&mut self, node: u64, level: u8, entries: &[Entry]) {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        let head = NodeHead::of(level, entries.len()).encode();
        let words = head.into_iter().chain(entries.as_flattened().iter().copied());
        bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        self.put(PmBlock(node).offset(), &bytes);
    }

    /// Changes words of a place of an extent node.
    pub fn extent_entry(&mut self, node: u64, place: u8, entry: Entry) {
        let at = entry_at(PmBlock(node), place);
        self.put_u64(at, entry[0]);
        self.put_u64(at.plus(8), entry[1]);
    }

    fn add_catalog(&mut self) {
        self.leaves = (0..4).map(|shard| self.take(page(PageKind::CatalogPage, shard))).collect();
        let second = self.take(page(PageKind::CatalogPage, 2));
        self.inner = self.take(page(PageKind::CatalogPage, 2));
        let dentry = |directory: u64, target: u64, kind: u8, name: &str| {
            let mut value = (target as u32).to_le_bytes().to_vec();
            value.push(kind);
            value.extend_from_slice(name.as_bytes());
            (Key::dentry(Ino(directory), cookie(name.as_bytes())), value)
        };
        self.leaf(
            self.leaves[1],
            &[
                dentry(1, FILE, 0o10, "file"),
                dentry(1, DIRECTORY, 0o04, "directory"),
                dentry(1, LINK, 0o12, "link"),
                dentry(1, CHILD, 0o10, "child"),
            ],
        );
        self.leaf(self.leaves[3], &[dentry(DIRECTORY, CHILD, 0o10, "other name")]);
        let mut attribute = 1100u32.to_le_bytes().to_vec();
        attribute.resize(1024, 1);
        let extent = ColdExtent {
            first: FileBlock(20),
            length: 4,
            device: DeviceId(0),
            start: DeviceBlock(3),
            unwritten: false,
            crcs: (0..4).map(|at| crc32c(&[at + 1; BLOCK_SIZE as usize])).collect(),
        };
        let xattr = |part| Key::xattr(Ino(FILE), b"user.a", part);
        let cold = (Key::cold(Ino(FILE), FileBlock(20)), extent.encode());
        let intent = |ino: u64| {
            let mut value = 9u32.to_le_bytes().to_vec();
            value.extend_from_slice(&100u64.to_le_bytes());
            (Key::intent(Ino(ino), FileBlock(2)), value)
        };
        self.leaf(self.leaves[2], &[(xattr(0), attribute), (xattr(1), vec![2; 80])]);
        self.leaf(second, &[cold.clone(), intent(6), intent(70)]);
        self.inner_page(self.inner, &[(&[], self.leaves[2]), (&cold.0.0, second)]);
        let mut bitmap = vec![0; 8];
        bitmap[0] = 0b0111_1100; // device blocks 3 to 6: the extent, 7: the summary
        self.leaf(
            self.leaves[0],
            &[
                (Key::chunk(0, DeviceId(0)), bitmap),
                (Key::symlink(Ino(LINK), 0), vec![b'a'; 1024]),
                (Key::symlink(Ino(LINK), 1), vec![b'b'; 6]),
            ],
        );
        for shard in [0, 1, 3] {
            self.put_u64(self.geometry.shard_root(shard), self.leaves[shard as usize]);
        }
        self.put_u64(self.geometry.shard_root(2), self.inner);
    }

    fn fill_device(&mut self) {
        for at in 0..4u8 {
            self.put_device(3 + u64::from(at), &[at + 1; BLOCK_SIZE as usize]);
        }
        let entries = [0u8, 1, 2, 3].map(|at| SummaryEntry {
            ino: Ino(FILE),
            generation: 0,
            block: FileBlock(20 + u64::from(at)),
            crc: crc32c(&[at + 1; BLOCK_SIZE as usize]),
            lsn: Lsn(1),
        });
        self.put_device(
            7,
            &encode_summary(&SEAL_KEY, (DeviceId(0), DeviceBlock(7)), DeviceBlock(3), &entries),
        );
    }

    pub fn put_device(&mut self, block: u64, bytes: &[u8]) {
        let at = (block * BLOCK_SIZE) as usize;
        self.device[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn leaf(&mut self, block: u64, cells: &[(Key, Vec<u8>)]) {
        let mut page = Page::new(0);
        let mut cells = cells.to_vec();
        cells.sort();
        for (index, (key, value)) in cells.iter().enumerate() {
            assert!(page.insert(index, &key.0, value));
        }
        self.put(PmBlock(block).offset(), &*page.0);
    }

    pub fn inner_page(&mut self, block: u64, cells: &[(&[u8], u64)]) {
        let mut page = Page::new(1);
        for (index, (key, child)) in cells.iter().enumerate() {
            assert!(page.insert(index, key, &child.to_le_bytes()));
        }
        self.put(PmBlock(block).offset(), &*page.0);
    }

    pub fn add_inode_page(&mut self) {
        let index = self.inode_pages.len() as u64;
        let block = self.take(page(PageKind::InodePage, index));
        self.inode_pages.push(block);
        self.entry(self.inode_node, index, block);
        self.put_u64(self.geometry.inode_pages(), index + 1);
    }

    pub fn take(&mut self, owner: Owner) -> u64 {
        let block = self.next;
        self.next += 1;
        self.own(block, owner);
        block
    }

    pub fn own(&mut self, block: u64, owner: Owner) {
        let at = self.geometry.table_entry(PmBlock(block));
        self.put_u64(at, owner.encode());
        self.put_u64(at.plus(8), if owner == Owner::Free { 0 } else { MASK_FULL });
    }

    pub fn entry(&mut self, node: u64, index: u64, value: u64) {
        self.put_u64(PmBlock(node).offset().plus(8 * index), value);
    }

    pub fn slot_place(&self, ino: u64) -> PmOffset {
        PmBlock(self.inode_pages[(ino / 32) as usize]).offset().plus(ino % 32 * SLOT_SIZE)
    }

    pub fn slot(&mut self, ino: u64, change: impl FnOnce(&mut InodeSlot)) {
        let at = self.slot_place(ino);
        let bytes = &self.pm[at.0 as usize..][..SLOT_SIZE as usize];
        let mut slot = InodeSlot::read_from_bytes(bytes).unwrap();
        change(&mut slot);
        self.put(at, slot.as_bytes());
    }

    pub fn catalog_page(&mut self, block: u64, change: impl FnOnce(&mut Page)) {
        let at = (block * BLOCK_SIZE) as usize;
        let mut page = Page(Box::new(self.pm[at..at + 4096].try_into().unwrap()));
        change(&mut page);
        self.pm[at..at + 4096].copy_from_slice(&*page.0);
    }

    /// The index of a name's entry in a leaf.
    pub fn find_name(&mut self, block: u64, name: &[u8]) -> usize {
        let mut found = None;
        self.catalog_page(block, |page| {
            found = (0..page.count()).find(|index| page.cell(*index).unwrap().1[5..] == *name);
        });
        found.unwrap()
    }

    /// Adds a cell in key order.
    pub fn add_key(&mut self, block: u64, key: &Key, value: &[u8]) {
        self.catalog_page(block, |page| {
            let at = page.search(&key.0).unwrap().unwrap_err();
            assert!(page.insert(at, &key.0, value));
        });
    }

    /// Changes a value of the same length.
    pub fn change_value(&mut self, block: u64, index: usize, change: impl FnOnce(&mut [u8])) {
        self.catalog_page(block, |page| {
            let (at, length) = page.value_place(index).unwrap();
            change(&mut page.0[at..at + length]);
        });
    }

    pub fn superblock(&mut self, change: impl FnOnce(&mut Superblock)) {
        let mut superblock = Superblock::new(&self.geometry);
        superblock.uuid = UUID;
        superblock.set_seal_secret(SECRET);
        (superblock.policy, superblock.data_mode) = (3, 1);
        superblock.device_count = 1;
        let row = &mut superblock.devices[0];
        (row.tier, row.class, row.uuid, row.blocks) = (1, 1, [9; 16], DEVICE_BLOCKS.into());
        change(&mut superblock);
        superblock.seal();
        for copy in SUPERBLOCK_COPIES {
            self.put(copy.offset(), superblock.as_bytes());
        }
    }

    pub fn checkpoint(&mut self, change: impl FnOnce(&mut Checkpoint)) {
        let mut point = Checkpoint {
            lsn: Lsn(10),
            epoch: 3,
            sequence: 4,
            clean: false,
            tails: vec![0; self.geometry.lane_count as usize],
        };
        change(&mut point);
        for copy in CHECKPOINT_COPIES {
            self.put(copy.offset(), &point.encode(&UUID));
        }
    }

    pub fn device_header(&mut self, change: impl FnOnce(&mut DeviceHeader)) {
        let mut header = DeviceHeader::read_from_bytes(&[0; 64]).unwrap();
        (header.magic, header.version, header.tier, header.role) = (DEVICE_MAGIC, 1.into(), 1, 1);
        (header.pool_uuid, header.device_uuid, header.blocks) = (UUID, [9; 16], DEVICE_BLOCKS.into());
        change(&mut header);
        self.put_device(0, &header.encode());
    }

    /// Puts a record at a position of a lane; returns the next position.
    pub fn record(
        &mut self,
        lane: u32,
        position: u64,
        lsn: u64,
        checks: &[(PmOffset, u32, u32)],
        writes: &[(PmOffset, &[u8])],
    ) -> u64 {
        let mut record = vec![0; HEADER_SIZE];
        for (offset, length, crc) in checks {
            record.extend_from_slice(&offset.0.to_le_bytes());
            record.extend_from_slice(&length.to_le_bytes());
            record.extend_from_slice(&crc.to_le_bytes());
        }
        for (offset, bytes) in writes {
            record.extend_from_slice(&(offset.0 | (bytes.len() as u64) << 48).to_le_bytes());
            record.extend_from_slice(bytes);
            record.resize(record.len().next_multiple_of(8), 0);
        }
        let seed = record_seed(&UUID, lane, position, 3);
        seal(&mut record, Lsn(lsn), writes.len() as u16, checks.len() as u16, seed, 0);
        for (at, byte) in (position..).zip(&record) {
            let place = self.geometry.lane_offset(lane).plus(at % self.geometry.lane_size);
            self.pm[place.0 as usize] = *byte;
        }
        position + (record.len() as u64).next_multiple_of(64)
    }

    /// Sets the checksum word of a metadata page to the page's current content.
    pub fn cover(&mut self, page: u64) {
        let bytes: [u8; BLOCK_SIZE as usize] =
            self.pm[(page * BLOCK_SIZE) as usize..][..4096].try_into().unwrap();
        let crc = terrace_format::page_checksum::page_checksum(&UUID, PmBlock(page), &bytes);
        let word = terrace_format::page_checksum::ChecksumWord::Covers(crc).encode();
        self.put_u64(self.geometry.checksum_word(PmBlock(page)), word);
    }

    /// Puts an empty record that witnesses the position of a lane.
    pub fn witness(&mut self, lane: u32, position: u64, lsn: u64, witness: u64) {
        let mut record = vec![0; HEADER_SIZE];
        let seed = record_seed(&UUID, lane, position, 3);
        seal(&mut record, Lsn(lsn), 0, 0, seed, witness);
        self.put(self.geometry.lane_offset(lane).plus(position % self.geometry.lane_size), &record);
    }

    pub fn put(&mut self, offset: PmOffset, bytes: &[u8]) {
        self.pm[offset.0 as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn word(&self, offset: PmOffset) -> u64 {
        u64::from_le_bytes(*self.pm[offset.0 as usize..].first_chunk().unwrap())
    }

    pub fn put_u64(&mut self, offset: PmOffset, word: u64) {
        self.put(offset, &word.to_le_bytes());
    }

    pub fn devices(&self) -> Vec<Option<Arc<dyn BlockMedium>>> {
        vec![Some(Arc::new(MemDevice { bytes: self.device.clone(), bad: Vec::new() }))]
    }

    pub fn view(&self) -> PoolView {
        PoolView::new(Arc::new(MemPm(RwLock::new(self.pm.clone()))), self.devices())
    }

    pub fn check(&self) -> Report {
        let options = Options { read_cold: true, progress: None, given: &[] };
        check(&self.view(), &options)
    }
}
