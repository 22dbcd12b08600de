//! Spills: a nearly full lower tier relocates blocks of its coldest files to the next tiers (design 7,
//! "between any two tiers"; docs/placement.md explains the choice of files).
//!
//! Spills have a step of their own, so that only spills wait for a device that hangs; each call is a bounded
//! piece. While no tier is above its high mark, spills keep no state. Else windows of inodes are searched,
//! one after the other round the inode file. The files of a window that were used longest ago are relocated
//! in groups (`terrace_store::moving::relocate`) until the tier is at its low mark.
//!
//! Pinned files stay, and so do blocks with newer copies in PM. Spills claim no space reservation of dirty
//! pages, and at most half of the free blocks below, so that other operations find blocks meanwhile.
//!
//! M6: an attempt that moves no block, or fails, has a reason, counts as a failure, and makes the tier pause,
//! twice as long each time. A device that failed a moment ago or gives no answer is not tried.
//!
//! Spills yield: while writers wait for demotion, or a device concerned is being read, groups are short and a
//! pause follows each.

use crate::migration::Migration;
use crate::pace::{BACK_OFF, POLL};
use crate::spill::state::{Coldness, OfTier, Phase, State, Stuck};
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_format::inode::{SLOTS_PER_PAGE, flag};
use terrace_format::{DeviceId, FileBlock, Ino, TierId};
use terrace_placement::Observation;
use terrace_placement::spill::last_used;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{Next, Step, interleave};
use terrace_space::SpaceTotals;
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, wall_now};
use terrace_store::moving::destination::{Destination, choices_for};
use terrace_store::moving::file_id::FileId;
use terrace_store::moving::relocate::move_between;
use terrace_store::moving::relocation_group::{MovingGroup, collect_below};
use terrace_store::pressure::ending::go_on;
use terrace_store::pressure::pm_space::spills_from;
use terrace_store::steering::learn::with_flows;
use terrace_store::types::Wait;
use terrace_wal::{Error, NoSpace};

/// The time between two looks at the tiers.
const PERIOD: Duration = Duration::from_secs(1);

/// How often the pause after a failure doubles: to 128 s.
const DOUBLINGS: u32 = 7;

/// Inodes visited in a piece, and in a window.
const PIECE: u64 = 512;

const WINDOW: u64 = 1 << 14;

/// The coldest files of a window, of which this many are remembered.
const REMEMBERED: usize = 1 << 11;

/// Files visited for a group.
const OF_GROUP: usize = 256;

/// Blocks examined together for one that can be relocated, and the number of tries. A file with more blocks
/// under newer copies counts as movable.
const AT_ONCE: usize = 8;

const LOOKS: usize = 16;

/// With fewer free blocks, the tiers below count as full.
const LEAST_ROOM: u64 = 16;

/// Blocks of a group while other requests want the devices.
const SHORT_GROUP: u64 = 256;

/// An error in the words of a reason.
fn told(error: &FsError) -> Stuck {
    match error {
        FsError::Engine(Error::NoSpace(NoSpace::Tier)) => NO_ROOM.to_string(),
        error => error.to_string(),
    }
}

const NO_ROOM: &str = "no slower tier has room";

const NO_DEVICE: &str = "the devices below it failed a moment ago or give no answer";

const SILENT: &str = "a device of it gives no answer";

const NOTHING: &str = "what lies there is pinned or has newer copies in the fast tier";

/// Does a bounded piece.
fn spill_step(migration: &Migration) -> Next {
    let Some(mut state) = migration.spilling.state.lock().take() else {
        return Next::After(PERIOD);
    };
    let next = spill_piece(migration, &mut state);
    *migration.spilling.state.lock() = Some(state);
    next
}

