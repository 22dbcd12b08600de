//! Checks of space: holes, statfs, st_blocks, and a file without a name.

use super::steps::{At, MIB, must, open, read_at, refused, same};
use crate::content::bytes;
use crate::outcome::{Outcome, eventually};
use crate::system;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Free bytes that statfs tells.
fn free_bytes(dir: &Path) -> Outcome<u64> {
    let (size, _, free) = system::space(&File::open(dir).at("open")?).at("statfs")?;
    Ok(size * free)
}

/// Free bytes once they stand still: space is given back, and data moved, in the background.
fn settled_free_bytes(dir: &Path) -> Outcome<u64> {
    let mut free = free_bytes(dir)?;
    let mut same_for = 0;
    eventually("free space stands still", || {
        let now = free_bytes(dir)?;
        same_for = if now == free { same_for + 1 } else { 0 };
        free = now;
        Ok(same_for == 5)
    })?;
    Ok(free)
}

pub(super) fn unlinked_open(dir: &Path) -> Outcome<()> {
    let path = dir.join("unlinked");
    let before = settled_free_bytes(dir)?;
    let file = open(&path, 0)?;
    let content = bytes(4, 20 * MIB);
    file.write_all_at(&content, 0).at("write")?;
    fs::remove_file(&path).at("unlink")?;
    must(!path.exists(), "name is still there")?;
    must(file.metadata().at("fstat")?.nlink() == 0, "link count is not 0")?;
    file.write_all_at(b"still writable", 4 * MIB as u64).at("write after unlink")?;
    same("read after unlink", &read_at(&file, 4 * MIB as u64, 14)?, b"still writable")?;
    same("the rest", &read_at(&file, 0, 4 * MIB)?, &content[..4 * MIB])?;
    must(free_bytes(dir)? < before - 15 * MIB as u64, "space of an open file counts as free")?;
    drop(file);
    eventually("space of an unlinked file comes back", || Ok(free_bytes(dir)? + MIB as u64 >= before))
}

pub(super) fn sparse(dir: &Path) -> Outcome<()> {
    let path = dir.join("sparse");
    let file = open(&path, 0)?;
    let (a, b) = (bytes(5, 8192), bytes(6, 5000));
    file.write_all_at(&a, 0).at("write")?;
    file.write_all_at(&b, 10 * MIB as u64).at("write")?;
    file.set_len(20 * MIB as u64).at("extend")?;
    must(file.metadata().at("fstat")?.blocks() == 32, "st_blocks counts holes")?;
    let at = |offset: u64, whence| system::seek(&file, offset, whence).at("lseek");
    must(at(0, libc::SEEK_HOLE)? == 8192, "first hole")?;
    must(at(8192, libc::SEEK_DATA)? == 10 * MIB as u64, "second data")?;
    must(at(10 * MIB as u64, libc::SEEK_HOLE)? == 10 * MIB as u64 + 8192, "second hole")?;
    refused("no more data", system::seek(&file, 11 * MIB as u64, libc::SEEK_DATA), libc::ENXIO)?;
    same("hole", &read_at(&file, 8192, MIB)?, &vec![0; MIB])?;
    system::punch(&file, 4096, 4096).at("punch")?;
    must(at(0, libc::SEEK_HOLE)? == 4096, "hole that was punched")?;
    system::fallocate(&file, 0, 2 * MIB as u64, MIB as u64).at("fallocate")?;
    same("allocated", &read_at(&file, 2 * MIB as u64, MIB)?, &vec![0; MIB])?;
    must(file.metadata().at("fstat")?.blocks() == 24 + 2048, "st_blocks counts allocated blocks")?;
    system::fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 30 * MIB as u64, 4096).at("fallocate keep size")?;
    must(file.metadata().at("fstat")?.len() == 20 * MIB as u64, "size kept")
}

pub(super) fn agreeing_space(dir: &Path) -> Outcome<()> {
    let path = dir.join("space");
    let before = settled_free_bytes(dir)?;
    fs::write(&path, bytes(8, 12 * MIB)).at("write")?;
    let blocks = fs::metadata(&path).at("stat")?.blocks();
    must(blocks == 12 * 2048, format!("st_blocks is {blocks}"))?;
    // While a group is being demoted its blocks are allocated on both tiers.
    let expected = 12 * MIB as u64..14 * MIB as u64;
    eventually("statfs counts what st_blocks counts", || {
        Ok(expected.contains(&before.saturating_sub(free_bytes(dir)?)))
    })?;
    fs::remove_file(&path).at("unlink")?;
    eventually("statfs as before", || Ok(free_bytes(dir)? + MIB as u64 >= before))
}
