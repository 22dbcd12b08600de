//! The faults that tests inject into simulated devices and recorded PM.

use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, Begins, Operation, SimulatedDevice, Times};
use terrace_media::pm::{Access, RecordedPm};
use terrace_media::{BlockMedium, MediaError, PmMedium};

fn block(value: u8) -> [AlignedBlock; 1] {
    [AlignedBlock([value; 4096])]
}

fn errno<T>(answer: Result<T, MediaError>) -> Option<i32> {
    match answer {
        Err(MediaError::Device(error)) => Some(error.errno),
        _ => None,
    }
}

fn read(device: &SimulatedDevice, number: u64) -> Result<u8, MediaError> {
    let mut into = block(0xee);
    device.read(DeviceBlock(number), &mut into)?;
    Ok(into[0].0[0])
}

#[test]
fn operations_during_a_stall_without_waiting_fail_and_leave_the_device_unchanged() {
    let device = SimulatedDevice::new(8);
    device.write(DeviceBlock(1), &block(1)).unwrap();
    device.stall_without_waiting();
    let before = device.clock().now();
    assert_eq!(errno(device.write(DeviceBlock(1), &block(2))), Some(libc::ETIMEDOUT));
    assert_eq!(errno(read(&device, 1)), Some(libc::ETIMEDOUT));
    assert_eq!(errno(device.flush()), Some(libc::ETIMEDOUT));
    assert_eq!((device.waiting(), device.clock().now()), (0, before));
    assert_eq!(device.error_count(), 3);
    device.unstall();
    assert_eq!(read(&device, 1).unwrap(), 1);
    device.flush().unwrap();
    assert_eq!(device.snapshot().image_none().block(DeviceBlock(1)).0[0], 1);
}

#[test]
fn operations_on_a_vanished_device_fail_and_written_blocks_come_back() {
    let device = SimulatedDevice::new(8);
    device.write(DeviceBlock(1), &block(1)).unwrap();
    device.vanish(libc::ENODEV);
    let before = device.clock().now();
    assert_eq!(errno(device.write(DeviceBlock(1), &block(2))), Some(libc::ENODEV));
    assert_eq!(errno(read(&device, 1)), Some(libc::ENODEV));
    assert_eq!(errno(device.flush()), Some(libc::ENODEV));
    device.discard(DeviceBlock(1), 1);
    assert_eq!(device.clock().now(), before);
    device.come_back(None);
    assert_eq!(read(&device, 1).unwrap(), 1);
    device.flush().unwrap();
    assert_eq!(device.snapshot().image_none().block(DeviceBlock(1)).0[0], 1);
}

#[test]
fn a_device_keeps_flushed_blocks_over_a_power_loss_and_reports_the_loss_once() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..60 {
        let device = SimulatedDevice::new(8);
        device.write(DeviceBlock(1), &block(1)).unwrap();
        device.flush().unwrap();
        device.write(DeviceBlock(2), &block(2)).unwrap();
        device.vanish(libc::EIO);
        device.come_back(Some(seed));
        assert_eq!(read(&device, 1).unwrap(), 1);
        let left = read(&device, 2).unwrap();
        kept += u64::from(left == 2);
        lost += u64::from(left == 0);
        assert_eq!(device.snapshot().unflushed_count(), 0, "what is there now is there for good");
        assert_eq!(errno(device.flush()), Some(libc::EIO));
        device.flush().unwrap();
        assert_eq!(device.snapshot().image_none().block(DeviceBlock(2)).0[0], left);
    }
    assert!(kept > 5 && lost > 5, "{kept} kept, {lost} lost");

    let device = SimulatedDevice::new(8);
    device.write(DeviceBlock(1), &block(1)).unwrap();
    device.flush().unwrap();
    device.vanish(libc::EIO);
    device.come_back(Some(1));
    device.flush().unwrap(); // there was nothing to lose
}

