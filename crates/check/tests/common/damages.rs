//! Single damages to [`Image::full`], with the code that each of them gives.

use super::*;
use terrace_check::Code::{self, *};
use terrace_format::checkpoint::FAR;
use terrace_format::geometry::ROOTS_BLOCK;
use terrace_format::page_checksum::ChecksumWord as Word;
use terrace_format::record::Witness;
use terrace_format::version::{DATA_CHECKSUMS, METADATA_BELOW};

pub type Damage = (Code, fn(&mut Image));

pub fn dentry(target: u64, kind: u8, name: &[u8]) -> Vec<u8> {
    let mut value = (target as u32).to_le_bytes().to_vec();
    value.push(kind);
    value.extend_from_slice(name);
    value
}

/// Adds an entry to a directory whose keys lie in one leaf.
pub fn add_name(i: &mut Image, directory: u64, value: &[u8]) {
    let leaf = i.leaves[directory as usize % 4];
    i.add_key(leaf, &Key::dentry(Ino(directory), cookie(&value[5..]) + 1), value);
}

/// Changes the value of the entry "file" of the root directory.
pub fn change_file(i: &mut Image, change: impl FnOnce(&mut [u8])) {
    let index = i.find_name(i.leaves[1], b"file");
    i.change_value(i.leaves[1], index, change);
}

/// Removes the entry "directory" of the root directory.
pub fn forget_directory(i: &mut Image) {
    let index = i.find_name(i.leaves[1], b"directory");
    i.catalog_page(i.leaves[1], |page| page.remove(index).unwrap());
}

pub fn other_extent(start: u64) -> ColdExtent {
    ColdExtent {
        first: FileBlock(40),
        length: 2,
        device: DeviceId(0),
        start: DeviceBlock(start),
        unwritten: true,
        crcs: Vec::new(),
    }
}

/// The second leaf of shard 2.
pub fn second_leaf(i: &Image) -> u64 {
    i.leaves[3] + 1
}

pub const LOG: &[Damage] = &[
    (NotAPool, |i| i.pm[..4 * BLOCK_SIZE as usize].fill(0)),
    (Unsupported, |i| i.superblock(|s| s.version = 2.into())),
    (Unsupported, |i| i.superblock(|s| s.features.incompatible = (1 << 40).into())),
    (SuperblockCopy, |i| i.put(SUPERBLOCK_COPIES[1].offset().plus(50), b"damage")),
    (SuperblockLost, |i| {
        i.put(SUPERBLOCK_COPIES[0].offset().plus(50), b"damage");
        i.put(SUPERBLOCK_COPIES[1].offset(), b"damage");
    }),
    (SuperblocksDiffer, |i| {
        let first = i.pm[..8192].to_vec();
        i.superblock(|s| s.label[0] = b'x');
        i.put(PmOffset(0), &first);
    }),
    (PmTooSmall, |i| i.pm.truncate(1 << 20)),
    (DeviceRow, |i| i.superblock(|s| s.devices[0].tier = 0)),
    (RepairInterrupted, |i| i.superblock(|s| s.features.incompatible = 3.into())),
    (CheckpointCopy, |i| i.put(CHECKPOINT_COPIES[0].offset().plus(32), b"x")),
    (CheckpointLost, |i| CHECKPOINT_COPIES.map(|copy| i.put(copy.offset(), b"x")).into_iter().collect()),
    (CheckpointsDiffer, |i| {
        let second = i.pm[5 * 4096..6 * 4096].to_vec();
        i.checkpoint(|point| point.epoch = 9);
        i.put(CHECKPOINT_COPIES[1].offset(), &second);
    }),
    (CheckpointClean, |i| {
        i.checkpoint(|point| point.clean = true);
        i.record(0, 0, 20, &[], &[]);
    }),
    // Check accepted these far numbers, which mount refuses.
    (CheckpointNumber, |i| i.checkpoint(|point| point.lsn = Lsn(FAR))),
    (CheckpointNumber, |i| i.checkpoint(|point| point.epoch = FAR)),
    (CheckpointNumber, |i| i.checkpoint(|point| point.sequence = FAR)),
    (LaneTail, |i| i.checkpoint(|point| point.tails[0] = FAR)),
    (LaneTail, |i| i.checkpoint(|point| point.tails[0] = u64::MAX - 63)),
    (LaneTail, |i| i.checkpoint(|point| point.tails[0] = 3)),
    (RecordTarget, |i| _ = i.record(0, 0, 20, &[], &[(PmOffset(0), &[0; 8])])),
    (RecordLsn, |i| _ = i.record(0, 0, FAR, &[], &[])),
    (RecordLsn, |i| {
        i.record(0, 0, 20, &[], &[]);
        i.record(1, 0, 20, &[], &[]);
    }),
    // A flipped bit once ended the lane without a finding, and all records behind it were lost.
    (LaneDamaged, |i| {
        let second = i.record(0, 0, 20, &[], &[]);
        i.record(0, second, 21, &[], &[(ROOTS_BLOCK.offset().plus(4088), &[0; 8])]);
        flip_record(i, 0, 0, 9);
    }),
    (RecordInDoubt, |i| {
        // The stores of the damaged record are not in place.
        i.record(0, 0, 20, &[], &[(ROOTS_BLOCK.offset().plus(4088), &[7; 8])]);
        flip_record(i, 0, 0, 42);
    }),
    (LaneDamaged, |i| {
        let witness = Witness { lane: 0, position: 64 }.encode();
        i.witness(1, 0, 20, witness);
    }),
    (RecordBit, |i| {
        i.record(0, 0, 20, &[], &[(ROOTS_BLOCK.offset().plus(4088), &[0; 8])]);
        flip_record(i, 0, 0, 9);
    }),
];

