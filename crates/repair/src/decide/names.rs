//! Decides names, the tree of directories, link counts and orphans; an inode with content and without a name
//! gets a name in `/lost+found`.

use crate::state::Round;
use crate::state::catalog::split_dentry;
use crate::state::inodes::page_of;
use crate::state::sifted::Sifted;
use siphasher::sip::SipHasher13;
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::Ino;
use terrace_format::address::ROOT_INO;
use terrace_format::inode::{InodeSlot, SLOTS_PER_PAGE, flag};
use terrace_format::keys::Key;

const ROOT: u32 = ROOT_INO.0 as u32;
/// Bits of the name's hash in a cookie; below them lies the collision number.
const COOKIE_HASH_MASK: u64 = (1 << 55) - 1;

/// A directory entry.
struct Entry {
    directory: u32,
    cookie: u64,
    target: u32,
    name: Vec<u8>,
}

/// Entries under construction.
#[derive(Default)]
struct Names {
    entries: Vec<Entry>,
    taken: BTreeSet<(u32, Vec<u8>)>,
    cookies: BTreeSet<(u32, u64)>,
}

/// Decides the directory entries from the entries found, then counts links.
pub(crate) fn decide_names(round: &mut Round<'_>, sifted: &mut Sifted) {
    let mut names = sound_entries(round, std::mem::take(&mut sifted.dentries));
    let named: BTreeSet<u32> = names.entries.iter().map(|entry| entry.target).collect();
    for (ino, slot) in &mut round.inodes.slots {
        if named.contains(ino) && slot.has(flag::ORPHAN) {
            slot.flags = (slot.flags.get() & !flag::ORPHAN).into();
        }
    }
    let mut adopted = nameless(round, &named, &names, sifted);
    adopted.extend(cut_off(round, &mut names, &adopted));
    if !adopted.is_empty() {
        adopt_nameless(round, &adopted, &mut names);
    }
    count(round, &names);
    for entry in names.entries {
        let Some(slot) = round.inodes.slots.get(&entry.target) else {
            continue;
        };
        let mut value = entry.target.to_le_bytes().to_vec();
        value.push((slot.mode.get() >> 12) as u8);
        value.extend_from_slice(&entry.name);
        sifted.kept.insert(Key::dentry(Ino(entry.directory.into()), entry.cookie).0, value);
    }
}

fn sound_entries(round: &mut Round<'_>, found: Vec<(u32, u64, Vec<u8>)>) -> Names {
    let mut names = Names::default();
    let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
    // A directory has one name: the name in its parent, if the parent has one.
    for (directory, _, value) in &found {
        if let Some((target, _, _)) = split_dentry(value)
            && let Some(slot) = round.inodes.slots.get(&target).filter(|slot| slot.is_directory())
        {
            let at = parents.entry(target).or_insert(*directory);
            if slot.parent_or_rdev.get() == *directory {
                *at = *directory;
            }
        }
    }
    let mut seen = BTreeSet::new();
    for (directory, cookie, value) in found {
        let sound = split_dentry(&value).filter(|(_, _, name)| {
            (1..=255).contains(&name.len())
                && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
                && *name != b"."
                && *name != b".."
        });
        let reason = match sound {
            None => "has an impossible name",
            Some((target, _, name)) => match round.inodes.slots.get(&target) {
                _ if !round.inodes.slots.contains_key(&directory) => "lies in a directory that is lost",
                None => "names an inode that is lost",
                Some(_) if target == ROOT || target == directory => "names a directory above it",
                Some(slot) if slot.has(flag::ORPHAN) && slot.nlink.get() == 0 => "names a removed inode",
                Some(slot) if slot.is_directory() && parents.get(&target) != Some(&directory) => {
                    "is a second name of a directory"
                }
                Some(slot) if slot.is_directory() && !seen.insert(target) => {
                    "is a second name of a directory"
                }
                Some(_) if names.taken.contains(&(directory, name.to_vec())) => "is there twice",
                Some(_)
                    if names.add(&round.pool.superblock.hash_key, directory, Some(cookie), target, name) =>
                {
                    continue;
                }
                Some(_) => "has too many others with its hash",
            },
        };
        let name = sound.map_or_else(String::new, |(_, _, name)| String::from_utf8_lossy(name).into_owned());
        round.actions.lose(directory, format!("entry {name:?} {reason} and is dropped"));
    }
    names
}