fn spill_piece(migration: &Migration, state: &mut State) -> Next {
    let phase = std::mem::take(&mut state.phase);
    if migration.store.persistent.wal().is_stopped()
        || go_on(&migration.store).is_err()
        || !migration.store.devices.space().is_loaded()
    {
        return Next::After(PERIOD);
    }
    let fetched = migration.store.persistent.metadata_pages().fetched.load(Ordering::Relaxed);
    let (tier, done) = match phase {
        Phase::Rest => match find_full(migration, state) {
            Some(tier) => (tier, Ok(begin_window(migration, tier))),
            None => return Next::After(PERIOD),
        },
        Phase::Look { tier, left, coldest } => (tier, look(migration, state, tier, left, coldest)),
        Phase::Move { tier, files, from } => (tier, spill_group(migration, state, tier, files, from)),
    };
    match done {
        Ok(phase) => state.phase = phase,
        Err(stuck) => note_spill_stuck(migration, state.of(tier), tier, stuck),
    }
    if spill_gives_way(migration, tier)
        || fetched != migration.store.persistent.metadata_pages().fetched.load(Ordering::Relaxed)
    {
        Next::After(POLL)
    } else {
        Next::Again
    }
}

/// The number of blocks that a tier has above its low mark.
fn surplus(migration: &Migration, tier: TierId) -> u64 {
    let SpaceTotals { total, free } =
        migration.store.devices.space().totals_now(&migration.store.devices.of_tier(tier));
    migration.store.steering.parameters().spill.surplus(total, total.saturating_sub(free))
}

/// A tier that must spill now; the slowest first, so that it makes room for the next. The state of tiers that
/// are not above their marks is dropped.
fn find_full(migration: &Migration, state: &mut State) -> Option<TierId> {
    // Under a policy that never demotes, no file spills either.
    let observation = with_flows(&migration.store, Observation::default());
    let moves = migration.store.steering.policy().threshold_percent(&observation).is_some();
    let now_ns = migration.store.clock.monotonic_ns();
    let mut due = None;
    for tier in migration.store.devices.tiers() {
        if !moves || !spills_from(&migration.store, tier) {
            state.tiers.remove(&tier);
            migration.spilling.stuck.lock().remove(&tier);
        } else if now_ns >= state.of(tier).due_ns {
            due = Some(tier);
        }
    }
    due
}

fn inode_slots(migration: &Migration) -> u64 {
    migration.store.inodes.numbers().lock().pages * SLOTS_PER_PAGE
}

fn begin_window(migration: &Migration, tier: TierId) -> Phase {
    let left = WINDOW.min(inode_slots(migration).saturating_sub(1));
    Phase::Look { tier, left, coldest: BinaryHeap::new() }
}

/// Visits some inodes of a window; at its end the coldest files of the window are relocated.
fn look(
    migration: &Migration,
    state: &mut State,
    tier: TierId,
    mut left: u64,
    mut coldest: BinaryHeap<Coldness>,
) -> Result<Phase, Stuck> {
    room_below(migration, tier)?;
    let slots = inode_slots(migration);
    let fetched = migration.store.persistent.metadata_pages().fetched.load(Ordering::Relaxed);
    for _ in 0..PIECE {
        // Inode pages of cold files lie on lower tiers, so the piece ends at each fetched page.
        if left == 0 || migration.store.persistent.metadata_pages().fetched.load(Ordering::Relaxed) != fetched
        {
            break;
        }
        left -= 1;
        let ino = state.turn(slots);
        let of = state.of(tier);
        of.looked += 1;
        match coldness(migration, ino, tier, of.warm_too) {
            Ok(found) => coldest.extend(found),
            Err(error) if migration.store.persistent.wal().is_stopped() => return Err(told(&error)),
            // A damaged file does not keep other files from spilling.
            Err(error) => {
                of.trouble.get_or_insert(error);
            }
        }
        if coldest.len() > REMEMBERED {
            coldest.pop();
        }
    }
    if left > 0 {
        return Ok(Phase::Look { tier, left, coldest });
    }
    let files = coldest.into_sorted_vec().into_iter();
    let files: VecDeque<_> = files.map(|(_, ino, generation)| FileId { ino, generation }).collect();
    match files.is_empty() {
        true => next_window(migration, state.of(tier), tier),
        false => Ok(Phase::Move { tier, files, from: FileBlock(0) }),
    }
}

