//! Files of a pool, watched: bytes made durable by syncs, and blocks that were lazy or eager between two syncs.
//!
//! The state of a block is looked at right after each write: lazy if the block then has a page with home PM. The oracle has the
//! lines written between two syncs of a block: by way of DRAM L_dram for each write and L_pm for each
//! different line, the direct way L_pm for each line that it stores ([HiNFS] inequality 1): all 64 of a block where a part of
//! its bytes is overwritten (data=atomic), else those written. A new block is stored whole either way. A block whose first write
//! was behind bytes that were in DRAM alone had no choice (C28): nothing is compared.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use terrace_bench::workload::local::LocalTarget;
use terrace_bench::workload::target::{FileTarget, OpenedFile};
use terrace_cache::{LineCosts, Lines, PageKey};
use terrace_engine::{Attributes, Engine};
use terrace_format::address::LINE_SIZE;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::sync::Mutex;
use terrace_store::inode::load::load_regular;

const ALL_LINES: u64 = BLOCK_SIZE / LINE_SIZE;

/// Writes of a block since its last sync.
#[derive(Debug, Default)]
struct Interval {
    /// Lines, each as often as it was written.
    written: u64,
    /// Lines that direct writes would have stored.
    direct: u64,
    /// Whether the file had no bytes there at first.
    is_new: bool,
    /// Whether the first write was behind bytes that were in DRAM alone.
    is_forced: bool,
    /// Lines that went into DRAM.
    lazy: u64,
    /// Different lines, and the different lines whose last write went into DRAM.
    distinct: Lines,
    in_dram: Lines,
}

/// A file, by its name.
#[derive(Debug, Default)]
struct Watch {
    size: u64,
    unsynced_bytes: u64,
    intervals: BTreeMap<u64, Interval>,
    /// Whether a block was better eager at its last sync.
    earlier: HashMap<u64, bool>,
}

/// Sums of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) written_bytes: u64,
    pub(super) synced_bytes: u64,
    /// Blocks with writes before a sync, each sync counted.
    pub(super) intervals: u64,
    /// Blocks that had no choice.
    pub(super) forced: u64,
    /// Blocks in the cheaper state.
    pub(super) right: u64,
    /// Blocks in the state that is cheaper where a direct write stores its own lines alone, and a new block too.
    pub(super) right_as_published: u64,
    /// Blocks with an earlier sync, and blocks with the same cheaper state as at the sync before.
    pub(super) repeated: u64,
    pub(super) same: u64,
    /// Lines written before a sync, each as often as it was.
    pub(super) lines: u64,
    /// Lines in DRAM that a sync wrote to PM, in blocks that were better eager.
    pub(super) copied_twice: u64,
}

struct Shared {
    fs: Arc<Engine>,
    costs: LineCosts,
    files: Mutex<HashMap<String, Watch>>,
    seen: Mutex<Seen>,
    left_out: Mutex<HashSet<String>>,
}

/// Files of a pool of this process.
pub(super) struct Watched {
    below: LocalTarget,
    shared: Arc<Shared>,
}

const ROOT: Ino = Ino(1);

impl Watched {
    pub(super) fn new(fs: Arc<Engine>, costs: LineCosts) -> Watched {
        let shared = Shared {
            fs: fs.clone(),
            costs,
            files: Mutex::default(),
            seen: Mutex::default(),
            left_out: Mutex::default(),
        };
        Watched { below: LocalTarget::new(fs, None), shared: Arc::new(shared) }
    }

    /// Forgets all until now: a sync of the whole pool made it durable. `leave_out`: the files of now do not count later.
    pub(super) fn forget(&self, leave_out: bool) {
        let mut files = self.shared.files.lock();
        if leave_out {
            self.shared.left_out.lock().extend(files.drain().map(|(path, _)| path));
        }
        for watch in files.values_mut() {
            *watch = Watch { size: watch.size, ..Watch::default() };
        }
        drop(files);
        self.take_seen();
    }

    /// The sums since the last call.
    pub(super) fn take_seen(&self) -> Seen {
        std::mem::take(&mut *self.shared.seen.lock())
    }

    /// Inode and generation of a file.
    fn attributes(&self, path: &str) -> io::Result<Attributes> {
        let mut found: Option<Attributes> = None;
        for name in path.split('/') {
            let above = found.map_or(ROOT, |above| above.ino);
            let next = self.shared.fs.lookup(above, name.as_bytes());
            if above != ROOT {
                self.shared.fs.forget(above, 1);
            }
            found = Some(next.map_err(|error| io::Error::from_raw_os_error(error.errno()))?);
        }
        let found = found.ok_or(io::ErrorKind::NotFound)?;
        self.shared.fs.forget(found.ino, 1);
        Ok(found)
    }
}

impl Shared {
    /// The first block of a file that a write now cannot store to PM, because bytes before it are in DRAM alone.
    fn forced_from(&self, ino: Ino) -> u64 {
        let _guard = self.fs.store.inodes.locks().read(ino);
        let found =
            load_regular(&self.fs.store, ino).ok().filter(|inode| inode.size() > inode.durable_size());
        found.map_or(u64::MAX, |inode| inode.durable_size() / BLOCK_SIZE)
    }