/// Inodes in use without a name that are no orphans. An inode without content is freed.
fn nameless(round: &mut Round<'_>, named: &BTreeSet<u32>, names: &Names, sifted: &Sifted) -> Vec<u32> {
    let filled: BTreeSet<u32> = names.entries.iter().map(|entry| entry.directory).collect();
    let mut adopted = Vec::new();
    for ino in round.inodes.slots.keys().copied().collect::<Vec<u32>>() {
        let Some(slot) = round.inodes.slots.get(&ino).copied() else {
            continue;
        };
        let orphan = slot.has(flag::ORPHAN) && slot.nlink.get() == 0 && !filled.contains(&ino);
        if ino == ROOT || named.contains(&ino) || orphan {
            continue;
        }
        let holds = slot.nlink.get() != 0
            || slot.size.get() != 0
            || filled.contains(&ino)
            || sifted.extents.contains_key(&ino)
            || sifted.flags.contains_key(&ino)
            || round.maps.get(&ino).is_some_and(|map| !map.entries.is_empty());
        if holds {
            adopted.push(ino);
        } else {
            round.actions.lose(ino, "neither named nor holding anything; freed".into());
            round.inodes.free_slot(ino);
        }
    }
    adopted
}

/// Directories that name each other in a circle: one of each circle loses its name.
fn cut_off(round: &mut Round<'_>, names: &mut Names, adopted: &[u32]) -> Vec<u32> {
    let is_directory = |ino: u32| round.inodes.slots.get(&ino).is_some_and(InodeSlot::is_directory);
    let directories: Vec<u32> = round.inodes.slots.keys().copied().filter(|ino| is_directory(*ino)).collect();
    let entries = names.entries.iter().filter(|entry| is_directory(entry.target));
    let parents: BTreeMap<u32, u32> = entries.map(|entry| (entry.target, entry.directory)).collect();
    let mut good: BTreeSet<u32> = adopted.iter().copied().collect();
    good.insert(ROOT);
    let mut cut = Vec::new();
    for start in directories {
        let mut path = BTreeSet::new();
        let mut at = start;
        while !good.contains(&at) && path.insert(at) {
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => break, // an orphan
            }
        }
        if !good.contains(&at) && parents.contains_key(&at) {
            cut.push(at);
        }
        good.extend(path);
    }
    names.entries.retain(|entry| !cut.contains(&entry.target));
    cut
}

fn adopt_nameless(round: &mut Round<'_>, inodes: &[u32], names: &mut Names) {
    let home = names.entries.iter().find(|entry| {
        let directory = round.inodes.slots.get(&entry.target).is_some_and(InodeSlot::is_directory);
        entry.directory == ROOT && entry.name == b"lost+found" && directory
    });
    let home = match home.map(|entry| entry.target) {
        Some(home) => home,
        None => make_lost_and_found(round, names),
    };
    for ino in inodes {
        let plain = format!("#{ino}");
        let others = (1..).map(|count| format!("#{ino}-{count}"));
        let free = |name: &String| !names.taken.contains(&(home, name.clone().into_bytes()));
        let name = std::iter::once(plain.clone()).chain(others).find(free).unwrap_or(plain);
        if names.add(&round.pool.superblock.hash_key, home, None, *ino, name.as_bytes()) {
            round.actions.lose(*ino, format!("nothing names it; linked as /lost+found/{name}"));
        }
        if let Some(slot) = round.inodes.slots.get_mut(ino) {
            slot.flags = (slot.flags.get() & !flag::ORPHAN).into();
        }
    }
}

