//! Placement of writes: which home a write gets (design 5), and what the predictors learn from what is done.
//!
//! [`choose_home`](super::choose_home) only looks, under the inode lock. [`note_write`] changes what the choice looks at,
//! once for each write that was committed, so that an attempt that starts again is not counted twice; its caller holds
//! the inode lock exclusively. Both get the inode as it was before the write. They touch a few words of fixed tables: no
//! lock, no allocation.

use crate::inode::slot::load;
use crate::parts::steering::file_history::FileHistory;
use crate::pressure::buffer::has_lazy_writes;
use crate::steering::choose_home::entry_after;
use crate::steering::written_lines::written_lines;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::segment::Segment;
use crate::types::{BlockRange, WriteFlags};
use smallvec::SmallVec;
use terrace_cache::{AppendedLines, WrittenLines};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::write_size::Entry;
use terrace_placement::{Home, Observation, prior};

/// A request begins that predictors will learn from.
#[inline]
pub fn expect_use(store: &Store, ino: Ino) {
    if store.steering.predictors_on() {
        store.steering.file_histories().expect(ino);
    }
}

/// `bytes` were written to blocks of `range` in PM. The caller holds the inode lock; `inode` is from before.
#[inline]
pub fn note_write(store: &Store, inode: &Inode, range: BlockRange, bytes: u64, flags: WriteFlags) {
    if store.steering.predictors_on() {
        learn_write(store, inode, range, bytes, flags);
        store.steering.data_flows().note_write(inode.ino, bytes, 0);
    }
}

/// As [`note_write`], of bytes that wait in DRAM: those with home PM count as written to PM when they are written back.
#[inline]
pub fn note_waiting_write(
    store: &Store,
    inode: &Inode,
    range: BlockRange,
    bytes: u64,
    flags: WriteFlags,
    home: Home,
) {
    if store.steering.predictors_on() {
        learn_write(store, inode, range, bytes, flags);
        let block_bytes = if home == Home::Block { bytes } else { 0 };
        store.steering.data_flows().note_write(inode.ino, 0, block_bytes);
    }
}

/// `bytes` that waited in DRAM with home PM are in PM.
#[inline]
pub fn note_written_back(store: &Store, ino: Ino, bytes: usize) {
    if bytes > 0 && store.steering.predictors_on() {
        store.steering.data_flows().note_written_back(ino, bytes as u64);
    }
}

#[inline]
fn learn_write(store: &Store, inode: &Inode, range: BlockRange, bytes: u64, flags: WriteFlags) {
    let (ino, generation) = (inode.ino, inode.slot.generation.get());
    let room = range.count() * BLOCK_SIZE;
    debug_assert!(bytes <= room, "{bytes} bytes written to {room} bytes of inode {ino} (design 5)");
    let size = inode.size().max(range.end.0 * BLOCK_SIZE);
    let tick = store.steering.tick();
    let file = store.steering.file_histories().enter(ino, generation, size, tick, store.steering.score());
    let entry = if range.count() * BLOCK_SIZE < store.steering.parameters().large_min {
        if file.has_entries() {
            store.steering.write_history().forget(ino, generation, range);
        }
        Entry::after_short(file.run(), (range.first.0, range.count() * BLOCK_SIZE))
    } else {
        leave_entry(store, inode, range, file)
    };
    let blocks = range.count().min(u64::from(u32::MAX)) as u32;
    file.note_write((bytes, blocks), (entry, range.end.0), flags.sync, store.steering.lessons(tick));
}

/// Notes the entry of a write to `range` that is long enough to have one.
fn leave_entry(store: &Store, inode: &Inode, range: BlockRange, file: &FileHistory) -> Entry {
    let entry = entry_after(store, inode, range, file);
    store.steering.write_history().put(inode.ino, inode.slot.generation.get(), range, entry);
    file.set_has_entries();
    entry
}

/// `bytes` were read, `dram_bytes` of them from copies of lower tiers in DRAM. The caller holds the inode lock,
/// shared at least.
#[inline]
pub fn note_read(store: &Store, inode: &Inode, bytes: u64, dram_bytes: u64) {
    if store.steering.predictors_on() {
        let tick = store.steering.tick();
        let generation = inode.slot.generation.get();
        store
            .steering
            .file_histories()
            .enter(inode.ino, generation, inode.size(), tick, store.steering.score())
            .note_read(bytes);
        store.steering.data_flows().note_read(inode.ino, bytes.saturating_sub(dram_bytes), dram_bytes);
    }
}

