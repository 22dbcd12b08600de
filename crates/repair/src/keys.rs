//! Sifts the cells of the catalog: keeps possible cells, mends the cells that can be mended, and sorts them
//! by kind.

use super::work::Work;
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, Key, MAX_INTENTS, MAX_KEY, MAX_VALUE};

/// Parts of attributes by inode and name.
type Attributes = BTreeMap<(u32, Vec<u8>), Vec<(u16, Vec<u8>)>>;

const MAX_XATTR: usize = 64 << 10;
const MAX_TARGET: usize = 4095;

/// Cells by kind. Cells that stay are already in `kept`.
#[derive(Default)]
pub(crate) struct Sifted {
    pub kept: BTreeMap<Vec<u8>, Vec<u8>>,
    /// (directory, cookie, value).
    pub dentries: Vec<(u32, u64, Vec<u8>)>,
    /// By inode, in key order.
    pub extents: BTreeMap<u32, Vec<ColdExtent>>,
    /// By (chunk, device).
    pub chunks: BTreeMap<(u64, u8), Vec<u8>>,
    /// Intents by inode: (first, end).
    pub intents: BTreeMap<u32, Vec<(u64, u64)>>,
    /// Inodes with keys that need a flag.
    pub flags: BTreeMap<u32, u32>,
}

impl Work<'_> {
    /// Takes the cells apart.
    pub fn sift(&mut self) -> Sifted {
        let mut sifted = Sifted::default();
        let mut xattrs = Attributes::new();
        let mut targets: BTreeMap<u32, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
        for (key, value) in std::mem::take(&mut self.cells) {
            let Some((ino, kind, sub)) = Key::split(&key).filter(|_| key.len() <= MAX_KEY) else {
                self.actions.lose_some(format!("catalog: a key that cannot be is dropped: {key:02x?}"));
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
                    (1, 8) if self.slots.get(&short).is_some_and(|slot| slot.is_directory()) => {
                        sifted.dentries.push((short, number, value.clone()));
                        true
                    }
                    (2, _) if self.slots.contains_key(&short) => match xattr_part(sub) {
                        Some((name, part)) => {
                            let parts = xattrs.entry((short, name.to_vec())).or_default();
                            parts.push((part, value.clone()));
                            true
                        }
                        None => false,
                    },
                    (3, 2) if self.slots.get(&short).is_some_and(|slot| slot.is_symlink()) => {
                        targets.entry(short).or_default().push((number, value.clone()));
                        true
                    }
                    (4, 4) => self.sift_extent(short, &key, &value, &mut sifted),
                    (5, 4) => self.sift_intent(short, number, &value, &mut sifted),
                    _ => false,
                };
            if !kept {
                self.actions.lose_some(format!("catalog: a key that means nothing is dropped: {key:02x?}"));
            }
        }
        self.sift_xattrs(xattrs, &mut sifted);
        self.sift_targets(&targets, &mut sifted);
        sifted
    }

    fn sift_extent(&mut self, ino: u32, key: &[u8], value: &[u8], sifted: &mut Sifted) -> bool {
        let regular = self.slots.get(&ino).is_some_and(|slot| slot.is_regular());
        let Ok(extent) = ColdExtent::decode(key, value) else {
            self.cells_lost = true;
            return false;
        };
        if regular {
            sifted.extents.entry(ino).or_default().push(extent);
        }
        regular
    }

    fn sift_intent(&mut self, ino: u32, first: u64, value: &[u8], sifted: &mut Sifted) -> bool {
        let Some(slot) = self.slots.get(&ino).filter(|slot| slot.is_regular()) else {
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

    fn sift_xattrs(&mut self, xattrs: Attributes, sifted: &mut Sifted) {
        for ((ino, name), parts) in xattrs {
            let orphan = self.slots.get(&ino).is_some_and(|slot| slot.has(flag::ORPHAN));
            let total = parts.first().and_then(|(_, first)| first.first_chunk::<4>());
            let total = total.map_or(usize::MAX, |total| u32::from_le_bytes(*total) as usize);
            let bytes: usize = parts.iter().map(|(_, value)| value.len()).sum();
            let in_order = (0u16..).zip(&parts).all(|(at, (part, _))| at == *part);
            let whole = in_order && total <= MAX_XATTR && bytes == total + 4;
            if !whole && !orphan {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.actions.lose(ino, format!("attribute {name:?} is not whole and is dropped"));
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
    fn sift_targets(&mut self, targets: &BTreeMap<u32, Vec<(u64, Vec<u8>)>>, sifted: &mut Sifted) {
        let links: Vec<u32> =
            self.slots.iter().filter(|(_, s)| s.is_symlink()).map(|(ino, _)| *ino).collect();
        let mut lost = BTreeSet::new();
        for ino in links {
            let parts = targets.get(&ino).map_or(&[][..], Vec::as_slice);
            let Some(slot) = self.slots.get_mut(&ino) else {
                continue;
            };
            let orphan = slot.has(flag::ORPHAN);
            let bytes: usize = parts.iter().map(|(_, value)| value.len()).sum();
            let in_order = (0u64..).zip(parts).all(|(at, (part, _))| at == *part);
            let full = parts.iter().rev().skip(1).all(|(_, value)| value.len() == MAX_VALUE);
            // Parts of the only possible lengths count more than a different size in the slot.
            let whole = in_order && full && (1..=MAX_TARGET).contains(&bytes);
            let cut = slot.size.get() > bytes as u64
                && slot.size.get() <= MAX_TARGET as u64
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
            self.actions.lose(ino, "a symbolic link whose target is lost; removed".into());
            self.free_slot(ino);
            // The inode's attributes and other keys are dropped as well.
            let first = Key::new(ino.into(), terrace_format::keys::Kind::Dentry, &[]).0;
            let keys: Vec<Vec<u8>> = sifted.kept.range(first..).map(|(key, _)| key.clone()).collect();
            let own = |key: &&Vec<u8>| Key::split(key).is_some_and(|(owner, _, _)| owner == u64::from(ino));
            keys.iter().take_while(own).for_each(|key| {
                sifted.kept.remove(key);
            });
        }
    }

    /// Frees an inode's slot; names of it are dropped later.
    pub fn free_slot(&mut self, ino: u32) {
        if let Some(slot) = self.slots.remove(&ino) {
            self.residues.insert(ino, slot);
        }
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
