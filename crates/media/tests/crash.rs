//! The crash images that `recorded` PM and `simulated` devices allow, and that both crash at the same moment.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::crash::{CrashClock, EventKind};
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_media::{BlockMedium, MediaError, PmMedium};

fn word(image: &PmImage, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    assert!(image.read(offset as u64, &mut bytes));
    u64::from_le_bytes(bytes)
}

fn put(pm: &RecordedPm, offset: u64, value: u64) {
    pm.write(PmOffset(offset), &value.to_ne_bytes()).unwrap();
}

/// All combinations of the words at `offsets` over all images.
fn outcomes(pm: &RecordedPm, offsets: &[usize]) -> HashSet<Vec<u64>> {
    let images = pm.snapshot().images_exhaustive(16).unwrap();
    images.map(|image| offsets.iter().map(|o| word(&image, *o)).collect()).collect()
}

fn set(rows: &[&[u64]]) -> HashSet<Vec<u64>> {
    rows.iter().map(|row| row.to_vec()).collect()
}

#[test]
fn fenced_stores_survive_every_crash_and_later_stores_survive_a_few() {
    let pm = RecordedPm::new(4096);
    put(&pm, 0, 1);
    pm.order();
    put(&pm, 64, 2);
    assert_eq!(outcomes(&pm, &[0, 64]), set(&[&[1, 0], &[1, 2]]));
    let snapshot = pm.snapshot();
    assert_eq!(snapshot.pending_count(), 1);
    let seen: HashSet<u64> = (0..40)
        .map(|seed| {
            let image = snapshot.image_random(seed);
            assert_eq!(word(&image, 0), 1);
            assert_eq!(image, snapshot.image_random(seed), "seeds repeat");
            word(&image, 64)
        })
        .collect();
    assert_eq!(seen, HashSet::from([0, 2]));
    assert_eq!(word(&snapshot.image_oldest(), 64), 0);
    assert_eq!(word(&snapshot.image_newest(), 64), 2);
    pm.persist().unwrap();
    assert_eq!(outcomes(&pm, &[0, 64]), set(&[&[1, 2]]));
}

#[test]
fn lines_persist_in_any_order_and_stores_of_one_line_in_theirs() {
    let pm = RecordedPm::new(4096);
    put(&pm, 0, 1);
    put(&pm, 64, 2);
    let any = set(&[&[0, 0], &[1, 0], &[0, 2], &[1, 2]]);
    assert_eq!(outcomes(&pm, &[0, 64]), any);
    let pm = RecordedPm::new(4096);
    put(&pm, 8, 1);
    put(&pm, 0, 2);
    assert_eq!(outcomes(&pm, &[8, 0]), set(&[&[0, 0], &[1, 0], &[1, 2]]));
}

#[test]
fn a_streamed_line_tears_anywhere_and_a_stored_one_from_the_front() {
    let two_words = |value: u64| {
        let mut line = [0u8; 64];
        line[..8].copy_from_slice(&value.to_ne_bytes());
        line[56..].copy_from_slice(&value.to_ne_bytes());
        line
    };
    let pm = RecordedPm::new(4096);
    pm.write_streaming(PmOffset(128), &two_words(3)).unwrap();
    let any = set(&[&[0, 0], &[3, 0], &[0, 3], &[3, 3]]);
    assert_eq!(outcomes(&pm, &[128, 184]), any);
    // a later ordinary store persists only after all of the streamed line
    put(&pm, 136, 9);
    assert_eq!(
        outcomes(&pm, &[128, 184, 136]),
        set(&[&[0, 0, 0], &[3, 0, 0], &[0, 3, 0], &[3, 3, 0], &[3, 3, 9]])
    );
    let pm = RecordedPm::new(4096);
    pm.write(PmOffset(128), &two_words(3)).unwrap();
    let front = set(&[&[0, 0], &[3, 0], &[3, 3]]);
    assert_eq!(outcomes(&pm, &[128, 184]), front);
}

