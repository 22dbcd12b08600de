//! PM blocks for an operation that found none: from the checkpoint, demotion of data and metadata, removal,
//! and write-back over hidden cold copies.
//!
//! Called without locks. Every round frees blocks, waits for other threads that free some, or counts towards
//! giving up.

use crate::demote::victims::{demotion_blocks, give_back_victims};
use crate::metadata::lower_metadata;
use crate::migration::Migration;
use crate::planner::{Round, demotion_round};
use std::ops::Range;
use std::time::Duration;
use terrace_blocks::{Purpose, State};
use terrace_catalog::cold_map;
use terrace_format::PmBlock;
use terrace_format::inode::flag;
use terrace_format::table::Owner;
use terrace_fs::removal::orphans::reclaim_for_space;
use terrace_fs::write_back::rounds::promise_round;
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_store::error::{FsError, FsResult, final_no_space};
use terrace_store::inode::slot::load;
use terrace_store::moving::free_shadowed::move_to_places;
use terrace_store::moving::victim::{LEAVING, Victim};
use terrace_store::operation::op::Op;
use terrace_store::types::Wait;
use terrace_wal::Error;

/// How often an operation waits for claims of other operations before metadata is demoted.
const MOST_CLAIMED: u32 = 100;

/// How often an operation gets promises back before blocks are demoted: lazy writers may take them again. The largest claim has
/// 256 blocks.
const MOST_SETTLED: u32 = 300;

/// A writer without room demotes a group itself only while fewer groups are in flight: a device that hangs
/// must not hold all writers.
const OF_WRITERS: usize = 3;

/// Gets PM blocks for an operation that found none: the checkpoint frees the quarantine, else this thread
/// demotes, or waits for threads that demote. Called without locks.
///
/// # Errors
/// ENOSPC when no block can be demoted; `WouldBlock`.
pub fn make_pm_space(migration: &Migration, op: &mut Op) -> FsResult<()> {
    let reclaimed = migration.store.inodes.removals().ended_so_far();
    match make_room(migration, op) {
        Err(error @ (FsError::Engine(Error::NoSpace(_)) | FsError::SpaceHidden(_))) => {
            interleave::point("space:not-found");
            last_resort(migration, op, reclaimed, error)
        }
        made => made,
    }
}

/// The last resort when no block can be demoted: waits for removals under way, then lets a possible overwrite
/// use a share of the reserve. That share comes back when such blocks are demoted over their hidden cold
/// copies.
///
/// # Errors
/// The error that tells why there is no space.
fn last_resort(migration: &Migration, op: &mut Op, reclaimed: u64, error: FsError) -> FsResult<()> {
    if !matches!(op.purpose, Purpose::User | Purpose::Overwrite) {
        return Err(error);
    }
    // Blocks may have left quarantine between the failed claim and the search: those of a removal, or of a group that
    // another thread demoted. Other writers may have taken them since, and their blocks can be demoted then.
    let blocks = migration.store.persistent.blocks();
    let left = blocks.left_quarantine_so_far();
    let have_others_freed = std::mem::replace(&mut op.left_quarantine_seen, left) != left;
    if have_others_freed && op.failed_space_searches <= MOST_STARVED {
        op.failed_space_searches += 1;
        return Ok(());
    }
    if op.failed_space_searches <= MOST_STARVED && reclaim_for_space(&migration.store, reclaimed, op.wait)? {
        op.failed_space_searches += MOST_STARVED / 50;
        return Ok(());
    }
    if op.purpose == Purpose::User && op.may_overwrite {
        op.refused = Some(error);
        (op.purpose, op.failed_space_searches) = (Purpose::Overwrite, 0);
        return Ok(());
    }
    if op.purpose == Purpose::Overwrite
        && op.failed_space_searches <= MOST_STARVED
        && shadow_round(migration, op)?
    {
        return Ok(());
    }
    Err(op.refused.take().unwrap_or(error))
}