fn make_lost_and_found(round: &mut Round<'_>, names: &mut Names) -> u32 {
    let pages: Vec<u64> = round.inodes.pages.keys().chain(&round.inodes.lost_pages).copied().collect();
    let next = pages.iter().max().map_or(0, |last| last + 1);
    let numbers = pages.iter().chain([&next]).flat_map(|page| {
        let first = (page * SLOTS_PER_PAGE) as u32;
        first.max(2)..first.saturating_add(SLOTS_PER_PAGE as u32)
    });
    let home = numbers.into_iter().find(|ino| !round.inodes.slots.contains_key(ino)).unwrap_or(2);
    if page_of(home) == next {
        round.inodes.lost_pages.insert(next); // made with the others
    }
    let root = round.inodes.slots.get(&ROOT).copied().unwrap_or_else(InodeSlot::zeroed);
    let mut slot = InodeSlot::zeroed();
    slot.mode = 0o040700.into();
    slot.generation =
        round.inodes.residues.get(&home).map_or(1, |old| old.generation.get().wrapping_add(1)).into();
    (slot.mtime, slot.ctime, slot.atime, slot.btime) = (root.ctime, root.ctime, root.ctime, root.ctime);
    round.inodes.slots.insert(home, slot);
    let others = (1..).map(|count| format!("lost+found-{count}"));
    let free = |name: &String| !names.taken.contains(&(ROOT, name.clone().into_bytes()));
    let name = std::iter::once("lost+found".to_string()).chain(others).find(free).unwrap_or_default();
    names.add(&round.pool.superblock.hash_key, ROOT, None, home, name.as_bytes());
    round.actions.add(format!("directory /{name} is made, inode {home}"));
    home
}

/// Link counts, parents, sizes of directories.
fn count(round: &mut Round<'_>, names: &Names) {
    let mut links: BTreeMap<u32, u32> = BTreeMap::new();
    let mut sizes: BTreeMap<u32, u64> = BTreeMap::new();
    let mut parents: BTreeMap<u32, u32> = BTreeMap::from([(ROOT, ROOT)]);
    let mut subdirectories: BTreeMap<u32, u32> = BTreeMap::new();
    for entry in &names.entries {
        *links.entry(entry.target).or_insert(0) += 1;
        *sizes.entry(entry.directory).or_insert(0) += 1;
        if round.inodes.slots.get(&entry.target).is_some_and(InodeSlot::is_directory) {
            parents.insert(entry.target, entry.directory);
            *subdirectories.entry(entry.directory).or_insert(0) += 1;
        }
    }
    for (ino, slot) in &mut round.inodes.slots {
        if slot.is_directory() {
            let (before, found) = (slot.size.get(), sizes.get(ino).copied().unwrap_or(0));
            if round.catalog.cells_lost && before > found {
                round.actions.lose(*ino, format!("{found} of {before} names"));
            }
            slot.size = found.into();
        }
        if slot.has(flag::ORPHAN) {
            continue; // a real one: no names, no links
        }
        let count = if slot.is_directory() {
            slot.parent_or_rdev = parents.get(ino).copied().unwrap_or(ROOT).into();
            subdirectories.get(ino).copied().unwrap_or(0) + 2
        } else {
            links.get(ino).copied().unwrap_or(0)
        };
        slot.nlink = count.into();
    }
}

impl Names {
    /// Adds an entry under its cookie, or the first that is free. False when there is none.
    fn add(
        &mut self,
        hash_key: &[u8; 16],
        directory: u32,
        cookie: Option<u64>,
        target: u32,
        name: &[u8],
    ) -> bool {
        let hash = SipHasher13::new_with_key(hash_key).hash(name) & COOKIE_HASH_MASK;
        let base = hash.max(1) << 8;
        let right = cookie.filter(|cookie| cookie >> 8 == base >> 8);
        let free = |cookie: &u64| !self.cookies.contains(&(directory, *cookie));
        let Some(cookie) = right.filter(free).or_else(|| (base..base + 256).find(free)) else {
            return false;
        };
        self.cookies.insert((directory, cookie));
        self.taken.insert((directory, name.to_vec()));
        self.entries.push(Entry { directory, cookie, target, name: name.to_vec() });
        true
    }
}
