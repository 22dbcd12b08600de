//! The contract of `PmMedium`, over every implementation. A new medium is one row in `media()`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use terrace_format::PmOffset;
use terrace_media::pm::{EmulatedPm, PmSpeed, RamPm, RecordedPm};
use terrace_media::{MediaError, PmMedium};
use terrace_runtime::ManualClock;

const SIZE: u64 = 1 << 20;

/// A medium and what must outlive it.
struct Case {
    name: &'static str,
    medium: Arc<dyn PmMedium>,
    _directory: Option<tempfile::TempDir>,
}

fn media() -> Vec<Case> {
    let ram = |name, parent: &str| {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let medium = RamPm::create(directory.path().join("pm"), SIZE).unwrap();
        Case { name, medium: Arc::new(medium), _directory: Some(directory) }
    };
    let recorded = |name, persist_only| {
        let medium = RecordedPm::new(SIZE);
        medium.set_persist_only(persist_only);
        Case { name, medium: Arc::new(medium), _directory: None }
    };
    let emulated = |name, speed: &str| {
        let below = ram(name, "/dev/shm");
        let speed = PmSpeed::parse(speed).unwrap();
        let medium = EmulatedPm::new(below.medium, speed, Arc::new(ManualClock::new(0)));
        Case { name, medium: Arc::new(medium), _directory: below._directory }
    };
    vec![
        emulated("emulated by line", "200:1G"),
        emulated("emulated by run", "run:300:1G:300"),
        ram("ram on tmpfs", "/dev/shm"),
        ram("ram on a disk file system", env!("CARGO_TARGET_TMPDIR")),
        recorded("recorded", false),
        recorded("recorded, persist only", true),
    ]
}

fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(salt)).collect()
}

#[test]
fn reads_return_stored_bytes_at_every_alignment() {
    for case in media() {
        let pm = &case.medium;
        for (round, offset) in [0u64, 1, 7, 8, 63, 64, 65, 4095, 4096, 70_001].into_iter().enumerate() {
            for length in [0usize, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200, 4096, 4097] {
                let data = pattern(length, round as u8 + length as u8);
                if length % 2 == 0 {
                    pm.write(PmOffset(offset), &data).unwrap();
                } else {
                    pm.write_streaming(PmOffset(offset), &data).unwrap();
                }
                pm.order();
                let mut back = vec![0; length];
                pm.read(PmOffset(offset), &mut back).unwrap();
                assert_eq!(back, data, "{} at {offset}, {length} bytes", case.name);
            }
        }
    }
}

#[test]
fn a_store_leaves_bytes_outside_its_range_alone() {
    for case in media() {
        let pm = &case.medium;
        pm.write(PmOffset(0), &[0xaa; 512]).unwrap();
        pm.write(PmOffset(65), &[1; 30]).unwrap();
        pm.write_streaming(PmOffset(190), &[2; 133]).unwrap();
        let mut expected = [0xaa; 512];
        expected[65..95].fill(1);
        expected[190..323].fill(2);
        let mut back = [0; 512];
        pm.read(PmOffset(0), &mut back).unwrap();
        assert_eq!(back, expected, "{}", case.name);
    }
}

#[test]
fn words_are_native_endian_and_must_be_aligned() {
    for case in media() {
        let pm = &case.medium;
        pm.write(PmOffset(16), &0x0102_0304_0506_0708u64.to_ne_bytes()).unwrap();
        assert_eq!(pm.load_u64(PmOffset(16)).unwrap(), 0x0102_0304_0506_0708);
        for offset in [1, 4, 17] {
            assert!(pm.load_u64(PmOffset(offset)).is_err(), "{}", case.name);
        }
    }
}

#[test]
fn a_new_medium_is_zeros() {
    for case in media() {
        let mut all = vec![1; SIZE as usize];
        case.medium.read(PmOffset(0), &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 0), "{}", case.name);
        assert_eq!(case.medium.size(), SIZE, "{}", case.name);
    }
}

