//! Decides which inodes exist, and their types: by their slots, and by names, keys and blocks if a slot is
//! damaged or lost.

use crate::state::Round;
use crate::state::catalog::split_dentry;
use crate::state::inodes::{known_type, page_of};
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::address::{MAX_FILE_SIZE, MAX_INO, ROOT_INO};
use terrace_format::inode::{InodeSlot, SLOTS_PER_PAGE, flag};
use terrace_format::keys::Key;

/// Generation of an inode whose slot was lost: above all generations that were used before.
const NEW_GENERATION: u32 = 1 << 30;

pub(crate) const REGULAR: u32 = 0o10;
pub(crate) const DIRECTORY: u32 = 0o04;
pub(crate) const SYMLINK: u32 = 0o12;

/// Evidence of an inode's type outside its slot.
#[derive(Default)]
struct Evidence {
    /// Types that its keys and blocks speak for.
    content: BTreeSet<u32>,
    /// Types that its names give it.
    named: Vec<u32>,
}

impl Evidence {
    fn content_type(&self) -> Option<u32> {
        let mut types = self.content.iter();
        types.next().filter(|_| types.next().is_none()).copied()
    }
    fn named_type(&self) -> Option<u32> {
        let first = self.named.first().copied().filter(|kind| known_type(kind << 12))?;
        self.named.iter().all(|kind| *kind == first).then_some(first)
    }
    fn guess(&self) -> Option<u32> {
        self.content_type().or_else(|| self.named_type())
    }
}

fn evidence(round: &Round<'_>) -> BTreeMap<u32, Evidence> {
    let mut all: BTreeMap<u32, Evidence> = BTreeMap::new();
    for (key, value) in &round.catalog.cells {
        let Some((ino, kind, _)) = Key::split(key) else {
            continue;
        };
        let speaks_for = match kind {
            1 => DIRECTORY,
            3 => SYMLINK,
            4 | 5 => REGULAR,
            _ => continue,
        };
        all.entry(ino as u32).or_default().content.insert(speaks_for);
        if let (1, Some((target, kind, _))) = (kind, split_dentry(value)) {
            all.entry(target).or_default().named.push(kind);
        }
    }
    for (ino, map) in &round.maps {
        if !map.entries.is_empty() {
            all.entry(*ino).or_default().content.insert(REGULAR);
        }
    }
    all
}

/// Decides all slots; gives the inodes whose slot was made anew.
pub(crate) fn decide_slots(round: &mut Round<'_>) -> BTreeSet<u32> {
    let evidence = evidence(round);
    let none = Evidence::default();
    for ino in round.inodes.slots.keys().copied().collect::<Vec<u32>>() {
        decide_type(round, ino, evidence.get(&ino).unwrap_or(&none));
    }
    let mut made = BTreeSet::new();
    let blank = blank_pages(round, &evidence);
    for (ino, evidence) in &evidence {
        if round.inodes.slots.contains_key(ino) || *ino == 0 || u64::from(*ino) > MAX_INO.0 {
            continue;
        }
        if let Some(slot) = revived(round, *ino, evidence, &blank) {
            let text = format!("its slot was lost and is made anew, mode {:o}", slot.mode);
            round.actions.lose(*ino, text);
            if slot.generation.get() == NEW_GENERATION {
                made.insert(*ino);
            }
            round.inodes.slots.insert(*ino, slot);
        }
    }
    decide_root(round);
    for (ino, slot) in &mut round.inodes.slots {
        slot.flags = (slot.flags.get() & flag::ALL).into();
        slot.spare = 0.into();
        if slot.is_regular() && slot.size.get() > MAX_FILE_SIZE {
            round.actions.lose(*ino, format!("size {} cannot be; now up to its blocks", slot.size));
            slot.size = 0.into();
            made.insert(*ino); // its size comes from its blocks
        }
    }
    made
}

