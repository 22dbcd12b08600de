//! The contract of `BlockMedium`, over every implementation. A new medium is one row in `media()`.

use std::sync::Arc;
use terrace_format::DeviceBlock;
use terrace_media::block::{AlignedBlock, BlockRead, Buffer, EmulatedBlock, FileDevice, SimulatedDevice};
use terrace_media::speed::named;
use terrace_media::{BlockMedium, Found, MediaError};
use terrace_runtime::ManualClock;

const BLOCKS: u64 = 6000;

struct Case {
    name: &'static str,
    medium: Arc<dyn BlockMedium>,
    _directory: Option<tempfile::TempDir>,
}

fn media() -> Vec<Case> {
    let file = |name, parent: &str, by_calls: bool| {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let mut device = FileDevice::create(directory.path().join("disk"), BLOCKS * 4096).unwrap();
        if by_calls {
            device = device.without_io_uring();
        }
        Case { name, medium: Arc::new(device), _directory: Some(directory) }
    };
    let emulated = |name, below: Case| {
        let speed = named("sata").unwrap().speed;
        let device = EmulatedBlock::new(below.medium, speed, Arc::new(ManualClock::new(0)));
        Case { name, medium: Arc::new(device), _directory: below._directory }
    };
    let disk = env!("CARGO_TARGET_TMPDIR");
    vec![
        file("file on disk", disk, false),
        file("file on disk by calls", disk, true),
        file("file on tmpfs", "/dev/shm", false),
        emulated("emulated over a file", file("file", disk, false)),
        Case { name: "simulated", medium: Arc::new(SimulatedDevice::new(BLOCKS)), _directory: None },
    ]
}

fn blocks(count: usize, salt: u64) -> Buffer {
    let mut buffer = vec![AlignedBlock::zeroed(); count];
    for (index, block) in buffer.iter_mut().enumerate() {
        for (word, bytes) in block.0.chunks_mut(8).enumerate() {
            let value = salt ^ (index as u64) << 20 ^ word as u64;
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }
    buffer
}

fn same(a: &[AlignedBlock], b: &[AlignedBlock]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0)
}

#[test]
fn reads_return_written_blocks_at_every_size() {
    for case in media() {
        let device = &case.medium;
        assert_eq!(device.blocks(), BLOCKS, "{}", case.name);
        // up to 20 MiB: more pieces than are in flight at once
        for (first, count) in [(0, 1), (5, 3), (200, 128), (100, 1000), (700, 5000), (5999, 1)] {
            let data = blocks(count, first + 77);
            device.write(DeviceBlock(first), &data).unwrap();
            device.flush().unwrap();
            let mut back = vec![AlignedBlock::zeroed(); count];
            device.read(DeviceBlock(first), &mut back).unwrap();
            assert!(same(&data, &back), "{} at {first}, {count}", case.name);
        }
        device.write(DeviceBlock(0), &[]).unwrap();
        device.read(DeviceBlock(0), &mut []).unwrap();
        assert_eq!(device.error_count(), 0, "{}", case.name);
    }
}

#[test]
fn a_write_leaves_other_blocks_alone_and_new_blocks_are_zeros() {
    for case in media() {
        let device = &case.medium;
        device.write(DeviceBlock(10), &blocks(3, 1)).unwrap();
        device.write(DeviceBlock(11), &blocks(1, 2)).unwrap();
        let mut back = vec![AlignedBlock([1; 4096]); 5];
        device.read(DeviceBlock(9), &mut back).unwrap();
        assert_eq!(back[0].0, [0; 4096], "{}", case.name);
        assert!(same(&back[1..2], &blocks(3, 1)[..1]), "{}", case.name);
        assert!(same(&back[2..3], &blocks(1, 2)), "{}", case.name);
        assert!(same(&back[3..4], &blocks(3, 1)[2..]), "{}", case.name);
        assert_eq!(back[4].0, [0; 4096], "{}", case.name);
    }
}

#[test]
fn out_of_bounds_is_a_counted_error() {
    for case in media() {
        let device = &case.medium;
        let mut buffer = blocks(2, 0);
        for first in [BLOCKS - 1, BLOCKS, u64::MAX] {
            for result in [
                device.read(DeviceBlock(first), &mut buffer),
                device.write(DeviceBlock(first), &buffer.clone()),
            ] {
                assert!(
                    matches!(result, Err(MediaError::Device(error)) if error.errno == libc::EINVAL),
                    "{}",
                    case.name
                );
            }
            device.discard(DeviceBlock(first), 2);
        }
        assert!(device.error_count() >= 6, "{}", case.name);
    }
}

