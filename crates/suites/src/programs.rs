//! System calls on which programs rely: each check compares a call with its definition in POSIX or Linux.

use crate::content::{bytes, difference};
use crate::system::{self, FileHandle, Mapping};
use crate::{Failure, Outcome};
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

const MIB: usize = 1 << 20;

/// A step of a check that failed, with the place.
trait At<T> {
    fn at(self, what: &str) -> Outcome<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &str) -> Outcome<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

fn must(condition: bool, what: impl Into<String>) -> Outcome<()> {
    if condition { Ok(()) } else { Err(what.into()) }
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Outcome<()> {
    difference(found, expected).map_or(Ok(()), |difference| Err(format!("{what}: {difference}")))
}

fn refused<T>(what: &str, result: io::Result<T>, errno: i32) -> Outcome<()> {
    match result {
        Ok(_) => Err(format!("{what}: succeeded")),
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => Err(format!("{what}: {error} instead of {}", io::Error::from_raw_os_error(errno))),
    }
}

fn open(path: &Path, flags: i32) -> Outcome<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(path);
    file.at(&format!("open {}", path.display()))
}

fn read_at(file: &File, offset: u64, length: usize) -> Outcome<Vec<u8>> {
    let mut found = vec![0; length];
    file.read_exact_at(&mut found, offset).at("read")?;
    Ok(found)
}

