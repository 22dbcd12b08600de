//! Space that was promised, on a file system that these checks fill up: small versions of xfstests
//! generic/274 (writes into space allocated by fallocate), 275 (space given back by a removal) and 103 (space
//! shown by statfs), overwrites as databases do them, and writes of all lengths until the file system is full. ext4 passes all
//! checks.

use crate::content::{Numbers, bytes, difference};
use crate::outcome::{Failure, Outcome, eventually};
use crate::system::{self, Mapping};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use terrace_runtime::{Clock, SystemClock};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4 * KIB;

fn failed(what: impl AsRef<str>) -> impl Fn(io::Error) -> Failure {
    move |error| format!("{}: {error}", what.as_ref())
}

fn create(path: &Path, flags: i32) -> Outcome<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(flags);
    options.open(path).map_err(failed(format!("create {}", path.display())))
}

/// Bytes that statfs calls available.
fn available(dir: &Path) -> Outcome<u64> {
    let file = File::open(dir).map_err(failed("open a directory"))?;
    system::available(&file).map_err(failed("statfs"))
}

/// Appends pieces of `piece` bytes until ENOSPC; gives the new end.
fn append(file: &File, mut end: u64, piece: u64) -> Outcome<u64> {
    let content = bytes(9, piece as usize);
    loop {
        match file.write_at(&content, end) {
            Ok(written) => end += written as u64,
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => return Ok(end),
            Err(error) => return Err(format!("fill: {error}")),
        }
    }
}

/// Fills the file system up: in large pieces, in small pieces, then in small synchronous pieces.
fn fill(dir: &Path) -> Outcome<u64> {
    let large = create(&dir.join("fill"), 0)?;
    let small = create(&dir.join("fill-small"), 0)?;
    let synchronous = create(&dir.join("fill-sync"), libc::O_SYNC)?;
    let mut filled = 0;
    for (file, pieces) in [(large, [MIB, 64 * KIB].as_slice()), (small, &[BLOCK]), (synchronous, &[BLOCK])] {
        let mut end = file.metadata().map_err(failed("stat"))?.len();
        for piece in pieces {
            end = append(&file, end, *piece)?;
        }
        file.sync_all().map_err(failed("fsync of a filler"))?;
        filled += end;
    }
    Ok(filled)
}

/// Removes the files of [`fill`].
fn empty(dir: &Path) -> Outcome<()> {
    ["fill", "fill-small", "fill-sync"]
        .iter()
        .try_for_each(|name| fs::remove_file(dir.join(name)).map_err(failed("unlink")))
}

/// A file and the content that it must have.
struct Known {
    name: &'static str,
    file: File,
    content: Vec<u8>,
}

impl Known {
    fn new(dir: &Path, name: &'static str) -> Outcome<Known> {
        Ok(Known { name, file: create(&dir.join(name), 0)?, content: Vec::new() })
    }

    fn write(&mut self, seed: u64, offset: u64, length: u64) -> Outcome<()> {
        let new = bytes(seed, length as usize);
        let end = (offset + length) as usize;
        self.content.resize(end.max(self.content.len()), 0);
        self.content[offset as usize..end].copy_from_slice(&new);
        let what = || format!("write of {length} bytes at {offset} of {}", self.name);
        self.file.write_all_at(&new, offset).map_err(|error| failed(what())(error))
    }

    fn sync(&self) -> Outcome<()> {
        self.file.sync_data().map_err(failed(format!("fdatasync of {}", self.name)))
    }

    fn judge(&self) -> Outcome<()> {
        let mut found = vec![0; self.content.len()];
        self.file.read_exact_at(&mut found, 0).map_err(failed(format!("read {}", self.name)))?;
        difference(&found, &self.content).map_or(Ok(()), |wrong| Err(format!("{}: {wrong}", self.name)))
    }
}

/// Bytes of a segment of a log, as PostgreSQL makes them.
const SEGMENT: u64 = 16 * MIB;

/// Makes files with allocated space, fills the file system up, and writes into the allocated space in
/// requests of up to `largest` bytes. The file system stays full.
pub(crate) fn promised(dir: &Path, largest: u64) -> Outcome<()> {
    let lay_out = |known: &Known, mode, offset, length| {
        let done = system::fallocate(&known.file, mode, offset, length);
        done.map_err(failed(format!("fallocate of {}", known.name)))
    };
    let names = ["beyond the end", "segment laid out", "segment of zeros", "table", "mapped"];
    let [beyond, laid_out, zeros, table, mapped] = names.map(|name| Known::new(dir, name));
    let (mut beyond, mut laid_out, mut zeros, mut table, mut mapped) =
        (beyond?, laid_out?, zeros?, table?, mapped?);
    beyond.write(1, 0, BLOCK)?;
    lay_out(&beyond, libc::FALLOC_FL_KEEP_SIZE, BLOCK, 4 * MIB)?;
    lay_out(&laid_out, 0, 0, SEGMENT)?;
    laid_out.content = vec![0; SEGMENT as usize];
    zeros.content = vec![0; SEGMENT as usize];
    zeros.file.write_all_at(&zeros.content, 0).map_err(failed("zeros"))?;
    table.write(2, 0, 8 * MIB)?;
    mapped.write(3, 0, MIB)?;
    for known in [&beyond, &laid_out, &zeros, &table, &mapped] {
        known.sync()?;
    }
    fill(dir)?;
    // Every second block first: the unwritten extent is cut into single blocks.
    for index in (0..1024).step_by(2).chain((1..1024).step_by(2)) {
        beyond.write(10 + index, BLOCK + index * BLOCK, BLOCK)?;
    }
    for at in (0..SEGMENT).step_by(8 * KIB as usize) {
        for segment in [&mut laid_out, &mut zeros] {
            segment.write(at, at, 8 * KIB)?;
            if at % (64 * KIB) == 0 {
                segment.sync()?;
            }
        }
    }
    let mut numbers = Numbers::new(1);
    // Each block of the table is written over several times.
    for round in 0..(64 * MIB / largest).clamp(100, 600) {
        let length = 1 + numbers.below(largest);
        table.write(round, numbers.below(8 * MIB - length), length)?;
    }
    mapped.content = bytes(4, MIB as usize);
    let mapping = Mapping::new(&mapped.file, MIB as usize, libc::MAP_SHARED).map_err(failed("mmap"))?;
    mapping.write(0, &mapped.content);
    mapping.sync().map_err(failed("msync"))?;
    let again = fill(dir)?;
    for known in [&beyond, &laid_out, &zeros, &table, &mapped] {
        known.sync()?;
        known.judge()?;
    }
    println!("ok      promises: {again} bytes of filler");
    Ok(())
}

