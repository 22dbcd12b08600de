//! Sifts the cells of the catalog: keeps possible cells, mends the cells that can be mended, and sorts them
//! by kind.

use crate::state::Round;
use crate::state::sifted::Sifted;
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, Key, MAX_INTENTS, MAX_KEY, MAX_VALUE};

/// Parts of attributes by inode and name.
type Attributes = BTreeMap<(u32, Vec<u8>), Vec<(u16, Vec<u8>)>>;

/// Bytes of the longest extended attribute.
const MAX_XATTR_BYTES: usize = 64 << 10;
/// Bytes of the longest target of a symbolic link.
const MAX_TARGET_BYTES: usize = 4095;

/// Takes the cells apart.
pub(crate) fn sift(round: &mut Round<'_>) -> Sifted {
    let mut sifted = Sifted::default();
    let mut xattrs = Attributes::new();
    let mut targets: BTreeMap<u32, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    for (key, value) in std::mem::take(&mut round.catalog.cells) {
        let Some((ino, kind, sub)) = Key::split(&key).filter(|_| key.len() <= MAX_KEY) else {
            round.actions.lose_some(format!("catalog: a key that cannot be is dropped: {key:02x?}"));
            continue;
        };
        let number = sub.iter().take(8).fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        let short = ino as u32;
        let kept = value.len() <= MAX_VALUE
            && match (kind, sub.len()) {
                (6, 1) => {
                    sifted.chunks.insert((ino, number as u8), value.clone());
                    true
                }
                (1, 8) if round.inodes.slots.get(&short).is_some_and(|slot| slot.is_directory()) => {
                    sifted.dentries.push((short, number, value.clone()));
                    true
                }
                (2, _) if round.inodes.slots.contains_key(&short) => match xattr_part(sub) {
                    Some((name, part)) => {
                        let parts = xattrs.entry((short, name.to_vec())).or_default();
                        parts.push((part, value.clone()));
                        true
                    }
                    None => false,
                },
                (3, 2) if round.inodes.slots.get(&short).is_some_and(|slot| slot.is_symlink()) => {
                    targets.entry(short).or_default().push((number, value.clone()));
                    true
                }
                (4, 4) => sift_extent(round, short, &key, &value, &mut sifted),
                (5, 4) => sift_intent(round, short, number, &value, &mut sifted),
                _ => false,
            };
        if !kept {
            round.actions.lose_some(format!("catalog: a key that means nothing is dropped: {key:02x?}"));
        }
    }
    sift_xattrs(round, xattrs, &mut sifted);
    sift_targets(round, &targets, &mut sifted);
    sifted
}

fn sift_extent(round: &mut Round<'_>, ino: u32, key: &[u8], value: &[u8], sifted: &mut Sifted) -> bool {
    let regular = round.inodes.slots.get(&ino).is_some_and(|slot| slot.is_regular());
    let Ok(extent) = ColdExtent::decode(key, value) else {
        round.catalog.cells_lost = true;
        return false;
    };
    if regular {
        sifted.extents.entry(ino).or_default().push(extent);
    }
    regular
}

fn sift_intent(round: &mut Round<'_>, ino: u32, first: u64, value: &[u8], sifted: &mut Sifted) -> bool {
    let Some(slot) = round.inodes.slots.get(&ino).filter(|slot| slot.is_regular()) else {
        return false;
    };
    let Some(([g0, g1, g2, g3], end)) = value.split_first_chunk::<4>() else {
        return false;
    };
    let Ok(end) = <[u8; 8]>::try_from(end).map(u64::from_le_bytes) else {
        return false;
    };
    let same = u32::from_le_bytes([*g0, *g1, *g2, *g3]) == slot.generation.get();
    let intents = sifted.intents.entry(ino).or_default();
    // An intent of another generation belongs to an earlier life of the inode, unless the slot's flag
    // says that it has intents.
    let believed = (same || slot.has(flag::HAS_INTENT)) && intents.len() < MAX_INTENTS;
    if !believed || first >= end || end > MAX_FILE_BLOCK.0 + 1 {
        return false;
    }
    intents.push((first, end));
    let mut value = slot.generation.get().to_le_bytes().to_vec();
    value.extend_from_slice(&end.to_le_bytes());
    let key = Key::intent(terrace_format::Ino(ino.into()), terrace_format::FileBlock(first));
    sifted.kept.insert(key.0, value);
    *sifted.flags.entry(ino).or_insert(0) |= flag::HAS_INTENT;
    true
}

