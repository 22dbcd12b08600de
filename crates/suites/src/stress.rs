//! The stress test: owner threads make, change, rename, cut, map and remove files, while reader threads read
//! the files of all owners. Every block names its file, position and version. An owner compares its files
//! with its memory; the final state is written to a model file and compared again after another mount.

use crate::content::{Numbers, bytes, difference};
use crate::outcome::{Failure, Outcome, number};
use crate::system::Mapping;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

const BLOCK: usize = 4096;
/// Threads that own files, and threads that read the files of all owners.
const OWNERS: u64 = 12;
const READERS: u64 = 4;
/// Files of an owner, and blocks of a file: together several times the PM.
const FILES: usize = 24;
const MAX_BLOCKS: u64 = 512;

/// The content of a block: file, position and version, then bytes computed from these numbers.
fn block(file: u64, index: u64, version: u64) -> Vec<u8> {
    let mut content = Vec::with_capacity(BLOCK);
    for word in [file, index, version] {
        content.extend_from_slice(&word.to_le_bytes());
    }
    content.extend(bytes(file << 48 ^ index << 32 ^ version, BLOCK - content.len()));
    content
}

fn expected(file: u64, index: u64, version: u64) -> Vec<u8> {
    if version == 0 { vec![0; BLOCK] } else { block(file, index, version) }
}

/// Changes of blocks that a read at the same time may see a part of, by position: the file, the old version and
/// the new version. Two kinds of changes are so, on most file systems:
/// 1. A store through a mapping, also where the read makes the kernel write the page back.
/// 2. A write to a file that the kernel caches: the kernel copies into and out of the page at the same time.
type Changes = Mutex<BTreeMap<u64, Vec<(u64, u64, u64)>>>;

/// Whether the readers open the files of an owner for writing as well, which keeps the files out of the kernel's
/// cache. Every read of such a file is a request, and sees whole writes.
fn are_direct(owner: u64) -> bool {
    owner.is_multiple_of(2)
}

/// Judges a block of unknown version by its own numbers; gives the file that the block names.
fn judge(found: &[u8], index: u64, newest: u64, changes: &Changes) -> Outcome<Option<u64>> {
    let word =
        |at: usize| found.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |w| u64::from_le_bytes(*w));
    let (file, place, version) = (word(0), word(8), word(16));
    if found.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let said = difference(found, &block(file, index, version));
    if said.is_none() && place == index && version <= newest {
        return Ok(Some(file));
    }
    let changes = changes.lock().get(&index).cloned().unwrap_or_default();
    if let Some((file, ..)) = changes.iter().find(|change| is_between(found, index, **change)) {
        return Ok(Some(*file));
    }
    let said = said.unwrap_or_default();
    let lines = lines_of(found, file, index, newest);
    Err(format!(
        "block {index} says it is block {place}, version {version} of at most {newest}: {said}; {lines}"
    ))
}

/// The versions of a block that the lines of a found block belong to: runs of lines, each with its version.
fn lines_of(found: &[u8], file: u64, index: u64, newest: u64) -> String {
    const LINE: usize = 64;
    let mut versions = vec![None; found.len().div_ceil(LINE)];
    for version in (0..=newest).rev() {
        let content = expected(file, index, version);
        let lines = found.chunks(LINE).zip(content.chunks(LINE));
        for (known, (found, line)) in versions.iter_mut().zip(lines) {
            if known.is_none() && found == line {
                *known = Some(version);
            }
        }
        if versions.iter().all(Option::is_some) {
            break;
        }
    }
    let mut runs: Vec<(usize, Option<u64>)> = Vec::new();
    for (line, version) in versions.into_iter().enumerate() {
        if runs.last().is_none_or(|(_, last)| *last != version) {
            runs.push((line, version));
        }
    }
    let named = |version: Option<u64>| version.map_or("no version".into(), |v| format!("version {v}"));
    let runs = runs.iter().map(|(line, version)| format!("{} from line {line}", named(*version)));
    runs.collect::<Vec<_>>().join(", ")
}

