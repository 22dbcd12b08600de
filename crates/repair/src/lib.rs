//! `check --repair`: computes a sound pool from all surviving structures, then commits the whole new state at
//! once.
//!
//! Invariants: the media are changed only when the whole new state is durable beside the old one (`journal`),
//! so a crash at any point leads to the same pool; a pool without errors is not written; a second repair of a
//! repaired pool finds no error. The new state is computed in an overlay and judged there by the code that
//! judges media; while errors are left, another round computes again from the overlay.
//!
//! A round: inode file, catalog, maps (the state found: `inode_file`, `catalog`, `maps`) → inodes (`slots`)
//! → keys (`keys`, `names`, `cold`, `summaries`) → pages and words (`emit`). docs/decisions/0006 says why.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod below;
mod catalog;
mod cold;
mod emit;
mod header;
mod inode_file;
mod journal;
mod keys;
mod lost;
mod maps;
mod names;
mod slots;
mod summaries;
mod work;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use terrace_check::code::Code;
use terrace_check::log::{self, Log};
use terrace_check::overlay::Overlay;
use terrace_check::report::{Findings, Report, Summary};
use terrace_check::{Devices, Options, check, checksums, judge, superblock};
use terrace_format::geometry::{CHECKPOINT_COPIES, ROOTS_BLOCK};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::superblock::Superblock;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{Geometry, PmBlock, PmOffset};
pub(crate) use work::Work;
use work::{Actions, Fresh, Stuck};
use zerocopy::IntoBytes;

/// Rounds at most. A second round is needed when one structure is dropped and another still names it.
const ROUNDS: usize = 4;

/// The outcome of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repair {
    /// Findings before the repair.
    pub found: Report,
    /// Findings after the repair.
    pub left: Report,
    /// The changes made, in sentences.
    pub actions: Vec<String>,
    /// Files that are changed or may be changed: path, and the loss of each.
    pub lost: Vec<String>,
    /// Whether the repair wrote to a medium.
    pub written: bool,
    /// Why the repair could not be done.
    pub failure: Option<String>,
}

impl Repair {
    /// The bits of fsck(8): 1 repaired, 4 errors left or users' data not brought back, 8 the repair or a part
    /// of the check could not be done.
    pub fn exit_status(&self) -> i32 {
        let done = i32::from(self.written) | if self.lost.is_empty() { 0 } else { 4 };
        done | self.left.exit_status() | if self.failure.is_some() { 8 } else { 0 }
    }

    /// Codes that were found and are not left.
    pub fn repaired(&self) -> Vec<Code> {
        let found: BTreeSet<Code> = self.found.findings.iter().map(|finding| finding.code).collect();
        found.into_iter().filter(|code| !self.left.has(*code)).collect()
    }
}

impl Serialize for Repair {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Repair", 9)?;
        out.serialize_field("output_version", &terrace_check::OUTPUT_VERSION)?;
        out.serialize_field("exit_status", &self.exit_status())?;
        out.serialize_field("written", &self.written)?;
        out.serialize_field("failure", &self.failure)?;
        out.serialize_field("repaired", &self.repaired())?;
        out.serialize_field("actions", &self.actions)?;
        out.serialize_field("lost", &self.lost)?;
        out.serialize_field("found", &self.found)?;
        out.serialize_field("left", &self.left)?;
        out.end()
    }
}

/// Repairs a pool that is not in use. Never panics and always ends, whatever the media hold.
pub fn repair(devices: &Devices, options: &Options<'_>) -> Repair {
    let mut actions = Actions::default();
    let mut result = Repair::default();
    let mut mended = Vec::new();
    if let Err(Stuck(why)) = run(devices, options, &mut actions, &mut result, &mut mended) {
        result.left = result.found.clone();
        result.failure = Some(why);
    }
    // Persists also the stores of a killed repair, which this repair found to be in place.
    devices.pm.persist();
    if let Err(error) = header::flush(devices, &mended) {
        result.failure.get_or_insert_with(|| format!("{error}; run the repair again"));
    }
    result.actions = actions.into_list();
    result
}