#[test]
fn a_store_nobody_wrote_back_stays_undecided() {
    let pm = RecordedPm::new(4096);
    pm.store_only(PmOffset(0), &1u64.to_ne_bytes()).unwrap();
    pm.order();
    pm.persist().unwrap();
    assert_eq!(outcomes(&pm, &[0]), set(&[&[0], &[1]]));
    pm.write_back(PmOffset(0), 8);
    pm.store_only(PmOffset(0), &2u64.to_ne_bytes()).unwrap();
    pm.order();
    // the value that was written back is durable, the later store is not
    assert_eq!(outcomes(&pm, &[0]), set(&[&[1], &[2]]));
}

#[test]
fn unaligned_stores_leave_neighbouring_bytes_alone() {
    let pm = RecordedPm::from_image(vec![0xff; 256]);
    pm.write(PmOffset(3), &[1; 10]).unwrap();
    for image in pm.snapshot().images_exhaustive(8).unwrap() {
        let image = image.to_vec();
        assert_eq!(&image[..3], [0xff; 3]);
        assert!(image[3..13].iter().all(|b| *b == 1 || *b == 0xff));
        assert!(image[13..].iter().all(|b| *b == 0xff));
    }
}

/// The newest image is what reads see, at any moment; after write-back and a fence it is the only one.
#[test]
fn the_newest_crash_image_has_every_store() {
    for persist_only in [false, true] {
        let pm = RecordedPm::new(1024);
        pm.set_persist_only(persist_only);
        let mut seed = 12345u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for step in 0..2000 {
            let (at, length) = (next(1024), next(150));
            let length = length.min(1024 - at);
            let data = vec![next(256) as u8; length as usize];
            match next(8) {
                0 | 1 => pm.write(PmOffset(at), &data).unwrap(),
                2 | 3 => pm.write_streaming(PmOffset(at), &data).unwrap(),
                4 => pm.store_only(PmOffset(at), &data).unwrap(),
                5 => pm.write_back(PmOffset(at), length),
                6 => pm.order(),
                _ => pm.persist().unwrap(),
            }
            let newest = pm.snapshot().image_newest();
            assert!(newest == pm.visible_image(), "step {step}");
        }
        pm.write_back(PmOffset(0), 1024);
        pm.persist().unwrap();
        assert_eq!(pm.snapshot().pending_count(), 0);
        assert!(pm.snapshot().image_oldest() == pm.visible_image());
    }
}

#[test]
fn in_persist_only_mode_an_order_ends_an_epoch_and_persist_makes_durable() {
    let pm = RecordedPm::new(4096);
    pm.set_persist_only(true);
    put(&pm, 0, 1);
    pm.order();
    put(&pm, 64, 2);
    pm.order();
    put(&pm, 0, 3);
    let expected = set(&[&[0, 0], &[1, 0], &[1, 2], &[3, 2]]);
    assert_eq!(outcomes(&pm, &[0, 64]), expected);
    for seed in 0..200 {
        let image = pm.snapshot().image_random(seed);
        let found = vec![word(&image, 0), word(&image, 64)];
        assert!(expected.contains(&found), "seed {seed}: {found:?}");
    }
    pm.persist().unwrap();
    assert_eq!(outcomes(&pm, &[0, 64]), set(&[&[3, 2]]));
    assert_eq!(pm.snapshot().pending_count(), 0);
}

#[test]
fn too_many_lines_are_sampled() {
    let pm = RecordedPm::new(1 << 16);
    for line in 0..100 {
        put(&pm, line * 64, 1);
    }
    let snapshot = pm.snapshot();
    assert!(snapshot.images_exhaustive(8).is_none());
    assert_eq!(snapshot.images(8, 10, 0).count(), 12);
    // every line is decided independently: over the images each line occurs in both states
    let images: Vec<_> = (0..64).map(|seed| snapshot.image_random(seed)).collect();
    for line in 0..100 {
        let states: HashSet<u64> = images.iter().map(|i| word(i, line * 64)).collect();
        assert_eq!(states.len(), 2, "line {line}");
    }
}