/// Whether each byte of a block equals the byte of the old or of the new version.
fn is_between(found: &[u8], index: u64, (file, old, new): (u64, u64, u64)) -> bool {
    let (old, new) = (expected(file, index, old), expected(file, index, new));
    found.iter().zip(old.iter().zip(&new)).all(|(byte, (old, new))| byte == old || byte == new)
}

/// A file as its owner knows it: the version of each block, 0 for a hole.
struct Known {
    id: u64,
    versions: Vec<u64>,
}

#[derive(Default)]
struct Shared {
    dir: PathBuf,
    stop: AtomicBool,
    version: AtomicU64,
    operations: AtomicU64,
    verified: AtomicU64,
    changes: Changes,
}

impl Shared {
    /// The next version of a block.
    fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Remembers a change that a read may see a part of.
    fn remember(&self, index: u64, change: (u64, u64, u64)) {
        self.changes.lock().entry(index).or_default().push(change);
    }
}

struct Owner {
    shared: Arc<Shared>,
    dir: PathBuf,
    index: u64,
    numbers: Numbers,
    files: BTreeMap<String, Known>,
    made: u64,
}

fn context<T>(what: &str, path: &Path, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{what} {}: {error}", path.display()))
}

impl Owner {
    fn fresh(&mut self) -> (String, u64) {
        self.made += 1;
        (format!("f{}", self.made), self.index << 32 | self.made)
    }

    fn create(&mut self) -> Outcome<()> {
        let (name, id) = self.fresh();
        let path = self.dir.join(&name);
        context("create", &path, File::create_new(&path))?;
        self.files.insert(name, Known { id, versions: Vec::new() });
        Ok(())
    }

    fn step(&mut self) -> Outcome<()> {
        self.shared.operations.fetch_add(1, Ordering::Relaxed);
        let kind = self.numbers.below(100);
        if self.files.len() < FILES && (kind < 10 || self.files.is_empty()) {
            return self.create();
        }
        let pick = self.numbers.below(self.files.len() as u64) as usize;
        let Some(name) = self.files.keys().nth(pick).cloned() else { return Ok(()) };
        let path = self.dir.join(&name);
        match kind {
            0..2 => {
                context("unlink", &path, fs::remove_file(&path))?;
                self.files.remove(&name);
                return Ok(());
            }
            2..5 => {
                let (new, _) = self.fresh();
                context("rename", &path, fs::rename(&path, self.dir.join(&new)))?;
                if let Some(known) = self.files.remove(&name) {
                    self.files.insert(new, known);
                }
                return Ok(());
            }
            _ => {}
        }
        let file = context("open", &path, OpenOptions::new().read(true).write(true).open(&path))?;
        let Some(known) = self.files.get_mut(&name) else { return Ok(()) };
        let size = known.versions.len() as u64;
        let at = self.numbers.below(size);
        let count = 1 + self.numbers.below(16);
        let done = match kind {
            5..9 => resize(&file, known, self.numbers.below(MAX_BLOCKS)),
            9..30 => write(&self.shared, &file, known, size.min(MAX_BLOCKS), count * 2),
            30..55 => write(&self.shared, &file, known, at, count),
            55..60 if size > 0 => map(&self.shared, &file, known, at),
            60..63 => file.sync_all(),
            63..66 => file.sync_data(),
            _ => {
                return verify(&self.shared, &file, known, at, count * 2)
                    .map_err(|why| format!("{name}: {why}"));
            }
        };
        context("change", &path, done)
    }

    fn run(&mut self) -> Outcome<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.step()?;
        }
        Ok(())
    }
}

fn resize(file: &File, known: &mut Known, blocks: u64) -> std::io::Result<()> {
    file.set_len(blocks * BLOCK as u64)?;
    known.versions.resize(blocks as usize, 0);
    Ok(())
}

