//! Repair of single damages: each damage of the registry's table, then clean, idempotent and mountable;
//! crashes inside the repair lead to the same pool.

#[path = "../../check/tests/common/mod.rs"]
mod common;

use common::damages::{ALL, CLUSTERED, CUCKOO, Damage, EXTENTS, TABLE_MAP};
use common::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use terrace_check::{Code, Options, Severity};
use terrace_engine::{FsResult, MountOptions, Wait};
use terrace_format::checksum::crc32c;
use terrace_format::device::{SummaryEntry, encode_summary};
use terrace_format::geometry::{SUPERBLOCK_BLOCKS, SUPERBLOCK_COPIES};
use terrace_format::inode::InodeSlot;
use terrace_format::map_kind::MapKind;
use terrace_format::seal::SealKey;
use terrace_format::superblock::Superblock;
use terrace_format::version::KEYED_SEALS;
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Ino, Lsn, PmBlock, PmOffset};
use terrace_media::block::{DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::ordering::{Change, OrderingKind, OrderingPoint};
use terrace_media::pm::{CrashSnapshot, PendingLine, PmImage, RecordedPm};
use terrace_repair::{Repair, repair};
use terrace_testkit::SimulatedPool;

const OPTIONS: Options<'static> = Options { read_cold: true, progress: None, given: &[] };

/// Inode number, mode, links, size and content of a file.
type Seen = (u64, u32, u32, u64, Option<Vec<u8>>);
type Named = (&'static str, fn(&mut Image));

/// A pool on simulated media with the content of an image.
fn pool_of(image: &Image) -> SimulatedPool {
    SimulatedPool::from_images(image.pm.clone(), DeviceImage::from_bytes(&image.device))
}

fn repair_pool(pool: &SimulatedPool) -> Repair {
    repair(&pool.repair_media(), &OPTIONS)
}

fn mount(pool: &SimulatedPool) -> FsResult<Arc<terrace_engine::Engine>> {
    pool.try_mount(MountOptions::default())
}

/// The full image with content that says where it belongs.
fn full() -> Image {
    with_content(Image::full())
}

fn with_content(mut image: Image) -> Image {
    for (at, block) in image.data.into_iter().enumerate() {
        image.put(PmBlock(block).offset(), &[0x20 + at as u8; BLOCK_SIZE as usize]);
    }
    image
}

/// As [`full`], with a cuckoo table. Block 1 of the file is written there, with zeros.
fn full_cuckoo() -> Image {
    let mut image = Image::with_cuckoo();
    for (at, block) in image.data.into_iter().enumerate().filter(|(at, _)| *at != 1) {
        image.put(PmBlock(block).offset(), &[0x20 + at as u8; BLOCK_SIZE as usize]);
    }
    image
}

fn file_content() -> Vec<u8> {
    let mut content = vec![0u8; 24 * BLOCK_SIZE as usize];
    let mut fill = |block: usize, byte: u8| content[block * 4096..][..4096].fill(byte);
    fill(0, 0x20);
    fill(8, 0x22);
    fill(20, 1);
    fill(21, 0x23);
    fill(22, 3);
    fill(23, 4);
    content
}

/// Codes whose damage destroys file content; for each other code the files have to survive.
fn may_differ(code: Code) -> bool {
    matches!(code, Code::ColdChecksum | Code::DataChecksum)
}

fn read_file(fs: &terrace_engine::Engine, ino: u64) -> Option<Vec<u8>> {
    let a = fs.getattr(Ino(ino)).ok()?;
    let mut content = vec![0; a.size as usize];
    let mut done = 0;
    while done < content.len() {
        done += fs.read(a.ino, done as u64, &mut content[done..], Wait::Allowed).ok()?;
    }
    Some(content)
}

#[test]
fn every_repairable_damage_is_repaired() {
    repair_all(&full(), &ALL);
    repair_all(&full().with_extents(), &[EXTENTS]);
    for map in [MapKind::HashfsLinear, MapKind::Hashfs] {
        repair_all(&full().with_table_map(map), &[TABLE_MAP]);
    }
    repair_all(&full_cuckoo(), &[CUCKOO]);
    repair_all(&with_content(Image::with_clustered()), &[CLUSTERED]);
}

/// Repairs each damage of some tables, and looks at the pool afterwards.
fn repair_all(sound: &Image, tables: &[&[Damage]]) {
    assert!(!repair_pool(&pool_of(sound)).written, "a sound pool is not written");
    let mut repaired = BTreeSet::new();
    for (table, damages) in tables.iter().enumerate() {
        for (row, (code, damage)) in damages.iter().enumerate() {
            let site = format!("table {table} row {row}, {code:?}");
            let mut image = sound.clone();
            damage(&mut image);
            let pool = pool_of(&image);
            let before = pool.bytes();
            let result = repair_pool(&pool);
            let (left, actions) = (&result.left, &result.actions);
            if code.row().repair.starts_with("nothing") || site.contains("table 5 row 2,") {
                assert!(left.has(*code), "{site}: {actions:#?}");
                assert_eq!(result.written, pool.bytes() != before, "{site}");
            } else {
                assert_eq!(
                    left.exit_status(),
                    0,
                    "{site}: {:#?} {actions:#?} {:?}",
                    left.findings,
                    result.failure
                );
                let lost = if result.lost.is_empty() { 0 } else { 4 };
                let expected = i32::from(left.findings != result.found.findings) | lost;
                assert_eq!(result.exit_status(), expected, "{site}: {result:#?}");
                assert_eq!(pool.check().exit_status(), 0, "{site}");
                repaired.insert(code.row().number);
            }
            let after = pool.bytes();
            let again = repair_pool(&pool);
            assert!(!again.written, "{site}: a second repair writes: {:#?}", again.actions);
            assert!(pool.bytes() == after, "{site}: a second repair changes bytes");
            if pool.check().exit_status() == 0 {
                let fs = mount(&pool).unwrap_or_else(|error| panic!("{site}: mount: {error}"));
                if !may_differ(*code) {
                    let content = read_file(&fs, FILE);
                    assert!(content == Some(file_content()), "{site}: content of the file {actions:#?}");
                }
                fs.unmount().unwrap();
                drop(fs);
                assert_eq!(pool.check().exit_status(), 0, "{site}: after the mount");
            }
        }
    }
    println!("{} codes repaired", repaired.len());
}

/// After a crash inside a repair, the next repair has to give the same pool as a repair without a crash;
/// after a repair has returned, the next one has no work. Crash images keep no unordered store, all of them,
/// or random ones. At some moments only the repair's process dies, and the next repair crashes as well. On
/// this PM only `persist` makes stores durable; `change` alters one ordering point.
fn crash_everywhere(site: &str, image: &Image, change: Option<(OrderingPoint, Change)>) -> (u64, u64) {
    let undisturbed = pool_of(image);
    repair_pool(&undisturbed);
    let events = undisturbed.events.now();
    let expected = mounted_state(&undisturbed, site);
    let (mut states, mut marked) = (0, false);
    for event in 0..=events {
        let pool = pool_of(image);
        disturb(&pool, change);
        let (pm, device) = repaired_until(&pool, event);
        let judge = |pm: &CrashSnapshot, device: &DeviceSnapshot, site: &str, ended: bool, second: bool| {
            let images = crash_images(pm, device, event, second);
            for (state, (pm, device)) in images.iter().enumerate() {
                let site = format!("{site}, state {state}");
                let pool = SimulatedPool::from_images(pm.clone(), device.clone());
                judge_repair(&pool, &site, &expected, ended);
            }
            images.len() as u64
        };
        let site = format!("{site}, event {event} of {events}");
        states += judge(&pm, &device, &site, event == events, false);
        // Also while the mark of copy A is not ordered yet.
        let first = SUPERBLOCK_COPIES[0];
        let amid_mark = !marked && pm.pending.iter().any(|line| line.offset().block() == first);
        if event % 12 != 8 && !amid_mark {
            continue;
        }
        marked |= amid_mark;
        let mut inner = 0;
        loop {
            let clock = CrashClock::new();
            let device = SimulatedDevice::with_clock("tier", device.image_all(), &clock);
            let next = SimulatedPool {
                pm: Arc::new(RecordedPm::resumed(&pm, &clock)),
                device: Arc::new(device),
                events: clock,
                clock: pool.clock.clone(),
            };
            disturb(&next, change);
            let (pm, device) = repaired_until(&next, inner);
            let ended = next.events.now() <= inner;
            states += judge(&pm, &device, &format!("{site}, killed, event {inner} of the next"), ended, true);
            if ended {
                break;
            }
            inner += 1;
        }
    }
    (events, states)
}

/// Media images that a crash at this moment may leave.
fn crash_images(
    pm: &CrashSnapshot,
    device: &DeviceSnapshot,
    seed: u64,
    second: bool,
) -> Vec<(PmImage, DeviceImage)> {
    let last = pm.epoch_count() - 1;
    let newest = pm.in_epoch(last);
    let mut images = vec![
        (newest.image_oldest(), device.image_none()),
        (newest.image_newest(), device.image_all()),
        (newest.image_random(seed), device.image_random(seed)),
        (newest.image_random(seed + 1000), device.image_none()),
    ];
    // Stores without a fence between them become durable in any order: here all blocks are durable except
    // one; in a second crash the lost block is one of the superblock copies.
    let block_of = |line: &PendingLine| line.offset().block().0;
    let mut blocks: BTreeSet<u64> = newest.pending.iter().map(block_of).collect();
    blocks.retain(|block| !second || *block < 2 * SUPERBLOCK_BLOCKS);
    for block in blocks.into_iter().take(16) {
        let lost: Vec<bool> = newest.pending.iter().map(|line| block_of(line) == block).collect();
        images.push((newest.image(&|line| if lost[line] { 0 } else { usize::MAX }), device.image_all()));
    }
    let earlier = [0, last / 3, last / 2, last.saturating_sub(1)];
    for epoch in BTreeSet::from(earlier).into_iter().filter(|epoch| *epoch < last) {
        images.push((pm.in_epoch(epoch).image_random(seed), device.image_all()));
    }
    images
}

fn disturb(pool: &SimulatedPool, change: Option<(OrderingPoint, Change)>) {
    pool.events.ordering().change(change);
    pool.pm.set_persist_only(true);
}

/// Repairs; gives snapshots of the media before an event, or after the repair if it returned before the
/// event.
fn repaired_until(pool: &SimulatedPool, event: u64) -> (CrashSnapshot, DeviceSnapshot) {
    pool.events.set_crash_at(Some(event));
    repair_pool(pool);
    pool.events.set_crash_at(None);
    let taken = (pool.pm.take_snapshot(), pool.device.take_snapshot());
    (taken.0.unwrap_or_else(|| pool.pm.snapshot()), taken.1.unwrap_or_else(|| pool.device.snapshot()))
}

/// Repairs the image of a crash; `ended`: the crash came after the repair had returned.
fn judge_repair(pool: &SimulatedPool, site: &str, expected: &[Seen], ended: bool) {
    // A mark on copy B alone could outlive the repair, and a later repair would undo the changes of
    // mounts since.
    let [first, second] = marks(pool);
    assert!(second != Some(true) || first == Some(true), "{site}: only copy B is marked");
    let result = repair_pool(pool);
    assert!(!ended || !result.written, "{site}: what the repair did was not durable");
    let left = &result.left;
    assert_eq!(left.exit_status(), 0, "{site}: {:#?} {:?}", left.findings, result.failure);
    let bytes = pool.bytes();
    assert!(!repair_pool(pool).written && pool.bytes() == bytes, "{site}: repaired again");
    assert_eq!(mounted_state(pool, site), expected, "{site}");
}

/// Whether each superblock copy is marked; `None` when it is not sound.
fn marks(pool: &SimulatedPool) -> [Option<bool>; 2] {
    let pm = pool.bytes().0;
    terrace_format::geometry::SUPERBLOCK_COPIES.map(|copy| {
        let bytes = &pm[copy.offset().0 as usize..][..8192];
        Superblock::verify_repairing(bytes, false).ok().map(|superblock| superblock.is_repairing())
    })
}

/// The inodes as a mount shows them.
fn mounted_state(pool: &SimulatedPool, site: &str) -> Vec<Seen> {
    let fs = mount(pool).unwrap_or_else(|error| panic!("{site}: mount: {error}"));
    let mut state = Vec::new();
    for ino in 1..96 {
        if let Ok(a) = fs.getattr(Ino(ino)) {
            let content = if a.mode >> 12 == 0o10 { read_file(&fs, ino) } else { None };
            state.push((ino, a.mode, a.nlink, a.size, content));
        }
    }
    fs.unmount().unwrap();
    state
}

/// Damages whose repair changes many kinds of structures.
fn many_kinds() -> impl Iterator<Item = (&'static str, Image)> {
    let chosen: [Named; 8] = [
        ("the second superblock copy", |i| {
            i.put(terrace_format::geometry::SUPERBLOCK_COPIES[1].offset().plus(50), b"damage");
            i.slot(CHILD, |slot| slot.nlink = 3.into());
        }),
        ("map node", |i| i.put(PmBlock(i.nodes[1]).offset(), &[0xff; 4096])),
        ("leaf lost, its names in lost+found", |i| i.put(PmBlock(i.leaves[1]).offset(), &[0x5a; 4096])),
        ("cold extents lost", |i| i.put(PmBlock(common::damages::second_leaf(i)).offset(), &[0x5a; 4096])),
        ("roots lost", |i| i.put(i.geometry.inode_root(), &[0xff; 4096])),
        ("inode page lost", |i| i.put(PmBlock(i.inode_pages[0]).offset(), &[0; 4096])),
        ("one superblock copy and a device header", |i| {
            i.put(PmOffset(50), b"damage");
            i.device_header(|header| header.index = 1);
            i.slot(CHILD, |slot| slot.nlink = 3.into());
        }),
        ("records in the lanes, no checkpoint possible", |i| {
            let at = i.slot_place(FILE).plus(terrace_format::inode::InodeSlot::BLOCKS);
            i.record(0, 0, 20, &[], &[(at, &9u64.to_le_bytes())]);
            i.checkpoint(|point| point.tails[0] = 3);
            i.slot(CHILD, |slot| slot.nlink = 3.into());
        }),
    ];
    chosen.into_iter().map(|(name, damage)| {
        let mut image = full();
        damage(&mut image);
        assert_ne!(image.check().exit_status(), 0, "{name}");
        (name, image)
    })
}

#[test]
fn a_crash_inside_a_repair_leads_to_the_same_pool() {
    for (name, image) in many_kinds() {
        let (events, states) = crash_everywhere(name, &image, None);
        println!("{name}: {events} events, {states} states");
    }
}

/// Each fence and flush of the repair is left out, or a `persist` weakened to `order`: then at least one
/// crash of the test above is not survived.
#[test]
fn every_ordering_point_of_the_repair_is_needed() {
    let images: Vec<_> = many_kinds().collect();
    let mut points = BTreeSet::new();
    for (_, image) in &images {
        let pool = pool_of(image);
        // A repair up to its middle, and the next repair, which finishes it.
        let (pm, device) = repaired_until(&pool, 12);
        points.extend(pool.events.ordering().points().into_iter().map(|(point, _)| point));
        let next = SimulatedPool::from_images(pm.image_newest(), device.image_all());
        repair_pool(&next);
        points.extend(next.events.ordering().points().into_iter().map(|(point, _)| point));
    }
    let mut all: Vec<(OrderingPoint, Change)> = Vec::new();
    for point in points {
        all.push((point, Change::Removed));
        if point.kind == OrderingKind::Persist {
            all.push((point, Change::WeakenedToOrder));
        }
    }
    let mut not_needed = Vec::new();
    for change in all {
        let fails = |(name, image): &&(&str, Image)| {
            catch_unwind(AssertUnwindSafe(|| crash_everywhere(name, image, Some(change)))).is_err()
        };
        match images.iter().find(fails) {
            Some((name, _)) => println!("{} {:?}: {name}", change.0, change.1),
            None => not_needed.push(change),
        }
    }
    assert!(not_needed.is_empty(), "nothing needs {not_needed:?}");
}

/// A rebuild of cold extents skips a device block that was freed, was overwritten, belongs to another
/// generation of the inode, or has an older summary entry than the block that counts.
#[test]
fn old_group_summaries_bring_no_block_back() {
    let entry = |block: u64, generation: u32, byte: u8, lsn: u64| SummaryEntry {
        ino: Ino(FILE),
        generation,
        block: FileBlock(block),
        crc: crc32c(&[byte; BLOCK_SIZE as usize]),
        lsn: Lsn(lsn),
    };
    let mut image = full();
    // Device blocks 10 to 14 hold old blocks of the file; only 11 to 14 are marked.
    for block in 10..15 {
        image.put_device(block, &[block as u8; BLOCK_SIZE as usize]);
    }
    image.change_value(image.leaves[0], 0, |bitmap| bitmap[1] = 0b0011_1100);
    let entries = [
        entry(5, 0, 10, 9),  // freed
        entry(6, 0, 99, 9),  // overwritten
        entry(7, 1, 12, 9),  // another generation
        entry(20, 0, 13, 0), // older than the entry in the sound image
        entry(40, 0, 14, 9), // beyond the end of file
    ];
    image.put_device(
        20,
        &encode_summary(&SEAL_KEY, (DeviceId(0), DeviceBlock(20)), DeviceBlock(10), &entries),
    );
    image.put(PmBlock(common::damages::second_leaf(&image)).offset(), &[0x5a; 4096]);
    let pool = pool_of(&image);
    let result = repair_pool(&pool);
    assert_eq!(result.exit_status(), 1, "{:#?} {:?} {:?}", result.left.findings, result.failure, result.lost);
    let fs = mount(&pool).unwrap();
    assert!(read_file(&fs, FILE) == Some(file_content()), "{:#?}", result.actions);
}

/// A flipped bit in a size, mode or owner, which no second structure confirms, once stayed without a report.
#[test]
fn a_wrong_bit_of_a_page_is_turned_back() {
    let size = full().slot_place(FILE).0 as usize + std::mem::offset_of!(InodeSlot, size);
    let mode = full().slot_place(FILE).0 as usize + std::mem::offset_of!(InodeSlot, mode);
    for (at, bit) in [(size, 0), (size + 2, 4), (mode + 1, 3), (mode, 7)] {
        let mut image = full();
        image.cover(image.inode_pages[0]);
        let sound = image.pm[at];
        image.pm[at] ^= 1 << bit;
        let pool = pool_of(&image);
        let result = repair_pool(&pool);
        assert_eq!((result.exit_status(), result.lost.len()), (1, 0), "{result:#?}");
        assert_eq!(pool.bytes().0[at], sound);
        assert_eq!(pool.check().exit_status(), 0);
    }
}

/// Several wrong bits: all inodes on the page are reported, and their set-id bits are removed.
#[test]
fn a_changed_page_is_told_of_and_gives_no_privilege() {
    let mut image = full();
    image.cover(image.inode_pages[0]);
    let mode = image.slot_place(FILE).0 as usize + std::mem::offset_of!(InodeSlot, mode);
    image.pm[mode] ^= 0b11;
    image.pm[mode + 1] |= 0o6000u16.to_le_bytes()[1];
    let pool = pool_of(&image);
    let result = repair_pool(&pool);
    let named = |line: &String| line.starts_with('/') && line.contains(&format!("(inode {FILE})"));
    assert_eq!(result.exit_status(), 5, "{result:#?}");
    assert!(result.lost.iter().any(named), "{:#?}", result.lost);
    let fs = mount(&pool).unwrap();
    assert_eq!(fs.getattr(Ino(FILE)).unwrap().mode & 0o6000, 0);
    // A leaf of the catalog: the symlinks and attributes that it has.
    let mut image = full();
    image.cover(image.leaves[1]);
    let leaf = PmBlock(image.leaves[1]).offset().0 as usize;
    image.pm[leaf + 4090] ^= 3;
    let result = repair_pool(&pool_of(&image));
    assert!(result.exit_status() & 4 != 0 && !result.lost.is_empty(), "{result:#?}");
}

/// A repair that had changed a file's content exited with 1, as if all had been brought back: fsck(8) has 4
/// for that, and the user has to know which file it is.
#[test]
fn a_loss_of_content_in_a_repair_exits_with_4_and_names_the_file() {
    let lost: [Named; 3] = [
        ("cold extents without a summary", |i| {
            i.put_device(7, &[0; 4096]);
            i.put(PmBlock(common::damages::second_leaf(i)).offset(), &[0x5a; 4096]);
        }),
        ("a slot", |i| i.put(i.slot_place(FILE), &[0; 128])),
        ("the size", |i| i.slot(FILE, |slot| slot.size = 5.into())),
    ];
    for (site, damage) in lost {
        let mut image = full();
        damage(&mut image);
        let pool = pool_of(&image);
        let result = repair_pool(&pool);
        let named = |line: &String| line.starts_with('/') && line.contains(&format!("(inode {FILE})"));
        assert_eq!(result.exit_status(), 5, "{site}: {result:#?}");
        assert!(result.lost.iter().any(named), "{site}: {:#?}", result.lost);
        let again = repair_pool(&pool);
        assert_eq!((again.exit_status(), again.lost.len()), (0, 0), "{site}: {again:#?}");
    }
    // This damage is mended without a loss.
    let mut image = full();
    image.slot(CHILD, |slot| slot.nlink = 3.into());
    assert_eq!(repair_pool(&pool_of(&image)).exit_status(), 1);
}

/// A block that is unwritten by the map or by the block table alone, which a wrong bit in an open page does, once read as zeros
/// after the repair, without a word.
#[test]
fn a_block_of_contradicting_witnesses_keeps_its_content_and_its_file_is_named() {
    let by_the_table: Damage = (Code::BlockOwner, |i| i.own(i.data[0], file(FILE, 0, true)));
    let by_the_map: Damage = (Code::BlockOwner, |i| {
        i.slot(FILE, |slot| slot.direct[0] = (slot.direct[0].get() | slot.direct[1].get() & 1 << 31).into());
    });
    let images = [full(), full().with_extents(), full_cuckoo(), with_content(Image::with_clustered())];
    let by_the_table = images.into_iter().map(|image| (image, by_the_table));
    for (mut image, (code, damage)) in by_the_table.chain([(full(), by_the_map)]) {
        damage(&mut image);
        let pool = pool_of(&image);
        assert!(pool.check().findings.iter().any(|finding| finding.code == code));
        let result = repair_pool(&pool);
        let named = |line: &String| line.starts_with('/') && line.contains(&format!("(inode {FILE})"));
        assert_eq!(result.exit_status(), 5, "{result:#?}");
        assert!(result.lost.iter().any(named), "{:#?}", result.lost);
        let fs = mount(&pool).unwrap();
        assert!(read_file(&fs, FILE) == Some(file_content()), "{:#?}", result.actions);
        drop(fs);
        assert_eq!(pool.check().exit_status(), 0);
    }
}

/// A block of a user's file once posed as a group summary, and the repair put foreign content into a file:
/// without a secret the summary's CRC32C is no proof. In an older pool a summary counts only directly before
/// its group, with entries of the past; in a pool with a secret such a block has no valid seal.
#[test]
fn a_block_of_a_user_is_not_taken_for_a_summary() {
    let public = SealKey::new(UUID, None);
    for (secret, at, lsn) in [(false, 20, 9), (false, 9, 2000), (true, 9, 9)] {
        let mut image = full();
        let genuine = [1u8, 2, 3, 4].map(|byte| SummaryEntry {
            ino: Ino(FILE),
            generation: 0,
            block: FileBlock(19 + u64::from(byte)),
            crc: crc32c(&[byte; BLOCK_SIZE as usize]),
            lsn: Lsn(1),
        });
        if !secret {
            image.superblock(|superblock| {
                superblock.features.incompatible =
                    (superblock.features.incompatible.get() & !KEYED_SEALS).into();
                superblock.seal_secret = [0; 16];
            });
            image.put_device(7, &[0; 4096]);
            let place = (DeviceId(0), DeviceBlock(2));
            image.put_device(2, &encode_summary(&public, place, DeviceBlock(3), &genuine));
            image.change_value(image.leaves[0], 0, |bitmap| bitmap[0] &= !0b0100_0000);
        }
        // The attacker's own block 10, said to be a block of the file.
        image.put_device(10, &[0x66; BLOCK_SIZE as usize]);
        image.change_value(image.leaves[0], 0, |bitmap| bitmap[1] |= 0b0000_0010);
        let forged = SummaryEntry { crc: crc32c(&[0x66; BLOCK_SIZE as usize]), lsn: Lsn(lsn), ..genuine[0] };
        let place = (DeviceId(0), DeviceBlock(at));
        image.put_device(at, &encode_summary(&public, place, DeviceBlock(10), &[forged]));
        image.put(PmBlock(common::damages::second_leaf(&image)).offset(), &[0x5a; 4096]);
        let pool = pool_of(&image);
        let result = repair_pool(&pool);
        assert_eq!(result.failure, None);
        let fs = mount(&pool).unwrap();
        let site = format!("secret {secret}, block {at}, LSN {lsn}: {:#?}", result.actions);
        assert!(read_file(&fs, FILE) == Some(file_content()), "{site}");
    }
}

/// Random words and pages anywhere, also in checkpoint and lanes: the repair never panics, always ends and
/// reports the findings left, and a second repair writes no byte.
#[test]
fn repair_of_random_damage_always_ends() {
    let text = std::env::var("TERRACE_SEED").ok();
    let seed = text.and_then(|text| text.parse().ok()).unwrap_or(20_261_121u64);
    let sound = full();
    let (mut clean, rounds) = (0, 400);
    for round in seed..seed + rounds {
        let mut random = SmallRng::seed_from_u64(round);
        let mut image = sound.clone();
        for _ in 0..random.random_range(1..12) {
            let block = match random.random_range(0..12) {
                0 => random.random_range(2..8),
                1 | 2 => 6,
                3 | 4 => random.random_range(8..18),
                _ => random.random_range(18..image.next),
            };
            let at = PmBlock(block).offset().plus(random.random_range(0..512) * 8);
            match random.random_range(0..8) {
                0 => image.put(PmBlock(block).offset(), &[random.random(); 4096]),
                1 => image.put_u64(at, u64::MAX >> random.random_range(0..64)),
                2 => image.put_u64(at, random.random_range(0..image.next + 3)),
                3 => image.put_u64(at, random.random()),
                _ => image.put(at.plus(random.random_range(0..8)), &[random.random()]),
            }
        }
        let pool = pool_of(&image);
        let site = format!("TERRACE_SEED={round}");
        let run = || repair_pool(&pool);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let result = result.unwrap_or_else(|_| panic!("{site}"));
        assert_eq!(result.left.exit_status(), pool.check().exit_status(), "{site}");
        let bytes = pool.bytes();
        assert!(!repair_pool(&pool).written && pool.bytes() == bytes, "{site}: {:#?}", result.left.findings);
        if let Some(failure) = &result.failure {
            println!("{site}: {failure}");
        } else {
            let error = |code: Code| code.row().severity != Severity::Note && !may_differ(code);
            let left: Vec<_> = result.left.findings.iter().filter(|finding| error(finding.code)).collect();
            assert!(left.is_empty(), "{site}: {left:#?} {:#?}", result.actions);
            clean += 1;
            mount(&pool).unwrap_or_else(|error| panic!("{site}: mount: {error}")).unmount().unwrap();
        }
    }
    println!("{rounds} rounds, {clean} repaired");
}
