//! Entries of the block table that cannot be read, where the table is the file map or lines of the cuckoo table are lost, too: files without a block in them work, and
//! no file shows wrong bytes, then or when the entries can be read again.

use super::damaged_tables::{Damage, Damaged, quiet};
use super::helpers::{EIO, W};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_engine::{
    Allocate, Engine, FormatOptions, FsError, FsResult, MAPS, Movements, Seek, SetAttributes, Simulation,
};
use terrace_format::Ino;
use terrace_format::map_kind::MapKind;
use terrace_testkit::{ROOT, SimulatedPool, create, find, format_options, pattern, write};

const BLOCK: u64 = 4096;

/// Runs a test with each map that is the block table, and the cuckoo table, and each kind of damage.
fn for_each_damage(run: fn(MapKind, Damage)) {
    for row in MAPS.iter().filter(|row| row.kind.is_table() || row.kind == MapKind::Cuckoo) {
        [Damage::Page, Damage::Line, Damage::Word].into_iter().for_each(|damage| run(row.kind, damage));
    }
}

fn table_pool(map: MapKind) -> SimulatedPool {
    SimulatedPool::formatted(16 << 20, 8192, &FormatOptions { map, ..format_options(1) })
}

fn truncate(fs: &Engine, ino: Ino, size: u64) -> FsResult<()> {
    let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
    fs.setattr(ino, &change, W).map(|_| ())
}

fn bytes(fs: &Engine, ino: Ino, offset: u64, length: usize) -> FsResult<Vec<u8>> {
    let mut found = vec![0xee; length];
    let count = fs.read(ino, offset, &mut found, W)?;
    found.truncate(count);
    Ok(found)
}

fn is_eio<T: std::fmt::Debug>(done: FsResult<T>) -> bool {
    done.map_err(|error| error.errno()).is_err_and(|errno| errno == EIO)
}

/// After an unreadable line every listing failed until the next mount, of all files: no file could be cut off or removed,
/// and no cold file opened.
#[test]
fn files_without_a_block_in_an_unreadable_entry_work() {
    for_each_damage(|map, damage| {
        let pool = table_pool(map);
        let fs = pool.mount_with(quiet());
        let names: Vec<(Ino, String)> =
            (0..150).map(|index| format!("f{index}")).map(|name| (create(&fs, ROOT, &name), name)).collect();
        for (index, (ino, _)) in names.iter().enumerate() {
            write(&fs, *ino, (index as u64 % 5) * BLOCK, &pattern(4096 * (1 + index % 4), index as u8))
                .unwrap();
        }
        names.iter().for_each(|(ino, _)| fs.forget(*ino, 1));
        let damaged = Damaged::new(pool, fs, damage, names[40].0, 0);
        let fs = damaged.mount();
        let mut lost = 0;
        for (index, (ino, name)) in names.iter().enumerate() {
            let (ino, seed, length) = (*ino, index as u8, 4096 * (1 + index % 4));
            if damaged.has_lost(ino) {
                lost += 1;
                continue;
            }
            let start = (index as u64 % 5) * BLOCK;
            let works = || -> FsResult<()> {
                assert_eq!(bytes(&fs, ino, start, length + 9)?, pattern(length, seed));
                assert_eq!(fs.seek(ino, 0, Seek::Data)?, start);
                assert_eq!(fs.seek(ino, start, Seek::Hole)?, start + length as u64);
                fs.fallocate(ino, start, BLOCK, Allocate::PunchHole, W)?;
                write(&fs, ino, start + 1, &[seed; 10])?;
                truncate(&fs, ino, start + 5)?;
                truncate(&fs, ino, 1 << 40)?;
                assert_eq!(bytes(&fs, ino, start, 20)?, [&[0][..], &[seed; 4], &[0; 15]].concat());
                assert!(is_none(fs.seek(ino, start + BLOCK, Seek::Data)));
                write(&fs, ino, 1 << 33, b"far")?;
                fs.fallocate(ino, 0, 9 * BLOCK, Allocate::KeepSize, W)?;
                fs.unlink(ROOT, name.as_bytes(), W)?;
                fs.run_background(100);
                assert!(fs.getattr(ino).is_err());
                Ok(())
            };
            works().unwrap_or_else(|error| panic!("{damage:?}, {name}: {error}"));
        }
        assert!((1..100).contains(&lost), "{damage:?}: {lost} files");
        // New files get their numbers.
        let new: Vec<Ino> = (0..200).map(|index| create(&fs, ROOT, &format!("n{index}"))).collect();
        for ino in &new {
            assert!(names.iter().all(|(old, _)| old != ino || !damaged.has_lost(*old)));
            write(&fs, *ino, 0, &pattern(3 * 4096, 7)).unwrap();
        }
        fs.unmount().unwrap();
        drop(fs);
        damaged.heal();
        damaged.pool.assert_clean();
        let fs = damaged.pool.mount();
        new.iter().for_each(|ino| assert_eq!(bytes(&fs, *ino, 0, 1 << 20).unwrap(), pattern(3 * 4096, 7)));
    });
}