/// Lines of some blocks were written, to PM if `is_direct`: for the choice between lazy and eager. The caller holds the inode
/// lock exclusively.
#[inline]
pub fn note_lines(store: &Store, inode: &Inode, segment: &Segment<'_>, flags: WriteFlags, is_direct: bool) {
    if has_lazy_writes(store) && !flags.sync {
        count_lines(store, inode, segment, is_direct);
    }
}

/// Apart: the short way of a write stays short where lazy writes are off.
#[inline(never)]
fn count_lines(store: &Store, inode: &Inode, segment: &Segment<'_>, is_direct: bool) {
    let now = store.clock.monotonic_coarse_ns();
    let size = inode.size();
    if is_direct && segment.offset >= size && segment.length > 0 {
        let appended = AppendedLines::behind(size, segment.offset, segment.length);
        if store.dram.cache().note_append(inode.page_key(segment.blocks().first), appended, now) {
            return;
        }
    }
    // Looked up before the lock of the index is taken, which is innermost.
    let parts = segment.parts();
    let written: SmallVec<[(FileBlock, WrittenLines); 8]> =
        parts.map(|(block, from, to)| (block, written_lines(store, inode, block, (from, to)))).collect();
    let first = inode.page_key(segment.blocks().first);
    store.dram.cache().note_lines(first, written.into_iter(), is_direct, now);
}

/// Chooses between lazy and eager for the blocks of a file that were written since its last sync, at the begin of a sync. Gives
/// the new choices, for [`keep_choices`](super::kept_choices::keep_choices): whether the block is eager.
pub fn judge_sync(store: &Store, ino: Ino) -> Vec<(FileBlock, bool)> {
    if !has_lazy_writes(store) {
        return Vec::new();
    }
    let _guard = store.inodes.locks().read(ino);
    let Ok(inode) = load(store, ino) else { return Vec::new() };
    let (lazy, now) = (store.dram.lazy_writes(), store.clock.monotonic_coarse_ns());
    let generation = inode.slot.generation.get();
    let judged = store.dram.cache().judge_sync(ino, generation, now, lazy.costs(), lazy.ages());
    lazy.counts().add_choices(ino, &judged.verdicts);
    judged.new
}

/// A file was fsynced.
#[inline]
pub fn note_fsync(store: &Store, ino: Ino) {
    if store.steering.predictors_on() {
        store.steering.file_histories().note_fsync(ino, store.steering.lessons(store.steering.tick()));
    }
}

/// Notes the last close of a file.
pub fn note_close(store: &Store, ino: Ino) {
    if has_lazy_writes(store) {
        store.dram.cache().note_close(ino);
    }
    if store.steering.predictors_on() {
        store.steering.file_histories().note_close(ino, store.steering.lessons(store.steering.tick()));
    }
}

/// A file or directory was made in a directory. The caller holds both locks.
#[inline]
pub fn note_made(store: &Store, directory: &Inode, name: &[u8], made: &Inode) {
    if !store.steering.predictors_on() {
        return;
    }
    let above = Ino(u64::from(directory.slot.parent_or_rdev.get()));
    if made.slot.is_directory() {
        store.steering.directory_history().directory_made(made.ino, directory.ino, above);
    } else if made.slot.is_regular() {
        let tick = store.steering.tick();
        let directory = (directory.ino, directory.slot.generation.get());
        let directories = store.steering.directory_history().file_made(directory, above, prior::family(name));
        let file = store.steering.file_histories().enter(
            made.ino,
            made.slot.generation.get(),
            0,
            tick,
            store.steering.score(),
        );
        file.note_made(directories);
    }
}

/// Adds to what the policy sees what was read and written.
#[inline]
pub fn with_flows(store: &Store, seen: Observation) -> Observation {
    let flow = store.steering.data_flows().window().decayed();
    Observation { pm_read_bytes: flow.pm_read, pm_written_bytes: flow.pm_written, ..seen }
}
