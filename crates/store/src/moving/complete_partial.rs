//! Completing partial shadows: before a block that holds some lines only leaves PM, the others are read from its cold
//! copy, whose checksum is verified (M4, S5, decision 0008). Usually the two are merged on their way down; where the lower tier
//! has no room beside the old copy, or the block is wanted in PM, the lines are put into PM and the block is full.
//!
//! Location and pin of the cold copy are taken under the inode's shared lock, the read holds none (S6, S7). That the
//! cold copy is still the block's needs no version of its own: it changes only in transactions that end the PM block
//! or its version, and that is compared by the commit. A failed read keeps the block where it is, readable as before.

use crate::attempt::provide::provide;
use crate::attempt::run::run_attempts;
use crate::change::lines::stage_completion;
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::inode::slot::load;
use crate::lookup::cold_extents::extent_below;
use crate::lookup::data_checksum::{matches, read_verified};
use crate::lookup::lines::{lines_of, read_lines};
use crate::moving::candidate::{Below, Candidate};
use crate::moving::drop_shadowed::{drop_shadowed, hold_back};
use crate::moving::errors::{concerns_all_files, demoting};
use crate::moving::look_at::refuse;
use crate::moving::unmap::{load_same, unchanged};
use crate::operation::need::{Attempt, Need};
use crate::operation::op::SMALL_RECORD;
use crate::store::Store;
use crate::types::MOST_BAD;
use crate::types::inode::Inode;
use std::collections::HashMap;
use std::sync::Arc;
use terrace_format::checksum::crc32c;
use terrace_format::{Corrupt, FileBlock, LineMask};
use terrace_map::Mapping;
use terrace_wal::{Error, Reservation};

/// Reads the lines that partial candidates lack from their cold copies. A candidate whose read fails is left
/// out and stays in PM.
pub fn complete<'a>(
    store: &'a Store,
    candidates: Vec<Candidate<'a>>,
    trouble: &mut Option<FsError>,
) -> Vec<Candidate<'a>> {
    if candidates.iter().all(|candidate| candidate.lines.is_full()) {
        return candidates;
    }
    let mut done = Vec::with_capacity(candidates.len());
    let mut rest = candidates.into_iter().peekable();
    while let Some(first) = rest.peek() {
        let ino = first.ino;
        let mut of_inode = Vec::new();
        while let Some(candidate) = rest.next_if(|candidate| candidate.ino == ino) {
            of_inode.push(candidate);
        }
        let (mut found, failed) = read_below(store, &of_inode);
        for mut candidate in of_inode {
            if !candidate.lines.is_full() {
                candidate.below = found.remove(&candidate.block);
            }
            if candidate.lines.is_full() || candidate.below.is_some() {
                done.push(candidate);
            } else {
                refuse(store, candidate.pm);
            }
        }
        if let Some(error) = failed {
            trouble.get_or_insert(error);
        }
    }
    done
}

