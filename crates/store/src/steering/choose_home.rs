//! The home of a write: all conditions, in order. The last ones are the write tree of `placement/src/decision.rs`
//! (docs/placement.md).

use crate::error::FsResult;
use crate::inode::load::load_regular;
use crate::inode::tier_pin::pin_of;
use crate::parts::dram::lazy_writes::LazyAblation;
use crate::parts::steering::file_history::FileHistory;
use crate::pressure::buffer::{has_buffer, has_lazy_writes};
use crate::steering::kept_choices::kept_choice;
use crate::steering::written_lines::written_lines;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::segment::Segment;
use crate::types::{BlockRange, WriteFlags};
use smallvec::SmallVec;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_placement::decision::{Room, WriteSeen, write_home};
use terrace_placement::synchronicity::Judgement;
use terrace_placement::write_size::Entry;

/// The home of a write. The caller holds the inode's lock.
#[inline]
pub fn home_of(store: &Store, inode: &Inode, segment: &Segment<'_>, flags: WriteFlags) -> Home {
    if !has_buffer(store) {
        return Home::Pm;
    }
    let chosen = choose_home(store, inode, segment.blocks(), flags);
    if is_behind_dirty(inode, segment, flags) && (chosen == Home::Block || !has_lazy_writes(store)) {
        return Home::Block;
    }
    if chosen == Home::Block && pin_of(store, inode).is_ok_and(|pin| pin == Some(0)) {
        return Home::Pm;
    }
    chosen
}

/// Whether a write lies behind what is only in DRAM: nothing becomes durable before that, or a crash would leave a hole (C28).
#[inline]
fn is_behind_dirty(inode: &Inode, segment: &Segment<'_>, flags: WriteFlags) -> bool {
    let durable = inode.durable_size();
    inode.size() > durable && !flags.sync && segment.offset + segment.length > durable
}

/// Whether a write to a block waits in DRAM for write-back into PM, its home ([HiNFS] section 3.2). The caller holds the
/// inode's lock.
#[inline]
pub fn is_lazy(store: &Store, inode: &Inode, block: FileBlock, flags: WriteFlags) -> bool {
    let whole = Segment { offset: block.0 * BLOCK_SIZE, length: BLOCK_SIZE, data: None };
    has_lazy_writes(store) && lazy_run(store, inode, &whole, flags).1
}

/// The number of blocks that have the same choice at the begin of a write, and the choice, as [`is_lazy`].
pub fn lazy_run(store: &Store, inode: &Inode, segment: &Segment<'_>, flags: WriteFlags) -> (u64, bool) {
    let range = segment.blocks();
    let all = range.count();
    if !has_lazy_writes(store) || flags.sync || store.dram.mapped_files().has(inode.ino) {
        return (all, false);
    }
    if store.dram.lazy_writes().options().ablation == LazyAblation::Always && !flags.pages {
        return (all, true);
    }
    // Behind what is only in DRAM a write to PM would have to settle it first (C28).
    let durable = inode.durable_size();
    let tail = if inode.size() > durable { durable / BLOCK_SIZE } else { u64::MAX };
    let before_tail = tail.saturating_sub(range.first.0).min(all);
    match before_tail {
        0 => return (all, true),
        // The kernel buffered the pages already.
        _ if flags.pages => return (before_tail, false),
        _ => {}
    }
    let mut choices: SmallVec<[Option<bool>; 16]> = SmallVec::from_elem(None, before_tail as usize);
    let (now, ages) = (store.clock.monotonic_coarse_ns(), store.dram.lazy_writes().ages());
    let of_file = store.dram.cache().sync_choices(inode.page_key(range.first), now, ages, &mut choices);
    let is_published = store.dram.lazy_writes().options().ablation == LazyAblation::Published;
    if !is_published && is_cheaper_in_dram(store, inode, segment) {
        return (all, true);
    }
    // The flag of a PM block could only say the same.
    if of_file == Some(false) && !is_published && !choices.contains(&Some(true)) {
        return (before_tail, false);
    }
    let without = || is_published || of_file.unwrap_or_else(|| !is_synchronous(store, inode));
    let is_lazy = |at: u64| {
        let Some(choice) = choices.get(at as usize) else { return true };
        let block = range.first.plus(at);
        // Behind the end there is no PM block that could have the flag.
        let is_there = block.0 * BLOCK_SIZE < inode.size();
        let kept = || if is_there { kept_choice(store, inode, block) } else { None };
        choice.or_else(kept).unwrap_or_else(without)
    };
    assert!(before_tail > 0 && before_tail <= all, "{before_tail} of {all} blocks lie before the tail");
    let first = is_lazy(0);
    ((1..all).find(|at| is_lazy(*at) != first).unwrap_or(all), first)
}

