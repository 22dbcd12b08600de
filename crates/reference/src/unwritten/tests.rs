//! Histories written by hand, and the files that a crash may leave of them.

use super::*;
use crate::{Allocate, Answer, Change, CrashRules, Id, Limits, New, Op, ROOT, Reference};

const AT: Stamp = Stamp { from: 1, to: 2 };

/// A file system with an empty file, in which writes wait.
fn start() -> (Reference, Id) {
    let mut fs = Reference::new(Limits::default(), false, AT);
    let id = fs.make(ROOT, b"f", &New::Regular(0o644), (0, 0), AT).unwrap_or(ROOT);
    fs.set_buffers(true);
    (fs, id)
}

fn put(fs: &mut Reference, id: Id, offset: u64, bytes: &[u8], when: i64) {
    assert_eq!(fs.write_waiting(id, offset, bytes, false, Stamp::at(when)), Ok(bytes.len()));
}

/// Judges a mount that shows these bytes; the blocks in `holes` are shown as holes.
fn showing(fs: &Reference, id: Id, bytes: &[u8], holes: &[u64]) -> Result<(), String> {
    let node = fs.node(id).map_err(|errno| errno.to_string())?;
    let (mtime, ctime) = (node.mtime.from, node.ctime.from);
    let mut shown = Shown { size: bytes.len() as u64, mtime, ctime, ..Shown::default() };
    for (index, block) in
        bytes.chunks(BLOCK).enumerate().filter(|(index, _)| !holes.contains(&(*index as u64)))
    {
        let mut whole = block.to_vec();
        whole.resize(BLOCK, 0);
        shown.blocks.insert(index as u64, whole);
    }
    fs.clone().take_over(id, &shown)
}

fn allows(fs: &Reference, id: Id, bytes: &[u8]) -> bool {
    showing(fs, id, bytes, &[]).is_ok()
}

/// A crash shows a prefix of a file grown from nothing, never zeros that no write wrote.
#[test]
fn a_crash_leaves_a_prefix_of_a_growing_file() {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 5000], 5);
    put(&mut fs, id, 5000, &[2; 5000], 6);
    let mut all = vec![1; 5000];
    all.extend([2; 5000]);
    assert_eq!(showing(&fs, id, &[], &[]), Ok(()));
    assert_eq!(showing(&fs, id, &all, &[]), Ok(()));
    assert_eq!(showing(&fs, id, &all[..5000], &[]), Ok(()));
    assert_eq!(showing(&fs, id, &all[..8192], &[]), Ok(()));
    assert!(!allows(&fs, id, &[0; 5000]));
    assert!(showing(&fs, id, &[0; 8192], &[0, 1]).is_err(), "holes where there never were any");
    let mut zeros_in_between = all.clone();
    zeros_in_between[5000..5008].fill(0);
    assert!(!allows(&fs, id, &zeros_in_between));
    let mut garbage = all.clone();
    garbage[9] = 7;
    assert!(!allows(&fs, id, &garbage));
    all.push(2);
    assert!(!allows(&fs, id, &all), "longer than it ever was");
}

/// Each aligned 8 bytes show any version since the durable one, whole.
#[test]
fn versions_of_overwritten_bytes() {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 4096], 5);
    fs.written_back(id, fs.waited(id));
    assert!(fs.node(id).is_ok_and(|node| node.unwritten.is_none()));
    put(&mut fs, id, 0, &[2; 12], 6);
    put(&mut fs, id, 4, &[3; 12], 7);
    let mut bytes = vec![1; 4096];
    let mut set = |range: Range<usize>, value: &[u8]| {
        bytes[range].copy_from_slice(value);
        allows(&fs, id, &bytes)
    };
    assert!(set(0..8, &[1; 8]));
    assert!(set(0..8, &[2; 8]));
    assert!(set(0..8, &[2, 2, 2, 2, 3, 3, 3, 3]));
    assert!(!set(0..8, &[1, 1, 1, 1, 3, 3, 3, 3]), "the first write was there when the second came");
    assert!(set(0..8, &[1; 8]));
    assert!(set(8..16, &[2, 2, 2, 2, 1, 1, 1, 1]));
    assert!(set(8..16, &[3; 8]));
    assert!(!set(8..16, &[2; 8]));
    assert!(!set(8..16, &[0; 8]));
}