fn shared_mapping(dir: &Path) -> Outcome<()> {
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
fn reader_and_writer(dir: &Path) -> Outcome<()> {
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

fn private_mapping(dir: &Path) -> Outcome<()> {
    let path = dir.join("private");
    let content = bytes(2, 100_000);
    fs::write(&path, &content).at("write")?;
    let file = File::open(&path).at("open")?;
    let mapping = Mapping::new(&file, content.len(), libc::MAP_PRIVATE).at("mmap")?;
    mapping.write(10_000, b"mine alone");
    same("my copy", &mapping.read(10_000, 10), b"mine alone")?;
    same("file", &fs::read(&path).at("read")?, &content)
}

fn helper(arguments: &[&std::ffi::OsStr], input: Stdio, output: Stdio) -> Outcome<Child> {
    let program = std::env::current_exe().at("current program")?;
    Command::new(program).args(arguments).stdin(input).stdout(output).spawn().at("start a process")
}

/// Appends lines, for [`two_appenders`].
pub(crate) fn append(path: &Path, count: u64, letter: &str) -> Outcome<()> {
    let mut file = OpenOptions::new().append(true).open(path).at("open")?;
    for number in 0..count {
        let line = format!("{letter} {number} {}\n", letter.repeat((number % 97) as usize));
        file.write_all(line.as_bytes()).at("append")?;
    }
    Ok(())
}

fn two_appenders(dir: &Path) -> Outcome<()> {
    const COUNT: u64 = 2000;
    let path = dir.join("append");
    File::create(&path).at("create")?;
    let start = |letter: &str| {
        let count = COUNT.to_string();
        let arguments = ["append".as_ref(), path.as_os_str(), count.as_ref(), letter.as_ref()];
        helper(&arguments, Stdio::null(), Stdio::inherit())
    };
    let (mut a, mut b) = (start("a")?, start("b")?);
    must(a.wait().at("wait")?.success() && b.wait().at("wait")?.success(), "an appender failed")?;
    let text = fs::read_to_string(&path).at("read")?;
    let mut next = HashMap::from([("a", 0), ("b", 0)]);
    for line in text.lines() {
        let letter = line.get(..1).unwrap_or("");
        let number = next.get_mut(letter).ok_or_else(|| format!("torn line '{line}'"))?;
        let expected = format!("{letter} {number} {}", letter.repeat((*number % 97) as usize));
        must(line == expected, format!("'{line}' instead of '{expected}'"))?;
        *number += 1;
    }
    must(next.values().all(|count| *count == COUNT), format!("lines lost: {next:?}"))
}

fn direct(dir: &Path) -> Outcome<()> {
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

/// Holds a lock until standard input ends, for [`locks`]. Says "held".
pub(crate) fn hold(path: &Path, kind: &str) -> Outcome<()> {
    let file = open(path, 0)?;
    take(&file, kind).at("lock")?;
    println!("held");
    let mut rest = Vec::new();
    io::stdin().read_to_end(&mut rest).at("standard input")?;
    Ok(())
}

/// An exclusive lock without waiting.
fn take(file: &File, kind: &str) -> io::Result<()> {
    match kind {
        "flock" => system::flock(file, libc::LOCK_EX | libc::LOCK_NB),
        "fcntl" => system::range_lock(file, libc::F_SETLK, libc::F_WRLCK, 100, 50),
        _ => system::range_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, 100, 50),
    }
}

fn locks(dir: &Path) -> Outcome<()> {
    for kind in ["flock", "fcntl", "ofd"] {
        let path = dir.join(format!("lock-{kind}"));
        let file = open(&path, 0)?;
        let arguments = ["hold".as_ref(), path.as_os_str(), kind.as_ref()];
        let mut holder = helper(&arguments, Stdio::piped(), Stdio::piped())?;
        let mut word = [0; 5];
        let output = holder.stdout.as_mut().ok_or("no output")?;
        output.read_exact(&mut word).at("holder")?;
        refused(&format!("{kind} held elsewhere"), take(&file, kind), libc::EAGAIN)?;
        if kind != "flock" {
            let command = if kind == "fcntl" { libc::F_SETLK } else { libc::F_OFD_SETLK };
            system::range_lock(&file, command, libc::F_WRLCK, 150, 10).at("lock of another range")?;
        }
        drop(holder.stdin.take());
        must(holder.wait().at("wait")?.success(), format!("{kind}: holder failed"))?;
        take(&file, kind).at(&format!("{kind} after its holder has gone"))?;
        let second = open(&path, 0)?;
        // Locks of a process do not exclude itself; locks of open files do.
        match kind {
            "fcntl" => take(&second, kind).at("fcntl by the same process")?,
            _ => refused(&format!("{kind} by the same process"), take(&second, kind), libc::EAGAIN)?,
        }
    }
    Ok(())
}

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

/// Waits until a condition holds, at most some seconds: space is given back in the background.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let clock = SystemClock::default();
    for _ in 0..100 {
        if condition()? {
            return Ok(());
        }
        clock.sleep(Duration::from_millis(100));
    }
    Err(format!("not within 10 s: {what}"))
}

fn unlinked_open(dir: &Path) -> Outcome<()> {
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

/// An open that is refused changes nothing. With FUSE_ATOMIC_O_TRUNC the daemon truncated before the kernel
/// compared the open with the program that runs: the caller got ETXTBSY, the program SIGSEGV.
fn running_program(dir: &Path) -> Outcome<()> {
    let path = dir.join("program");
    fs::copy("/bin/sleep", &path).at("copy")?;
    let size = fs::metadata(&path).at("stat")?.len();
    let mut program = std::process::Command::new(&path).arg("60").spawn().at("run")?;
    let opened = system::open_truncating(&path);
    let size_then = fs::metadata(&path).at("stat")?.len();
    program.kill().at("kill")?;
    program.wait().at("wait")?;
    refused("O_RDONLY | O_TRUNC of a program that runs", opened, libc::ETXTBSY)?;
    must(size_then == size, format!("{size_then} of {size} bytes left of a program that runs"))?;
    drop(system::open_truncating(&path).at("open with O_TRUNC")?);
    must(fs::metadata(&path).at("stat")?.len() == 0, "O_RDONLY | O_TRUNC truncates")
}

fn sparse(dir: &Path) -> Outcome<()> {
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

fn strange_names(dir: &Path) -> Outcome<()> {
    let names = [
        OsString::from_vec(vec![0xff, 0xfe, b'x', 0x80]),
        OsString::from_vec((1..=255).filter(|byte| *byte != b'/').collect()),
        OsString::from("a\nb c"),
        OsString::from("x".repeat(255)),
        OsString::from("-rf"),
    ];
    let dir = dir.join("names");
    fs::create_dir(&dir).at("mkdir")?;
    for (number, name) in names.iter().enumerate() {
        fs::write(dir.join(name), bytes(number as u64, 100)).at("create")?;
    }
    let mut found: Vec<OsString> = Vec::new();
    for entry in fs::read_dir(&dir).at("readdir")? {
        found.push(entry.at("readdir")?.file_name());
    }
    found.sort();
    let mut expected = names.to_vec();
    expected.sort();
    must(found == expected, format!("readdir gave {found:?}"))?;
    for (number, name) in names.iter().enumerate() {
        same("content", &fs::read(dir.join(name)).at("read")?, &bytes(number as u64, 100))?;
        let other = dir.join(OsString::from_vec(vec![0xc3, 0x28, number as u8 + 1]));
        fs::rename(dir.join(name), &other).at("rename")?;
        fs::remove_file(other).at("unlink")?;
    }
    refused("name of 256 bytes", fs::write(dir.join("x".repeat(256)), ""), libc::ENAMETOOLONG)?;
    fs::remove_dir(&dir).at("rmdir")
}

fn changing_directory(dir: &Path) -> Outcome<()> {
    const STABLE: usize = 3000;
    let dir = dir.join("changing");
    fs::create_dir(&dir).at("mkdir")?;
    for number in 0..STABLE {
        File::create(dir.join(format!("stable-{number}"))).at("create")?;
    }
    let end = Arc::new(AtomicBool::new(false));
    let (stop, where_to) = (Arc::clone(&end), dir.clone());
    let changer = spawn("suites", move || {
        let mut number = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let name = |number: u64| where_to.join(format!("passing-{number}"));
            let _ = File::create(name(number));
            let _ = fs::rename(name(number), where_to.join(format!("moved-{number}")));
            if number >= 50 {
                let _ = fs::remove_file(where_to.join(format!("moved-{}", number - 50)));
            }
            number += 1;
        }
    });
    let changer = changer.at("thread")?;
    let mut outcome = Ok(());
    for _ in 0..10 {
        outcome = list_once(&dir, STABLE);
        if outcome.is_err() {
            break;
        }
    }
    end.store(true, Ordering::Relaxed);
    let _ = changer.join();
    outcome?;
    fs::remove_dir_all(&dir).at("remove everything")
}

fn list_once(dir: &Path, stable: usize) -> Outcome<()> {
    let mut seen: HashMap<OsString, u32> = HashMap::new();
    for entry in fs::read_dir(dir).at("readdir")? {
        *seen.entry(entry.at("readdir")?.file_name()).or_default() += 1;
    }
    if let Some((name, count)) = seen.iter().find(|(_, count)| **count > 1) {
        return Err(format!("{} was listed {count} times", name.to_string_lossy()));
    }
    let found = seen.keys().filter(|name| name.as_bytes().starts_with(b"stable-")).count();
    must(found == stable, format!("{found} of {stable} entries that stay were listed"))
}

fn agreeing_space(dir: &Path) -> Outcome<()> {
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

fn renames(dir: &Path) -> Outcome<()> {
    let c = |path: &PathBuf| CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let (a, b) = (dir.join("rename-a"), dir.join("rename-b"));
    fs::write(&a, "a").at("write")?;
    fs::write(&b, "b").at("write")?;
    refused("RENAME_NOREPLACE", system::rename(&c(&a), &c(&b), libc::RENAME_NOREPLACE), libc::EEXIST)?;
    refused("RENAME_EXCHANGE", system::rename(&c(&a), &c(&b), libc::RENAME_EXCHANGE), libc::EINVAL)?;
    fs::remove_file(&b).at("unlink")?;
    system::rename(&c(&a), &c(&b), libc::RENAME_NOREPLACE).at("RENAME_NOREPLACE")?;
    same("content", &fs::read(&b).at("read")?, b"a")?;
    fs::hard_link(&b, &a).at("link")?;
    fs::rename(&a, &b).at("rename onto the same inode")?;
    must(a.exists() && b.exists(), "rename onto a link of the same file removes nothing")
}

/// Drops unused names and inodes from the kernel's cache.
fn drop_inodes() -> Outcome<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").at("drop caches")
}

/// NFS servers hold handles of files for long. The daemon refused handles (ESTALE) of files that the kernel
/// had forgotten.
fn file_handles(dir: &Path) -> Outcome<()> {
    let (sub, path) = (dir.join("a/b"), dir.join("a/b/file"));
    fs::create_dir_all(&sub).at("mkdir")?;
    fs::write(&path, "content").at("write")?;
    std::os::unix::fs::symlink("file", dir.join("link")).at("symlink")?;
    let handle = |path: &Path| FileHandle::of(path).at("name_to_handle_at");
    let (of_file, of_sub, of_link) = (handle(&path)?, handle(&sub)?, handle(&dir.join("link"))?);
    let mount = File::open(dir).at("open")?;
    let content = || {
        let file = of_file.open(&mount, libc::O_RDWR).at("open by handle")?;
        same("content", &read_at(&file, 0, 7)?, b"content")
    };
    for _ in 0..3 {
        drop_inodes()?;
        content()?;
    }
    drop_inodes()?;
    // A directory is found with all its ancestors.
    let found = of_sub.open(&mount, libc::O_RDONLY | libc::O_DIRECTORY).at("open a directory by handle")?;
    let name = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).at("name of a descriptor")?;
    must(
        name == fs::canonicalize(&sub).at("name of a directory")?,
        format!("a directory's handle is {}", name.display()),
    )?;
    of_link.open(&mount, libc::O_PATH | libc::O_NOFOLLOW).at("open a symbolic link by handle")?;
    // The handle survives a rename into another directory.
    let moved = dir.join("moved");
    fs::rename(&path, &moved).at("rename")?;
    drop_inodes()?;
    content()?;
    // The handle of an unlinked file is valid while the file is open. Afterwards it is stale, even if a later
    // file has the same inode number.
    let open = File::open(&moved).at("open")?;
    fs::remove_file(&moved).at("unlink")?;
    drop_inodes()?;
    content()?;
    drop(open);
    let is_stale = || {
        let opened = of_file.open(&mount, libc::O_RDONLY);
        Ok(opened.is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)))
    };
    // The kernel tells of a close in the background.
    eventually("the handle of a removed file is stale", is_stale)?;
    for number in 0..50 {
        refused("handle of a removed file", of_file.open(&mount, libc::O_RDONLY), libc::ESTALE)?;
        fs::write(dir.join(format!("later-{number}")), "another").at("write")?;
    }
    drop_inodes()?;
    refused("handle of a removed file", of_file.open(&mount, libc::O_RDONLY), libc::ESTALE)
}