/// As [`make_pm_space`], by checkpoint and demotion alone.
fn make_room(migration: &Migration, op: &mut Op) -> FsResult<()> {
    let (purpose, wait) = (op.purpose, op.wait);
    let before = migration.store.persistent.blocks().usage().free;
    migration.store.persistent.wal().checkpoint()?;
    while migration.store.persistent.blocks().scan_step()? {}
    migration.store.persistent.blocks().drain_quarantine();
    if migration.store.persistent.blocks().usage().free > before {
        return Ok(());
    }
    // Demotion has its own share of the reserve (P1) and must not wait for itself.
    if purpose == Purpose::Demotion {
        return if op.writes_back { wait_for_group(migration, op) } else { Err(final_no_space()) };
    }
    // Lazy pages over blocks in PM hold promises that their write-back does not use; pages over holes use theirs, and free
    // nothing. Errors are those of other files (I8).
    let has_settled = settle_promises(migration, wait);
    if has_settled && op.settled_promises < MOST_SETTLED {
        op.settled_promises += 1;
        return Ok(());
    }
    if wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    // Before the search, as groups that end meanwhile may give blocks back.
    let others = migration.store.pressure.in_flight() > 0;
    let round = migration
        .store
        .pressure
        .pressed(|| demotion_round(migration, migration.store.mode.group_blocks, OF_WRITERS));
    // Claims of operations under way are used or given back in a moment; after `MOST_CLAIMED` waits metadata
    // is demoted instead.
    let no_data = match round {
        Ok(Round::Nothing) | Err(FsError::Engine(Error::NoSpace(_))) => true,
        Ok(Round::BlocksClaimedByOthers) => op.failed_space_searches > MOST_CLAIMED,
        _ => false,
    };
    // The clock hand goes round twice: pages used lately count as cold the second time.
    if no_data && has_lowered_metadata(migration)? {
        return Ok(());
    }
    if matches!(round, Ok(Round::Nothing) | Err(FsError::Engine(Error::NoSpace(_))))
        && wait_for_promises(migration, op)
    {
        return Ok(());
    }
    after_round(migration, op, round, others)
}

/// Write-back of pages without room in the map of their file: waits while other threads move a group. Then it gets its error,
/// and the pages stay.
fn wait_for_group(migration: &Migration, op: &mut Op) -> FsResult<()> {
    if migration.store.pressure.in_flight() == 0 {
        return Err(final_no_space());
    }
    // The thread of a request leaves the wait to a second one.
    if op.wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    count_searches(migration, op, MOST_STARVED / 20)?;
    migration.store.pressure.wait_round(Duration::from_millis(10));
    Ok(())
}

/// Whether promises have ended since the operation last found no space, or may in a moment, which it waits for. These searches
/// do not count as failed: the last resorts are still to come.
fn wait_for_promises(migration: &Migration, op: &mut Op) -> bool {
    if op.purpose != Purpose::User || op.settled_promises >= MOST_SETTLED {
        return false;
    }
    let ended = migration.store.persistent.blocks().promises().ended_so_far();
    if std::mem::replace(&mut op.ended_promises_seen, ended) != ended {
        op.settled_promises += 1;
        return true;
    }
    let are_moving = are_promises_moving(migration);
    if are_moving {
        op.settled_promises += MOST_SETTLED / 10;
        migration.store.dram.write_back().wait_round(Duration::from_millis(10));
    }
    are_moving
}

/// Demotes metadata. Where that finds no space either, other threads may hold it for a moment: `after_round` tells whether to wait.
fn has_lowered_metadata(migration: &Migration) -> FsResult<bool> {
    match lower_metadata(migration, 2 * migration.store.persistent.blocks().end_block().0) {
        Err(FsError::Engine(Error::NoSpace(_))) => Ok(false),
        lowered => Ok(lowered? > 0),
    }
}

/// Whether a second thread may give a promise back in a moment: pages are in flight to PM, or a writer holds a promise for which
/// it has made no page yet.
fn are_promises_moving(migration: &Migration) -> bool {
    let dram = &migration.store.dram;
    let pages = dram.cache().dirty_pages_of(Home::Pm);
    let promises = migration.store.persistent.blocks().promises().count();
    promises > 0 && (dram.write_back().lazy_in_flight() > 0 || promises > pages)
}