/// Flips the lowest bit of a byte of a lane.
fn flip_record(i: &mut Image, lane: u32, position: u64, byte: u64) {
    let place = i.geometry.lane_offset(lane).plus((position + byte) % i.geometry.lane_size);
    i.pm[place.0 as usize] ^= 1;
}

/// A checksum of 100 bytes, wrong.
const DATA_CHECKSUM: u64 = 100 << 32 | 7;

pub const BLOCKS: &[Damage] = &[
    (PageChecksum, |i| {
        i.cover(i.inode_pages[0]);
        let place = i.slot_place(FILE).0 as usize + 8;
        i.pm[place] ^= 1;
    }),
    (PageChecksum, |i| {
        i.cover(ROOTS_BLOCK.0);
        i.pm[ROOTS_BLOCK.offset().0 as usize + 4090] ^= 1;
    }),
    (PageChecksum, |i| {
        let page = i.geometry.table_offset().0 / BLOCK_SIZE;
        i.cover(page);
        i.put_u64(i.geometry.checksum_word(PmBlock(page)), Word::Covers(7).encode());
    }),
    (ChecksumWord, |i| {
        i.cover(i.inode_pages[0]);
        let place = i.geometry.checksum_word(PmBlock(i.inode_pages[0])).0 as usize;
        i.pm[place] ^= 4;
    }),
    (TableOwner, |i| i.put_u64(i.geometry.table_entry(PmBlock(400)), 1)),
    (TableMask, |i| i.put_u64(i.geometry.table_entry(PmBlock(i.data[0])).plus(8), 0)),
    (TableMask, |i| i.put_u64(i.geometry.table_entry(PmBlock(i.nodes[0])).plus(8), 1)),
    (ShadowAlone, |i| i.put_u64(i.geometry.table_entry(PmBlock(i.data[0])).plus(8), 1)),
    (TableMask, |i| {
        let at = i.geometry.table_entry(PmBlock(i.data[0]));
        i.put_u64(at, i.word(at) | 1);
        i.put_u64(at.plus(8), DATA_CHECKSUM);
    }),
    (DataChecksum, |i| {
        i.superblock(|s| s.features.incompatible |= DATA_CHECKSUMS);
        let at = i.geometry.table_entry(PmBlock(i.data[0]));
        i.put_u64(at, i.word(at) | 1);
        i.put_u64(at.plus(8), DATA_CHECKSUM);
    }),
    (TableFixed, |i| i.own(9, Owner::Free)),
    (TableFixed, |i| i.own(400, page(PageKind::Fixed, 0))),
    (BlockRange, |i| i.slot(FILE, |slot| slot.direct[2] = 5.into())),
    (BlockRange, |i| i.entry(i.nodes[0], 7, 1 << 60)),
    (BlockTwice, |i| i.slot(FILE, |slot| slot.direct[2] = slot.direct[0])),
    (BlockTwice, |i| i.entry(i.nodes[0], 7, i.nodes[0])),
    (BlockOwner, |i| i.own(i.data[2], file(FILE, 9, false))),
    (BlockOwner, |i| i.own(i.data[4], file(FILE, 600, false))),
    (BlockOwner, |i| i.own(i.data[0], Owner::Free)),
    (BlockOwner, |i| i.own(i.nodes[1], page(PageKind::MapNode, 3))),
    (BlockOwner, |i| i.own(i.leaves[2], page(PageKind::CatalogPage, 3))),
    (BlockOwner, |i| i.own(i.inode_pages[1], page(PageKind::InodePage, 2))),
    (BlockLeaked, |i| i.own(400, file(FILE, 30, false))),
    (BlockLeaked, |i| i.own(400, page(PageKind::CatalogPage, 0))),
    (BlockLeaked, |i| i.entry(i.nodes[1], 8, 0)),
];

