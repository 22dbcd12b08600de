//! Which blocks to demote: the least recently used, by the tick of their last use; or what [`super::coldest`] finds.
//!
//! No list is kept: the ticks (4 bytes a block) are scanned when blocks are wanted. The result is that of
//! an LRU list at a grain of 10 ms, without a lock or a store per access.

use crate::demote::coldest::pick_coldest;
use crate::demote::kept::{count_kept, takes_kept};
use crate::migration::Migration;
use std::collections::VecDeque;
use terrace_blocks::{Descriptor, State};
use terrace_format::PmBlock;
use terrace_format::table::Owner;
use terrace_placement::VictimOrder;
use terrace_store::error::FsResult;
use terrace_store::moving::look_at::refuse;
use terrace_store::moving::victim::{LEAVING, Victim};
use terrace_store::parts::pressure::WORKERS;
use terrace_wal::Error;

/// Tick of blocks that are no victims: metadata. A block that gets a new owner gets a new tick.
const NEVER: u32 = u32::MAX;

/// At least so great a part of PM is picked at once, as far as a group takes it.
const LEAST_OF_PM: u64 = 32;

/// A group is at most so great a part of PM, but not so small that a device is slower by it.
const OF_PM: u64 = 16;

const LEAST_GROUP: u64 = 256;

/// Most blocks picked at once.
const MOST: u64 = 1 << 16;

/// What there is to demote.
pub enum Victims {
    /// These.
    Group(Vec<Victim>),
    /// Others have them all.
    InFlight,
    /// None now; operations under way hold blocks that will have an owner, or be free, in a moment.
    Claimed,
    /// None.
    None,
}

/// Takes the next group of victims, picking `wanted` new ones when none are queued; at most `groups` are in flight.
pub fn take_victims(migration: &Migration, wanted: u64, groups: usize) -> FsResult<Victims> {
    // Writers that wait for space come here too: they must not each take a group and a copy buffer.
    // What a device that hangs holds does not count, or all others would wait for it.
    let most = demotion_blocks(migration);
    let groups = groups as u64
        + WORKERS as u64 * migration.store.devices.io().silent(migration.store.clock.monotonic_ns());
    match migration.victims.pop_group(&migration.store.pressure, most, groups * most) {
        None => return Ok(Victims::InFlight),
        Some(group) if !group.is_empty() => return Ok(Victims::Group(group)),
        Some(_) => {}
    }
    {
        // A look at all of PM: whoever comes meanwhile does not wait for its end.
        let Some(_picking) = migration.victims.try_pick() else { return Ok(Victims::InFlight) };
        if migration.victims.is_empty() {
            // Before looking: what they give back or give up is seen, or they are.
            let others = migration.store.pressure.in_flight() > 0;
            let (mut picked, mut claimed) = (VecDeque::new(), false);
            if wanted > 0 {
                while migration.store.persistent.blocks().scan_step()? {}
                let wanted = wanted.clamp(least_pick(migration), MOST);
                (picked, claimed) = pick(migration, wanted, takes_kept(migration, false))?;
                if picked.is_empty() && !claimed && !others && takes_kept(migration, true) {
                    (picked, claimed) = pick(migration, wanted, true)?;
                }
            }
            if picked.is_empty() {
                return Ok(match (others, claimed) {
                    (true, _) => Victims::InFlight,
                    (false, true) => Victims::Claimed,
                    (false, false) => Victims::None,
                });
            }
            migration.victims.fill(picked);
        }
    }
    let group = migration.victims.pop_group(&migration.store.pressure, most, groups * most);
    Ok(group.filter(|group| !group.is_empty()).map_or(Victims::InFlight, Victims::Group))
}

/// Blocks to pick at least: to pick few costs as much as to pick many, a look at all of PM.
fn least_pick(migration: &Migration) -> u64 {
    let usable = migration.store.persistent.blocks().end_block().0
        - migration.store.persistent.blocks().first_block().0;
    (usable / LEAST_OF_PM).max(64).min(demotion_blocks(migration))
}

/// Blocks of a group that leaves PM: of a small PM a part only, or writers would wait for the whole of a group before
/// any of it is free, and the device for them afterwards.
pub fn demotion_blocks(migration: &Migration) -> u64 {
    let usable = migration.store.persistent.blocks().end_block().0
        - migration.store.persistent.blocks().first_block().0;
    migration.store.mode.group_blocks.min((usable / OF_PM).max(LEAST_GROUP))
}