fn run(
    devices: &Devices,
    options: &Options<'_>,
    actions: &mut Actions,
    result: &mut Repair,
    mended: &mut Vec<header::Before>,
) -> Result<(), Stuck> {
    let failed = |error: terrace_media::MediaError| Stuck(error.to_string());
    let pm = &*devices.pm;
    let read = || superblock::read_repairing(pm, &mut Findings::default());
    result.found = check(devices, options);
    if result.found.has(Code::SuperblockLost) {
        return Err(Stuck("both superblock copies are damaged: nothing says where things lie".into()));
    }
    let interrupted = result.found.has(Code::RepairInterrupted);
    if let Some(superblock) = read().filter(|_| interrupted) {
        let whole = journal::finish(pm, &superblock).map_err(failed)?;
        result.written = true;
        actions.add(match whole {
            true => "an interrupted repair is finished".into(),
            false => "an interrupted repair's journal is damaged; repaired from what is there".into(),
        });
        let rest = check(devices, options);
        result.found.findings.extend(rest.findings.iter().cloned());
        result.left = rest;
    } else {
        result.left = result.found.clone();
    }
    let Some(superblock) = read().filter(|_| result.left.exit_status() & 4 != 0) else {
        return Ok(());
    };
    let proven = header::mend(devices, (&superblock, options.given), actions, mended)?;
    result.written |= !mended.is_empty();
    if rebuild(&proven, superblock, actions, &result.left)? {
        result.written = true;
        result.lost = lost::by_path(&proven, &superblock, actions);
    }
    if journal::mend_superblocks(pm, &superblock).map_err(failed)? {
        actions.add("the superblock copies are made equal".into());
        result.written = true;
    }
    result.left = check(devices, options);
    Ok(())
}

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
fn rebuild(
    devices: &Devices,
    superblock: Superblock,
    actions: &mut Actions,
    found: &Report,
) -> Result<bool, Stuck> {
    let geometry = superblock.geometry();
    let mut of_the_log = Findings::default();
    let mut log = log::for_repair(&*devices.pm, &superblock.uuid, &geometry, &mut of_the_log);
    let of_the_log = of_the_log.into_report(Summary::default());
    log.clear_lanes |= of_the_log.has(Code::LaneUnreadable);
    for finding in of_the_log.findings.iter().filter(|finding| finding.code == Code::LaneDamaged) {
        actions.add(format!("cut, and lost: {}", finding.detail));
    }
    let unreadable = CHECKPOINT_COPIES.iter().any(|copy| {
        let mut block = [0; terrace_format::BLOCK_SIZE as usize];
        devices.pm.read(copy.offset(), &mut block).is_err()
    });
    let needed = unreadable || OF_THE_LOG.iter().any(|code| found.has(*code));
    let mut fresh = Fresh::default();
    let mut overlay = log.overlay.clone();
    let mut changed = forget_unreadable_roots(devices, &geometry, &mut overlay);
    let mut round = 0;
    loop {
        let mut work = Work::new(devices, superblock, (overlay, log.next.lsn), actions, &mut fresh);
        settle(&mut work, (round == 0).then_some(&log))?;
        // By the new block table: the old table may lack pages that this round found.
        work.changed |= open_faulty_pages(devices, &superblock, &mut work.overlay, work.actions);
        changed |= work.changed;
        round += 1;
        let left = judge_again(devices, superblock, &work.overlay);
        if work.changed && left.exit_status() & 4 != 0 && round < ROUNDS {
            overlay = work.overlay;
            continue;
        }
        if !changed && !needed {
            return Ok(false);
        }
        if needed {
            work.actions.add("a new checkpoint; the lanes are empty".into());
        }
        if log.clear_lanes || found.has(Code::RecordTarget) {
            work.actions
                .lose_some("the log: records that cannot be read or are not possible are left out".into());
        }
        commit(&mut work, &log)?;
        return Ok(true);
    }
}

