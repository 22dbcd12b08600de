//! The choice of victims: the least recently used blocks, by the tick of their last use, or the blocks that
//! [`super::coldest`] finds.
//!
//! No list is kept: the ticks (4 bytes a block) are scanned when victims are wanted. The result is that of an
//! LRU list at a grain of 10 ms, without a lock or a store for each access.

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

/// The tick of blocks that are never victims: metadata. A block with a new owner gets a new tick.
const NEVER: u32 = u32::MAX;

/// A search finds at least PM divided by this number, as far as a group takes it.
const PICK_PM_DIVISOR: u64 = 32;

/// A group is at most PM divided by this number, but large enough for the full speed of a device.
const GROUP_PM_DIVISOR: u64 = 16;

const LEAST_GROUP: u64 = 256;

/// Most victims of a search.
const MOST: u64 = 1 << 16;

/// The result of a search for victims.
pub enum Victims {
    /// A group of victims.
    Group(Vec<Victim>),
    /// Other threads hold all victims.
    InFlight,
    /// No victim now; operations under way hold blocks that will have an owner, or be free, in a moment.
    BlocksClaimedByOthers,
    /// No block can be demoted.
    None,
}

/// Takes the next group of victims, and searches for `wanted` new ones when the queue is empty; at most
/// `groups` groups are in flight.
pub fn take_victims(migration: &Migration, wanted: u64, groups: usize) -> FsResult<Victims> {
    // Writers that wait for space come here too: they must not each take a group and a copy buffer. Groups on
    // a device that hangs are not counted, because all other threads would wait for that device.
    let most = demotion_blocks(migration);
    let groups = groups as u64
        + WORKERS as u64 * migration.store.devices.io().silent(migration.store.clock.monotonic_ns());
    match migration.victims.pop_group(&migration.store.pressure, most, groups * most) {
        None => return Ok(Victims::InFlight),
        Some(group) if !group.is_empty() => return Ok(Victims::Group(group)),
        Some(_) => {}
    }
    {
        // The search reads the block table of all PM; other threads do not wait for its end.
        let Some(_picking) = migration.victims.try_pick() else { return Ok(Victims::InFlight) };
        if migration.victims.is_empty() {
            // Read before the search: other threads then either have given their victims back, and the search
            // sees the blocks, or count here.
            let others = migration.store.pressure.in_flight() > 0;
            // Blocks that were promised then may be taken during the search, behind its back.
            let promised = migration.store.persistent.blocks().promised() > 0;
            let (mut picked, mut claimed) = (VecDeque::new(), false);
            if wanted > 0 {
                while migration.store.persistent.blocks().scan_step()? {}
                let wanted = wanted.clamp(least_pick(migration), MOST);
                (picked, claimed) = pick(migration, wanted, takes_kept(migration, false))?;
                if picked.is_empty() && !claimed && !others && takes_kept(migration, true) {
                    (picked, claimed) = pick(migration, wanted, true)?;
                }
            }
            claimed |= promised || migration.store.persistent.blocks().promised() > 0;
            if picked.is_empty() {
                return Ok(match (others, claimed) {
                    (true, _) => Victims::InFlight,
                    (false, true) => Victims::BlocksClaimedByOthers,
                    (false, false) => Victims::None,
                });
            }
            migration.victims.fill(picked);
        }
    }
    let group = migration.victims.pop_group(&migration.store.pressure, most, groups * most);
    Ok(group.filter(|group| !group.is_empty()).map_or(Victims::InFlight, Victims::Group))
}

/// The least number of victims of a search, because each search costs a scan of the whole PM.
fn least_pick(migration: &Migration) -> u64 {
    let usable = migration.store.persistent.blocks().end_block().0
        - migration.store.persistent.blocks().first_block().0;
    (usable / PICK_PM_DIVISOR).max(64).min(demotion_blocks(migration))
}

/// Blocks of a demoted group. On a small PM it is only a part of PM: otherwise writers would wait for a whole
/// group before any of its blocks is free, and the device would wait for writers afterwards.
pub fn demotion_blocks(migration: &Migration) -> u64 {
    let usable = migration.store.persistent.blocks().end_block().0
        - migration.store.persistent.blocks().first_block().0;
    migration.store.mode.group_blocks.min((usable / GROUP_PM_DIVISOR).max(LEAST_GROUP))
}

/// After a group: a block that stayed in PM counts as used at its last write.
pub(crate) fn give_back_victims(migration: &Migration, victims: &[Victim]) {
    for victim in victims {
        let descriptor = migration.store.persistent.blocks().descriptor(victim.pm);
        if descriptor.touched() == LEAVING {
            descriptor.touch_read(0);
        }
    }
}

/// The `wanted` victims in the order of the policy, sorted by file and block. While PM is emptied every block
/// is a victim, whatever its age. If too few files are cold, or used unevenly, the least recently used blocks
/// are added, because a search costs a scan of all PM, however little it finds. Blocks pinned to PM are left
/// out unless `kept_too`.
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
        // Both scans find a block that a reader used between them.
        all.dedup();
        return Ok((all.into(), claimed));
    }
    pick_least_recent(migration, wanted, &fits)
}

/// The `wanted` least recently used file blocks, sorted by file and block, and whether an operation has
/// claimed blocks without owner. Blocks that `fits` refuses are left out.
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
            // A claimed block counts as young once it has an owner.
            Ok(Owner::Free) => claimed = true,
            Ok(Owner::Page { .. }) => descriptor.touch_read(NEVER),
            // A damaged entry must not keep other blocks in PM.
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!("not demoted: {error}");
                descriptor.touch_read(NEVER);
            }
            // PM may answer the next time. A block that is never a victim again would make `sync_to` wait for
            // ever.
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