/// Overwrites or appends blocks, each with a version of its own.
fn write(shared: &Shared, file: &File, known: &mut Known, at: u64, count: u64) -> std::io::Result<()> {
    let mut content = Vec::new();
    for index in at..(at + count).min(MAX_BLOCKS) {
        let version = shared.next_version();
        content.extend(block(known.id, index, version));
        let versions = &mut known.versions;
        versions.resize(versions.len().max(index as usize + 1), 0);
        if let Some(place) = versions.get_mut(index as usize) {
            if !are_direct(known.id >> 32) {
                shared.remember(index, (known.id, *place, version));
            }
            *place = version;
        }
    }
    file.write_all_at(&content, at * BLOCK as u64)
}

/// Stores a block through a shared mapping.
fn map(shared: &Shared, file: &File, known: &mut Known, at: u64) -> std::io::Result<()> {
    let mapping = Mapping::new(file, known.versions.len() * BLOCK, libc::MAP_SHARED)?;
    let version = shared.next_version();
    let before = known.versions.get(at as usize).copied().unwrap_or(0);
    shared.remember(at, (known.id, before, version));
    mapping.write(at as usize * BLOCK, &block(known.id, at, version));
    mapping.sync()?;
    if let Some(place) = known.versions.get_mut(at as usize) {
        *place = version;
    }
    Ok(())
}

/// Compares blocks with the last writes of their owner.
fn verify(shared: &Shared, file: &File, known: &Known, at: u64, count: u64) -> Outcome<()> {
    let size = known.versions.len() as u64;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length != size * BLOCK as u64 {
        return Err(format!("{length} bytes instead of {size} blocks"));
    }
    let count = count.min(size.saturating_sub(at));
    let mut found = vec![0; count as usize * BLOCK];
    file.read_exact_at(&mut found, at * BLOCK as u64)
        .map_err(|error| format!("read at block {at}: {error}"))?;
    for (index, found) in (at..).zip(found.chunks(BLOCK)) {
        let version = known.versions.get(index as usize).copied().unwrap_or(0);
        if let Some(why) = difference(found, &expected(known.id, index, version)) {
            return Err(format!("block {index}, version {version}: {why}"));
        }
    }
    shared.verified.fetch_add(count, Ordering::Relaxed);
    Ok(())
}