fn sift_xattrs(round: &mut Round<'_>, xattrs: Attributes, sifted: &mut Sifted) {
    for ((ino, name), parts) in xattrs {
        let orphan = round.inodes.slots.get(&ino).is_some_and(|slot| slot.has(flag::ORPHAN));
        let total = parts.first().and_then(|(_, first)| first.first_chunk::<4>());
        let total = total.map_or(usize::MAX, |total| u32::from_le_bytes(*total) as usize);
        let bytes: usize = parts.iter().map(|(_, value)| value.len()).sum();
        let in_order = (0u16..).zip(&parts).all(|(at, (part, _))| at == *part);
        let whole = in_order && total <= MAX_XATTR_BYTES && bytes == total + 4;
        if !whole && !orphan {
            let name = String::from_utf8_lossy(&name).into_owned();
            round.actions.lose(ino, format!("attribute {name:?} is not whole and is dropped"));
            continue;
        }
        *sifted.flags.entry(ino).or_insert(0) |= flag::HAS_XATTR;
        for (part, value) in parts {
            let key = Key::xattr(terrace_format::Ino(ino.into()), &name, part);
            sifted.kept.insert(key.0, value);
        }
    }
}

/// A symbolic link without its target is lost.
fn sift_targets(round: &mut Round<'_>, targets: &BTreeMap<u32, Vec<(u64, Vec<u8>)>>, sifted: &mut Sifted) {
    let links: Vec<u32> =
        round.inodes.slots.iter().filter(|(_, s)| s.is_symlink()).map(|(ino, _)| *ino).collect();
    let mut lost = BTreeSet::new();
    for ino in links {
        let parts = targets.get(&ino).map_or(&[][..], Vec::as_slice);
        let Some(slot) = round.inodes.slots.get_mut(&ino) else {
            continue;
        };
        let orphan = slot.has(flag::ORPHAN);
        let bytes: usize = parts.iter().map(|(_, value)| value.len()).sum();
        let in_order = (0u64..).zip(parts).all(|(at, (part, _))| at == *part);
        let full = parts.iter().rev().skip(1).all(|(_, value)| value.len() == MAX_VALUE);
        // Parts of the only possible lengths count more than a different size in the slot.
        let whole = in_order && full && (1..=MAX_TARGET_BYTES).contains(&bytes);
        let cut = slot.size.get() > bytes as u64
            && slot.size.get() <= MAX_TARGET_BYTES as u64
            && parts.last().is_some_and(|(_, value)| value.len() == MAX_VALUE);
        if (!whole || cut) && !orphan {
            lost.insert(ino);
            continue;
        }
        if !orphan {
            slot.size = (bytes as u64).into();
        }
        if !parts.is_empty() {
            *sifted.flags.entry(ino).or_insert(0) |= flag::HAS_SYMLINK;
        }
        for (part, value) in parts {
            let key = Key::symlink(terrace_format::Ino(ino.into()), *part as u16);
            sifted.kept.insert(key.0, value.clone());
        }
    }
    for ino in lost {
        round.actions.lose(ino, "a symbolic link whose target is lost; removed".into());
        round.inodes.free_slot(ino);
        // The inode's attributes and other keys are dropped as well.
        let first = Key::new(ino.into(), terrace_format::keys::Kind::Dentry, &[]).0;
        let keys: Vec<Vec<u8>> = sifted.kept.range(first..).map(|(key, _)| key.clone()).collect();
        let own = |key: &&Vec<u8>| Key::split(key).is_some_and(|(owner, _, _)| owner == u64::from(ino));
        keys.iter().take_while(own).for_each(|key| {
            sifted.kept.remove(key);
        });
    }
}

/// Name and part number of an attribute's key.
fn xattr_part(sub: &[u8]) -> Option<(&[u8], u16)> {
    match sub.split_last_chunk::<3>() {
        Some((name, [0, high, low])) if (1..=255).contains(&name.len()) && !name.contains(&0) => {
            Some((name, u16::from_be_bytes([*high, *low])))
        }
        _ => None,
    }
}