pub const INODES: &[Damage] = &[
    (InodeRoot, |i| i.put_u64(i.geometry.inode_root(), pack_root(5, i.inode_node))),
    (InodeRoot, |i| i.put_u64(i.geometry.inode_root(), 0)),
    (InodePageCount, |i| i.put_u64(i.geometry.inode_pages(), u64::MAX)),
    (InodePageMissing, |i| i.put_u64(i.geometry.inode_pages(), 4)),
    (InodePageMissing, |i| i.entry(i.inode_node, 1, 0)),
    (InodePageExtra, |i| i.put_u64(i.geometry.inode_pages(), 2)),
    (RootDirectory, |i| i.slot(1, |slot| slot.mode = 0o100600.into())),
    (RootDirectory, |i| i.slot(0, |slot| slot.mode = 0o100600.into())),
    (SlotFree, |i| i.slot(20, |slot| slot.direct[0] = 99.into())),
    (SlotMode, |i| i.slot(CHILD, |slot| slot.mode = 0o170600.into())),
    (SlotFlags, |i| i.slot(CHILD, |slot| slot.flags = (1 << 20).into())),
    (SlotSize, |i| i.slot(CHILD, |slot| slot.size = u64::MAX.into())),
    (SlotMap, |i| i.slot(LINK, |slot| slot.direct[0] = 99.into())),
    (SlotSpare, |i| i.slot(CHILD, |slot| slot.spare = 1.into())),
    (MapRoot, |i| i.slot(FILE, |slot| slot.root = pack_root(9, 100).into())),
    (MapRoot, |i| i.slot(FILE, |slot| slot.root = pack_root(0, 100).into())),
    (MapIndex, |i| i.entry(i.nodes[1], 3, i.data[0])),
    (MapBeyondSize, |i| i.slot(FILE, |slot| slot.size = (21 * BLOCK_SIZE).into())),
    (MapBlockCount, |i| i.slot(FILE, |slot| slot.blocks = 9.into())),
];