    fn wrote(&self, file: &WatchedFile, (bytes, offset): (u64, u64), sync: bool, forced_from: u64) {
        if self.left_out.lock().contains(&file.path) {
            return;
        }
        let mut files = self.files.lock();
        let watch = files.entry(file.path.clone()).or_default();
        let mut seen = self.seen.lock();
        seen.written_bytes += bytes;
        if sync {
            seen.synced_bytes += bytes;
            watch.size = watch.size.max(offset + bytes);
            return;
        }
        watch.unsynced_bytes += bytes;
        let end = offset + bytes;
        for block in offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE) {
            let start = block * BLOCK_SIZE;
            let in_block = |at: u64| at.clamp(start, start + BLOCK_SIZE) - start;
            let lines = Lines::touched(in_block(offset) as usize, in_block(end) as usize);
            let key = PageKey { ino: file.ino, generation: file.generation, block: FileBlock(block) };
            let is_lazy = self.fs.store.dram.cache().home_of(key) == Some(Home::Pm);
            let interval = watch.intervals.entry(block).or_default();
            let count = u64::from(lines.0.count_ones());
            interval.is_forced |= interval.written == 0 && block >= forced_from;
            interval.written += count;
            let is_new = start >= watch.size;
            let is_append = start.max(offset) >= watch.size;
            interval.direct += if is_append && !is_new { count } else { ALL_LINES };
            interval.is_new |= is_new;
            interval.distinct = interval.distinct.union(lines);
            if is_lazy {
                interval.lazy += count;
                interval.in_dram = interval.in_dram.union(lines);
            } else {
                interval.in_dram = Lines(interval.in_dram.0 & !lines.0);
            }
        }
        watch.size = watch.size.max(end);
    }

    fn synced(&self, path: &str) {
        let mut files = self.files.lock();
        let Some(watch) = files.get_mut(path) else { return };
        let mut seen = self.seen.lock();
        seen.synced_bytes += std::mem::take(&mut watch.unsynced_bytes);
        for (block, interval) in std::mem::take(&mut watch.intervals) {
            let distinct = u64::from(interval.distinct.0.count_ones());
            let flushed = if interval.is_new { ALL_LINES } else { distinct };
            let is_eager = !self.costs.is_lazy(interval.written, flushed, interval.direct);
            let was_eager = interval.lazy * 2 < interval.written;
            let is_eager_as_published = !self.costs.is_lazy(interval.written, distinct, interval.written);
            match interval.is_forced {
                true => seen.forced += 1,
                false => {
                    seen.intervals += 1;
                    seen.right += u64::from(is_eager == was_eager);
                    seen.right_as_published += u64::from(is_eager_as_published == was_eager);
                }
            }
            seen.lines += interval.written;
            if is_eager {
                seen.copied_twice += u64::from(interval.in_dram.0.count_ones());
            }
            if let Some(before) = watch.earlier.insert(block, is_eager) {
                seen.repeated += 1;
                seen.same += u64::from(before == is_eager);
            }
        }
    }
}

impl FileTarget for Watched {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.below.make_directory(path)
    }
    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.below.remove_directory(path)
    }
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenedFile>> {
        let below = self.below.open(path, create)?;
        let Attributes { ino, generation, .. } = self.attributes(path)?;
        Ok(Box::new(WatchedFile {
            below,
            path: path.to_string(),
            ino,
            generation,
            shared: self.shared.clone(),
        }))
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        self.shared.files.lock().remove(path);
        self.shared.left_out.lock().remove(path);
        self.below.unlink(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)?;
        let mut files = self.shared.files.lock();
        if let Some(watch) = files.remove(from) {
            files.insert(to.to_string(), watch);
        }
        Ok(())
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.link(from, to)
    }
    fn symlink(&self, text: &str, path: &str) -> io::Result<()> {
        self.below.symlink(text, path)
    }
    fn change_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        self.below.change_mode(path, mode)
    }
    fn size(&self, path: &str) -> io::Result<u64> {
        self.below.size(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.below.list(path)
    }
    fn settle(&self) -> io::Result<()> {
        self.below.settle()
    }
}

struct WatchedFile {
    below: Box<dyn OpenedFile>,
    path: String,
    ino: Ino,
    generation: u32,
    shared: Arc<Shared>,
}

impl OpenedFile for WatchedFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.below.read_at(into, offset)
    }
    fn write_at(&mut self, bytes: &[u8], offset: u64, sync: bool) -> io::Result<()> {
        let forced_from = self.shared.forced_from(self.ino);
        self.below.write_at(bytes, offset, sync)?;
        self.shared.wrote(self, (bytes.len() as u64, offset), sync, forced_from);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.shared.synced(&self.path);
        self.below.sync()
    }
    fn size(&mut self) -> io::Result<u64> {
        self.below.size()
    }
    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.below.set_size(bytes)?;
        if let Some(watch) = self.shared.files.lock().get_mut(&self.path) {
            watch.size = bytes;
        }
        Ok(())
    }
}