#[test]
fn an_access_out_of_bounds_fails_and_leaves_pm_unchanged() {
    for case in media() {
        let pm = &case.medium;
        pm.write(PmOffset(SIZE - 64), &[7; 64]).unwrap();
        let beyond = [(SIZE, 1), (SIZE - 1, 2), (SIZE - 64, 65), (u64::MAX, 8), (u64::MAX - 7, 8)];
        for (offset, length) in beyond {
            let mut buffer = vec![9; length];
            for result in [
                pm.read(PmOffset(offset), &mut buffer.clone()),
                pm.write(PmOffset(offset), &buffer),
                pm.write_streaming(PmOffset(offset), &buffer),
            ] {
                assert!(
                    matches!(result, Err(MediaError::Pm { offset: at, .. }) if at.0 == offset),
                    "{} at {offset}: {result:?}",
                    case.name
                );
            }
            pm.write_back(PmOffset(offset), length as u64);
            pm.prepare(PmOffset(offset), length as u64);
            buffer.clear();
        }
        assert!(pm.load_u64(PmOffset(SIZE)).is_err(), "{}", case.name);
        assert!(pm.load_u64(PmOffset(u64::MAX - 7)).is_err());
        assert_eq!(pm.load_u64(PmOffset(SIZE - 8)).unwrap(), u64::from_ne_bytes([7; 8]));
    }
}

#[test]
fn counters_count_fences_and_lines() {
    for case in media() {
        let pm = &case.medium;
        let before = pm.counters();
        pm.write(PmOffset(60), &[1; 8]).unwrap(); // two lines
        pm.write_streaming(PmOffset(4096), &[1; 4096]).unwrap(); // 64
        pm.write_back(PmOffset(64), 1);
        pm.order();
        pm.persist().unwrap();
        let after = pm.counters();
        assert_eq!(after.fences - before.fences, 2, "{}", case.name);
        assert_eq!(after.lines - before.lines, 67, "{}", case.name);
    }
}

#[test]
fn aligned_words_are_never_torn() {
    for case in media() {
        let pm = &case.medium;
        // each aligned word of the area is always eight equal bytes
        const AREA: usize = 512;
        // A writer that never rests can keep a recorded medium's lock for good: waking a waiter takes longer than
        // the writer's next store. So the writer is at most this many stores ahead of the reader.
        const AHEAD: usize = 64;
        let stop = Arc::new(AtomicBool::new(false));
        let reads = Arc::new(AtomicUsize::new(0));
        let writer = {
            let (pm, stop, reads) = (Arc::clone(pm), Arc::clone(&stop), Arc::clone(&reads));
            terrace_runtime::thread::spawn("writer", move || {
                let (mut value, mut stores) = (0u8, 0);
                while !stop.load(Ordering::Relaxed) {
                    if stores >= reads.load(Ordering::Relaxed) + AHEAD {
                        std::thread::yield_now();
                        continue;
                    }
                    stores += 1;
                    value = value.wrapping_add(1);
                    let at = PmOffset(8 * u64::from(value % 8));
                    let data = vec![value; AREA - 64];
                    if value.is_multiple_of(2) {
                        pm.write(at, &data).unwrap();
                    } else {
                        pm.write_streaming(at, &data).unwrap();
                    }
                }
            })
            .unwrap()
        };
        let mut buffer = [0u8; AREA];
        let mut seen = std::collections::HashSet::new();
        for round in 0..20_000 {
            // unaligned reads too: their inner words must be whole
            let start = round % 8;
            pm.read(PmOffset(start as u64), &mut buffer[start..]).unwrap();
            for word in buffer.chunks(8).skip(1) {
                assert!(word.iter().all(|b| *b == word[0]), "{}: {word:?}", case.name);
                seen.insert(word[0]);
            }
            let word = pm.load_u64(PmOffset(64)).unwrap().to_ne_bytes();
            assert!(word.iter().all(|b| *b == word[0]), "{}", case.name);
            reads.store(round, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(seen.len() > 1, "{}: the writer never ran", case.name);
    }
}

#[test]
fn every_pm_medium_describes_itself_and_its_promise() {
    for case in media() {
        assert!(!case.medium.describe().is_empty());
        assert_ne!(case.medium.promise().name(), "none", "{}", case.name);
    }
}

/// In doubt a medium denies it: fsync of a directory relies on that.
#[test]
fn order_persists_in_memory_alone() {
    for case in media() {
        let denies = ["ram on a disk file system", "recorded, persist only"].contains(&case.name);
        assert_eq!(case.medium.order_persists(), !denies, "{}", case.name);
    }
}