#[test]
fn poison_fails_reads_of_its_range_only() {
    let pm = RecordedPm::new(4096);
    put(&pm, 64, 7);
    pm.poison(64..128);
    let mut byte = [0];
    assert!(matches!(pm.read(PmOffset(127), &mut byte), Err(MediaError::Pm { .. })));
    assert!(pm.load_u64(PmOffset(64)).is_err());
    pm.read(PmOffset(63), &mut byte).unwrap();
    pm.read(PmOffset(128), &mut byte).unwrap();
    pm.clear_poison();
    assert_eq!(pm.load_u64(PmOffset(64)).unwrap(), 7);
}

fn block(value: u8) -> [AlignedBlock; 1] {
    [AlignedBlock([value; 4096])]
}

#[test]
fn unflushed_sectors_are_lost_torn_and_reordered_and_flushed_ones_kept() {
    let device = SimulatedDevice::new(16);
    device.write(DeviceBlock(1), &block(1)).unwrap();
    device.flush().unwrap();
    device.write(DeviceBlock(1), &block(2)).unwrap();
    device.write(DeviceBlock(2), &block(3)).unwrap();
    let snapshot = device.snapshot();
    assert_eq!(snapshot.unflushed_count(), 2);
    assert_eq!(snapshot.image_none().block(DeviceBlock(1)).0, [1; 4096]);
    assert_eq!(snapshot.image_all().block(DeviceBlock(1)).0, [2; 4096]);
    let (mut torn, mut second_only) = (false, false);
    for seed in 0..100 {
        let image = snapshot.image_random(seed);
        let first = image.block(DeviceBlock(1)).0;
        assert!(first.iter().all(|b| *b == 1 || *b == 2));
        for sector in first.chunks(512) {
            assert!(sector.iter().all(|b| *b == sector[0]), "a sector is whole");
        }
        torn |= first.contains(&1) && first.contains(&2);
        second_only |= first == [1; 4096] && image.block(DeviceBlock(2)).0 == [3; 4096];
    }
    assert!(torn && second_only);
    let bytes = snapshot.image_all().to_bytes();
    let again = SimulatedDevice::from_image(DeviceImage::from_bytes(&bytes));
    let mut back = block(0);
    again.read(DeviceBlock(2), &mut back).unwrap();
    assert_eq!(back[0].0, [3; 4096]);
}

#[test]
fn writes_before_a_failed_flush_never_become_durable() {
    let device = SimulatedDevice::new(16);
    device.write(DeviceBlock(1), &block(1)).unwrap();
    device.write(DeviceBlock(2), &block(1)).unwrap();
    device.fail_next(Operation::Flush, 0..16, libc::EIO, Times::Count(1));
    assert!(device.flush().is_err());
    device.write(DeviceBlock(2), &block(2)).unwrap();
    device.flush().unwrap();
    let image = device.snapshot().image_none();
    assert_eq!(image.block(DeviceBlock(1)).0, [0; 4096], "not durable");
    assert_eq!(image.block(DeviceBlock(2)).0, [2; 4096], "written again");
    let newest = device.snapshot().image_all();
    assert_eq!(newest.block(DeviceBlock(2)).0, [2; 4096], "never the older");
    let mut back = block(9);
    device.read(DeviceBlock(1), &mut back).unwrap();
    assert_eq!(back[0].0, [1; 4096], "still what reads see");
}

#[test]
fn failures_lies_and_rot_happen_as_ordered() {
    let device = SimulatedDevice::new(16);
    device.fail_next(Operation::Read, 4..5, libc::EIO, Times::Forever);
    device.fail_next(Operation::Write, 8..9, libc::ENOSPC, Times::Count(2));
    let mut buffer = block(1);
    device.read(DeviceBlock(3), &mut buffer).unwrap();
    for _ in 0..3 {
        assert!(device.read(DeviceBlock(4), &mut buffer).is_err());
    }
    let answers: Vec<bool> = (0..3).map(|_| device.write(DeviceBlock(8), &block(2)).is_ok()).collect();
    assert_eq!(answers, [false, false, true]);
    assert_eq!(device.error_count(), 5);
    device.clear_failures();
    device.read(DeviceBlock(4), &mut buffer).unwrap();

    device.lie_about_flush(true);
    device.flush().unwrap();
    let lost = device.snapshot().image_none();
    assert_eq!(lost.block(DeviceBlock(8)).0, [0; 4096]);
    device.lie_about_flush(false);
    device.flush().unwrap();
    device.corrupt(DeviceBlock(8), 100, 0xff);
    device.read(DeviceBlock(8), &mut buffer).unwrap();
    assert_eq!((buffer[0].0[99], buffer[0].0[100]), (2, 2 ^ 0xff));
}