/// Damages to [`Image::with_extents`].
pub const EXTENTS: &[Damage] = &[
    (ExtentRoot, |i| i.slot(FILE, |slot| slot.root = pack_root(13, 100).into())),
    (ExtentRoot, |i| i.slot(FILE, |slot| slot.root = 3.into())),
    (ExtentRoot, |i| i.slot(FILE, |slot| slot.direct[7] = 1.into())),
    (ExtentRoot, |i| i.slot(ORPHANS[1], |slot| slot.direct[4] = 9.into())),
    (ExtentNode, |i| i.put(PmBlock(i.nodes[1]).offset(), b"damage")),
    (ExtentNode, |i| i.put(PmBlock(i.nodes[1]).offset().plus(17), &[0])),
    (ExtentNode, |i| i.put(PmBlock(i.nodes[2]).offset().plus(1), &[1])),
    (ExtentNode, |i| i.put(PmBlock(i.nodes[0]).offset(), &[0])),
    (ExtentNode, |i| i.extent_entry(i.nodes[0], 1, [0, i.nodes[2]])),
    (ExtentSpan, |i| i.extent_entry(i.nodes[1], 1, [1, i.data[1] | 1 << 63])),
    (ExtentSpan, |i| i.extent_entry(i.nodes[1], 0, [9 << 32, i.data[0]])),
    (ExtentSpan, |i| i.extent_entry(i.nodes[1], 2, [8 | 14 << 32, i.data[2]])),
    (ExtentSpan, |i| i.extent_entry(i.nodes[2], 0, [21 | 1 << 32, 1 << 39])),
    (ExtentSpan, |i| i.extent_entry(i.nodes[2], 0, [20 | 1 << 32, i.data[3]])),
    (ExtentSpan, |i| i.slot(ORPHANS[1], |slot| slot.direct[1] = 0.into())),
    (BlockRange, |i| i.extent_entry(i.nodes[0], 0, [0, 1 << 40])),
    (BlockTwice, |i| i.extent_entry(i.nodes[0], 1, [21, i.nodes[1]])),
    (BlockTwice, |i| i.extent_entry(i.nodes[2], 0, [21 | 1 << 32, i.data[0]])),
    (BlockOwner, |i| i.own(i.data[3], file(FILE, 22, false))),
];

/// Damages to [`Image::with_table_map`].
pub const TABLE_MAP: &[Damage] = &[
    (HashTwice, |i| i.own(i.nodes[0], file(FILE, 0, false))),
    (HashFar, |i| i.put_u64(i.geometry.map_reach(), 1)),
    (HashFar, |i| i.own(i.nodes[0], file(FILE, u64::from(u32::MAX), false))),
    (HashReach, |i| i.put_u64(i.geometry.map_reach(), 0)),
    (HashReach, |i| i.put_u64(i.geometry.map_reach(), 1 << 40)),
    (HashSlot, |i| i.slot(FILE, |slot| slot.direct[3] = 20.into())),
    (HashSlot, |i| i.slot(ORPHANS[1], |slot| slot.root = 1.into())),
    (SlotMap, |i| i.own(i.nodes[0], file(LINK, 0, false))),
    (BlockLeaked, |i| i.own(i.nodes[0], file(50, 0, false))),
    (MapBlockCount, |i| i.own(i.nodes[0], file(CHILD, 0, true))),
];

/// Damages to [`Image::with_clustered`].
pub const CLUSTERED: &[Damage] = &[
    (ClusterKey, |i| i.put_u64(i.clustered_line(FILE, 8, 0), 2)),
    (ClusterKey, |i| i.put_u64(i.clustered_line(FILE, 8, 0), file(FILE, 5, false).encode())),
    (ClusterKey, |i| i.put_u64(i.clustered_line(FILE, 8, 0), file(FILE, 0, true).encode())),
    (ClusterKey, |i| i.put_u64(i.clustered_line(FILE, 21, 0), page(PageKind::MapNode, FILE).encode())),
    (ClusterValue, |i| i.clustered_add(FILE, 3, at(i.data[0]), 0)),
    (ClusterValue, |i| i.clustered_add(FILE, 21, at(3), 0)),
    (ClusterValue, |i| i.clustered_add(FILE, 21, at((1 << 27) - 1), 0)),
    (ClusterValue, |i| i.clustered_add(FILE, 21, None, 0)),
    (ClusterValue, |i| i.clustered_add(FILE, 800, None, 0)),
    (ClusterFar, |i| {
        i.put_u64(i.clustered_line(FILE, 600, 0), 0);
        i.clustered_add(FILE, 600, Some(Place { block: PmBlock(i.data[4]), unwritten: true }), 3);
        i.put_u64(i.geometry.map_reach(), 3);
    }),
    (ClusterTwice, |i| i.clustered_add(FILE, 8, at(i.data[2]), 1)),
    (ClusterTwice, |i| i.clustered_add(FILE, 8, at(i.data[3]), 2)),
    (ClusterInode, |i| i.clustered_add(50, 20, at(i.data[2]), 0)),
    (ClusterReach, |i| i.put_u64(i.geometry.map_reach(), 0)),
    (ClusterReach, |i| i.put_u64(i.geometry.map_reach(), 1 << 40)),
    (ClusterSlot, |i| i.slot(ORPHANS[1], |slot| slot.root = 1.into())),
    (SlotMap, |i| i.clustered_add(LINK, 20, at(i.data[2]), 0)),
    (BlockLeaked, |i| i.put_u64(i.clustered_line(FILE, 21, 0), 0)),
    (BlockTwice, |i| i.clustered_add(FILE, 9, at(i.data[2]), 0)),
    (BlockOwner, |i| {
        let block = i.nodes[0] as u32;
        i.slot(FILE, |slot| slot.direct[2] = block.into());
    }),
];