/// Opens the checksum words of pages that do not match their checksums. From here on only a page's structure
/// tells which of its parts are sound.
fn open_faulty_pages(
    devices: &Devices,
    superblock: &Superblock,
    overlay: &mut Overlay,
    actions: &mut Actions,
) -> bool {
    let geometry = superblock.geometry();
    let pages = 0..if geometry.checksummed { geometry.block_count() } else { 0 };
    let mut opened = false;
    for page in pages.map(PmBlock) {
        let owner = checksums::owner(&*devices.pm, overlay, &geometry, page);
        if page != ROOTS_BLOCK && !geometry.is_table(page) && !matches!(owner, Some(Owner::Page { .. })) {
            continue;
        }
        let Some(code) = checksums::fault((&*devices.pm, overlay), &geometry, &superblock.uuid, page) else {
            continue;
        };
        opened = true;
        let word = geometry.checksum_word(page);
        let name = checksums::describe(&geometry, page, owner);
        if code == Code::PageChecksum {
            if let Some((at, byte)) =
                checksums::wrong_bit((&*devices.pm, overlay), &geometry, &superblock.uuid, page)
            {
                overlay.write(at, &[byte]);
                actions.add(format!("{name}: the one wrong bit is turned back"));
                continue;
            }
            note_changed(devices, overlay, actions, (page, owner), &name);
        }
        // An unreadable line of checksum words is written whole, so the other pages of the line are open then
        // as well.
        let (place, length) =
            if code == Code::PmUnreadable { (PmOffset(word.0 & !63), 64) } else { (word, 8) };
        overlay.write(place, [0; 64].split_at(length).0);
        actions.add(match code {
            Code::PmUnreadable => format!("{name}: its checksum cannot be read and is removed"),
            Code::ChecksumWord => format!("{name}: its damaged checksum word is removed"),
            _ => format!("{name}: its bytes were changed; what no structure tells stays as it is"),
        });
    }
    opened
}

/// Lists all inodes on a page whose bytes were changed: their metadata may be wrong. Set-id bits on such a
/// page are removed, because no second structure confirms them.
fn note_changed(
    devices: &Devices,
    overlay: &mut Overlay,
    actions: &mut Actions,
    (page, owner): (PmBlock, Option<Owner>),
    name: &str,
) {
    const SET_ID: u32 = 0o6000;
    let (kind, datum) = match owner {
        Some(Owner::Page { kind, datum }) => (kind, datum),
        _ => return actions.lose_some(format!("{name}: its bytes were changed")),
    };
    match kind {
        PageKind::MapNode => actions.lose(datum, "a page of its map was changed".into()),
        PageKind::InodePage => {
            for index in 0..SLOTS_PER_PAGE {
                let mut slot = InodeSlot::zeroed();
                let at = page.offset().plus(index * SLOT_SIZE);
                if overlay.read(&*devices.pm, at, slot.as_mut_bytes()).is_err() || slot.mode.get() == 0 {
                    continue;
                }
                let ino = u64::from(datum) * SLOTS_PER_PAGE + index;
                let text = "its size, mode, owner and times may not be what they were".to_string();
                actions.lose(ino as u32, text);
                if slot.is_regular() && slot.mode.get() & SET_ID != 0 {
                    slot.mode = (slot.mode.get() & !SET_ID).into();
                    overlay.write(at, slot.as_bytes());
                    actions.lose(ino as u32, "its set-id bits are removed".into());
                }
            }
        }
        PageKind::CatalogPage => {
            let mut leaf = Page::new(0);
            let is_read = overlay.read(&*devices.pm, page.offset(), leaf.0.as_mut_slice()).is_ok();
            if !is_read || leaf.verify_header(name).is_err() || leaf.level() > 0 {
                return actions.lose_some(format!("{name}: its bytes were changed"));
            }
            let inode = |index| u32::try_from(Key::split(leaf.cell(index).ok()?.0)?.0).ok();
            let inodes: BTreeSet<u32> = (0..leaf.count()).filter_map(inode).collect();
            for ino in inodes.into_iter().filter(|ino| *ino != 0) {
                let text =
                    "names in it, its target, its attributes or its cold map may not be what they were";
                actions.lose(ino, text.into());
            }
        }
        _ => actions.lose_some(format!("{name}: its bytes were changed")),
    }
}

