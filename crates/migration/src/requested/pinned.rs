//! Files pinned to a lower tier: new data of such a file goes to PM at first, and is demoted to its tier
//! soon.
//!
//! A write to such a file leaves no note. Instead, in pools with any pin to a lower tier, the block table is
//! searched once a second, in bounded pieces. M6: blocks that cannot be demoted now, because the tier is full
//! or fails, stay in PM like other blocks and are tried again the next time.

use crate::migration::Migration;
use crate::pace::POLL;
use crate::requested::job_pieces::move_down;
use std::collections::HashMap;
use std::time::Duration;
use terrace_blocks::State;
use terrace_format::table::Owner;
use terrace_format::{PmBlock, TierId};
use terrace_store::error::FsResult;
use terrace_store::inode::tier_pin::{are_pins_below, pinned};
use terrace_store::moving::destination::Destination;
use terrace_store::moving::victim::{LEAVING, Victim};

/// The time between two searches.
const PERIOD: Duration = Duration::from_secs(1);

/// The least time since the last use of a block.
const AGE: Duration = Duration::from_secs(1);

/// Blocks of the table read in a piece.
const PIECE: u64 = 1 << 16;

/// The position of the search in the block table.
#[derive(Debug, Default)]
pub struct Sweep {
    /// The block to go on at; `None` while the next search is not due.
    next: Option<PmBlock>,
    due_ns: u64,
}

/// Does a piece of the search; true when there is more to do now.
pub(crate) fn sweep_step(migration: &Migration, sweep: &mut Sweep) -> bool {
    let now = migration.store.clock.monotonic_ns();
    if sweep.next.is_none() && (now < sweep.due_ns || !are_pins_below(&migration.store).unwrap_or(false)) {
        return false;
    }
    let first = sweep.next.unwrap_or(migration.store.persistent.blocks().first_block());
    let end = PmBlock((first.0 + PIECE).min(migration.store.persistent.blocks().end_block().0));
    sweep.next = (end < migration.store.persistent.blocks().end_block()).then_some(end);
    sweep.due_ns = now + PERIOD.as_nanos() as u64;
    match sweep_piece(migration, first, end) {
        // The part may have more blocks than a group takes.
        Ok(full) if full => sweep.next = Some(first),
        Ok(_) => {}
        Err(error) => {
            tracing::debug!("what is pinned to a lower tier cannot go there now: {error}");
        }
    }
    sweep.next.is_some()
}

/// Demotes the pinned blocks of a part of the table, at most a group. Gives whether there may be more.
fn sweep_piece(migration: &Migration, first: PmBlock, end: PmBlock) -> FsResult<bool> {
    let now = migration.store.steering.tick();
    let young = (AGE.as_nanos() / POLL.as_nanos()) as u32;
    let mut pins = HashMap::new();
    let mut found: Vec<(TierId, Victim)> = Vec::new();
    for pm in (first.0..end.0).map(PmBlock) {
        let descriptor = migration.store.persistent.blocks().descriptor(pm);
        let touched = descriptor.touched();
        if descriptor.state() != State::Used || touched >= LEAVING || now.saturating_sub(touched) < young {
            continue;
        }
        let Ok(Owner::File { ino, block, .. }) = migration.store.persistent.blocks().owner(pm) else {
            continue;
        };
        let pin = *pins.entry(ino).or_insert_with(|| pinned(&migration.store, ino).unwrap_or(None));
        if let Some(tier) = pin.filter(|tier| *tier > 0) {
            found.push((TierId(tier), Victim { ino, block, pm }));
        }
    }
    found.sort_unstable();
    let most = migration.store.mode.group_blocks as usize;
    let (mut freed, mut failed) = (0, None);
    for of_tier in found.chunk_by(|a, b| a.0 == b.0) {
        let Some((tier, _)) = of_tier.first() else { continue };
        let victims: Vec<Victim> = of_tier.iter().take(most).map(|(_, victim)| *victim).collect();
        // A full tier does not keep blocks from other tiers.
        match move_down(migration, &victims, Destination::Only(*tier)) {
            Ok(count) => freed += count,
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(freed > 0 && found.len() > most),
    }
}