/// A place of a written block.
fn at(block: u64) -> Option<Place> {
    Some(Place { block: PmBlock(block), unwritten: false })
}

/// Damages to [`Image::with_cuckoo`].
pub const CUCKOO: &[Damage] = &[
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8), 2)),
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8), page(PageKind::MapNode, FILE).encode())),
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8), 0)),
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8).plus(8), 5)),
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8).plus(8), 1 << 40)),
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8).plus(8), i.data[2] | 9 << 48)),
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8).plus(8), i.data[2] | 8 << 52)),
    (CuckooEntry, |i| i.put_u64(i.cuckoo_place(8).plus(8), i.data[2] | 1 << 56)),
    (CuckooPlace, |i| {
        let (words, pair) = (i.cuckoo_entry(21).encode(), i.buckets().pair(Ino(FILE), FileBlock(21)));
        i.put(i.cuckoo_place(21), &[0; 16]);
        i.cuckoo_add_to((0..).find(|line| !pair.contains(line)).unwrap(), words);
    }),
    (CuckooTwice, |i| i.cuckoo_add(&i.cuckoo_entry(8), 1)),
    (CuckooTwice, |i| i.cuckoo_add_to(i.buckets().stash().start, i.cuckoo_entry(600).encode())),
    (CuckooRun, |i| i.put_u64(i.cuckoo_place(0).plus(8), i.data[0])),
    (CuckooRun, |i| i.put_u64(i.cuckoo_place(1).plus(8), i.data[1] | 1 << 48 | 1 << 52)),
    (CuckooRun, |i| i.put_u64(i.cuckoo_place(21).plus(8), i.data[3] | 1 << 52)),
    (CuckooRun, |i| i.put(i.cuckoo_place(1), &[0; 16])),
    (CuckooInode, |i| i.cuckoo_add(&BucketEntry { ino: Ino(50), ..i.cuckoo_entry(8) }, 0)),
    (CuckooSlot, |i| i.slot(FILE, |slot| slot.direct[3] = 20.into())),
    (CuckooSlot, |i| i.slot(ORPHANS[1], |slot| slot.root = 1.into())),
    (SlotMap, |i| i.cuckoo_add(&BucketEntry { ino: Ino(LINK), ..i.cuckoo_entry(8) }, 0)),
    (BlockTwice, |i| i.put_u64(i.cuckoo_place(21).plus(8), i.data[2])),
    (BlockOwner, |i| i.own(i.data[3], file(FILE, 22, false))),
    (BlockLeaked, |i| i.put(i.cuckoo_place(8), &[0; 16])),
    (MapBlockCount, |i| i.put(i.cuckoo_place(600), &[0; 16])),
];