fn is_none(found: FsResult<u64>) -> bool {
    matches!(found, Err(FsError::NoDataThere))
}

/// A file with a block in an unreadable entry gives an error where the block may be. A cut of it that went on without the
/// block would show its bytes again when the file grows, after a mount that can read the entry.
#[test]
fn a_file_with_a_block_in_an_unreadable_entry_is_not_cut_and_keeps_its_number() {
    for_each_damage(|map, damage| {
        let pool = table_pool(map);
        let fs = pool.mount_with(quiet());
        let (cut, gone) = (create(&fs, ROOT, "cut"), create(&fs, ROOT, "gone"));
        for ino in [cut, gone] {
            write(&fs, ino, 0, &pattern(40 * 4096, ino.0 as u8)).unwrap();
            fs.forget(ino, 1);
        }
        let damaged = [cut, gone].map(|ino| {
            let pool = pool.copied();
            let fs = pool.mount_with(quiet());
            (ino, Damaged::new(pool, fs, damage, ino, 20))
        });
        drop(fs);
        for (ino, damaged) in damaged {
            let fs = damaged.mount();
            assert!(damaged.is_lost(ino, 20));
            assert!(is_eio(bytes(&fs, ino, 20 * BLOCK, 4096)), "{damage:?}");
            assert!(is_eio(write(&fs, ino, 20 * BLOCK + 7, b"x")), "{damage:?}");
            let all = pattern(40 * 4096, ino.0 as u8);
            let mut known = 0;
            for (block, expected) in (0..40).zip(all.chunks(4096)) {
                match bytes(&fs, ino, block * BLOCK, 4096) {
                    Ok(found) => {
                        known += 1;
                        assert!(found == expected, "{damage:?}, block {block}");
                    }
                    Err(error) => assert_eq!(error.errno(), EIO),
                }
            }
            assert!(known > 20, "{damage:?}: {known}");
            if ino == cut {
                assert!(is_eio(truncate(&fs, ino, 5 * BLOCK)), "{damage:?}");
                assert!(is_eio(fs.fallocate(ino, 0, 40 * BLOCK, Allocate::PunchHole, W)), "{damage:?}");
                assert_eq!(fs.getattr(ino).unwrap().size, 40 * BLOCK);
                truncate(&fs, ino, 60 * BLOCK).unwrap();
            } else {
                fs.unlink(ROOT, b"gone", W).unwrap();
                fs.run_background(1000);
            }
            let other = (0..100).map(|index| create(&fs, ROOT, &format!("o{index}")));
            assert!(other.collect::<Vec<_>>().iter().all(|other| *other != ino), "{damage:?}");
            fs.unmount().unwrap();
            drop(fs);
            // The entry is still unreadable, and then it is not.
            let fs = damaged.mount();
            assert!(ino == cut || (0..100).all(|index| create(&fs, ROOT, &format!("p{index}")) != ino));
            fs.unmount().unwrap();
            drop(fs);
            damaged.heal();
            damaged.pool.assert_clean();
            let fs = damaged.mount();
            if ino == cut {
                let zeros = vec![0; 20 * 4096];
                assert_eq!(bytes(&fs, ino, 0, 1 << 20).unwrap(), [all, zeros].concat(), "{damage:?}");
                truncate(&fs, ino, 5 * BLOCK).unwrap();
                truncate(&fs, ino, 40 * BLOCK).unwrap();
                assert!(bytes(&fs, ino, 5 * BLOCK, 1 << 20).unwrap() == vec![0; 35 * 4096]);
            } else {
                assert!(fs.getattr(ino).is_err(), "the removal was tried again");
            }
            damaged.pool.assert_clean_after(&fs).unwrap();
        }
    });
}

/// Files of a random history, as they must be.
type Model = BTreeMap<String, Vec<u8>>;

/// Random operations on files of which some have blocks in unreadable entries, in PM and below: each works or gives EIO,
/// bytes are never wrong, and when the entries can be read again all files are as those operations left them that worked.
#[test]
fn random_operations_beside_unreadable_entries_never_show_wrong_bytes() {
    for_each_damage(|map, damage| {
        for seed in 0..8 {
            random_operations(map, damage, seed);
        }
    });
}

