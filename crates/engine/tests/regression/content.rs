//! Writes and holes that were refused, cut short or too large.

use super::helpers::W;
use std::time::Duration;
use terrace_engine::{
    Allocate, FsError, FsResult, MountOptions, Movements, PolicyKind, SetAttributes, Simulation, Wait,
    WriteFlags,
};
use terrace_testkit::{CALLER, ROOT, SimulatedPool, atomic_blocks, create, write};

/// Under data=ordered a write with `Wait::Never` stored its first blocks in place, then met the cold last
/// block and answered `WouldBlock`, which promises an unchanged file.
#[test]
fn a_refused_write_leaves_the_file_unchanged() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let options = || MountOptions { data_ordered: Some(true), ..MountOptions::default() };
    let fs = pool.mount_with(options());
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 3 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    write(&fs, ino, 0, &[2; 2 * 4096])?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(options());
    let refused = fs.write(ino, 0, &[3; 10_000], WriteFlags::default(), Wait::Never);
    assert_eq!(refused.map_err(|error| error.errno()), Err(11));
    let mut first = [0; 4096];
    fs.read(ino, 0, &mut first, W)?;
    assert_eq!(first, [2; 4096]);
    fs.setattr(ino, &SetAttributes { size: Some(0), ..Default::default() }, W)?;
    Ok(())
}

/// Under data=ordered a punch clears its first edge, then meets a cold block at the second one and answers
/// `WouldBlock`, which promises an unchanged file. It kept that promise only because so few bytes are stored
/// with the record; now every overwrite in place waits for the commit.
#[test]
fn a_refused_punch_leaves_the_file_unchanged() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let options = || MountOptions { data_ordered: Some(true), ..MountOptions::default() };
    let fs = pool.mount_with(options());
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 3 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    write(&fs, ino, 0, &[2; 4096])?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(options());
    fs.run_background(100);
    let punch = |wait| fs.fallocate(ino, 100, 2 * 4096, Allocate::PunchHole, wait);
    assert_eq!(punch(Wait::Never).map_err(|error| error.errno()), Err(11));
    let mut content = [0; 3 * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert_eq!(content[..4096], [2; 4096]);
    punch(W)?;
    fs.read(ino, 0, &mut content, W)?;
    let expected = |at| if at < 100 { 2 } else { u8::from(at >= 100 + 2 * 4096) };
    assert!(content.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    Ok(())
}

/// The later pieces of a write above the atomic write size waited for a lower tier on the request thread
/// (L2).
#[test]
fn later_pieces_of_a_write_do_not_wait() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 100 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount();
    // The last block is cold and has to be merged with the new bytes. A piece has fewer blocks in so small
    // a pool.
    let data = vec![2; 99 * 4096 + 100];
    pool.device.stall_at_most(Duration::ZERO);
    let done = fs.write(ino, 0, &data, WriteFlags::default(), Wait::Never)?;
    assert_eq!(done, 99 / atomic_blocks() * atomic_blocks() * 4096);
    let refused = fs.write(ino, done as u64, &data[done..], WriteFlags::default(), Wait::Never);
    assert_eq!(refused.map_err(|error| error.errno()), Err(11));
    pool.device.unstall();
    assert_eq!(fs.write(ino, done as u64, &data[done..], WriteFlags::default(), W)?, data.len() - done);
    let mut content = vec![0; 100 * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert!(content.iter().enumerate().all(|(at, byte)| *byte == 1 + u8::from(at < data.len())));
    Ok(())
}

/// A write across the largest file size wrote nothing (EFBIG), where Linux writes the bytes that fit.
#[test]
fn a_write_across_the_largest_size_is_cut_to_fit() {
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() });
    let ino = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, W).unwrap().ino;
    let most = terrace_format::address::MAX_FILE_SIZE;
    let write = |offset, data: &[u8]| fs.write(ino, offset, data, WriteFlags::default(), W);
    assert_eq!(write(most - 5000, &[7; 10_000]).unwrap(), 5000);
    assert_eq!(fs.getattr(ino).unwrap().size, most);
    let mut end = [0; 6000];
    assert_eq!(fs.read(ino, most - 6000, &mut end, W).unwrap(), 6000);
    assert!(end[..1000].iter().all(|byte| *byte == 0) && end[1000..].iter().all(|byte| *byte == 7));
    for offset in [most, most + 1, u64::MAX] {
        assert!(matches!(write(offset, &[1]), Err(FsError::TooLarge)));
    }
}