/// By way of DRAM parts of blocks cost at most this share of the direct way, or other rules choose: a page and its write-back cost
/// more than lines.
const PARTS_COST: f64 = 0.75;

/// Whether a write overwrites parts of blocks in PM and nothing else, and costs less by way of DRAM even if a sync follows at
/// once: a direct write stores whole blocks under data=atomic. No request is cut for this: it is one piece where DRAM has no room.
fn is_cheaper_in_dram(store: &Store, inode: &Inode, segment: &Segment<'_>) -> bool {
    if store.mode.data_ordered || segment.offset + segment.length > inode.size() {
        return false;
    }
    let costs = store.dram.lazy_writes().costs();
    segment.parts().all(|(block, from, to)| {
        let written = written_lines(store, inode, block, (from, to));
        let lines = u64::from(written.lines.0.count_ones());
        let direct = f64::from(written.direct) * PARTS_COST;
        costs.is_lazy(lines, lines, direct as u64) && is_written_in_pm(store, inode, block)
    })
}

/// Whether a block has content in PM: of a hole and of an unwritten block a whole new block is stored either way.
fn is_written_in_pm(store: &Store, inode: &Inode, block: FileBlock) -> bool {
    let found = store.persistent.map().lookup(&inode.map(), block);
    found.is_ok_and(|mapping| mapping.is_some_and(|mapping| !mapping.unwritten))
}

/// Whether the predictors expect a sync soon of a file whose blocks were not synced yet: a mail is written once and synced
/// once, and by way of DRAM would be copied twice.
fn is_synchronous(store: &Store, inode: &Inode) -> bool {
    if !store.steering.predictors_on() {
        return false;
    }
    let file = store.steering.file_histories().get(inode.ino, inode.slot.generation.get());
    file.is_some_and(|file| {
        let judgement = file.judged(store.steering.directory_history()).judgement;
        matches!(judgement, Judgement::Synchronous | Judgement::ExpectedSynchronous)
    })
}

/// As [`home_of`], for a caller without the inode lock.
#[inline]
pub fn ask_home(store: &Store, ino: Ino, segment: &Segment<'_>, flags: WriteFlags) -> FsResult<Home> {
    // Most writes need no look at the inode: short writes, while PM has room and the file has no volatile
    // size or times.
    let plain = flags.sync || !has_choice(store, segment.blocks());
    if !has_buffer(store)
        || (plain && store.steering.forced_home().is_none() && store.dram.volatile_sizes().get(ino).is_none())
    {
        return Ok(Home::Pm);
    }
    let _guard = store.inodes.locks().read(ino);
    Ok(home_of(store, &load_regular(store, ino)?, segment, flags))
}

/// The free PM space, as the choice of a home sees it.
#[inline]
fn room(store: &Store) -> Room {
    let hardly = store.pressure.throttle_below() / 4;
    // Just after the mount the scanned blocks stand for the blocks not yet scanned.
    let known = store.pressure.usable_blocks().saturating_sub(store.persistent.blocks().unknown_hint());
    Room::of(store.persistent.blocks().free_hint(), known, hardly, store.steering.parameters())
}

/// Whether predictors are asked for the home of a write to `range`.
#[inline]
pub(crate) fn has_choice(store: &Store, range: BlockRange) -> bool {
    store.steering.predictors_on()
        && match room(store) {
            Room::Hardly => true,
            Room::Some => range.count() * BLOCK_SIZE >= store.steering.parameters().large_min,
            Room::Plenty => false,
        }
}

/// The home of a write to `range`. The caller holds the inode lock.
#[inline]
pub fn choose_home(store: &Store, inode: &Inode, range: BlockRange, flags: WriteFlags) -> Home {
    if flags.sync || store.devices.list().is_empty() {
        return Home::Pm;
    }
    if let Some(home) = store.steering.forced_home() {
        return home;
    }
    if !has_choice(store, range) {
        return Home::Pm;
    }
    let Some(file) = store.steering.file_histories().get(inode.ino, inode.slot.generation.get()) else {
        return Home::Pm;
    };
    let entry = entry_after(store, inode, range, file);
    let (synchronicity, room) = (file.judged(store.steering.directory_history()), room(store));
    let seen = WriteSeen { durable: flags.sync, synchronicity, entry, room };
    write_home(&seen, store.steering.parameters())
}

/// The entry that a write to `range` of a file will leave.
#[inline]
pub(crate) fn entry_after(store: &Store, inode: &Inode, range: BlockRange, file: &FileHistory) -> Entry {
    let bytes = range.count() * BLOCK_SIZE;
    if bytes < store.steering.parameters().large_min {
        return Entry::after_short(file.run(), (range.first.0, bytes));
    }
    let of = (inode.ino, inode.slot.generation.get(), inode.size());
    Entry::after(
        store.steering.write_history().before(of, range, file.run()),
        bytes,
        store.steering.parameters(),
    )
}
