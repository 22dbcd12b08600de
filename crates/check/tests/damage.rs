//! Each kind of damage gives its code; no damage at all gives a panic or an endless loop (I11).
//!
//! A failing random test prints its seed; repeat it with
//! `TERRACE_SEED=<seed> cargo test -p terrace-check --test damage`.

mod common;

use common::damages::{ALL, CLUSTERED, CUCKOO, EXTENTS, TABLE_MAP, second_leaf};
use common::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use terrace_check::Code::*;
use terrace_check::{CODES, Options, PoolView, check};
use terrace_format::geometry::ROOTS_BLOCK;
use terrace_format::inode::{InodeSlot, flag, pack_root};
use terrace_format::keys::Key;
use terrace_format::map_kind::MapKind;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmOffset};
use terrace_runtime::sync::RwLock;

#[test]
fn each_single_damage_gives_its_code() {
    let sound = Image::full();
    let mut seen = vec![PmUnreadable, LaneUnreadable, DeviceAbsent, DeviceUnreadable, RecordUnfinished];
    for (table, damages) in ALL.into_iter().enumerate() {
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
    let maps = [
        (sound.clone().with_extents(), EXTENTS),
        (Image::with_cuckoo(), CUCKOO),
        (Image::with_clustered(), CLUSTERED),
        (sound.clone().with_table_map(MapKind::HashfsLinear), TABLE_MAP),
        (sound.with_table_map(MapKind::Hashfs), TABLE_MAP),
    ];
    for (sound, damages) in maps {
        let report = sound.check();
        assert_eq!(report.findings, []);
        let (kind, found) = (sound.geometry.map, report.summary.map);
        assert_eq!((found.name, found.longest_distance.is_some()), (kind.name(), kind.has_reach()));
        assert!(
            found.longest_distance < Some(512) && found.reach.is_none_or(|reach| reach == 512),
            "{found:?}"
        );
        let counted = (found.stash_entries, found.second_bucket_entries);
        assert_eq!(counted, if kind == MapKind::Cuckoo { (Some(0), Some(1)) } else { (None, None) });
        for (row, (code, damage)) in damages.iter().enumerate() {
            let mut image = sound.clone();
            damage(&mut image);
            let (map, report) = (image.geometry.map, image.check());
            assert!(report.has(*code), "{map:?} row {row}: {code:?} expected, found {:#?}", report.findings);
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
fn blocks_beyond_the_end_of_file_are_sound_under_an_intent() {
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
    let pm = Arc::new(MemPm(RwLock::new(image.pm.clone())));
    let report = check(&PoolView::new(pm.clone(), Vec::new()), &Options::default());
    assert!(report.has(DeviceAbsent));
    assert_eq!((report.exit_status(), report.findings.len()), (8, 1));
    let device = MemDevice { bytes: image.device.clone(), bad: vec![3, 7] };
    let view = PoolView::new(pm, vec![Some(Arc::new(device))]);
    let options = Options { read_cold: true, progress: None, given: &[] };
    let report = check(&view, &options);
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
    fn order_at(&self, _: &'static std::panic::Location<'static>) {}
    fn persist_at(&self, _: &'static std::panic::Location<'static>) -> Result<(), terrace_media::MediaError> {
        Ok(())
    }
}

#[test]
fn poisoned_pages() {
    let image = Image::full();
    let pointer = image.slot_place(70).plus(InodeSlot::DIRECT + 4 * 3).0 as usize;
    let orphan_data = u64::from(u32::from_le_bytes(image.pm[pointer..][..4].try_into().unwrap()));
    for block in 0..image.next {
        let view = PoolView::new(Arc::new(Poisoned(image.clone(), block)), image.devices());
        let report = check(&view, &Options::default());
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

/// A value near a limit of the format, or a random one.
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
    damage_at_random(&Image::full(), 10_000);
}

/// Every third damage hits the structures of the map.
#[test]
fn random_damage_of_each_map_never_panics() {
    let sound = Image::full();
    damage_at_random(&sound.clone().with_extents(), 2000);
    damage_at_random(&Image::with_cuckoo(), 2000);
    damage_at_random(&Image::with_clustered(), 2000);
    damage_at_random(&sound.clone().with_table_map(MapKind::HashfsLinear), 2000);
    damage_at_random(&sound.with_table_map(MapKind::Hashfs), 2000);
}

/// Checks an image in rounds of random damage.
fn damage_at_random(sound: &Image, rounds: usize) {
    let mut random = SmallRng::seed_from_u64(seed());
    let pm = Arc::new(MemPm(RwLock::new(sound.pm.clone())));
    let view = PoolView::new(pm.clone(), sound.devices());
    let options = Options { read_cold: true, progress: None, given: &[] };
    let (table, area) = (sound.geometry.table_offset().block().0, sound.geometry.map_offset().block().0);
    let (pool, shared) = (sound.geometry.first_pool_block().0, sound.geometry.map.is_shared());
    let mut found = 0;
    for round in 0..rounds {
        let mut undo = Vec::new();
        for _ in 0..random.random_range(1..8) {
            // Mostly blocks with metadata.
            let block = match random.random_range(0..10) {
                0 => random.random_range(0..8),
                1 => random.random_range(8..pool),
                2 | 3 => ROOTS_BLOCK.0,
                4..7 if shared && area < pool => random.random_range(area..pool),
                4..7 if shared => random.random_range(table..area),
                _ => random.random_range(pool..sound.next),
            };
            let (at, length) = if random.random() {
                (random.random_range(0..4096u64), 1)
            } else {
                (random.random_range(0..512) * 8, 8)
            };
            let place = (block * 4096 + at) as usize;
            let bytes = nasty(&mut random, sound).to_le_bytes();
            let mut pm = pm.0.write();
            undo.push((place, pm[place..place + length].to_vec()));
            pm[place..place + length].copy_from_slice(&bytes[..length]);
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&view, &options)));
        let Ok(report) = result else {
            panic!("{:?}, round {round}, TERRACE_SEED={}", sound.geometry.map, seed());
        };
        found += usize::from(!report.is_clean());
        let mut pm = pm.0.write();
        for (place, bytes) in undo.into_iter().rev() {
            pm[place..place + bytes.len()].copy_from_slice(&bytes);
        }
    }
    assert!(found > rounds / 10, "damage was hardly ever found: {found} of {rounds}");
    assert_eq!(check(&view, &options).findings, [], "the image was restored");
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