/// After a window comes the next one. After a whole round, a tier below its high mark rests. A tier pauses if
/// the round moved next to nothing: blocks that cannot be relocated may exceed the low mark, and newly
/// demoted blocks would keep the clock hand going round for ever (M6).
fn next_window(migration: &Migration, of: &mut OfTier, tier: TierId) -> Result<Phase, Stuck> {
    if of.looked + 1 >= inode_slots(migration) {
        if !spills_from(&migration.store, tier) {
            return Ok(Phase::Rest);
        }
        if of.moved < worth_a_round(migration, tier) {
            if of.warm_too {
                return Err(of.trouble.as_ref().map_or_else(|| NOTHING.to_string(), told));
            }
            of.warm_too = true;
        }
        (of.looked, of.moved) = (0, 0);
    }
    Ok(begin_window(migration, tier))
}

/// The number of moved blocks that makes a round worth its visit of all inodes.
fn worth_a_round(migration: &Migration, tier: TierId) -> u64 {
    let total = migration.store.devices.space().totals_now(&migration.store.devices.of_tier(tier)).total;
    (total / 64).clamp(1, SHORT_GROUP)
}

/// The last use of a file with a block that can leave the tier. `None` if it has no such block, is pinned, or
/// was used lately and `warm_too` is false.
fn coldness(migration: &Migration, ino: Ino, tier: TierId, warm_too: bool) -> FsResult<Option<Coldness>> {
    let loaded = with_pages(&migration.store, Wait::Allowed, || {
        let _guard = migration.store.inodes.locks().read(ino);
        load(&migration.store, ino)
    });
    let inode = match loaded {
        Ok(inode) if inode.slot.is_regular() && inode.slot.has(flag::HAS_COLD) => inode,
        Ok(_) | Err(FsError::Stale) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (now, generation) = (wall_now(&migration.store), inode.slot.generation.get());
    let tick_ns = POLL.as_nanos() as i64;
    let seen =
        migration.store.steering.file_histories().last_used(ino, generation).map(|used| {
            i64::from(migration.store.steering.tick().saturating_sub(used)).saturating_mul(tick_ns)
        });
    let attributes = inode.attributes();
    let used = last_used(now, attributes.ctime_ns, attributes.atime_ns, seen);
    let lately = i64::from(migration.store.steering.parameters().whole_after()).saturating_mul(tick_ns);
    if !warm_too && now.saturating_sub(used) < lately {
        return Ok(None);
    }
    let movable = has_movable(migration, FileId { ino, generation }, tier)?;
    Ok(movable.then_some((used, ino, generation)))
}

/// Whether a file has a block that can leave a tier. Without this check the coldest files found would be
/// files that have left it already.
fn has_movable(migration: &Migration, file: FileId, tier: TierId) -> FsResult<bool> {
    let mut from = FileBlock(0);
    for _ in 0..LOOKS {
        let mut group = MovingGroup::default();
        let next =
            collect_below(&migration.store, file, from, AT_ONCE, Destination::Below(tier), &mut group)?;
        if !group.blocks.is_empty() {
            return Ok(true);
        }
        let Some(next) = next else { return Ok(false) };
        from = next;
    }
    Ok(true)
}

/// The number of blocks that may be claimed below a tier now.
fn room_below(migration: &Migration, tier: TierId) -> Result<u64, Stuck> {
    let now_ns = migration.store.clock.monotonic_ns();
    if migration
        .store
        .devices
        .of_tier(tier)
        .into_iter()
        .any(|device| migration.store.devices.io().is_silent(device, now_ns))
    {
        return Err(SILENT.to_string());
    }
    let sound = choices_for(&migration.store, Destination::Below(tier)).concat();
    if sound.is_empty() {
        return Err(NO_DEVICE.to_string());
    }
    let space = migration.store.devices.space();
    let all: Vec<DeviceId> =
        (0..migration.store.devices.list().len()).map(|index| DeviceId(index as u8)).collect();
    let unpromised = space.totals_now(&all).free.saturating_sub(space.reserved());
    match space.totals_now(&sound).free.min(unpromised) {
        room if room < LEAST_ROOM => Err(NO_ROOM.to_string()),
        room => Ok(room / 2),
    }
}

/// Relocates a group of blocks of the coldest files on a tier.
fn spill_group(
    migration: &Migration,
    state: &mut State,
    tier: TierId,
    mut files: VecDeque<FileId>,
    mut from: FileBlock,
) -> Result<Phase, Stuck> {
    let surplus = surplus(migration, tier);
    if surplus == 0 {
        return Ok(Phase::Rest);
    }
    let of = state.of(tier);
    let most = if spill_gives_way(migration, tier) { SHORT_GROUP } else { migration.store.mode.group_blocks };
    let most = most.min(surplus).min(room_below(migration, tier)?) as usize;
    let (to, mut group) = (Destination::Below(tier), MovingGroup::default());
    for _ in 0..OF_GROUP {
        let Some(file) = files.front().filter(|_| group.blocks.len() < most) else { break };
        match collect_below(&migration.store, *file, from, most, to, &mut group) {
            Ok(Some(next)) => from = next,
            Ok(None) => {
                files.pop_front();
                from = FileBlock(0);
            }
            Err(error) if migration.store.persistent.wal().is_stopped() => return Err(told(&error)),
            Err(error) => {
                of.trouble.get_or_insert(error);
                files.pop_front();
                from = FileBlock(0);
            }
        }
    }
    interleave::point("spill:between-rounds");
    let before = migration.store.pressure.moved().spilled.load(Ordering::Relaxed);
    let done = move_between(&migration.store, group, to, &mut of.trouble);
    of.moved += migration.store.pressure.moved().spilled.load(Ordering::Relaxed) - before;
    if of.moved >= worth_a_round(migration, tier) {
        of.failures = 0;
        migration.spilling.stuck.lock().remove(&tier);
    }
    done.map_err(|error| told(&error))?;
    if files.is_empty() { next_window(migration, of, tier) } else { Ok(Phase::Move { tier, files, from }) }
}

fn note_spill_stuck(migration: &Migration, of: &mut OfTier, tier: TierId, reason: Stuck) {
    let spilling = &migration.spilling;
    spilling.failures.fetch_add(1, Ordering::Relaxed);
    let before = spilling.stuck.lock().insert(tier, reason.clone());
    if before.as_ref() != Some(&reason) {
        tracing::warn!("tier {tier} is nearly full and gives nothing away: {reason}");
    }
    let pause = BACK_OFF.as_nanos() as u64 * (1 << of.failures.min(DOUBLINGS));
    let pause = if planted(Mistake::MigrationSpins) { 0 } else { pause };
    let (failures, due_ns) = (of.failures.saturating_add(1), migration.store.clock.monotonic_ns() + pause);
    *of = OfTier { failures, due_ns, ..OfTier::default() };
}

/// Whether a request waits for something that spills use: writers for demotion, readers for a device of the
/// tier or below it. The reads of a relocation count too, but for no longer than the pause that follows.
fn spill_gives_way(migration: &Migration, tier: TierId) -> bool {
    let now_ns = migration.store.clock.monotonic_ns();
    let concerned = migration.store.devices.list().iter().zip(0..).filter(|(device, _)| device.tier >= tier);
    let mut priorities =
        concerned.filter_map(|(_, index)| migration.store.devices.io().read_priority(DeviceId(index)));
    migration.store.persistent.blocks().free_hint() < migration.store.pressure.throttle_below()
        || priorities.any(|read_priority| read_priority.piece(now_ns).is_some())
}

/// Background step: a piece of the spill.
pub struct SpillStep {
    migration: Weak<Migration>,
}

impl SpillStep {
    /// The step.
    pub fn new(migration: &Arc<Migration>) -> SpillStep {
        SpillStep { migration: Arc::downgrade(migration) }
    }
}

impl Step for SpillStep {
    fn name(&self) -> &'static str {
        "terrace-spill"
    }

    fn step(&mut self) -> Next {
        self.migration.upgrade().map_or(Next::Done, |migration| spill_step(&migration))
    }
}