pub const CATALOG: &[Damage] = &[
    (CatalogRoot, |i| i.put_u64(i.geometry.shard_root(1), 1 << 56 | i.leaves[1])),
    (CatalogPage, |i| i.put(PmBlock(i.leaves[1]).offset(), b"no")),
    (CatalogLevel, |i| i.catalog_page(i.leaves[2], |page| page.0[3] = 1)),
    (CatalogLevel, |i| i.catalog_page(i.inner, |page| *page = Page::new(1))),
    (CatalogCell, |i| i.catalog_page(i.leaves[1], |page| page.0[16..18].fill(0xff))),
    (CatalogCell, |i| i.catalog_page(i.leaves[1], |page| page.0.copy_within(16..18, 18))),
    (CatalogSpace, |i| i.catalog_page(i.leaves[1], |page| page.0[8] = 1)),
    (CatalogOrder, |i| {
        i.catalog_page(i.leaves[1], |page| {
            let first = [page.0[16], page.0[17]];
            page.0.copy_within(18..20, 16);
            page.0[18..20].copy_from_slice(&first);
        })
    }),
    (CatalogBound, |i| i.inner_page(i.inner, &[(&[], i.leaves[2]), (&[9; 5], second_leaf(i))])),
    (CatalogFirstKey, |i| {
        let key = Key::cold(Ino(FILE), FileBlock(20)).0;
        i.inner_page(i.inner, &[(&[0], i.leaves[2]), (&key, second_leaf(i))]);
    }),
    (CatalogShard, |i| i.add_key(i.leaves[1], &Key::symlink(Ino(LINK), 2), b"")),
    (KeyUnknown, |i| i.add_key(i.leaves[1], &Key(vec![0, 0, 0, 1, 9]), b"")),
    (KeyUnknown, |i| i.add_key(i.leaves[1], &Key(vec![0, 0, 0, 1, 1, 5]), b"")),
    (KeyInode, |i| i.add_key(i.leaves[1], &Key::symlink(Ino(1), 0), b"target")),
    (KeyInode, |i| i.add_key(i.leaves[1], &Key::xattr(Ino(33), b"user.x", 0), &[0; 4])),
    (KeyFlag, |i| i.slot(FILE, |slot| slot.flags = flag::HAS_XATTR.into())),
    (KeyFlag, |i| i.slot(LINK, |slot| slot.flags = 0.into())),
    (KeyValue, |i| i.add_key(i.leaves[1], &Key::dentry(Ino(1), 9), b"abc")),
    (KeyValue, |i| i.change_value(second_leaf(i), 0, |value| value[0] = 200)),
    (DentryName, |i| add_name(i, 1, &dentry(CHILD, 0o10, b"a/b"))),
    (DentryName, |i| add_name(i, 1, &dentry(CHILD, 0o10, b".."))),
    (DentryCookie, |i| i.add_key(i.leaves[1], &Key::dentry(Ino(1), 1 << 63), &dentry(CHILD, 0o10, b"x"))),
    (DentryDuplicate, |i| add_name(i, 1, &dentry(CHILD, 0o10, b"child"))),
    (DentryTarget, |i| change_file(i, |value| value[0] = 33)),
    (DentryType, |i| change_file(i, |value| value[4] = 0o04)),
    (XattrParts, |i| i.change_value(i.leaves[2], 0, |value| value[0] ^= 1)),
    (XattrParts, |i| i.catalog_page(i.leaves[2], |page| page.remove(0).unwrap())),
    (SymlinkTarget, |i| i.catalog_page(i.leaves[0], |page| page.remove(1).unwrap())),
    (SymlinkTarget, |i| i.slot(LINK, |slot| slot.size = 9.into())),
    (IntentRange, |i| i.change_value(second_leaf(i), 1, |value| value[4] = 1)),
    (IntentGeneration, |i| i.slot(70, |slot| slot.generation = 8.into())),
    (IntentCount, |i| {
        for first in 10..14 {
            let mut value = 9u32.to_le_bytes().to_vec();
            value.extend_from_slice(&20u64.to_le_bytes());
            i.add_key(second_leaf(i), &Key::intent(Ino(6), FileBlock(first)), &value);
        }
    }),
];

pub const LINKS: &[Damage] = &[
    (LinkCount, |i| i.slot(CHILD, |slot| slot.nlink = 3.into())),
    (LinkCount, |i| i.slot(20, |slot| slot.mode = 0o100600.into())),
    (DirectoryLinks, |i| i.slot(1, |slot| slot.nlink = 2.into())),
    (DirectoryNames, |i| add_name(i, 1, &dentry(DIRECTORY, 4, b"x"))),
    (DirectoryNames, |i| add_name(i, 1, &dentry(1, 4, b"x"))),
    (DirectoryParent, |i| i.slot(DIRECTORY, |slot| slot.parent_or_rdev = 2.into())),
    (DirectoryParent, |i| i.slot(1, |slot| slot.parent_or_rdev = 2.into())),
    (DirectoryUnreachable, |i| forget_directory(i)),
    (DirectoryUnreachable, |i| {
        // A cycle: the directory names itself.
        forget_directory(i);
        add_name(i, DIRECTORY, &dentry(DIRECTORY, 4, b"x"));
    }),
    (DirectorySize, |i| i.slot(1, |slot| slot.size = 9.into())),
    (OrphanHead, |i| i.put_u64(i.geometry.orphan_head(3), 1 << 40)),
    (OrphanMember, |i| i.put_u64(i.geometry.orphan_head(3), CHILD)),
    (OrphanMember, |i| i.slot(70, |slot| slot.nlink = 1.into())),
    (OrphanLink, |i| i.slot(70, |slot| slot.orphan_previous = 0.into())),
    (OrphanLink, |i| i.slot(70, |slot| slot.orphan_next = 6.into())),
    (OrphanLink, |i| i.slot(70, |slot| slot.orphan_next = 500.into())),
    (OrphanLost, |i| i.slot(6, |slot| slot.orphan_next = 0.into())),
];