/// Writes lazy pages back until one gives a promise back that it did not use; false: none does.
fn settle_promises(migration: &Migration, wait: Wait) -> bool {
    let blocks = migration.store.persistent.blocks();
    // Promised blocks are not free ones.
    let before = blocks.usage().free;
    let rounds =
        if wait == Wait::Allowed { blocks.promises().count() } else { blocks.promises().count().min(1) };
    (0..rounds)
        .take_while(|_| promise_round(&migration.store).is_ok_and(|progress| progress))
        .any(|_| blocks.usage().free > before)
}

/// Counts searches for space that found none; at the limit the operation gets its error.
fn count_searches(migration: &Migration, op: &mut Op, searches: u32) -> FsResult<()> {
    op.failed_space_searches += searches;
    if op.failed_space_searches > MOST_STARVED { Err(why_no_space(migration, op)) } else { Ok(()) }
}

/// Whether the operation may try again after a round of demotion, and the pause before. `others`: groups were in flight before it.
fn after_round(migration: &Migration, op: &mut Op, round: FsResult<Round>, others: bool) -> FsResult<()> {
    match round {
        Ok(Round::Progress) => Ok(()),
        Ok(Round::InFlight) => {
            migration.store.pressure.wait_round(Duration::from_millis(10));
            Ok(())
        }
        Ok(Round::AllRefused) => {
            count_searches(migration, op, 1)?;
            migration.store.pressure.wait_round(Duration::from_millis(10));
            Ok(())
        }
        Ok(round @ (Round::Nothing | Round::BlocksClaimedByOthers)) => {
            // Another thread may just have finished the last demotion, and other writers have taken the freed
            // blocks.
            empty_quarantine(migration)?;
            let freed = migration.store.persistent.blocks().freed_so_far();
            let others_freed = std::mem::replace(&mut op.freed_seen, freed) != freed;
            op.failed_space_searches += 1;
            if op.failed_space_searches > MOST_STARVED || !others_freed && round == Round::Nothing {
                return Err(why_no_space(migration, op));
            }
            if round == Round::BlocksClaimedByOthers {
                migration.store.pressure.wait_round(Duration::from_millis(1));
            }
            Ok(())
        }
        // Other workers may have claimed more device blocks than they will use, or free PM in a moment. An overwrite does
        // better than wait: it looks for blocks over hidden copies.
        Err(FsError::Engine(Error::NoSpace(_)))
            if op.purpose != Purpose::Overwrite
                && op.failed_space_searches < MOST_STARVED
                && (others || migration.store.pressure.in_flight() > 0) =>
        {
            op.failed_space_searches += MOST_STARVED / 20;
            migration.store.pressure.wait_round(Duration::from_millis(10));
            Ok(())
        }
        // Blocks of overwrites and of pages that were written back may lie in quarantine; `last_resort` sees that they left it.
        Err(FsError::Engine(Error::NoSpace(_))) => {
            empty_quarantine(migration)?;
            Err(final_no_space())
        }
        // Every block of the group was damaged. These blocks count as young now, so the next group has other
        // blocks. A writer of a sound file must not get the error of a damaged one (I8).
        Err(ref failed @ FsError::Engine(ref error))
            if failed.concerns_one_file() && !migration.store.persistent.wal().is_stopped() =>
        {
            op.damage.get_or_insert_with(|| error.clone());
            count_searches(migration, op, MOST_STARVED / 50)
        }
        Err(error) => Err(error),
    }
}

/// Lets blocks out of quarantine, whose freeing the checkpoint passes.
fn empty_quarantine(migration: &Migration) -> FsResult<()> {
    migration.store.persistent.wal().checkpoint()?;
    migration.store.persistent.blocks().drain_quarantine();
    Ok(())
}

/// ENOSPC, or the damage that hides blocks from demotion.
fn why_no_space(migration: &Migration, op: &mut Op) -> FsError {
    let picked = || migration.victims.hidden();
    let scanned = || migration.store.persistent.blocks().unreadable();
    let hides = op.damage.take().or_else(picked).or_else(scanned);
    hides.map_or_else(final_no_space, FsError::SpaceHidden)
}

/// How often an operation searches for space again because other operations took or hold the free blocks.
const MOST_STARVED: u32 = 1000;