/// An fsync, and a write that comes while it runs.
#[test]
fn bytes_written_back_survive_a_crash() {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 100], 5);
    let mark = fs.waited(id);
    put(&mut fs, id, 0, &[2; 50], 6);
    fs.written_back(id, mark);
    assert!(allows(&fs, id, &[1; 100]));
    assert!(!allows(&fs, id, &[]));
    assert!(!allows(&fs, id, &[1; 50]));
    let mut bytes = vec![2; 48];
    bytes.extend([2, 2, 1, 1, 1, 1, 1, 1]);
    bytes.extend([1; 44]);
    assert!(allows(&fs, id, &bytes));
    assert_eq!(fs.perform(&Op::Fsync { id }, AT), Ok(Answer::Done));
    let states = fs.crash_states(&Op::Fsync { id }, CrashRules { atomic_blocks: 56, ordered: false }, AT);
    assert_eq!(states.len(), 2);
    assert!(
        states.last().is_some_and(|state| state.tree.node(id).is_ok_and(|node| node.unwritten.is_none()))
    );
}

/// A write with O_SYNC makes its own bytes and the size durable.
#[test]
fn a_write_with_o_sync_is_durable_among_waiting_writes() {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 4096], 5);
    assert_eq!(fs.write(id, 4096, &[2; 8], false, AT), Ok(8));
    let with = |first: u8| [vec![first; 4096], vec![2; 8]].concat();
    assert!(allows(&fs, id, &with(1)));
    assert!(allows(&fs, id, &with(0)), "not written back: below a size that is durable there are zeros");
    assert!(showing(&fs, id, &with(0), &[0]).is_ok());
    assert!(!allows(&fs, id, &with(3)));
    assert!(!allows(&fs, id, &[1; 4096]));
    // A write with O_SYNC over waiting bytes: a crash no longer shows the waiting version.
    assert_eq!(fs.write(id, 8, &[4; 8], false, AT), Ok(8));
    let mut bytes = with(1);
    assert!(!allows(&fs, id, &bytes));
    bytes[8..16].fill(4);
    assert!(allows(&fs, id, &bytes));
}

/// Truncation and holes are exact, and cut waiting writes.
#[test]
fn cut_bytes_never_come_back() -> Result<(), i32> {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 3 * BLOCK], 5);
    fs.truncate(id, 5000, false, AT)?;
    assert!(allows(&fs, id, &[1; 5000]) && allows(&fs, id, &[1; 4096]) && allows(&fs, id, &[]));
    assert!(!allows(&fs, id, &[1; 5001]) && !allows(&fs, id, &[0; 5000]));
    fs.truncate(id, 3 * B, false, AT)?;
    assert!(allows(&fs, id, &[]));
    let mut bytes = vec![1; 5000];
    bytes.resize(3 * BLOCK, 0);
    assert!(showing(&fs, id, &bytes, &[2]).is_ok());
    assert!(showing(&fs, id, &bytes, &[]).is_err(), "block 2 was never written since");
    assert!(!allows(&fs, id, &[1; 3 * BLOCK]));
    fs.fallocate(id, 0, B, Allocate::PunchHole, AT)?;
    assert!(showing(&fs, id, &bytes, &[2]).is_err());
    bytes[..BLOCK].fill(0);
    assert!(showing(&fs, id, &bytes, &[0, 2]).is_ok());
    assert!(showing(&fs, id, &bytes, &[2]).is_err(), "the hole is filled");
    Ok(())
}

/// A gap that a write beyond the end leaves is zeros once the size covers it.
#[test]
fn gaps_are_zeros() {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 10], 5);
    put(&mut fs, id, 2 * B, &[2; 10], 6);
    let mut bytes = vec![0; 2 * BLOCK + 10];
    bytes[2 * BLOCK..].fill(2);
    bytes[..10].fill(1);
    assert!(showing(&fs, id, &bytes, &[1]).is_ok());
    assert!(showing(&fs, id, &bytes[..4096], &[]).is_ok());
    assert!(allows(&fs, id, &[1; 10]));
    bytes[..10].fill(0);
    assert!(showing(&fs, id, &bytes, &[1]).is_err(), "the first bytes were never zeros");
    assert!(showing(&fs, id, &bytes, &[0, 1]).is_err());
}

