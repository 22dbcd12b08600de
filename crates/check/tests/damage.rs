//! Each kind of damage gives its code; no damage at all gives a panic or an endless loop (I11).
//!
//! A failing random test prints its seed; repeat it with
//! `TERRACE_SEED=<seed> cargo test -p terrace-check --test damage`.

mod common;

use common::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use terrace_check::Code::{self, *};
use terrace_check::{CODES, Devices, Options, check};
use terrace_format::checkpoint::FAR;
use terrace_format::geometry::{CHECKPOINT_COPIES, ROOTS_BLOCK, SUPERBLOCK_COPIES};
use terrace_format::inode::{InodeSlot, flag, pack_root};
use terrace_format::keys::{ColdExtent, Key};
use terrace_format::page::Page;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Ino, Lsn, PmBlock, PmOffset};
use terrace_runtime::sync::RwLock;

type Damage = (Code, fn(&mut Image));

fn dentry(target: u64, kind: u8, name: &[u8]) -> Vec<u8> {
    let mut value = (target as u32).to_le_bytes().to_vec();
    value.push(kind);
    value.extend_from_slice(name);
    value
}

/// Adds an entry to a directory whose keys lie in one leaf.
fn add_name(i: &mut Image, directory: u64, value: &[u8]) {
    let leaf = i.leaves[directory as usize % 4];
    i.add_key(leaf, &Key::dentry(Ino(directory), cookie(&value[5..]) + 1), value);
}

/// Changes the value of the entry "file" of the root directory.
fn change_file(i: &mut Image, change: impl FnOnce(&mut [u8])) {
    let index = i.find_name(i.leaves[1], b"file");
    i.change_value(i.leaves[1], index, change);
}

/// Removes the entry "directory" of the root directory.
fn forget_directory(i: &mut Image) {
    let index = i.find_name(i.leaves[1], b"directory");
    i.catalog_page(i.leaves[1], |page| page.remove(index).unwrap());
}