/// After the removal of a file from a full file system, at least half of its bytes can be written again at
/// once, and all bytes that statfs shows can be written.
pub(crate) fn removed(dir: &Path) -> Outcome<()> {
    let small = dir.join("small");
    for round in 0..4 {
        for size in [256 * KIB, MIB, 3 * MIB] {
            let file = create(&small, 0)?;
            file.write_all_at(&bytes(round, size as usize), 0).map_err(failed("small file"))?;
            file.sync_all().map_err(failed("fsync"))?;
            drop(file);
            fill(dir)?;
            fs::remove_file(&small).map_err(failed("unlink"))?;
            let shown = if round % 2 == 0 { 0 } else { available(dir)? / BLOCK * BLOCK };
            let next = create(&dir.join("next"), 0)?;
            let wanted = shown.max(size / 2);
            for at in (0..wanted).step_by(BLOCK as usize) {
                let what = format!("{at} of {wanted} bytes after {size} were removed, {shown} shown");
                next.write_all_at(&[7; BLOCK as usize], at).map_err(failed(what))?;
            }
            next.sync_all().map_err(failed("fsync"))?;
            fs::remove_file(dir.join("next")).map_err(failed("unlink"))?;
            empty(dir)?;
        }
    }
    println!("ok      what was removed can be written");
    Ok(())
}

/// On an empty file system fallocate gets the bytes that statfs shows, less `spare`, and little more; the
/// same after the removal of the file.
pub(crate) fn shown(dir: &Path, spare: u64) -> Outcome<()> {
    let path = dir.join("laid out");
    for _ in 0..3 {
        let shown = available(dir)?;
        let file = create(&path, 0)?;
        let what = format!("fallocate of {shown} bytes, as many as statfs shows");
        system::fallocate(&file, 0, 0, shown.saturating_sub(spare)).map_err(failed(what))?;
        let left = available(dir)?.saturating_sub(spare);
        if left * 20 > shown {
            return Err(format!("{left} bytes are left of {shown}"));
        }
        drop(file);
        fs::remove_file(&path).map_err(failed("unlink"))?;
        eventually("statfs as before", || Ok(available(dir)? * 50 >= shown * 49))?;
        println!("ok      fallocate gets the {shown} bytes that statfs shows; {left} are left");
    }
    Ok(())
}

/// Writes of up to 200 KB, and many of less than 4 KiB, to 40 files until 60 of them find no space. All that was accepted is
/// synced then, and read. Names end in numbers below 40.
pub(crate) fn mixed(dir: &Path, seed: u64) -> Outcome<()> {
    const FILES: usize = 40;
    const REFUSED: usize = 60;
    let mut numbers = Numbers::new(seed);
    let open = |number| create(&dir.join(format!("mixed-{number}")), 0);
    let files = (0..FILES).map(open).collect::<Outcome<Vec<File>>>()?;
    let mut contents = vec![Vec::new(); FILES];
    let clock = SystemClock::default();
    let (mut refused, mut accepted, mut longest_ns) = (0, 0, 0);
    while refused < REFUSED {
        let file = numbers.below(FILES as u64) as usize;
        let most = if numbers.below(3) == 0 { BLOCK } else { 200_000 };
        let (at, length) = (numbers.below(8 * MIB) as usize, 1 + numbers.below(most) as usize);
        let new = bytes(numbers.next(), length);
        let begin_ns = clock.monotonic_ns();
        match files[file].write_at(&new, at as u64) {
            Ok(written) => {
                let content: &mut Vec<u8> = &mut contents[file];
                content.resize(content.len().max(at + written), 0);
                content[at..at + written].copy_from_slice(&new[..written]);
                accepted += written;
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                refused += 1;
                longest_ns = longest_ns.max(clock.monotonic_ns() - begin_ns);
            }
            Err(error) => return Err(format!("write of {length} bytes at {at}: {error}")),
        }
    }
    for (file, content) in files.iter().zip(&contents) {
        file.sync_all().map_err(failed("fsync on the full file system"))?;
        let mut found = vec![0; content.len()];
        file.read_exact_at(&mut found, 0).map_err(failed("read"))?;
        difference(&found, content).map_or(Ok(()), Err)?;
    }
    println!(
        "ok      {accepted} bytes in writes of all lengths; the longest refusal took {} ms",
        longest_ns / 1_000_000
    );
    Ok(())
}
