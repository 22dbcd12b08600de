//! Every kind of medium error at every kind of access of every operation, and the demands then:
//! - the caller gets EIO (or ENOSPC from a device without space), and the operation has left one of the
//!   states that a failed operation may leave (C9);
//! - while the error lasts every read gives the right bytes or EIO, and a read that needs no access to the
//!   medium succeeds (I8, I10); fsync succeeds, except that it fails for every descriptor once PM takes no
//!   more changes (I5);
//! - status shows the device or PM;
//! - acknowledged changes are there after a loss of power at this moment and after an orderly remount; the
//!   error harms no other data, and the pool works again when the medium does.
//!
//! Descriptors have no errors of their own to be told once: no acknowledged write waits for a write-back, so
//! an error of a device delays a movement and loses no data.

pub mod acts;
mod demands;
pub mod kinds;
mod one_run;
mod strike;

use crate::bounds;
use crate::config::Config;
use crate::drivers::acts::{Act, DRAM, SMALL};
use crate::drivers::faults::acts::perform;
use crate::drivers::faults::kinds::{Kind, Tried};
use crate::drivers::faults::one_run::{begin, run, run_mount};
use crate::drivers::run::Wrong;
use crate::drivers::systematic::prepared;
use crate::media::Setup;
use crate::world::Shared;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_engine::read_superblock;
use terrace_media::pm::Access;
use terrace_runtime::thread;

/// Tries one kind of error at the accesses of an act: at each of the first eight, then at ever fewer.
/// Accesses of PM come in bursts, so they are chosen like this in each class of place and length.
///
/// # Errors
/// A description of the demand that was not met.
pub fn explore(act: &Act, kind: Kind, wrong: Wrong) -> Result<Tried, String> {
    let places = |known: &Shared, setup: &Setup| match kind {
        Kind::Lies => Some(vec![0]),
        _ => kind.access().map(|access| places(known, act, access, setup)),
    };
    explore_by(SMALL, kind, act.name, wrong, places, |known, after, setup| {
        run(known, act, kind, after, setup)
    })
}

/// As [`explore`], with writes that wait in DRAM. A failed write-back loses no data while the daemon lives,
/// and no fsync succeeds before its data is durable (I5).
///
/// # Errors
/// A description of the demand that was not met.
pub fn explore_waiting(act: &Act, kind: Kind, wrong: Wrong) -> Result<Tried, String> {
    let places =
        |known: &Shared, setup: &Setup| kind.access().map(|access| places(known, act, access, setup));
    let name = format!("{} upon what waits", act.name);
    explore_by(DRAM, kind, &name, wrong, places, |known, after, setup| run(known, act, kind, after, setup))
}

/// As [`explore`], for the mount after a loss of power.
///
/// # Errors
/// A description of the demand that was not met.
pub fn explore_mount(kind: Kind) -> Result<Tried, String> {
    let places = |_: &Shared, _: &Setup| (kind == Kind::Lies).then(|| vec![0]);
    explore_by(SMALL, kind, "mount", Wrong::default(), places, |known, after, setup| {
        run_mount(known, kind, after, setup)
    })
}

fn explore_by(
    config: Config,
    kind: Kind,
    name: &str,
    wrong: Wrong,
    places: impl Fn(&Shared, &Setup) -> Option<Vec<u64>>,
    run: impl Fn(&Shared, u64, &Setup) -> Option<Tried>,
) -> Result<Tried, String> {
    thread::set_index(0);
    bounds::only_count();
    let mut tried = Tried::default();
    let setup = Setup::default();
    let known = crate::findings::caught(|| prepared(config, &setup, wrong))?;
    let listed = crate::findings::caught(|| places(&known, &setup))?;
    let last = listed.is_none().then_some(u64::MAX);
    for after in listed.unwrap_or_default().into_iter().chain(sparse(last.unwrap_or(0))) {
        let one = crate::findings::caught(|| run(&known, after, &setup));
        bounds::only_count();
        let one = one.map_err(|error| format!("{name}, {kind:?} after {after} accesses: {error}"))?;
        let Some(one) = one else {
            // This access was listed, and the run did not meet the error.
            return if last.is_some() {
                Ok(tried)
            } else {
                Err(format!("{name}, {kind:?}: no access {after}"))
            };
        };
        tried += one;
    }
    Ok(tried)
}

/// The first numbers below `end`, then ever fewer.
fn sparse(end: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(0), |number| Some(number + 1 + number / 8))
        .take_while(move |number| *number < end)
}

/// The numbers of PM accesses before the error: a sample of each class.
fn places(known: &Shared, act: &Act, access: Access, setup: &Setup) -> Vec<u64> {
    let world = begin(known, setup);
    let pm = Arc::clone(&world.borrow().pool.media.pm);
    let (superblock, _) = read_superblock(&*pm, true).unwrap();
    let pool = superblock.geometry().first_pool_block().offset().0;
    pm.start_trace();
    perform(&world, act).unwrap_or_else(|error| panic!("fails without a fault: {error}"));
    let mut classes: BTreeMap<(bool, u64), Vec<u64>> = BTreeMap::new();
    let trace = pm.take_trace();
    for (index, (_, range)) in trace.iter().filter(|(found, _)| *found == access).enumerate() {
        let class = (range.start < pool, (range.end - range.start).next_power_of_two());
        classes.entry(class).or_default().push(index as u64);
    }
    let chosen = classes.values().flat_map(|all| {
        let some = sparse(all.len() as u64).map(|index| all[index as usize]);
        some.chain(all.last().copied())
    });
    let mut chosen: Vec<u64> = chosen.collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}