fn random_operations(map: MapKind, damage: Damage, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let pool = table_pool(map);
    let fs = pool.mount_with(quiet());
    let mut model = Model::new();
    for index in 0..30 {
        let name = format!("f{index}");
        let (ino, content) =
            (create(&fs, ROOT, &name), pattern(4096 * random.random_range(0..30) + 77, index));
        write(&fs, ino, 0, &content).unwrap();
        fs.forget(ino, 1);
        model.insert(name, content);
    }
    // Half of the files lie below, some of them with newer blocks in PM.
    fs.sync_to(1, &mut |_| {}).unwrap();
    for (name, content) in model.iter_mut().filter(|(name, _)| name.len() == 3) {
        let ino = find(&fs, name);
        let at = random.random_range(0..content.len().max(1)) / 4096 * 4096;
        let end = content.len().min(at + 4096);
        content[at..end].fill(9);
        write(&fs, ino, at as u64, &content[at..end]).unwrap();
    }
    let ino = find(&fs, "f12");
    write(&fs, ino, 0, &[5; 4096]).unwrap();
    let content = model.get_mut("f12").unwrap();
    let length = content.len().max(4096);
    content.resize(length, 0);
    content[..4096].fill(5);
    let damaged = Damaged::new(pool, fs, damage, ino, 0);
    let fs = damaged.mount();
    let (mut worked, mut refused) = (0, 0);
    for step in 0..150 {
        match random_step(&fs, &mut model, &mut random, step) {
            Ok(()) => worked += 1,
            Err(error) => {
                assert_eq!(error.errno(), EIO, "{damage:?}, seed {seed}: {error}");
                refused += 1;
            }
        }
    }
    assert!(worked > 100 && worked > refused, "{damage:?}, seed {seed}: {worked} worked, {refused} did not");
    for (name, content) in &model {
        let ino = find(&fs, name);
        for (at, expected) in (0..).step_by(4096).zip(content.chunks(4096)) {
            match bytes(&fs, ino, at, 4096) {
                Ok(found) => assert!(found == expected, "{damage:?}, seed {seed}, {name} at {at}"),
                Err(error) => assert_eq!(error.errno(), EIO),
            }
        }
    }
    let healed = if seed % 2 == 1 {
        // Power fails; the record of the last operation may be in the lanes alone.
        fs.sync().unwrap();
        Damaged { pool: damaged.pool.crash_now(seed), ..damaged }
    } else {
        let _ = fs.unmount();
        damaged
    };
    drop(fs);
    healed.heal();
    let healed = healed.pool;
    let fs = healed.mount_with(quiet());
    fs.run_background(1000);
    for (name, content) in &model {
        let found = bytes(&fs, find(&fs, name), 0, content.len() + 9).unwrap();
        assert!(found == *content, "{damage:?}, seed {seed}, {name} after the entries could be read");
    }
    healed.assert_clean_after(&fs).unwrap();
}

fn random_step(fs: &Arc<Engine>, model: &mut Model, random: &mut SmallRng, step: u64) -> FsResult<()> {
    let names: Vec<String> = model.keys().cloned().collect();
    let name = names[random.random_range(0..names.len())].clone();
    let ino = find(fs, &name);
    let content = model.get_mut(&name).unwrap();
    let at = random.random_range(0..content.len() as u64 + 5000);
    match random.random_range(0..9) {
        0 | 1 => {
            let new = pattern(1 + random.random_range(0..9000), step as u8);
            write(fs, ino, at, &new)?;
            let end = at as usize + new.len();
            content.resize(content.len().max(end), 0);
            content[at as usize..end].copy_from_slice(&new);
        }
        2 => {
            truncate(fs, ino, at)?;
            content.resize(at as usize, 0);
        }
        3 => {
            let length = 1 + random.random_range(0..40_000);
            fs.fallocate(ino, at, length, Allocate::PunchHole, W)?;
            let end = content.len().min((at + length) as usize);
            content.get_mut(at as usize..end).into_iter().for_each(|gone| gone.fill(0));
        }
        4 => {
            let length = 1 + random.random_range(0..40_000);
            fs.fallocate(ino, at, length, Allocate::KeepSize, W)?;
        }
        5 => {
            let found = bytes(fs, ino, at, 9000)?;
            let expected = content.get(at as usize..).unwrap_or_default();
            assert!(found == expected[..expected.len().min(9000)], "{name} at {at}");
        }
        6 => {
            fs.unlink(ROOT, name.as_bytes(), W)?;
            model.remove(&name);
            fs.run_background(20);
            let new = format!("n{step}");
            let ino = create(fs, ROOT, &new);
            let content = pattern(random.random_range(0..20_000), step as u8);
            write(fs, ino, 0, &content)?;
            fs.forget(ino, 1);
            model.insert(new, content);
        }
        7 => fs.sync_to(1, &mut |_| {}).map(|_| ())?,
        _ => {
            match fs.seek(ino, at, Seek::Data) {
                Err(FsError::NoDataThere) | Ok(_) => {}
                Err(error) => return Err(error),
            };
        }
    }
    Ok(())
}