/// Unreadable root words count as zeros: the block table still names the pages of their trees.
fn forget_unreadable_roots(devices: &Devices, geometry: &Geometry, overlay: &mut Overlay) -> bool {
    let mut forgotten = false;
    let lines = (0..terrace_format::BLOCK_SIZE).step_by(64);
    for offset in lines.map(|at| ROOTS_BLOCK.offset().plus(at)) {
        if overlay.read(&*devices.pm, offset, &mut [0; 64]).is_err() {
            overlay.write(offset, &[0; 64]);
            checksums::open(overlay, geometry, offset, 64);
            forgotten = true;
        }
    }
    forgotten
}

/// A round of repair: reads the state found, computes the new state, and writes it to the overlay.
fn settle(work: &mut Work<'_>, first: Option<&Log>) -> Result<(), Stuck> {
    work.salvage_inode_file();
    work.salvage_catalog();
    work.find_unreached_below();
    if let Some(device) = work.absent {
        return Err(Stuck(format!(
            "metadata of this pool lies on device {device}, which is missing or answers with errors; a repair without it \
             would lose it, and does nothing"
        )));
    }
    work.salvage_maps();
    work.settle_blocks();
    if let Some(log) = first {
        work.find_fresh(&log.named);
    }
    let made = work.settle_slots();
    let mut sifted = work.sift();
    let regular = work.slots.iter().filter(|(_, slot)| slot.is_regular()).map(|(ino, _)| *ino);
    let regular: BTreeSet<u32> = regular.collect();
    work.drop_maps(&regular);
    work.settle_extents(&mut sifted);
    work.rebuild_extents(&mut sifted);
    work.settle_sizes(&mut sifted, &made);
    work.settle_chunks(&mut sifted);
    work.put_extents(&mut sifted);
    work.settle_names(&mut sifted);
    let left: BTreeSet<u32> = work.slots.keys().copied().collect();
    work.drop_maps(&left);
    work.emit(&mut sifted)
}

fn judge_again(devices: &Devices, superblock: Superblock, overlay: &Overlay) -> Report {
    let state = (Findings::default(), Summary::default());
    judge(devices, &Options::default(), superblock, overlay.clone(), state)
}

fn commit(work: &mut Work<'_>, log: &Log) -> Result<(), Stuck> {
    let geometry = work.geometry;
    let mut overlay = work.overlay.clone();
    let mut next = log.next.clone();
    if log.clear_lanes {
        next.tails.iter_mut().for_each(|tail| *tail = 0);
    }
    // With a lower epoch than a device has seen, PM would count as an older copy of tier 0, and each mount
    // would refuse it.
    next.epoch = next.epoch.max(header::highest_epoch(work.devices, &work.superblock) + 1);
    let mut point = next.encode(&work.superblock.uuid);
    point.resize(terrace_format::BLOCK_SIZE as usize, 0);
    for copy in CHECKPOINT_COPIES {
        overlay.write(copy.offset(), &point);
    }
    let mut changes = journal::Changes::default();
    changes.collect(work, &overlay)?;
    if log.clear_lanes {
        changes.zeros(geometry.lane_offset(0), geometry.table_offset());
    }
    journal::commit(work, &changes)
}
