//! The demands while an error lasts: right bytes or EIO, fsync that tells the truth, status that shows the medium.

use crate::drivers::faults::kinds::Kind;
use crate::world::World;
use terrace_engine::{Engine, FsError, Wait};
use terrace_media::block::Operation;
use terrace_reference::{CrashState, Id};

pub(super) fn assert_errno(kind: Kind, error: &FsError) {
    let errno = error.errno();
    let space = kind == Kind::Once(Operation::Write, libc::ENOSPC) && errno == libc::ENOSPC;
    assert!(errno == libc::EIO || space, "{error}: errno {errno}");
}

/// Status shows the failed medium, and no other.
pub(super) fn assert_shown(fs: &Engine, kind: Kind) {
    let status = fs.status().unwrap();
    let (pm, below) = (&status.tiers[0].devices[0], &status.tiers[1].devices[0]);
    let degraded = |bad: bool| if bad { "degraded" } else { "ok" };
    assert_eq!(pm.health, degraded(kind.is_of_pm()), "PM in status");
    assert_eq!(below.health, degraded(!kind.is_of_pm() && kind != Kind::Lies), "the device in status");
    assert_eq!(status.healthy, kind == Kind::Lies);
    assert!(kind == Kind::Lies || pm.reason.is_some() || below.reason.is_some(), "no reason in status");
}

/// Regular files that exist in every state, with their contents.
fn files(states: &[CrashState]) -> Vec<(Id, Vec<Vec<u8>>)> {
    let content = |state: &CrashState, id: Id| {
        let content = state.tree.node(id).ok()?.content()?;
        // A file with far offsets has little more than holes behind this.
        let mut bytes = vec![0; content.size().min(1 << 20) as usize];
        content.read(0, &mut bytes);
        Some(bytes)
    };
    let Some(last) = states.last() else { return Vec::new() };
    let with_contents = |(id, _)| {
        let contents: Option<Vec<Vec<u8>>> = states.iter().map(|state| content(state, id)).collect();
        Some((id, contents?))
    };
    last.tree.nodes().filter_map(with_contents).collect()
}

/// Reads all files: each read gives the right bytes or EIO. Answers the number of EIOs.
pub(super) fn assert_no_wrong_bytes(world: &World, fs: &Engine, states: &[CrashState], kind: Kind) -> u64 {
    let mut failed = 0;
    for (id, contents) in files(states) {
        let ino = world.known.ino(id);
        if ino.0 == 0 {
            continue; // made by the act, and its number is unknown
        }
        let longest = contents.iter().map(Vec::len).max().unwrap_or(0);
        for offset in (0..longest).step_by(16 << 10) {
            let mut found = vec![0xaa; (16 << 10).min(longest - offset)];
            let part = |bytes: &[u8]| {
                let end = bytes.len().min(offset + found.len());
                bytes.get(offset..end).unwrap_or_default().to_vec()
            };
            let expected: Vec<Vec<u8>> = contents.iter().map(|bytes| part(bytes)).collect();
            match fs.read(ino, offset as u64, &mut found, Wait::Allowed) {
                Ok(count) => {
                    let right = expected.iter().any(|bytes| *bytes == found[..count]);
                    assert!(right, "{id:?}: wrong bytes at {offset}, {count} of them, while the error lasts");
                }
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.errno(), libc::EIO, "{id:?}: read at {offset}: {error}");
                    let needs = kind.is_of_pm() || fs.whereabouts(ino).unwrap().tiers[1].1 > 0;
                    assert!(needs, "{id:?}: {error} although all of it is in PM");
                }
            }
        }
    }
    failed
}

/// Calls fsync twice for each file, as two descriptors do. After a success the file's data counts as durable.
/// Answers the number of files whose fsync failed because a write-back failed.
pub(super) fn assert_fsync(world: &World, fs: &Engine, states: &mut [CrashState]) -> u64 {
    let mut failed = 0;
    for (id, _) in files(states) {
        let both = [
            fs.fsync(world.known.ino(id), false, Wait::Allowed),
            fs.fsync(world.known.ino(id), true, Wait::Allowed),
        ];
        let answers = both.map(|synced| synced.map_err(|error| error.errno()));
        let waits = |state: &CrashState| state.tree.node(id).is_ok_and(|node| node.unwritten.is_some());
        let may_fail = !fs.is_stopped() && world.config.buffers() && states.iter().any(waits);
        if may_fail && answers.iter().any(Result::is_err) {
            let told = |answer: &Result<(), i32>| matches!(answer, Ok(()) | Err(libc::EIO | libc::ENOSPC));
            assert!(answers.iter().all(told), "{id:?}: fsync: {answers:?}");
            failed += 1;
        } else {
            let expected = if fs.is_stopped() { Err(libc::EIO) } else { Ok(()) };
            assert_eq!(answers, [expected; 2], "{id:?}: fsync");
        }
        if answers.iter().any(Result::is_ok) {
            states.iter_mut().for_each(|state| state.tree.written_back(id, u64::MAX));
        }
    }
    failed
}