#[test]
fn a_discard_leaves_other_blocks_alone() {
    for case in media() {
        let device = &case.medium;
        let data = blocks(8, 5);
        device.write(DeviceBlock(20), &data).unwrap();
        device.discard(DeviceBlock(22), 2);
        let mut back = vec![AlignedBlock::zeroed(); 8];
        device.read(DeviceBlock(20), &mut back).unwrap();
        assert!(same(&data[..2], &back[..2]), "{}", case.name);
        assert!(same(&data[4..], &back[4..]), "{}", case.name);
    }
}

#[test]
fn reads_of_one_batch_give_the_same_as_single_reads() {
    for case in media() {
        let device = &case.medium;
        let data = blocks(3000, 5);
        device.write(DeviceBlock(100), &data).unwrap();
        // A large one among many small ones, more than are in flight at once, and two that leave the device.
        let ranges =
            (0..50).map(|index| (100 + index * 7, 3)).chain([(400, 2000), (BLOCKS, 1), (BLOCKS - 1, 2)]);
        let ranges: Vec<(u64, usize)> = ranges.collect();
        let mut buffers: Vec<Buffer> =
            ranges.iter().map(|(_, count)| vec![AlignedBlock([1; 4096]); *count]).collect();
        let places = ranges.iter().zip(&mut buffers);
        let mut reads: Vec<BlockRead<'_>> =
            places.map(|((first, _), buffer)| BlockRead::new(DeviceBlock(*first), buffer)).collect();
        device.read_all(&mut reads);
        device.read_all(&mut []);
        let ends: Vec<_> = reads.into_iter().map(|read| read.result).collect();
        for (((first, count), end), buffer) in ranges.into_iter().zip(ends).zip(&buffers) {
            assert_eq!(end.is_err(), first + count as u64 > BLOCKS, "{} at {first}: {end:?}", case.name);
            let at = first as usize - 100;
            assert!(end.is_err() || same(buffer, &data[at..at + count]), "{} at {first}", case.name);
        }
        assert_eq!(device.error_count(), 2, "{}", case.name);
    }
}

#[test]
fn threads_write_and_read_a_device_at_the_same_time() {
    for case in media() {
        let threads: Vec<_> = (0..4u64)
            .map(|number| {
                let device = Arc::clone(&case.medium);
                terrace_runtime::thread::spawn("io", move || {
                    for round in 0..20 {
                        let first = DeviceBlock(number * 500 + round);
                        let data = blocks(200, number << 40 | round);
                        device.write(first, &data).unwrap();
                        let mut back = vec![AlignedBlock::zeroed(); 200];
                        device.read(first, &mut back).unwrap();
                        assert!(same(&data, &back));
                    }
                })
                .unwrap()
            })
            .collect();
        for thread in threads {
            thread.join().unwrap_or_else(|_| panic!("{}", case.name));
        }
    }
}

#[test]
fn files_are_locked_and_read_only_is_kept() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    let device = FileDevice::create(&path, 1 << 20).unwrap();
    device.write(DeviceBlock(3), &blocks(1, 9)).unwrap();
    device.flush().unwrap();
    assert!(FileDevice::open(&path, true, true).err().unwrap().is_busy());
    assert!(FileDevice::remake(&Found::at(&path).unwrap(), 4096).err().unwrap().is_busy());
    let unlocked = FileDevice::open(&path, false, true).unwrap();
    let mut back = vec![AlignedBlock::zeroed()];
    unlocked.read(DeviceBlock(3), &mut back).unwrap();
    assert!(same(&back, &blocks(1, 9)));
    assert!(matches!(
        unlocked.write(DeviceBlock(3), &back),
        Err(MediaError::Device(error)) if error.errno == libc::EROFS
    ));
    assert!(device.describe().contains("direct"), "{}", device.describe());
    drop(device);
    FileDevice::open(&path, true, false).unwrap();
    assert!(FileDevice::remake(&Found::at(&path).unwrap(), 100).is_err());
    assert!(FileDevice::create(&path, 4096).is_err(), "create replaces nothing");
    assert!(FileDevice::open("/dev/null", true, false).is_err());
}

#[test]
fn reads_past_the_end_of_a_shrunken_file_fail() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    for by_calls in [false, true] {
        let _ = std::fs::remove_file(&path);
        let mut device = FileDevice::create(&path, 1 << 20).unwrap();
        if by_calls {
            device = device.without_io_uring();
        }
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(8192).unwrap();
        let mut back = vec![AlignedBlock::zeroed(); 4];
        assert!(device.read(DeviceBlock(0), &mut back).is_err());
        assert_eq!(device.error_count(), 1);
        device.read(DeviceBlock(0), &mut back[..2]).unwrap();
    }
}
