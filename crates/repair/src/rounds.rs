//! Rounds of repair: each computes the new state from the structures found, and the last round commits it.
//!
//! Invariants: only the last round commits; errors that it leaves are in the report. A later round begins with the
//! overlay of the round before.

use crate::decide::{blocks, chunks, cold, keys, names, sizes, slots};
use crate::device_headers;
use crate::emit::emit;
use crate::find::{cells, inode_pages, maps, summaries, unreached};
use crate::journal;
use crate::media::Media;
use crate::pages::{Healed, forget_unreadable_roots, heal_pages, note_masks, open_faulty_pages};
use crate::state::Round;
use crate::state::actions::{Actions, Stuck};
use crate::state::fresh::Fresh;
use std::collections::BTreeSet;
use terrace_check::log::{self, Log};
use terrace_check::overlay::Overlay;
use terrace_check::report::Findings;
use terrace_check::{Code, Options, PoolView, Report, Summary, judge};
use terrace_format::BLOCK_SIZE;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::superblock::Superblock;

/// Rounds at most. A second round is needed when one structure is dropped and another still names it.
const MAX_ROUNDS: usize = 4;

/// Codes of damage that only a new checkpoint mends.
const OF_THE_LOG: [Code; 10] = [
    Code::CheckpointLost,
    Code::CheckpointsDiffer,
    Code::CheckpointClean,
    Code::CheckpointNumber,
    Code::LaneTail,
    Code::LaneUnreadable,
    Code::LaneDamaged,
    Code::RecordBit,
    Code::RecordTarget,
    Code::RecordLsn,
];

/// Computes the new state and commits it. False when there is nothing to change.
pub(crate) fn rebuild(
    media: &Media,
    superblock: Superblock,
    actions: &mut Actions,
    found: &Report,
) -> Result<bool, Stuck> {
    let view = &media.view();
    let geometry = superblock.geometry();
    let mut of_the_log = Findings::default();
    let mut log = log::for_repair(&view.pm, &superblock.uuid, &geometry, &mut of_the_log);
    let of_the_log = of_the_log.into_report(Summary::default());
    log.clear_lanes |= of_the_log.has(Code::LaneUnreadable);
    for finding in of_the_log.findings.iter().filter(|finding| finding.code == Code::LaneDamaged) {
        actions.add(format!("cut, and lost: {}", finding.detail));
    }
    let unreadable = CHECKPOINT_COPIES.iter().any(|copy| {
        let mut block = [0; BLOCK_SIZE as usize];
        view.pm.read(copy.offset(), &mut block).is_err()
    });
    let needed = unreadable || OF_THE_LOG.iter().any(|code| found.has(*code));
    let mut fresh = Fresh::default();
    let mut overlay = log.overlay.clone();
    let mut changed = forget_unreadable_roots(view, &geometry, &mut overlay);
    let healed = heal_pages(view, &superblock, &mut overlay, actions);
    changed |= healed.is_changed;
    let mut rounds = 0;
    loop {
        let mut round = Round::new(view, superblock, (overlay, log.next.lsn), actions, &mut fresh);
        compute(&mut round, (rounds == 0).then_some((&log, &healed)))?;
        // By the new block table: the old table may lack pages that this round found.
        round.pool.changed |= open_faulty_pages(view, &superblock, &mut round.pool.overlay, round.actions);
        changed |= round.pool.changed;
        rounds += 1;
        assert!(rounds <= MAX_ROUNDS, "a repair without an end");
        let left = judge_again(view, superblock, &round.pool.overlay);
        if round.pool.changed && left.exit_status() & 4 != 0 && rounds < MAX_ROUNDS {
            overlay = round.pool.overlay;
            continue;
        }
        if !changed && !needed {
            return Ok(false);
        }
        if needed {
            round.actions.add("a new checkpoint; the lanes are empty".into());
        }
        if log.clear_lanes || found.has(Code::RecordTarget) {
            round
                .actions
                .lose_some("the log: records that cannot be read or are not possible are left out".into());
        }
        commit(media, &mut round, &log)?;
        return Ok(true);
    }
}

/// A round of repair: reads the state found, computes the new state, and writes it to the overlay.
fn compute(round: &mut Round<'_>, first: Option<(&Log, &Healed)>) -> Result<(), Stuck> {
    inode_pages::salvage_inode_file(round);
    cells::salvage_catalog(round);
    unreached::find_unreached_below(round);
    if let Some(device) = round.below.absent {
        return Err(Stuck(format!(
            "metadata of this pool lies on device {device}, which is missing or answers with errors; a repair without it \
             would lose it, and does nothing"
        )));
    }
    maps::salvage_maps(round);
    blocks::decide_blocks(round);
    if let Some((log, healed)) = first {
        note_masks(round, &healed.of_table);
        round.fresh.find(&round.pool, &round.owners, &log.named);
    }
    let made = slots::decide_slots(round);
    let mut sifted = keys::sift(round);
    let regular = round.inodes.slots.iter().filter(|(_, slot)| slot.is_regular()).map(|(ino, _)| *ino);
    let regular: BTreeSet<u32> = regular.collect();
    blocks::drop_maps(round, &regular);
    cold::decide_extents(round, &mut sifted);
    summaries::rebuild_extents(round, &mut sifted);
    sizes::decide_sizes(round, &mut sifted, &made);
    chunks::decide_chunks(round, &mut sifted);
    cold::put_extents(round, &mut sifted);
    names::decide_names(round, &mut sifted);
    let left: BTreeSet<u32> = round.inodes.slots.keys().copied().collect();
    blocks::drop_maps(round, &left);
    emit(round, &sifted)
}

fn judge_again(view: &PoolView, superblock: Superblock, overlay: &Overlay) -> Report {
    let state = (Findings::default(), Summary::default());
    judge(view, &Options::default(), superblock, overlay.clone(), state)
}

fn commit(media: &Media, round: &mut Round<'_>, log: &Log) -> Result<(), Stuck> {
    let geometry = round.pool.geometry;
    let mut overlay = round.pool.overlay.clone();
    let mut next = log.next.clone();
    if log.clear_lanes {
        next.tails.iter_mut().for_each(|tail| *tail = 0);
    }
    // With a lower epoch than a device has seen, PM would count as an older copy of tier 0, and each mount
    // would refuse it.
    let seen = device_headers::highest_epoch(round.pool.view, &round.pool.superblock);
    next.epoch = next.epoch.max(seen + 1);
    assert!(next.epoch > seen, "a checkpoint older than a device");
    let mut point = next.encode(&round.pool.superblock.uuid);
    assert!(point.len() as u64 <= BLOCK_SIZE, "a checkpoint longer than its block");
    point.resize(BLOCK_SIZE as usize, 0);
    for copy in CHECKPOINT_COPIES {
        overlay.write(copy.offset(), &point);
    }
    let mut changes = journal::Changes::default();
    changes.collect(round, &overlay)?;
    if log.clear_lanes {
        changes.zeros(geometry.lane_offset(0), geometry.table_offset());
    }
    journal::commit(&*media.pm, round, &changes)
}
