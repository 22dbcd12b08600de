//! Checks of mappings, and of descriptors that bypass or share the cache of the kernel.

use super::steps::{At, MIB, must, open, read_at, same};
use crate::content::bytes;
use crate::outcome::Outcome;
use crate::system::{self, Mapping};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) fn shared_mapping(dir: &Path) -> Outcome<()> {
    let path = dir.join("shared");
    let file = open(&path, 0)?;
    let content = bytes(1, 3 * MIB + 100);
    file.write_all_at(&content, 0).at("write")?;
    let other = open(&path, 0)?;
    let length = 3 * MIB + 4096;
    let mapping = Mapping::new(&file, length, libc::MAP_SHARED).at("mmap")?;
    let second = Mapping::new(&other, length, libc::MAP_SHARED).at("second mmap")?;
    same("mapped content", &mapping.read(0, content.len()), &content)?;
    same("bytes past the end", &mapping.read(content.len(), 100), &[0; 100])?;
    mapping.write(5000, b"through the mapping");
    same("other mapping", &second.read(5000, 19), b"through the mapping")?;
    same("read without msync", &read_at(&other, 5000, 19)?, b"through the mapping")?;
    other.write_all_at(b"through the file", 8192 * 3 + 7).at("write beside a mapping")?;
    same("mapping after a write", &mapping.read(8192 * 3 + 7, 16), b"through the file")?;
    mapping.write(2 * MIB + 1, &content[..100_000]);
    mapping.sync().at("msync")?;
    same("read after msync", &read_at(&file, 2 * MIB as u64 + 1, 100_000)?, &content[..100_000])?;
    // No check of stores past the end of the file: when the file is extended later, the kernel hands these
    // bytes to a FUSE server like any data.
    drop((mapping, second));
    file.set_len(content.len() as u64 + 100).at("extend")?;
    same("extended part", &read_at(&file, content.len() as u64, 100)?, &[0; 100])?;
    drop((file, other));
    let mut expected = content.clone();
    expected[5000..5019].copy_from_slice(b"through the mapping");
    expected[8192 * 3 + 7..8192 * 3 + 23].copy_from_slice(b"through the file");
    expected[2 * MIB + 1..2 * MIB + 1 + 100_000].copy_from_slice(&content[..100_000]);
    expected.resize(content.len() + 100, 0);
    same("file at the end", &fs::read(&path).at("read")?, &expected)
}

/// A file has one open mode in the kernel from first open to last close, and the first opens decide the mode.
/// In both modes readers, by descriptor and by mapping, see a writer's bytes and sizes at once.
pub(super) fn reader_and_writer(dir: &Path) -> Outcome<()> {
    for reader_first in [true, false] {
        let path = dir.join(format!("reader-first-{reader_first}"));
        let mut content = bytes(3, 2 * MIB);
        fs::write(&path, &content).at("write")?;
        let read = || File::open(&path).at("open to read");
        let write = || OpenOptions::new().write(true).open(&path).at("open to write");
        let (reader, writer) = match reader_first {
            true => (read()?, write()?),
            false => {
                let writer = write()?;
                (read()?, writer)
            }
        };
        same("before", &read_at(&reader, 0, content.len())?, &content)?;
        let mapping = Mapping::of_reader(&reader, 3 * MIB).at("mmap")?;
        same("mapping before", &mapping.read(0, content.len()), &content)?;
        for round in 0..50usize {
            let (at, new) = (round * 40_009, bytes(10 + round as u64, 1 + round * 977));
            writer.write_all_at(&new, at as u64).at("write beside a reader")?;
            content.resize(content.len().max(at + new.len()), 0);
            content[at..at + new.len()].copy_from_slice(&new);
            same("read", &read_at(&reader, at as u64, new.len())?, &new)?;
            same("mapping", &mapping.read(at, new.len()), &new)?;
        }
        writer.write_all_at(&[7; 5000], content.len() as u64).at("append")?;
        content.resize(content.len() + 5000, 7);
        must(reader.metadata().at("stat")?.len() == content.len() as u64, "size after an append")?;
        same("all", &read_at(&reader, 0, content.len())?, &content)?;
        writer.set_len(10_000).at("truncate")?;
        writer.set_len(20_000).at("extend")?;
        content.truncate(10_000);
        content.resize(20_000, 0);
        same("truncated and extended", &read_at(&reader, 0, content.len())?, &content)?;
        same("mapping of that", &mapping.read(0, content.len()), &content)?;
    }
    Ok(())
}

pub(super) fn private_mapping(dir: &Path) -> Outcome<()> {
    let path = dir.join("private");
    let content = bytes(2, 100_000);
    fs::write(&path, &content).at("write")?;
    let file = File::open(&path).at("open")?;
    let mapping = Mapping::new(&file, content.len(), libc::MAP_PRIVATE).at("mmap")?;
    mapping.write(10_000, b"mine alone");
    same("my copy", &mapping.read(10_000, 10), b"mine alone")?;
    same("file", &fs::read(&path).at("read")?, &content)
}

pub(super) fn direct(dir: &Path) -> Outcome<()> {
    let path = dir.join("direct");
    let file = open(&path, libc::O_DIRECT)?;
    let buffer = system::aligned(64 * 1024);
    buffer.copy_from_slice(&bytes(3, 64 * 1024));
    for offset in [0, 1 << 20, 65_536] {
        file.write_all_at(buffer, offset).at("O_DIRECT write")?;
    }
    let target = system::aligned(64 * 1024);
    file.read_exact_at(target, 65_536).at("O_DIRECT read")?;
    same("O_DIRECT", target, buffer)?;
    let cached = File::open(&path).at("open")?;
    same("beside O_DIRECT", &read_at(&cached, 1 << 20, 65_536)?, buffer)
}
