//! Short forms of the engine's calls, for the cases.

use super::{CALLER, ROOT, W};
use terrace_engine::{Allocate, Engine, SetAttributes, WriteFlags, XattrMode};
use terrace_format::Ino;

/// Runs a closure on a thread whose index picks the lane.
pub fn in_lane<R: Send>(lane: usize, lanes: usize, run: impl FnOnce() -> R + Send) -> R {
    let mut run = Some(run);
    loop {
        let done = std::thread::scope(|scope| {
            let run = &mut run;
            let work = move || match terrace_runtime::thread::index() % lanes == lane {
                true => run.take().map(|run| run()),
                false => None,
            };
            scope.spawn(work).join().unwrap()
        });
        if let Some(done) = done {
            return done;
        }
    }
}

pub fn create(fs: &Engine, parent: Ino, name: &str) -> Ino {
    let ino = fs.mknod(parent, name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

pub fn mkdir(fs: &Engine, parent: Ino, name: &str) -> Ino {
    let ino = fs.mkdir(parent, name.as_bytes(), 0o755, CALLER, W).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

pub fn find(fs: &Engine, path: &str) -> Ino {
    let mut at = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = fs.lookup(at, name.as_bytes()).unwrap().ino;
        fs.forget(at, 1);
    }
    at
}

pub fn write(fs: &Engine, ino: Ino, offset: u64, data: &[u8]) {
    fs.write(ino, offset, data, WriteFlags::default(), W).unwrap();
}

pub fn read(fs: &Engine, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; fs.getattr(ino).unwrap().size as usize];
    let count = fs.read(ino, 0, &mut content, W).unwrap();
    assert_eq!(count, content.len());
    content
}

pub fn set_size(fs: &Engine, ino: Ino, size: u64) {
    fs.setattr(ino, &SetAttributes { size: Some(size), ..Default::default() }, W).unwrap();
}

pub fn punch(fs: &Engine, ino: Ino, offset: u64, length: u64) {
    fs.fallocate(ino, offset, length, Allocate::PunchHole, W).unwrap();
}

pub fn set_xattr(fs: &Engine, ino: Ino, name: &str, value: &[u8]) {
    fs.setxattr(ino, name.as_bytes(), value, XattrMode::Any, W).unwrap();
}

/// Bytes that differ by position and by seed.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|i| {
            (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed.wrapping_mul(97)) | 1
        })
        .collect()
}
