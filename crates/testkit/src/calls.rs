//! Short forms of the calls that most tests make.

use terrace_engine::{Caller, Engine, FsResult, Wait, WriteFlags};
use terrace_format::Ino;

/// The root directory.
pub const ROOT: Ino = Ino(1);
/// The user of all requests in tests.
pub const CALLER: Caller = Caller { uid: 0, gid: 0 };

const W: Wait = Wait::Allowed;

/// Makes a file, which must succeed.
#[track_caller]
pub fn create(fs: &Engine, parent: Ino, name: &str) -> Ino {
    fs.mknod(parent, name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino
}

/// Makes a file in the root directory.
pub fn try_create(fs: &Engine, name: &str) -> FsResult<Ino> {
    Ok(fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino)
}

/// Makes a directory, which must succeed.
#[track_caller]
pub fn mkdir(fs: &Engine, parent: Ino, name: &str) -> Ino {
    fs.mkdir(parent, name.as_bytes(), 0o755, CALLER, W).unwrap().ino
}

/// Writes without O_SYNC.
pub fn write(fs: &Engine, ino: Ino, offset: u64, bytes: &[u8]) -> FsResult<()> {
    fs.write(ino, offset, bytes, WriteFlags::default(), W).map(|_| ())
}

/// The whole content of a file.
pub fn read_all(fs: &Engine, ino: Ino) -> FsResult<Vec<u8>> {
    let mut content = vec![0; fs.getattr(ino)?.size as usize];
    let count = fs.read(ino, 0, &mut content, W)?;
    assert_eq!(count, content.len());
    Ok(content)
}

/// Fails the test unless a file has the expected content.
#[track_caller]
pub fn assert_content(fs: &Engine, ino: Ino, expected: &[u8]) {
    let mut found = vec![0xee; expected.len() + 10];
    let count = fs.read(ino, 0, &mut found, W).unwrap();
    assert!(found[..count] == *expected, "content of inode {ino}");
}

/// Bytes of a file on PM, tier 1 and tier 2.
pub fn bytes_on(fs: &Engine, ino: Ino) -> [u64; 3] {
    let found = fs.whereabouts(ino).unwrap().tiers;
    [0, 1, 2].map(|tier| found.get(tier).map_or(0, |(_, bytes)| *bytes))
}

/// Looks up a name of the root directory, and gives the reference back.
#[track_caller]
pub fn find(fs: &Engine, name: &str) -> Ino {
    let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

/// Bytes that depend on their offset and on a seed.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| (index / 512) as u8 ^ (index as u8).wrapping_mul(31) ^ seed).collect()
}

/// Repeats a byte.
pub fn fill(length: usize, byte: u8) -> Vec<u8> {
    vec![byte; length]
}