fn other_extent(start: u64) -> ColdExtent {
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
fn second_leaf(i: &Image) -> u64 {
    i.leaves[3] + 1
}

const LOG: &[Damage] = &[
    (NotAPool, |i| i.pm[..4 * BLOCK_SIZE as usize].fill(0)),
    (Unsupported, |i| i.superblock(|s| s.version = 2.into())),
    (Unsupported, |i| i.superblock(|s| s.incompatible = (1 << 40).into())),
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
];

const BLOCKS: &[Damage] = &[
    (TableOwner, |i| i.put_u64(i.geometry.table_entry(PmBlock(400)), 1)),
    (TableMask, |i| i.put_u64(i.geometry.table_entry(PmBlock(i.data[0])).plus(8), 1)),
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

const INODES: &[Damage] = &[
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

const CATALOG: &[Damage] = &[
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

const LINKS: &[Damage] = &[
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

const COLD: &[Damage] = &[
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
    // The bitmap is whole words, but the chunk has 16 blocks only.
    (ChunkRange, |i| i.change_value(i.leaves[0], 0, |bitmap| bitmap[2] = 1)),
    (ChunkRange, |i| i.add_key(i.leaves[0], &Key::chunk(4, DeviceId(0)), &[1])),
    (ChunkRange, |i| i.add_key(i.leaves[0], &Key::chunk(0, DeviceId(7)), &[1])),
    (KeyValue, |i| i.add_key(i.leaves[0], &Key::chunk(4, DeviceId(0)), &[0; 3])),
    (ChunkLeaked, |i| i.change_value(i.leaves[0], 0, |bitmap| bitmap[1] = 1)),
    (ChunkLeaked, |i| i.put_device(7, b"x")),
];

#[test]
fn single_damages_give_their_code() {
    let sound = Image::full();
    let mut seen = vec![PmUnreadable, LaneUnreadable, DeviceAbsent, DeviceUnreadable, RecordUnfinished];
    for (table, damages) in [LOG, BLOCKS, INODES, CATALOG, LINKS, COLD].into_iter().enumerate() {
        for (row, (code, damage)) in damages.iter().enumerate() {
            let mut image = sound.clone();
            damage(&mut image);
            let report = image.check();
            assert!(
                report.has(*code),
                "table {table} row {row}: {code:?} expected, found {:#?}",
                report.findings
            );
            seen.push(*code);
        }
    }
    let missing: Vec<_> = CODES.iter().filter(|row| !seen.contains(&row.code)).collect();
    assert!(missing.is_empty(), "codes without a test: {missing:?}");
}

/// The PM copy of block 21 shadows its cold copy, which may be half written (M5).
#[test]
fn shadowed_cold_blocks_are_not_judged() {
    let mut image = Image::full();
    image.put_device(4, b"half written");
    assert_eq!(image.check().findings, []);
}

/// Blocks beyond the end of file are fine under an intent, and when unwritten.
#[test]
fn intents_cover_what_is_beyond_the_end() {
    let mut image = Image::full();
    image.slot(FILE, |slot| {
        slot.size = BLOCK_SIZE.into();
        slot.flags = (flag::HAS_COLD | flag::HAS_XATTR | flag::HAS_INTENT).into();
    });
    let mut value = 0u32.to_le_bytes().to_vec();
    value.extend_from_slice(&24u64.to_le_bytes());
    image.add_key(second_leaf(&image), &Key::intent(Ino(FILE), FileBlock(1)), &value);
    assert_eq!(image.check().findings, []);
}

#[test]
fn absent_and_bad_devices() {
    let image = Image::full();
    let mut devices = image.devices();
    devices.block = Vec::new();
    let report = check(&devices, &Options::default());
    assert!(report.has(DeviceAbsent));
    assert_eq!((report.exit_status(), report.findings.len()), (8, 1));
    devices.block = vec![Some(Arc::new(MemDevice { bytes: image.device.clone(), bad: vec![3, 7] }))];
    let options = Options { read_cold: true, progress: None };
    let report = check(&devices, &options);
    assert!(report.findings.iter().all(|finding| finding.code == DeviceUnreadable));
    assert_eq!((report.findings.len(), report.exit_status()), (2, 4));
    assert_eq!(report.summary.cold_blocks_read, 2, "one bad block does not hide its neighbours");
}

/// A PM medium with a poisoned page.
struct Poisoned(Image, u64);

impl terrace_media::PmMedium for Poisoned {
    fn size(&self) -> u64 {
        self.0.pm.len() as u64
    }
    fn promise(&self) -> terrace_media::Promise {
        terrace_media::Promise::None
    }
    fn describe(&self) -> String {
        "poisoned".into()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), terrace_media::MediaError> {
        let length = into.len() as u64;
        let (start, end) = (self.1 * BLOCK_SIZE, (self.1 + 1) * BLOCK_SIZE);
        if offset.0 < end && start < offset.0 + length {
            return Err(terrace_media::MediaError::Pm { offset, length });
        }
        into.copy_from_slice(&self.0.pm[offset.0 as usize..][..into.len()]);
        Ok(())
    }
    fn load_u64(&self, _: PmOffset) -> Result<u64, terrace_media::MediaError> {
        unreachable!("check reads through `read`")
    }
    fn write(&self, _: PmOffset, _: &[u8]) -> Result<(), terrace_media::MediaError> {
        unreachable!("check writes nothing")
    }
    fn write_streaming(&self, _: PmOffset, _: &[u8]) -> Result<(), terrace_media::MediaError> {
        unreachable!("check writes nothing")
    }
    fn write_back(&self, _: PmOffset, _: u64) {}
    fn fence(&self, _: terrace_media::Fence, _: &'static std::panic::Location<'static>) {}
}

#[test]
fn poisoned_pages() {
    let image = Image::full();
    let pointer = image.slot_place(70).plus(InodeSlot::DIRECT + 4 * 3).0 as usize;
    let orphan_data = u64::from(u32::from_le_bytes(image.pm[pointer..][..4].try_into().unwrap()));
    for block in 0..image.next {
        let devices = Devices { pm: Arc::new(Poisoned(image.clone(), block)), block: image.devices().block };
        let report = check(&devices, &Options::default());
        let lane = (8..image.geometry.table_offset().0 / BLOCK_SIZE).contains(&block);
        let lane_start = (block.max(8) - 8).is_multiple_of(image.geometry.lane_size / BLOCK_SIZE);
        let unused = block == 7 || lane && !lane_start;
        if unused || image.data.contains(&block) || block == orphan_data {
            assert_eq!(report.findings, [], "block {block} is not read");
        } else {
            let expected = if lane { LaneUnreadable } else { PmUnreadable };
            assert!(report.has(expected), "block {block}: {:?}", report.findings);
        }
    }
}

fn seed() -> u64 {
    std::env::var("TERRACE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_120)
}

/// A value that tends to break things.
fn nasty(random: &mut SmallRng, image: &Image) -> u64 {
    match random.random_range(0..7) {
        0 => 0,
        1 => u64::MAX >> random.random_range(0..64),
        2 => 1 << random.random_range(0..64),
        3 => random.random_range(0..image.next + 2),
        4 => pack_root(random.random_range(0..9), random.random_range(0..image.next)),
        5 => random.random(),
        _ => random.random_range(0..100),
    }
}

#[test]
fn random_damage_never_panics() {
    let sound = Image::full();
    let mut random = SmallRng::seed_from_u64(seed());
    let pm = Arc::new(MemPm(RwLock::new(sound.pm.clone())));
    let devices = Devices { pm: pm.clone(), block: sound.devices().block };
    let options = Options { read_cold: true, progress: None };
    let pool = sound.geometry.first_pool_block().0;
    let mut found = 0;
    for round in 0..10_000 {
        let mut undo = Vec::new();
        for _ in 0..random.random_range(1..8) {
            // Mostly where metadata lies.
            let block = match random.random_range(0..10) {
                0 => random.random_range(0..8),
                1 => random.random_range(8..pool),
                2 | 3 => ROOTS_BLOCK.0,
                _ => random.random_range(pool..sound.next),
            };
            let (at, length) = if random.random() {
                (random.random_range(0..4096u64), 1)
            } else {
                (random.random_range(0..512) * 8, 8)
            };
            let place = (block * 4096 + at) as usize;
            let bytes = nasty(&mut random, &sound).to_le_bytes();
            let mut pm = pm.0.write();
            undo.push((place, pm[place..place + length].to_vec()));
            pm[place..place + length].copy_from_slice(&bytes[..length]);
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&devices, &options)));
        let Ok(report) = result else {
            panic!("round {round}, TERRACE_SEED={}", seed());
        };
        found += usize::from(!report.is_clean());
        let mut pm = pm.0.write();
        for (place, bytes) in undo.into_iter().rev() {
            pm[place..place + bytes.len()].copy_from_slice(&bytes);
        }
    }
    assert!(found > 1000, "damage was hardly ever found: {found}");
    assert_eq!(check(&devices, &options).findings, [], "the image was restored");
}

/// Damage behind a valid CRC: superblock, checkpoint, device header and records of random content.
#[test]
fn random_damage_behind_checksums() {
    let sound = Image::full();
    let mut random = SmallRng::seed_from_u64(seed());
    for round in 0..2_000 {
        let mut image = sound.clone();
        let value = nasty(&mut random, &sound);
        match random.random_range(0..4) {
            0 => image.superblock(|superblock| {
                let bytes = zerocopy::IntoBytes::as_mut_bytes(superblock);
                let at = random.random_range(4..63) * 4;
                bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
            }),
            1 => image.checkpoint(|point| match random.random_range(0..3) {
                0 => point.tails[0] = value,
                1 => point.lsn.0 = value,
                _ => point.epoch = value,
            }),
            2 => image.device_header(|header| header.blocks = value.into()),
            _ => {
                let mut position = 0;
                for lsn in 10..10 + random.random_range(1..8) {
                    let offset = if random.random() {
                        PmOffset(random.random_range(0..(1 << 21) - 8))
                    } else {
                        let ino = random.random_range(0..80);
                        image.slot_place(ino).plus(InodeSlot::SIZE + random.random_range(0..100))
                    };
                    let check = [(PmOffset(value % (1 << 22)), value as u32, 1)];
                    let checks = if random.random() { &check[..] } else { &[] };
                    let bytes = nasty(&mut random, &sound).to_le_bytes();
                    position = image.record(0, position, lsn, checks, &[(offset, &bytes)]);
                }
            }
        }
        let result = std::panic::catch_unwind(|| image.check());
        assert!(result.is_ok(), "round {round}, TERRACE_SEED={}", seed());
    }
}