/// After a group: what stayed in PM is as old as its last write.
pub(crate) fn give_back_victims(migration: &Migration, victims: &[Victim]) {
    for victim in victims {
        let descriptor = migration.store.persistent.blocks().descriptor(victim.pm);
        if descriptor.touched() == LEAVING {
            descriptor.touch_read(0);
        }
    }
}

/// The `wanted` blocks that the policy wants to go first, sorted by file and block. A drain takes all, whatever
/// their age; and where too few files are cold or uneven enough, the least recently used go with them: a pick looks
/// at all of PM, however little it gives.
/// Blocks that a pin keeps in PM are left out unless `kept_too`.
fn pick(migration: &Migration, wanted: u64, kept_too: bool) -> FsResult<(VecDeque<Victim>, bool)> {
    let fits = count_kept(migration, kept_too);
    let draining = migration.store.pressure.is_draining();
    let order = migration.store.steering.policy().victims();
    if !draining && order != VictimOrder::LeastRecentlyUsed {
        let mut coldest = pick_coldest(migration, wanted, order, &fits);
        let missing = wanted - (coldest.len() as u64).min(wanted);
        if missing <= wanted / 2 {
            return Ok((coldest, false));
        }
        let (mut least_recent, claimed) = pick_least_recent(migration, missing, &fits)
            .inspect_err(|_| give_back_victims(migration, coldest.make_contiguous()))?;
        let mut all: Vec<Victim> = least_recent.drain(..).chain(coldest).collect();
        all.sort_unstable();
        // What a reader used between the two looks was found by both.
        all.dedup();
        return Ok((all.into(), claimed));
    }
    pick_least_recent(migration, wanted, &fits)
}

/// The `wanted` least recently used file blocks, sorted by file and block; whether somebody has blocks that no file
/// owns yet.
/// Blocks that `fits` says no to are left out.
fn pick_least_recent(
    migration: &Migration,
    wanted: u64,
    fits: &impl Fn(&Descriptor) -> bool,
) -> FsResult<(VecDeque<Victim>, bool)> {
    let now = migration.store.steering.tick();
    let age = |touched: u32| (now.saturating_sub(touched) + 1).ilog2() as usize;
    let mut histogram = [0u64; 33];
    let range = migration.store.persistent.blocks().first_block().0
        ..migration.store.persistent.blocks().end_block().0;
    for block in range.clone() {
        let descriptor = migration.store.persistent.blocks().descriptor(PmBlock(block));
        if descriptor.state() == State::Used && descriptor.touched() < LEAVING && fits(descriptor) {
            histogram[age(descriptor.touched())] += 1;
        }
    }
    let (mut cut, mut older) = (32, histogram[32]);
    while cut > 0 && older < wanted {
        cut -= 1;
        older += histogram[cut];
    }
    let (mut found, mut claimed, mut hidden) = (Vec::new(), false, None);
    for block in range.map(PmBlock) {
        let descriptor = migration.store.persistent.blocks().descriptor(block);
        let touched = descriptor.touched();
        if descriptor.state() != State::Used || touched >= LEAVING || age(touched) < cut || !fits(descriptor)
        {
            continue;
        }
        match migration.store.persistent.blocks().owner(block) {
            Ok(Owner::File { ino, block: file_block, .. }) => {
                found.push((touched, Victim { ino, block: file_block, pm: block }));
            }
            // Claimed and not yet owned blocks are young again when they are.
            Ok(Owner::Free) => claimed = true,
            Ok(Owner::Page { .. }) => descriptor.touch_read(NEVER),
            // Damage of one entry must not keep the others in PM.
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!("not demoted: {error}");
                descriptor.touch_read(NEVER);
            }
            // PM may answer the next time: never picked, the block would be waited for by `sync_to` for ever.
            Err(error) => {
                tracing::debug!("not demoted now: {error}");
                refuse(&migration.store, block);
                hidden = Some(error);
            }
        }
    }
    migration.victims.set_hidden(hidden);
    found.sort_unstable();
    found.truncate(wanted as usize);
    let mut victims: Vec<Victim> = found.into_iter().map(|(_, victim)| victim).collect();
    victims.sort_unstable();
    victims
        .iter()
        .for_each(|victim| migration.store.persistent.blocks().descriptor(victim.pm).touch_read(LEAVING));
    Ok((victims.into(), claimed))
}