/// Pages of zeros that names lead into.
fn blank_pages(round: &Round<'_>, evidence: &BTreeMap<u32, Evidence>) -> BTreeSet<u64> {
    let mut names: BTreeMap<u64, u32> = BTreeMap::new();
    for (ino, _) in evidence.iter().filter(|(_, evidence)| !evidence.named.is_empty()) {
        *names.entry(page_of(*ino)).or_insert(0) += 1;
    }
    let is_blank = |page: u64| {
        let first = (page * SLOTS_PER_PAGE) as u32;
        let slots = first..first.saturating_add(SLOTS_PER_PAGE as u32);
        round.inodes.slots.range(slots.clone()).next().is_none()
            && round.inodes.residues.range(slots).next().is_none()
    };
    let several = names.into_iter().filter(|(_, names)| *names > 1).map(|(page, _)| page);
    several.filter(|page| round.inodes.pages.contains_key(page) && is_blank(*page)).collect()
}

fn decide_type(round: &mut Round<'_>, ino: u32, evidence: &Evidence) {
    let Some(slot) = round.inodes.slots.get_mut(&ino) else {
        return;
    };
    let mode = slot.mode.get();
    let kind = mode >> 12;
    let possible = ino != 0 && u64::from(ino) <= MAX_INO.0;
    if !possible || (!known_type(mode) && evidence.guess().is_none()) {
        round.actions.lose(ino, format!("no inode can be like this (mode {mode:o}); removed"));
        let slot = round.inodes.slots.remove(&ino);
        slot.into_iter().for_each(|slot| {
            round.inodes.residues.insert(ino, slot);
        });
        return;
    }
    // Names and content together outvote the mode.
    let content = evidence.content_type().filter(|content| evidence.named_type() == Some(*content));
    let better = if known_type(mode) { content } else { evidence.guess() };
    if let Some(better) = better.filter(|better| *better != kind) {
        slot.mode = (better << 12 | mode & 0o7777).into();
        round.actions.add(format!("inode {ino}: mode {mode:o} becomes {:o}", better << 12 | mode & 0o7777));
    }
}

/// A new slot for an inode that names, keys or blocks mention but whose slot is lost.
fn revived(round: &Round<'_>, ino: u32, evidence: &Evidence, blank: &BTreeSet<u64>) -> Option<InodeSlot> {
    let page = page_of(ino);
    let gone = round.inodes.lost_pages.contains(&page) || blank.contains(&page);
    if !gone && !round.inodes.pages.contains_key(&page) {
        return None;
    }
    let residue = round
        .inodes
        .residues
        .get(&ino)
        .filter(|slot| slot.nlink.get() != 0 || slot.blocks.get() != 0 || slot.root.get() != 0);
    let named = !evidence.named.is_empty();
    let believed = gone || residue.is_some() || (named && !evidence.content.is_empty());
    let kind = evidence.guess().filter(|_| believed && (named || !evidence.content.is_empty()))?;
    let permissions = if kind == DIRECTORY { 0o700 } else { 0o600 };
    let mut slot = residue.copied().unwrap_or_else(|| {
        let mut slot = InodeSlot::zeroed();
        slot.generation = NEW_GENERATION.into();
        slot.nlink = 1.into();
        slot
    });
    slot.mode = (kind << 12 | permissions).into();
    Some(slot)
}

fn decide_root(round: &mut Round<'_>) {
    let root = ROOT_INO.0 as u32;
    if let Some(slot) = round.inodes.slots.get_mut(&root).filter(|slot| slot.is_directory()) {
        slot.flags = (slot.flags.get() & !flag::ORPHAN).into();
        return;
    }
    round.actions.lose(root, "the root directory is made anew".into());
    let mut slot = round.inodes.slots.get(&root).or_else(|| round.inodes.residues.get(&root)).copied();
    let slot = slot.get_or_insert_with(InodeSlot::zeroed);
    slot.mode = 0o040755.into();
    slot.flags = (slot.flags.get() & flag::HAS_XATTR).into();
    slot.parent_or_rdev = root.into();
    round.inodes.slots.insert(root, *slot);
}