/// Blocks of PM that a search for shadows passes at a time.
const STRIDE: u64 = 1 << 14;

/// Demotes shadows over their hidden cold copies, whatever their age: the last source of room for overwrites
/// on a full pool. Gives whether PM got free blocks, or will.
pub(crate) fn shadow_round(migration: &Migration, op: &mut Op) -> FsResult<bool> {
    // The queue may hold such blocks behind many victims that cannot be demoted.
    let queued: Vec<Victim> = migration.victims.take_all();
    give_back_victims(migration, &queued);
    let freed_before = migration.store.persistent.blocks().freed_so_far();
    // Before the search: a group that ends meanwhile may give its shadows back.
    let others = migration.store.pressure.in_flight() > 0;
    let victims = pick_shadows(migration, demotion_blocks(migration) as usize);
    let mut freed = 0;
    if !victims.is_empty() {
        migration.store.pressure.begin_group(victims.len());
        // Last blocks in use are demoted too.
        let moved = migration.store.pressure.pressed(|| move_to_places(&migration.store, &victims));
        give_back_victims(migration, &victims);
        migration.store.pressure.end_group(victims.len());
        freed = moved?;
    }
    if freed > 0 {
        migration.store.pressure.round_done();
    } else if others {
        migration.store.pressure.wait_round(Duration::from_millis(10));
    }
    // A device may take long for the group of another thread, which has all shadows: such waits count least.
    op.failed_space_searches += if freed == 0 && others { 1 } else { MOST_STARVED / 50 };
    migration.store.persistent.wal().checkpoint()?;
    migration.store.persistent.blocks().drain_quarantine();
    // Demotions of other threads count too: they may have taken the shadows of this round.
    let blocks = migration.store.persistent.blocks();
    let left_since_claim = blocks.left_quarantine_so_far() != op.left_quarantine_seen;
    Ok(freed > 0 || others || blocks.freed_so_far() != freed_before || left_since_claim)
}

/// Up to `most` shadows, found by a hand that passes the blocks of PM: as far as it must, at most once around. Files that
/// cannot be read now are left out.
fn pick_shadows(migration: &Migration, most: usize) -> Vec<Victim> {
    let blocks = migration.store.persistent.blocks();
    let all = blocks.first_block().0..blocks.end_block().0;
    let (mut victims, mut left) = (Vec::new(), (all.end - all.start).div_ceil(STRIDE));
    while victims.len() < most && left > 0 {
        let passed = migration.victims.next_to_pass(all.clone(), STRIDE);
        victims.extend(shadows_among(migration, passed, most - victims.len()));
        left -= 1;
    }
    victims
}

/// Up to `most` shadows among these blocks of PM, by file and block; they count as leaving.
fn shadows_among(migration: &Migration, passed: Range<u64>, most: usize) -> Vec<Victim> {
    let blocks = migration.store.persistent.blocks();
    let mut of_files = Vec::new();
    for pm in passed.map(PmBlock) {
        let descriptor = blocks.descriptor(pm);
        if descriptor.state() == State::Used
            && descriptor.touched() < LEAVING
            && let Ok(Owner::File { ino, block, unwritten: false }) = blocks.owner(pm)
        {
            of_files.push(Victim { ino, block, pm });
        }
    }
    of_files.sort_unstable();
    let mut victims: Vec<Victim> = Vec::new();
    for of_inode in of_files.chunk_by(|a, b| a.ino == b.ino) {
        let ino = of_inode[0].ino;
        let _guard = migration.store.inodes.locks().read(ino);
        if !load(&migration.store, ino).is_ok_and(|inode| inode.slot.has(flag::HAS_COLD)) {
            continue;
        }
        let shard =
            migration.store.persistent.catalog().read(migration.store.persistent.catalog().shard_of(ino.0));
        let has_place =
            |victim: &&Victim| matches!(cold_map::lookup(shard.reader(), ino, victim.block), Ok(Some(_)));
        victims.extend(of_inode.iter().filter(has_place).take(most - victims.len()));
        if victims.len() == most {
            break;
        }
    }
    victims.iter().for_each(|victim| blocks.descriptor(victim.pm).touch_read(LEAVING));
    victims
}