type Check = fn(&Path) -> Outcome<()>;

const CHECKS: [(&str, Check); 14] = [
    ("shared writable mmap", shared_mapping),
    ("a writer beside a reader", reader_and_writer),
    ("private mmap", private_mapping),
    ("O_APPEND from two processes", two_appenders),
    ("O_DIRECT", direct),
    ("flock, fcntl and OFD locks", locks),
    ("unlinked open file", unlinked_open),
    ("program that runs", running_program),
    ("sparse file", sparse),
    ("names that are no text", strange_names),
    ("a directory that changes while it is read", changing_directory),
    ("statfs and st_blocks", agreeing_space),
    ("rename", renames),
    ("file handles", file_handles),
];

/// All checks, in a new directory below `dir`.
pub(crate) fn run(dir: &Path) -> Outcome<()> {
    let mut failures: Vec<Failure> = Vec::new();
    for (number, (name, check)) in CHECKS.iter().enumerate() {
        let own = dir.join(format!("check-{number}"));
        fs::create_dir(&own).at("mkdir")?;
        match check(&own) {
            Ok(()) => println!("ok      {name}"),
            Err(failure) => {
                println!("FAILED  {name}: {failure}");
                failures.push(format!("{name}: {failure}"));
            }
        }
    }
    println!("{} of {} system call checks passed", CHECKS.len() - failures.len(), CHECKS.len());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}