#[test]
fn a_stalled_device_holds_operations_until_released_and_pm_goes_on() {
    let clock = CrashClock::new();
    let pm = RecordedPm::with_clock(vec![0; 4096], &clock);
    let image = DeviceImage::zeroed(16);
    let device = Arc::new(SimulatedDevice::with_clock("slow", image, &clock));
    device.stall();
    let other = Arc::clone(&device);
    let writer = terrace_runtime::thread::spawn("writer", move || {
        other.write(DeviceBlock(0), &block(1)).unwrap();
    })
    .unwrap();
    while device.waiting() == 0 {
        std::hint::spin_loop();
    }
    put(&pm, 0, 1); // would hang if a stalled operation held the clock
    pm.persist().unwrap();
    assert_eq!(device.snapshot().unflushed_count(), 0);
    device.unstall();
    writer.join().unwrap();
    device.stall_at_most(Duration::from_millis(5));
    assert!(matches!(device.flush(), Err(MediaError::Device(error)) if error.errno == libc::ETIMEDOUT));
}

/// A workload over PM and a device is crashed at every event: both snapshots hold exactly the operations
/// before that event, no matter on which medium.
#[test]
fn media_with_a_shared_clock_crash_at_the_same_moment() {
    let run = |target: Option<u64>| {
        let clock = CrashClock::new();
        let pm = RecordedPm::with_clock(vec![0; 4096], &clock);
        let image = DeviceImage::zeroed(16);
        let device = SimulatedDevice::with_clock("disk", image, &clock);
        clock.set_crash_at(target);
        // a migration: the copy is durable on the device before PM says so
        put(&pm, 0, 1); // event 0
        pm.persist().unwrap(); // 1
        device.write(DeviceBlock(1), &block(7)).unwrap(); // 2
        device.flush().unwrap(); // 3
        put(&pm, 64, 2); // 4
        pm.persist().unwrap(); // 5
        device.discard(DeviceBlock(1), 1); // 6
        device.flush().unwrap(); // 7
        (clock.now(), pm.take_snapshot(), device.take_snapshot())
    };
    let (events, none, _) = run(None);
    assert_eq!(events, 8);
    assert!(none.is_none());
    for target in 0..events {
        let (_, pm, device) = run(Some(target));
        let (pm, device) = (pm.unwrap(), device.unwrap());
        assert_eq!((pm.event, device.event), (target, target));
        for image in pm.images_exhaustive(8).unwrap() {
            for seed in 0..8 {
                let disk = device.image_random(seed).block(DeviceBlock(1)).0;
                if target > 1 {
                    assert_eq!(word(&image, 0), 1, "at {target}");
                }
                if word(&image, 64) == 2 && target < 7 {
                    assert!(target > 4 && disk.contains(&7), "at {target}");
                }
                if target == 8 {
                    assert_eq!(disk, [0; 4096]);
                }
            }
        }
    }
}

#[test]
fn a_hook_sees_every_event_before_it_takes_effect() {
    let clock = CrashClock::new();
    let pm = Arc::new(RecordedPm::with_clock(vec![0; 4096], &clock));
    let (sender, receiver) = std::sync::mpsc::channel();
    let watched = Arc::downgrade(&pm);
    clock.on_event(Some(Box::new(move |event| {
        let pending = watched.upgrade().map(|pm| pm.snapshot().pending_count());
        let _ = sender.send((event.number, event.kind, pending));
    })));
    put(&pm, 0, 1);
    pm.order();
    pm.persist().unwrap();
    clock.on_event(None);
    put(&pm, 0, 2);
    let seen: Vec<_> = receiver.iter().collect();
    assert_eq!(
        seen,
        [(0, EventKind::Store, Some(0)), (1, EventKind::Order, Some(1)), (2, EventKind::Persist, Some(0)),]
    );
}