pub const COLD: &[Damage] = &[
    (DeviceHeader, |i| i.put_device(0, b"x")),
    (DeviceHeader, |i| i.device_header(|header| header.index = 1)),
    (DeviceHeader, |i| i.device_header(|header| header.pool_uuid = [1; 16])),
    (DeviceTooSmall, |i| i.device.truncate(30 * BLOCK_SIZE as usize)),
    (ColdRange, |i| {
        i.add_key(second_leaf(i), &Key::cold(Ino(FILE), FileBlock(40)), &other_extent(40).encode())
    }),
    (KeyValue, |i| {
        i.add_key(second_leaf(i), &Key::cold(Ino(FILE), FileBlock(40)), &other_extent(u64::MAX).encode())
    }),
    (ColdOverlap, |i| {
        i.add_key(second_leaf(i), &Key::cold(Ino(FILE), FileBlock(22)), &other_extent(30).encode())
    }),
    (ColdShared, |i| {
        i.add_key(second_leaf(i), &Key::cold(Ino(FILE), FileBlock(40)), &other_extent(6).encode())
    }),
    (ColdUnmarked, |i| i.change_value(i.leaves[0], 0, |bitmap| bitmap[0] = 0b0111_1000)),
    (ColdChecksum, |i| i.put_device(5, b"x")),
    (ColdChecksum, |i| i.change_value(second_leaf(i), 0, |value| value[16] ^= 1)),
    (MetadataPlace, |i| {
        i.superblock(|s| s.features.incompatible |= METADATA_BELOW);
        i.entry(i.inode_node, 1, 9 << 56 | 3);
    }),
    (MetadataPlace, |i| {
        i.superblock(|s| s.features.incompatible |= METADATA_BELOW);
        i.entry(i.inode_node, 2, 1 << 56);
    }),
    (MetadataChecksum, |i| {
        i.superblock(|s| s.features.incompatible |= METADATA_BELOW);
        i.entry(i.inode_node, 1, 1 << 56 | 12);
    }),
    // A bitmap has whole words, but this chunk has only 16 blocks.
    (ChunkRange, |i| i.change_value(i.leaves[0], 0, |bitmap| bitmap[2] = 1)),
    (ChunkRange, |i| i.add_key(i.leaves[0], &Key::chunk(4, DeviceId(0)), &[1])),
    (ChunkRange, |i| i.add_key(i.leaves[0], &Key::chunk(0, DeviceId(7)), &[1])),
    (KeyValue, |i| i.add_key(i.leaves[0], &Key::chunk(4, DeviceId(0)), &[0; 3])),
    (ChunkLeaked, |i| i.change_value(i.leaves[0], 0, |bitmap| bitmap[1] = 1)),
    (ChunkLeaked, |i| i.put_device(7, b"x")),
    // Beyond the device.
    (MetadataPlace, |i| {
        i.superblock(|s| s.features.incompatible = (s.features.incompatible.get() | METADATA_BELOW).into());
        i.entry(i.inode_node, 1, 1 << 56 | 1 << 39);
    }),
    (MetadataChecksum, |i| {
        i.superblock(|s| s.features.incompatible = (s.features.incompatible.get() | METADATA_BELOW).into());
        i.entry(i.inode_node, 1, 1 << 56 | 6);
    }),
];

/// All tables.
pub const ALL: [&[Damage]; 6] = [LOG, BLOCKS, INODES, CATALOG, LINKS, COLD];