/// Reads files of all owners while they change: every block must be a whole block of its file. Two reads of
/// each part promote cold blocks.
fn read_others(shared: &Shared, seed: u64) -> Outcome<()> {
    let mut numbers = Numbers::new(seed);
    while !shared.stop.load(Ordering::Relaxed) {
        let owner = numbers.below(OWNERS);
        let dir = shared.dir.join(format!("t{owner}"));
        let names: Vec<PathBuf> =
            context("list", &dir, fs::read_dir(&dir))?.flatten().map(|e| e.path()).collect();
        let Some(path) = names.get(numbers.below(names.len() as u64) as usize) else { continue };
        let file = match OpenOptions::new().read(true).write(are_direct(owner)).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => context("open", path, file)?,
        };
        let at = numbers.below(MAX_BLOCKS);
        let mut says = None;
        for _ in 0..2 {
            let mut found = vec![0; 16 * BLOCK];
            let count = context("read", path, file.read_at(&mut found, at * BLOCK as u64))?;
            // The newest version is taken after the read: a version taken before may be older than the block.
            let newest = shared.version.load(Ordering::Relaxed);
            for (index, found) in (at..).zip(found[..count].chunks_exact(BLOCK)) {
                let file = judge(found, index, newest, &shared.changes)
                    .map_err(|why| format!("{}: {why}", path.display()))?;
                if says.is_some() && file.is_some() && says != file {
                    return Err(format!("{}: blocks of files {says:?} and {file:?}", path.display()));
                }
                says = says.or(file);
                shared.verified.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Runs all threads for a time, then writes the state of all files to the model file.
pub(crate) fn run(dir: &Path, model: &Path, seconds: u64, seed: u64) -> Outcome<()> {
    let shared = Arc::new(Shared { dir: dir.to_path_buf(), ..Shared::default() });
    let (tell, results) = channel();
    for index in 0..OWNERS {
        let own = dir.join(format!("t{index}"));
        context("mkdir", &own, fs::create_dir(&own))?;
    }
    for index in 0..OWNERS + READERS {
        let (shared, tell) = (Arc::clone(&shared), tell.clone());
        let body = move || {
            let seed = seed.wrapping_mul(1000) + index;
            let dir = shared.dir.join(format!("t{index}"));
            let numbers = Numbers::new(seed);
            let mut owner = Owner { shared, dir, index, numbers, files: BTreeMap::new(), made: 0 };
            let done = if index < OWNERS { owner.run() } else { read_others(&owner.shared, seed) };
            owner.shared.stop.fetch_or(done.is_err(), Ordering::Relaxed);
            let _ = tell.send(done.map(|()| (owner.index, owner.files)));
        };
        spawn("stress", body).map_err(|error| error.to_string())?;
    }
    drop(tell);
    let clock = SystemClock::default();
    while clock.monotonic_ns() < seconds * 1_000_000_000 && !shared.stop.load(Ordering::Relaxed) {
        clock.sleep(Duration::from_millis(100));
    }
    shared.stop.store(true, Ordering::Relaxed);
    let mut text = String::new();
    for _ in 0..OWNERS + READERS {
        let (owner, files) = results.recv().map_err(|_| Failure::from("a thread panicked"))??;
        for (name, Known { id, versions }) in files {
            let versions: Vec<String> = versions.iter().map(u64::to_string).collect();
            text += &format!("t{owner}/{name} {id} {}\n", versions.join(" "));
        }
    }
    context("write", model, File::create(model).and_then(|mut file| file.write_all(text.as_bytes())))?;
    let (operations, verified) = (&shared.operations, &shared.verified);
    println!(
        "{} operations, {} blocks verified",
        operations.load(Ordering::Relaxed),
        verified.load(Ordering::Relaxed)
    );
    Ok(())
}

/// Compares every block of every file with the model file; a file that the model does not name is an error.
pub(crate) fn check(dir: &Path, model: &Path) -> Outcome<()> {
    let text = context("read", model, fs::read_to_string(model))?;
    let shared = Shared { dir: dir.to_path_buf(), ..Shared::default() };
    let mut files = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(id)) = (words.next(), words.next()) else { continue };
        let versions = words.map(number).collect::<Outcome<Vec<u64>>>()?;
        let known = Known { id: number(id)?, versions };
        let path = dir.join(name);
        let file = context("open", &path, File::open(&path))?;
        verify(&shared, &file, &known, 0, MAX_BLOCKS * 2).map_err(|why| format!("{name}: {why}"))?;
        files += 1;
    }
    let mut there = 0;
    for owner in 0..OWNERS {
        let own = dir.join(format!("t{owner}"));
        there += context("list", &own, fs::read_dir(&own))?.count();
    }
    if there != files {
        return Err(format!("{there} files instead of {files}"));
    }
    println!("{files} files, {} blocks verified", shared.verified.load(Ordering::Relaxed));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The old content of block 3 of file 5 from byte 640 on, the new content before.
    fn torn() -> Vec<u8> {
        let (old, new) = (block(5, 3, 7), block(5, 3, 9));
        new.iter().take(640).chain(old.iter().skip(640)).copied().collect()
    }

    #[test]
    fn a_torn_block_is_refused_with_the_versions_of_its_lines() {
        let said = judge(&torn(), 3, 20, &Changes::default());
        assert!(said.unwrap_err().ends_with("version 9 from line 0, version 7 from line 10"));
    }

    #[test]
    fn a_block_may_be_torn_by_a_remembered_change_alone() {
        let shared = Shared::default();
        shared.remember(3, (5, 6, 9));
        assert!(judge(&torn(), 3, 20, &shared.changes).is_err());
        shared.remember(3, (5, 7, 9));
        assert_eq!(judge(&torn(), 3, 20, &shared.changes), Ok(Some(5)));
    }

    #[test]
    fn a_block_of_a_version_to_come_is_an_error() {
        assert_eq!(judge(&block(5, 3, 20), 3, 20, &Changes::default()), Ok(Some(5)));
        assert!(judge(&block(5, 3, 21), 3, 20, &Changes::default()).is_err());
    }
}