/// The times shown are the times of one version or the durable ones.
#[test]
fn times() -> Result<(), i32> {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 10], 50);
    let change = Change { mode: Some(0o600), ..Change::default() };
    fs.set_attributes(id, &change, Stamp::at(60))?;
    put(&mut fs, id, 0, &[1; 10], 70);
    let node = fs.node(id)?;
    let unwritten = node.unwritten.as_ref().ok_or(0)?;
    let judge = |mtime, ctime| unwritten.judge(&Shown { mtime, ctime, ..Shown::default() }).is_ok();
    assert!(judge(1, 60) && judge(50, 60) && judge(70, 70));
    assert!(!judge(60, 60) && !judge(50, 50) && !judge(1, 1));
    Ok(())
}

/// Allocated blocks stay, with or without the waiting data that was written into them.
#[test]
fn blocks_set_aside() -> Result<(), i32> {
    let (mut fs, id) = start();
    fs.fallocate(id, 0, 2 * B, Allocate::Extend, AT)?;
    put(&mut fs, id, 0, &[1; BLOCK], 5);
    let node = fs.node(id)?;
    let unwritten = node.unwritten.as_ref().ok_or(0)?;
    assert_eq!(unwritten.without_place(), 0);
    assert!(unwritten.holds(0..B) && unwritten.holds(5..100) && !unwritten.holds(5..B + 1));
    let bytes = [vec![1; BLOCK], vec![0; BLOCK]].concat();
    assert!(showing(&fs, id, &bytes, &[1]).is_ok());
    assert!(showing(&fs, id, &[0; 2 * BLOCK], &[0, 1]).is_ok());
    let (mtime, ctime) = (node.mtime.from, node.ctime.from);
    let shown = Shown { size: 2 * B, mtime, ctime, ..Shown::default() };
    assert_eq!(fs.take_over(id, &shown), Ok(()));
    let node = fs.node(id)?;
    assert!(node.unwritten.is_none());
    assert_eq!(node.content().map(|content| content.unwritten(0, 9)), Some(2));
    Ok(())
}

/// fallocate gives waiting blocks a location too, in the order of the file: a crash inside it leaves a prefix
/// that begins with the waiting block.
#[test]
fn fallocate_gives_waiting_blocks_a_location() -> Result<(), i32> {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1; 64], 3);
    let op = Op::Fallocate { id, offset: 64, length: 3 * BLOCK as u64, mode: Allocate::KeepSize };
    let rules = CrashRules { atomic_blocks: 56, ordered: false };
    let mut blocks = Vec::new();
    for mut state in fs.crash_states(&op, rules, Stamp::at(5)) {
        let waits = state.tree.node(id)?.unwritten.as_ref().map_or(0, |waits| waits.without_place());
        blocks.push(state.tree.attributes(id)?.blocks / 8 - waits);
        state.tree.drop_references();
    }
    assert_eq!(blocks, [0, 1, 2, 3, 4, 4]);
    Ok(())
}

/// A file of 3 bytes, which may be durable, is overwritten by waiting bytes; then its size is raised durably.
/// A crash may leave the old bytes with zeros behind them, although no read ever showed that.
#[test]
fn a_raised_size_may_be_durable_before_waiting_bytes() -> Result<(), String> {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1, 1, 1], 3);
    put(&mut fs, id, 0, &[2, 2, 2], 4);
    let change = Change { size: Some(8), ..Change::default() };
    fs.set_attributes(id, &change, Stamp::at(5)).map_err(|errno| errno.to_string())?;
    for first in [1, 2] {
        showing(&fs, id, &[first, first, first, 0, 0, 0, 0, 0], &[])?;
    }
    assert!(showing(&fs, id, &[0; 8], &[]).is_err());
    Ok(())
}

/// As above, but a write behind a gap raises the size: it may reach its medium before the waiting bytes.
#[test]
fn a_write_behind_a_gap_may_be_durable_before_waiting_bytes() -> Result<(), String> {
    let (mut fs, id) = start();
    put(&mut fs, id, 0, &[1, 1, 1], 3);
    put(&mut fs, id, 0, &[2, 2, 2], 4);
    put(&mut fs, id, 8192, &[3; 8], 5);
    for first in [1, 2] {
        showing(&fs, id, &[first, first, first, 0, 0, 0, 0, 0], &[])?;
    }
    assert!(showing(&fs, id, &[0; 8], &[]).is_err());
    Ok(())
}