#[test]
fn planned_failures_have_any_errno_and_occur_once_or_for_good() {
    let device = SimulatedDevice::new(8);
    for number in [libc::EIO, libc::ENOSPC, libc::EREMOTEIO] {
        device.fail_next(Operation::Flush, 0..8, number, Times::Count(1));
        assert_eq!(errno(device.flush()), Some(number));
        device.flush().unwrap();
    }
    device.fail_next(Operation::Write, 2..3, libc::ENOSPC, Times::Forever);
    for _ in 0..3 {
        assert_eq!(errno(device.write(DeviceBlock(2), &block(1))), Some(libc::ENOSPC));
        device.write(DeviceBlock(3), &block(1)).unwrap();
    }
    device.clear_failures();
    device.write(DeviceBlock(2), &block(1)).unwrap();
}

#[test]
fn poison_fails_reads_or_stores_a_number_of_times_or_for_good() {
    let load = |pm: &RecordedPm| pm.load_u64(PmOffset(64)).is_ok();
    let store = |pm: &RecordedPm| pm.write(PmOffset(64), &[1; 8]).is_ok();
    let pm = RecordedPm::new(4096);
    pm.poison_for(64..128, Access::Reads, Times::Forever);
    assert_eq!([load(&pm), store(&pm), load(&pm)], [false, true, false]);
    assert!(pm.load_u64(PmOffset(128)).is_ok());
    pm.clear_poison();
    pm.poison_for(64..128, Access::Stores, Times::Count(2));
    assert_eq!([load(&pm), store(&pm), load(&pm), store(&pm), store(&pm)], [true, false, true, false, true]);
    pm.poison_for(64..128, Access::Any, Times::Count(1));
    assert_eq!([store(&pm), load(&pm)], [false, true]);
    // A write-back of what cannot be stored to settles nothing, and does not use up the times.
    pm.persist().unwrap();
    pm.store(PmOffset(64), &[2; 8]).unwrap();
    pm.poison_for(64..128, Access::Stores, Times::Count(1));
    pm.write_back(PmOffset(64), 64);
    pm.persist().unwrap();
    assert_eq!(pm.snapshot().pending_count(), 1);
    assert!(!store(&pm));
    pm.write_back(PmOffset(64), 64);
    pm.persist().unwrap();
    assert_eq!(pm.snapshot().pending_count(), 0);
}

#[test]
fn worn_out_blocks_keep_failing_and_delayed_faults_begin_on_time() {
    let device = SimulatedDevice::new(8);
    device.fail_next(Operation::Write, 0..8, libc::EIO, Times::WearsOutAfter(1));
    device.write(DeviceBlock(1), &block(1)).unwrap();
    assert!(device.write(DeviceBlock(2), &block(1)).is_err());
    device.write(DeviceBlock(3), &block(1)).unwrap();
    assert!(device.write(DeviceBlock(2), &block(1)).is_err());
    device.clear_failures();
    device.fail_next(Operation::Flush, 0..8, libc::EIO, Times::AlwaysAfter(1));
    assert_eq!([(); 3].map(|()| device.flush().is_ok()), [true, false, false]);
    device.clear_failures();
    device.begin_after(Operation::Read, 1, Begins::Gone);
    assert_eq!(read(&device, 1).unwrap(), 1);
    device.write(DeviceBlock(4), &block(1)).unwrap();
    assert_eq!(errno(read(&device, 1)), Some(libc::ENODEV));
    assert_eq!(errno(device.write(DeviceBlock(4), &block(1))), Some(libc::ENODEV));
    device.come_back(None);
    device.begin_after(Operation::Flush, 0, Begins::Stall);
    assert_eq!(errno(device.flush()), Some(libc::ETIMEDOUT));
    assert_eq!(errno(read(&device, 1)), Some(libc::ETIMEDOUT));
    device.unstall();
    assert_eq!(read(&device, 1).unwrap(), 1);

    let pm = RecordedPm::new(4096);
    pm.poison_for(0..4096, Access::Reads, Times::WearsOutAfter(1));
    assert!(pm.load_u64(PmOffset(0)).is_ok());
    assert!(pm.load_u64(PmOffset(8)).is_err());
    assert!(pm.load_u64(PmOffset(0)).is_ok());
    assert!(pm.load_u64(PmOffset(8)).is_err());
    assert_eq!(pm.error_count(), 2);
    pm.clear_poison();
    pm.condemn(PmOffset(16), 8);
    pm.write(PmOffset(16), &[1; 8]).unwrap();
    assert!(pm.load_u64(PmOffset(16)).is_err());
    assert!(pm.load_u64(PmOffset(24)).is_ok());
}