/// The cold copies under the partial ones of some candidates of one inode, as far as they can be read, and why
/// others cannot.
fn read_below(store: &Store, candidates: &[Candidate<'_>]) -> (HashMap<FileBlock, Below>, Option<FsError>) {
    let (mut op, mut provided) = (demoting(), 0);
    loop {
        let read = try_read_below(store, candidates);
        match &read.1 {
            // The extents themselves lie below.
            Some(FsError::Engine(Error::PageBelow(page)))
                if provide(store, &mut op, Need::MetadataPage(page.clone()), &mut provided).is_ok() => {}
            _ => return read,
        }
    }
}

fn try_read_below(
    store: &Store,
    candidates: &[Candidate<'_>],
) -> (HashMap<FileBlock, Below>, Option<FsError>) {
    let (mut found, mut failed) = (HashMap::new(), None);
    let partial = candidates.iter().filter(|candidate| !candidate.lines.is_full());
    let Some(first) = candidates.first() else { return (found, None) };
    let ino = first.ino;
    let mut reads = {
        let _guard = store.inodes.locks().read(first.ino);
        let inode = match load(store, first.ino) {
            Ok(inode) if inode.slot.generation.get() == first.generation => inode,
            // The file was removed, and its candidates with it.
            Ok(_) | Err(FsError::Stale) => return (found, None),
            Err(error) => return (found, Some(error)),
        };
        let mut extents = Vec::new();
        // A PM block that was used again meanwhile may have no cold copy, so its extent is not looked for.
        let same = partial.filter(|c| store.persistent.blocks().descriptor(c.pm).version() == c.version);
        for candidate in same {
            match extent_below(store, &inode, candidate.block) {
                Ok(extent) => extents.push(extent),
                Err(error) => failed = Some(error),
            }
        }
        store.devices.plan_reads(extents)
    };
    let mut failures = 0;
    while let Some(read) = reads.pop() {
        let buffer = match store.pressure.permits().while_waiting(|| read.read()) {
            Ok(buffer) => Arc::new(buffer),
            // A sector that cannot be read holds back no other.
            Err(_) if read.blocks.len() > 1 && failures < MOST_BAD => {
                reads.extend((0..read.blocks.len()).filter_map(|index| read.part(index..index + 1)));
                continue;
            }
            Err(error) => {
                failures += 1;
                failed = Some(error.into());
                continue;
            }
        };
        for (index, (block, crc)) in read.blocks.iter().enumerate() {
            let below = Below { buffer: Arc::clone(&buffer), index };
            let computed = crc32c(below.bytes());
            if computed == *crc {
                found.insert(*block, below);
                continue;
            }
            let place = read.start.plus(index as u64);
            store.devices.note_damage(read.device, place, format_args!("inode {ino} file block {block}"));
            let site = format!("{} block {place}", read.name());
            failed = Some(Corrupt::new(site, format!("CRC {crc:#x}"), format!("{computed:#x}")).into());
        }
    }
    (found, failed)
}

/// Copies what a candidate is to be below: its lines, what it lacks from the cold copy, zeros past the end.
pub(crate) fn copy_content(store: &Store, candidate: &Candidate<'_>, target: &mut [u8]) -> FsResult<()> {
    match &candidate.below {
        None => copy_verified(store, candidate, target)?,
        Some(below) => {
            target.copy_from_slice(below.bytes());
            read_lines(store, candidate.pm, candidate.lines, target)?;
        }
    }
    target.get_mut(candidate.valid..).unwrap_or(&mut []).fill(0);
    Ok(())
}

/// Copies a whole candidate. Its writers go on meanwhile: a checksum that does not match is that of other content unless
/// it is the same under the lock.
fn copy_verified(store: &Store, candidate: &Candidate<'_>, target: &mut [u8]) -> FsResult<()> {
    store.persistent.pm().read(candidate.pm.offset(), target)?;
    if !store.mode.has_checksums || candidate.unwritten || matches(store, candidate.pm, target)? {
        return Ok(());
    }
    let _guard = store.inodes.locks().read(candidate.ino);
    if store.persistent.blocks().descriptor(candidate.pm).version() == candidate.version {
        read_verified(store, candidate.pm, target)?;
    }
    // A block that changed meanwhile is not installed, so its content does not matter.
    Ok(())
}

/// Makes room below for candidates when there is none: gives up the cold copies that they hide, those of
/// partial shadows after completing them in PM. Returns the number of freed device blocks.
pub fn free_below(store: &Store, candidates: &mut [Candidate<'_>]) -> FsResult<u64> {
    complete_in_pm(store, candidates)?;
    drop_shadowed(store, candidates)
}

/// Puts the lines that partial candidates lack into PM.
pub(crate) fn complete_in_pm(store: &Store, candidates: &mut [Candidate<'_>]) -> FsResult<()> {
    for candidate in candidates.iter_mut().filter(|candidate| candidate.below.is_some()) {
        match complete_here(store, candidate) {
            Err(error) if error.concerns_one_file() && !concerns_all_files(store, &error) => {
                hold_back(store, std::slice::from_ref(candidate), &error);
            }
            done => done?,
        }
    }
    Ok(())
}

/// Puts the lines that a candidate lacks into PM, unless it has changed.
fn complete_here(store: &Store, candidate: &mut Candidate<'_>) -> FsResult<()> {
    let mut op = demoting();
    let version = run_attempts(store, &mut op, SMALL_RECORD, |reservation, _| {
        let _guard = store.inodes.locks().write(candidate.ino);
        let Some(inode) = load_same(store, candidate)? else { return Ok(None) };
        if unchanged(store, &inode, std::iter::once(&*candidate))?.contains(&false) {
            return Ok(None);
        }
        let Some(below) = &candidate.below else { return Ok(None) };
        let place = (candidate.block, candidate.pm);
        commit_completion(store, reservation, &inode, place, candidate.lines, below.bytes())?;
        Ok(Some(store.persistent.blocks().descriptor(candidate.pm).version()))
    })?;
    if let Some(version) = version {
        (candidate.version, candidate.lines, candidate.below) = (version, LineMask::FULL, None);
    }
    Ok(())
}

/// Promotes the rest of a partial shadow: the PM block gets its missing lines. The caller holds the inode's
/// exclusive lock; `below` is the present content of the cold copy.
pub(crate) fn promote_rest(
    store: &Store,
    reservation: Reservation<'_>,
    inode: &Inode,
    block: FileBlock,
    mapping: Mapping,
    below: &[u8],
) -> Attempt<bool> {
    let lines = lines_of(store, inode.ino, block, mapping)?;
    if lines.is_full() {
        return Ok(false);
    }
    commit_completion(store, reservation, inode, (block, mapping.block), lines, below)?;
    Ok(true)
}

fn commit_completion(
    store: &Store,
    reservation: Reservation<'_>,
    inode: &Inode,
    place: (FileBlock, terrace_format::PmBlock),
    lines: LineMask,
    below: &[u8],
) -> Attempt<()> {
    let mut staged = Staged::new(store, None, false);
    stage_completion(store, inode, place, lines, below, &mut staged)?;
    staged.commit(reservation)?;
    Ok(())
}
