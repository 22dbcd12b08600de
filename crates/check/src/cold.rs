//! Lower-tier devices: headers, cold extents, chunk bitmaps, group summaries (design 4.5, I6).

use crate::checker::{Checker, DeviceState};
use crate::code::Code;
use terrace_format::checksum::crc32c;
use terrace_format::device::{DeviceHeader, FIRST_CHUNK_BLOCK, decode_summary};
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};
use terrace_format::superblock::DeviceRow;
use terrace_format::{DeviceBlock, DeviceId};
use terrace_media::block::AlignedBlock;

impl Checker<'_> {
    /// Compares device headers with the superblock's table.
    pub(crate) fn device_headers(&mut self) {
        let rows = self.superblock.device_rows().to_vec();
        for (index, row) in rows.iter().enumerate() {
            if row.tier == 0 || !(1..=2).contains(&row.class) || row.blocks.get() < 2 {
                self.report(Code::DeviceRow, || {
                    format!("device {index}: tier {}, class {}, {} blocks", row.tier, row.class, row.blocks)
                });
            }
            let readable = self.device_header(index, row);
            assert_eq!(self.cold.len(), index, "states of devices are in the order of their ids");
            self.cold.push(DeviceState { blocks: row.blocks.get(), readable, ..DeviceState::default() });
        }
    }

    /// Blocks of the device that can be read.
    fn device_header(&mut self, index: usize, row: &DeviceRow) -> u64 {
        let Some(medium) = self.pool.block.get(index).cloned().flatten() else {
            self.report(Code::DeviceAbsent, || {
                format!("device {index} ({})", String::from_utf8_lossy(row.path()))
            });
            return 0;
        };
        let blocks = row.blocks.get();
        if medium.blocks() < blocks {
            self.report(Code::DeviceTooSmall, || {
                format!("{}: {} blocks, expected {blocks}", medium.name(), medium.blocks())
            });
        }
        let readable = medium.blocks().min(blocks);
        let mut block = [AlignedBlock::zeroed()];
        if let Err(error) = medium.read(DeviceBlock(0), &mut block) {
            self.report(Code::DeviceUnreadable, || error.to_string());
            return readable;
        }
        let [AlignedBlock(bytes)] = &block;
        let header = match DeviceHeader::decode(bytes) {
            Ok(header) => header,
            Err(corrupt) => {
                self.report(Code::DeviceHeader, || format!("{}: {corrupt}", medium.name()));
                return readable;
            }
        };
        let ours = header.pool_uuid == self.superblock.uuid && header.device_uuid == row.uuid;
        // The tier is the row's: the header may have an older tier, from the last mount that wrote it.
        let fields = (usize::from(header.index), header.role, header.blocks.get());
        if !ours || fields != (index, 1, blocks) {
            self.report(Code::DeviceHeader, || format!("{}: {header:?}", medium.name()));
        }
        if ours { readable } else { 0 }
    }

    /// Notes an extent's device blocks; reads them if the options say so. `shadows`: blocks with a whole
    /// shadow. Their cold copies may be half written (M5), so they are not judged.
    pub(crate) fn cold_extent(&mut self, ino: u32, extent: &ColdExtent, shadows: u128) {
        let DeviceId(device) = extent.device;
        let (start, length) = (extent.start.0, u64::from(extent.length));
        self.summary.cold_blocks += length;
        let state = self.cold.get_mut(usize::from(device));
        let Some(state) = state.filter(|state| {
            let end = start.checked_add(length);
            start >= FIRST_CHUNK_BLOCK.0 && end.is_some_and(|end| end <= state.blocks)
        }) else {
            self.report(Code::ColdRange, || {
                format!("inode {ino}: {length} blocks at {start} of device {device}")
            });
            return;
        };
        let shared = (start..start + length).filter(|block| !state.extents.insert(*block));
        let shared: Vec<u64> = shared.collect();
        for block in shared {
            self.report(Code::ColdShared, || format!("device {device}, block {block}: again inode {ino}"));
        }
        if self.options.read_cold && !extent.unwritten {
            self.verify_extent(ino, extent, shadows);
        }
    }

    fn verify_extent(&mut self, ino: u32, extent: &ColdExtent, shadows: u128) {
        let index = usize::from(extent.device.0);
        let readable = self.cold.get(index).map_or(0, |state| state.readable);
        let Some(medium) = self.pool.block.get(index).cloned().flatten() else {
            return;
        };
        let length = extent.length.min(MAX_EXTENT_BLOCKS) as usize;
        if extent.start.0 + length as u64 > readable {
            return; // reported with the header
        }
        let mut blocks = vec![AlignedBlock::zeroed(); length];
        let together = medium.read(extent.start, &mut blocks).is_ok();
        for (at, (block, crc)) in (0u64..).zip(blocks.iter_mut().zip(&extent.crcs)) {
            if shadows >> at & 1 == 1 {
                continue;
            }
            let place = extent.start.plus(at);
            let site =
                || format!("{}, block {place}: inode {ino}, block {}", medium.name(), extent.first.0 + at);
            // A bad block must not hide the damage of its neighbours.
            if !together && let Err(error) = medium.read(place, std::slice::from_mut(block)) {
                self.report(Code::DeviceUnreadable, || format!("{}: {error}", site()));
                continue;
            }
            self.summary.cold_blocks_read += 1;
            let found = crc32c(&block.0);
            if found != *crc {
                self.report(Code::ColdChecksum, || format!("{}: CRC {found:#x}, expected {crc:#x}", site()));
            }
        }
    }

    /// Notes the blocks that a chunk's bitmap marks.
    pub(crate) fn chunk_key(&mut self, chunk: u64, device: u8, bitmap: &[u8]) {
        let chunk_blocks = u64::from(self.geometry.chunk_blocks);
        if bitmap.len() as u64 != chunk_blocks.div_ceil(64) * 8 {
            self.report(Code::KeyValue, || {
                format!("chunk {chunk} of device {device}: bitmap of {} bytes", bitmap.len())
            });
        }
        let first = FIRST_CHUNK_BLOCK.0 + chunk * chunk_blocks;
        let mut beyond = None;
        let state = self.cold.get_mut(usize::from(device));
        let blocks = state.as_ref().map_or(0, |state| state.blocks);
        if let Some(state) = state {
            for (index, byte) in (0u64..).zip(bitmap) {
                for bit in (0..8u64).filter(|bit| byte >> bit & 1 == 1) {
                    let within = index * 8 + bit;
                    let block = first + within;
                    // A bit beyond the chunk would mark a block of the next chunk.
                    if within < chunk_blocks && block < blocks {
                        state.marked.insert(block);
                    } else {
                        beyond = Some(block);
                    }
                }
            }
        }
        if first >= blocks || beyond.is_some() {
            self.report(Code::ChunkRange, || {
                format!("chunk {chunk} of device {device}, {blocks} blocks: {beyond:?}")
            });
        }
    }

    /// Compares extents and chunk bitmaps, after all shards were walked. A marked block without an extent
    /// must be a group summary.
    pub(crate) fn chunk_bitmaps(&mut self) {
        for (index, state) in std::mem::take(&mut self.cold).into_iter().enumerate() {
            for block in state.extents.iter().filter(|block| !state.marked.contains(*block)) {
                self.report(Code::ColdUnmarked, || format!("device {index}, block {block}"));
            }
            let Some(medium) = self.pool.block.get(index).cloned().flatten() else {
                continue;
            };
            assert!(state.readable <= state.blocks, "device {index} is read beyond its row");
            let rest = state.marked.iter().filter(|block| !state.extents.contains(*block));
            for block in rest.filter(|block| *block < state.readable) {
                let mut content = [AlignedBlock::zeroed()];
                if let Err(error) = medium.read(DeviceBlock(block), &mut content) {
                    self.report(Code::DeviceUnreadable, || error.to_string());
                    continue;
                }
                let [AlignedBlock(bytes)] = &content;
                let place = (DeviceId(index as u8), DeviceBlock(block));
                let summary = decode_summary(bytes, &self.superblock.seal_key(), place);
                let covers = |first: u64, count: usize| {
                    let end = first.checked_add(count as u64);
                    first >= FIRST_CHUNK_BLOCK.0 && end.is_some_and(|end| end <= state.blocks)
                };
                match summary {
                    Ok((first, entries)) if covers(first.0, entries.len()) => {
                        self.summary.summary_blocks += 1;
                    }
                    _ => self.report(Code::ChunkLeaked, || format!("{}, block {block}", medium.name())),
                }
            }
        }
    }
}
