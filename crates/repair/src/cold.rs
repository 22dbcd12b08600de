//! Decides the metadata of the lower tiers: cold extents, marks of group summaries, chunk bitmaps, and the
//! block counts and sizes of files, which follow from file map and cold map.

use super::keys::Sifted;
use super::work::Work;
use std::collections::{BTreeMap, BTreeSet};
use terrace_check::bitmap::Sparse;
use terrace_format::address::{MAX_FILE_BLOCK, MAX_FILE_SIZE};
use terrace_format::checksum::crc32c;
use terrace_format::device::{FIRST_CHUNK_BLOCK, decode_summary};
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, Key};
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Ino};
use terrace_media::block::AlignedBlock;

impl Work<'_> {
    pub fn device_blocks(&self, device: usize) -> u64 {
        self.superblock.device_rows().get(device).map_or(0, |row| row.blocks.get())
    }

    /// A block of a lower tier; `None` when it cannot be read.
    pub fn device_block(&self, device: usize, block: u64) -> Option<Box<[u8; 4096]>> {
        let medium = self.devices.block.get(device)?.as_ref()?;
        if block >= medium.blocks() {
            return None;
        }
        let mut content = vec![AlignedBlock::zeroed()];
        medium.read(DeviceBlock(block), &mut content).ok()?;
        content.pop().map(|block| Box::new(block.0))
    }

    /// Cuts and drops extents until each file block and each device block lies in at most one extent.
    pub fn settle_extents(&mut self, sifted: &mut Sifted) {
        let mut used: Vec<Sparse> = self.superblock.device_rows().iter().map(|_| Sparse::default()).collect();
        let mut shared: BTreeSet<(u8, u64)> = BTreeSet::new();
        for (ino, extents) in &mut sifted.extents {
            let mut end = 0;
            for extent in std::mem::take(extents) {
                let start = extent.start.0;
                let fits = start >= FIRST_CHUNK_BLOCK.0
                    && start
                        .checked_add(extent.length.into())
                        .is_some_and(|end| end <= self.device_blocks(extent.device.0.into()))
                    && extent.end().0 <= MAX_FILE_BLOCK.0 + 1;
                let left = extent.slice(FileBlock(end), FileBlock(u64::MAX)).filter(|_| fits);
                if left.as_ref() != Some(&extent) {
                    self.cells_lost = true;
                    self.actions.lose(*ino, format!("cold extent at block {} cut or dropped", extent.first));
                }
                let Some(extent) = left else {
                    continue;
                };
                end = extent.end().0;
                for block in (extent.start.0..).take(extent.length as usize) {
                    let device = usize::from(extent.device.0);
                    if used.get_mut(device).is_some_and(|used| !used.insert(block)) {
                        shared.insert((extent.device.0, block));
                    }
                }
                extents.push(extent);
            }
        }
        for place in shared {
            self.unshare(place, sifted);
        }
        for (device, block) in self.places_below.clone() {
            if used.get(usize::from(device)).is_some_and(|used| used.contains(block)) {
                self.leave_to_metadata((device, block), sifted);
            }
        }
        sifted.extents.retain(|_, extents| !extents.is_empty());
    }

    /// Leaves a device block to the extent whose checksum it matches.
    fn unshare(&mut self, (device, block): (u8, u64), sifted: &mut Sifted) {
        let holds = |extent: &ColdExtent| {
            let first = extent.start.0;
            extent.device.0 == device && first <= block && block - first < u64::from(extent.length)
        };
        let crc = self.device_block(device.into(), block).map(|content| crc32c(&*content));
        let mut holders: Vec<(u32, u64, bool)> = Vec::new();
        for (ino, extents) in &sifted.extents {
            for extent in extents.iter().filter(|extent| holds(extent)) {
                let at = block - extent.start.0;
                let matches = crc.is_some() && extent.crcs.get(at as usize).copied() == crc;
                holders.push((*ino, extent.first.0 + at, matches));
            }
        }
        let winner = holders.iter().position(|(_, _, matches)| *matches).unwrap_or(0);
        for (at, (ino, file_block, _)) in holders.iter().enumerate() {
            if at != winner {
                let text = format!("block {file_block} was another's on device {device}; cut out");
                self.actions.lose(*ino, text);
                cut(sifted.extents.entry(*ino).or_default(), *file_block, *file_block + 1);
            }
        }
    }

    /// Cuts a device block that holds a metadata page out of all extents: a seal is longer than an extent's
    /// checksum, so it proves more.
    fn leave_to_metadata(&mut self, (device, block): (u8, u64), sifted: &mut Sifted) {
        for (ino, extents) in &mut sifted.extents {
            let holder = extents.iter().find(|extent| {
                extent.device.0 == device
                    && extent.start.0 <= block
                    && block - extent.start.0 < u64::from(extent.length)
            });
            if let Some(at) = holder.map(|extent| extent.first.0 + (block - extent.start.0)) {
                let text = format!("block {at} was metadata on device {device}; cut out");
                self.actions.lose(*ino, text);
                cut(extents, at, at + 1);
            }
        }
    }

    /// Sizes and block counts of regular files; blocks that a lost intent would have removed go.
    pub fn settle_sizes(&mut self, sifted: &mut Sifted, made: &BTreeSet<u32>) {
        let regular = self.slots.iter().filter(|(_, slot)| slot.is_regular());
        for ino in regular.map(|(ino, _)| *ino).collect::<Vec<u32>>() {
            let Some(mut slot) = self.slots.get(&ino).copied() else {
                continue;
            };
            let intents = sifted.intents.get(&ino).map_or(&[][..], Vec::as_slice);
            let limit = slot.size.get().div_ceil(BLOCK_SIZE);
            let limit = intents.iter().fold(limit, |limit, (_, end)| limit.max(*end));
            let written = self.written_end(ino, sifted);
            if !slot.has(flag::ORPHAN) && (written > limit || made.contains(&ino)) {
                let lost_intent = slot.has(flag::HAS_INTENT) && intents.is_empty() && !made.contains(&ino);
                if lost_intent {
                    self.actions
                        .add(format!("inode {ino}: blocks from {limit} on go, as its lost intent says"));
                    self.cut_file(ino, limit, sifted);
                } else {
                    let size = (written * BLOCK_SIZE).min(MAX_FILE_SIZE);
                    let text = format!("size {} becomes {size}, up to its blocks", slot.size);
                    self.actions.lose(ino, text);
                    slot.size = size.into();
                }
            }
            let mapped = self.mapped(ino, sifted);
            if slot.blocks.get() > mapped && !slot.has(flag::ORPHAN) {
                let before = slot.blocks;
                let text = format!("{mapped} of {before} blocks; what was not found again reads as zeros");
                self.actions.lose(ino, text);
            }
            slot.blocks = mapped.into();
            self.slots.insert(ino, slot);
        }
        for slot in self.slots.values_mut().filter(|slot| !slot.is_regular()) {
            slot.blocks = 0.into();
        }
    }

    fn written_end(&self, ino: u32, sifted: &Sifted) -> u64 {
        let map = self.maps.get(&ino).and_then(|map| {
            let written = map.entries.iter().rev().find(|(_, mapped)| !mapped.unwritten);
            written.map(|(file_block, _)| file_block + 1)
        });
        let cold = sifted.extents.get(&ino).and_then(|extents| {
            let written = extents.iter().filter(|extent| !extent.unwritten);
            written.map(|extent| extent.end().0).max()
        });
        map.unwrap_or(0).max(cold.unwrap_or(0))
    }

    /// Blocks mapped in PM or below, each once.
    pub fn mapped(&self, ino: u32, sifted: &Sifted) -> u64 {
        let empty = BTreeMap::new();
        let map = self.maps.get(&ino).map_or(&empty, |map| &map.entries);
        let extents = sifted.extents.get(&ino).map_or(&[][..], Vec::as_slice);
        let cold = extents.iter().map(|extent| {
            let shadows = map.range(extent.first.0..extent.end().0).count() as u64;
            u64::from(extent.length) - shadows
        });
        map.len() as u64 + cold.sum::<u64>()
    }

    fn cut_file(&mut self, ino: u32, from: u64, sifted: &mut Sifted) {
        if let Some(map) = self.maps.get_mut(&ino) {
            let gone = map.entries.split_off(&from);
            gone.values().for_each(|mapped| self.release(mapped.block));
        }
        if let Some(extents) = sifted.extents.get_mut(&ino) {
            cut(extents, from, u64::MAX);
        }
    }

    /// Chunk bitmaps that mark exactly the blocks of extents, the metadata pages and the group summaries that
    /// were marked.
    pub fn settle_chunks(&mut self, sifted: &mut Sifted) {
        let chunk_blocks = u64::from(self.geometry.chunk_blocks);
        let place = |block: u64| {
            let within = block - FIRST_CHUNK_BLOCK.0;
            (within / chunk_blocks, within % chunk_blocks)
        };
        let bytes = (chunk_blocks.div_ceil(64) * 8) as usize;
        let mut chunks: BTreeMap<(u64, u8), Vec<u8>> = BTreeMap::new();
        let mark = |chunks: &mut BTreeMap<(u64, u8), Vec<u8>>, device: u8, block: u64| {
            let (chunk, within) = place(block);
            let bitmap = chunks.entry((chunk, device)).or_insert_with(|| vec![0; bytes]);
            if let Some(byte) = bitmap.get_mut((within / 8) as usize) {
                *byte |= 1 << (within % 8);
            }
        };
        for extent in sifted.extents.values().flatten() {
            for block in (extent.start.0..).take(extent.length as usize) {
                mark(&mut chunks, extent.device.0, block);
            }
        }
        for (device, block) in &self.places_below {
            mark(&mut chunks, *device, *block);
        }
        for ((chunk, device), bitmap) in std::mem::take(&mut sifted.chunks) {
            let first = FIRST_CHUNK_BLOCK.0 + chunk * chunk_blocks;
            let blocks = self.device_blocks(device.into());
            if first >= blocks {
                self.actions
                    .add(format!("chunk {chunk} of device {device}: there is no such chunk; dropped"));
                continue;
            }
            chunks.entry((chunk, device)).or_insert_with(|| vec![0; bytes]);
            let bits = (0u64..).zip(&bitmap).flat_map(|(at, byte)| {
                (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
            });
            for block in bits.filter(|bit| *bit < chunk_blocks).map(|bit| first + bit) {
                if block < blocks && self.may_be_summary(device.into(), block) {
                    mark(&mut chunks, device, block);
                }
            }
        }
        for ((chunk, device), bitmap) in chunks {
            sifted.kept.insert(Key::chunk(chunk, DeviceId(device)).0, bitmap);
        }
    }

    /// Whether a marked device block may hold a group summary. An unreadable block stays marked.
    fn may_be_summary(&self, device: usize, block: u64) -> bool {
        let Some(content) = self.device_block(device, block) else {
            return true;
        };
        let place = (DeviceId(device as u8), DeviceBlock(block));
        decode_summary(&*content, &self.superblock.seal_key(), place).is_ok_and(|(first, entries)| {
            let end = first.0.checked_add(entries.len() as u64);
            first >= FIRST_CHUNK_BLOCK && end.is_some_and(|end| end <= self.device_blocks(device))
        })
    }

    /// Writes extents into the cells.
    pub fn put_extents(&mut self, sifted: &mut Sifted) {
        for (ino, extents) in &sifted.extents {
            for extent in extents {
                sifted.kept.insert(Key::cold(Ino((*ino).into()), extent.first).0, extent.encode());
                *sifted.flags.entry(*ino).or_insert(0) |= flag::HAS_COLD;
            }
        }
        for (ino, flags) in &sifted.flags {
            if let Some(slot) = self.slots.get_mut(ino) {
                slot.flags = (slot.flags.get() | flags).into();
            }
        }
    }
}

/// Takes file blocks `from..to` out of a file's extents.
fn cut(extents: &mut Vec<ColdExtent>, from: u64, to: u64) {
    let rest = std::mem::take(extents).into_iter().flat_map(|extent| {
        let before = extent.slice(FileBlock(0), FileBlock(from));
        let behind = extent.slice(FileBlock(to), FileBlock(u64::MAX));
        before.into_iter().chain(behind)
    });
    *extents = rest.collect();
}
