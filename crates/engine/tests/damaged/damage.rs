//! Damage of a pool: random bytes, or one structure with its checksum made right again.

use super::sites::Sound;
use rand::Rng;
use rand::rngs::StdRng;
use std::cell::RefCell;
use terrace_format::checksum::{crc32c, record_seed};
use terrace_format::device::DeviceHeader;
use terrace_format::geometry::{CHECKPOINT_COPIES, ROOTS_BLOCK, SUPERBLOCK_COPIES};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, pack_root};
use terrace_format::page::{PAGE_HEADER, Page};
use terrace_format::record::{HEADER_SIZE, MAX_WRITE, seal};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Lsn, PmBlock};
use terrace_media::block::{AlignedBlock, DeviceImage};
use terrace_media::pm::PmImage;
use zerocopy::{FromBytes, IntoBytes};

pub const BLOCK: usize = BLOCK_SIZE as usize;

/// A damaged pool.
pub struct Damaged<'a> {
    pub sound: &'a Sound,
    pub random: RefCell<StdRng>,
    pub pm: PmImage,
    pub device: DeviceImage,
    /// The kinds of damage done, for the message of a failure.
    pub story: Vec<String>,
}

/// Name and function of a kind of damage.
type Kind<'a> = (&'static str, fn(&mut Damaged<'a>));

fn kinds<'a>() -> Vec<Kind<'a>> {
    vec![
        ("bits", Damaged::bits),
        ("flip", Damaged::flip),
        ("flip", Damaged::flip),
        ("bytes", Damaged::bytes),
        ("zeros", Damaged::zeros),
        ("swapped blocks", Damaged::swap),
        ("copied block", Damaged::copy),
        ("superblock", Damaged::superblock),
        ("checkpoint", Damaged::checkpoint),
        ("record", Damaged::record),
        ("new record", Damaged::new_record),
        ("roots", Damaged::roots),
        ("slot", Damaged::slot),
        ("slot", Damaged::slot),
        ("entries of a node", Damaged::entries),
        ("radix bomb", Damaged::bomb),
        ("table of all files", Damaged::shared_table),
        ("catalog header", Damaged::page_header),
        ("catalog cell", Damaged::cell),
        ("catalog cell", Damaged::cell),
        ("catalog value", Damaged::value),
        ("catalog value", Damaged::value),
        ("catalog value", Damaged::value),
        ("block table", Damaged::table),
        ("device header", Damaged::device_header),
        ("device block", Damaged::device_block),
    ]
}

/// Damages a pool; equal random numbers give equal damage.
pub fn damage(sound: &Sound, random: StdRng) -> Damaged<'_> {
    let (pm, device) = (sound.pm.clone(), sound.device.clone());
    let mut damaged = Damaged { sound, random: RefCell::new(random), pm, device, story: Vec::new() };
    let count = match damaged.below(10) {
        0..5 => 1,
        5..9 => 2 + damaged.below(4),
        _ => 6 + damaged.below(34),
    };
    let kinds = kinds();
    for _ in 0..count {
        let (name, kind) = kinds[damaged.below(kinds.len())];
        damaged.story.push(name.to_string());
        kind(&mut damaged);
    }
    // Without right checksum words every reader would stop at the checksum of a damaged page, and never meet
    // the damage itself.
    if damaged.sound.geometry.checksummed && damaged.coin() {
        damaged.story.push("checksum words made right again".into());
        damaged.seal_pages();
    }
    damaged
}

impl<'a> Damaged<'a> {
    pub fn tell(&mut self, what: String) {
        if let Some(last) = self.story.last_mut() {
            *last += &what;
        }
    }
    pub fn below(&self, limit: usize) -> usize {
        self.random.borrow_mut().random_range(0..limit)
    }
    pub fn of(&self, list: &[u64]) -> u64 {
        list[self.below(list.len())]
    }
    pub fn coin(&self) -> bool {
        self.below(2) == 0
    }
    fn nasty(&self) -> u64 {
        self.sound.nasty(&mut self.random.borrow_mut())
    }
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.tell(format!(" {offset:#x}: {bytes:02x?}").chars().take(80).collect());
        assert!(self.pm.write(offset, bytes), "damage outside the pool");
    }
    pub fn get(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(self.pm.read(offset, &mut bytes));
        bytes
    }
    pub fn some_offset(&self) -> u64 {
        let block = match self.below(3) {
            0 => self.below(self.sound.geometry.first_pool_block().0 as usize) as u64,
            _ => self.sound.some_block(&mut self.random.borrow_mut()),
        };
        block * BLOCK_SIZE
    }

    fn bytes(&mut self) {
        let length = 1 << self.below(10);
        let at = self.some_offset() + self.below(BLOCK - length + 1) as u64;
        let bytes: Vec<u8> = (0..length).map(|_| self.below(256) as u8).collect();
        self.put(at, &bytes);
    }
    fn zeros(&mut self) {
        let (at, line) = (self.some_offset(), self.below(64) as u64 * 64);
        if self.coin() { self.put(at, &[0; BLOCK]) } else { self.put(at + line, &[0; 64]) }
    }
    fn swap(&mut self) {
        let (a, b) = (self.some_offset(), self.some_offset());
        let (first, second) = (self.get(a, BLOCK), self.get(b, BLOCK));
        self.put(a, &second);
        self.put(b, &first);
    }
    fn copy(&mut self) {
        let (a, b) = (self.some_offset(), self.some_offset());
        let bytes = self.get(a, BLOCK);
        self.put(b, &bytes);
    }

    fn superblock(&mut self) {
        let mut superblock = self.sound.superblock;
        let ranges = [(8, 40), (40, 136), (136, 176), (136, 176), (176, 176 + 288)];
        let (from, to) = ranges[self.below(ranges.len())];
        let at = from + self.below((to - from) / 4) * 4;
        let value = self.nasty().to_le_bytes();
        let length = [1, 4, 8][self.below(3)];
        superblock.as_mut_bytes()[at..at + length].copy_from_slice(&value[..length]);
        superblock.seal();
        for copy in SUPERBLOCK_COPIES {
            self.put(copy.offset().0, superblock.as_bytes());
        }
        self.tell(format!(" byte {at}: {:02x?}", &value[..length]));
    }

    fn checkpoint(&mut self) {
        let mut point = self.sound.checkpoint.clone();
        let value = match self.below(3) {
            0 => self.nasty(),
            1 => point.lsn.0 + self.below(100) as u64,
            _ => self.below(1024) as u64 * 64,
        };
        let lane = self.below(point.tails.len());
        match self.below(6) {
            0 => point.lsn.0 = value,
            1 => point.epoch = value,
            2 => point.sequence = value,
            3 => point.clean = !point.clean,
            4 => point.tails[lane] = value,
            _ => point.tails.truncate(lane),
        }
        let bytes = point.encode(&self.sound.superblock.uuid);
        for copy in CHECKPOINT_COPIES {
            self.put(copy.offset().0, &bytes);
        }
        self.tell(format!(" {point:?}"));
    }

    /// Stores a record at a position of a lane.
    fn put_record(&mut self, lane: u32, position: u64, bytes: &[u8]) {
        for (at, byte) in (position..).zip(bytes) {
            assert!(self.pm.write(self.sound.ring_place(lane, at).0, &[*byte]));
        }
    }

    fn record(&mut self) {
        if self.sound.records.is_empty() {
            return self.new_record();
        }
        let index = self.below(self.sound.records.len());
        let place = &self.sound.records[index];
        let mut bytes = self.sound.ring(place.lane, place.position, place.length);
        let at = self.below(bytes.len() / 8) * 8;
        let (value, length) = (self.nasty().to_le_bytes(), [1, 2, 8][self.below(3)]);
        bytes[at..at + length].copy_from_slice(&value[..length]);
        let (uuid, epoch) = (&self.sound.superblock.uuid, self.sound.checkpoint.epoch);
        let seed = record_seed(uuid, place.lane, place.position, epoch);
        bytes[16..20].copy_from_slice(&seed.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        self.tell(format!(" {index} byte {at}: {:02x?}", &value[..length]));
        self.put_record(place.lane, place.position, &bytes);
    }

    /// A record that recovery replays, with stores to any word, allowed ones and forbidden ones.
    fn new_record(&mut self) {
        let lane = self.below(self.sound.heads.len());
        let position = self.sound.heads[lane];
        let mut bytes = vec![0; HEADER_SIZE];
        let checks = self.below(4) / 3;
        for _ in 0..checks {
            let check = [self.nasty(), self.nasty()];
            bytes.extend_from_slice(check.as_bytes());
        }
        let writes = 1 + self.below(20);
        for _ in 0..writes {
            let offset = if self.below(8) == 0 {
                self.nasty() & 0xffff_ffff_ffff
            } else {
                self.some_offset() + self.below(512) as u64 * 8
            };
            let length = if self.below(30) == 0 { self.below(MAX_WRITE) } else { 8 };
            bytes.extend_from_slice(&(offset | (length as u64) << 48).to_le_bytes());
            let value = self.nasty().to_le_bytes();
            bytes.extend(value.iter().cycle().take(length.next_multiple_of(8)));
        }
        let lsn = match self.below(10) {
            0 => self.nasty(),
            _ => self.sound.checkpoint.lsn.0 + 1000 + lane as u64,
        };
        let (uuid, epoch) = (&self.sound.superblock.uuid, self.sound.checkpoint.epoch);
        let seed = record_seed(uuid, lane as u32, position, epoch);
        seal(&mut bytes, Lsn(lsn), writes as u16, checks as u16, seed, 0);
        self.tell(format!(" lane {lane}, {} bytes", bytes.len()));
        if bytes.len() as u64 <= self.sound.geometry.lane_size {
            self.put_record(lane as u32, position, &bytes);
        }
    }

    fn roots(&mut self) {
        let at = match self.below(4) {
            // The third word is the reach of a file map.
            0 => self.below(3) * 8,
            1 => 64 + self.below(64) * 8,
            _ => 1024 + self.below(self.sound.geometry.catalog_shards as usize) * 8,
        };
        let value = if (64..576).contains(&at) && self.coin() { self.below(20) as u64 } else { self.nasty() };
        self.put(ROOTS_BLOCK.offset().0 + at as u64, &value.to_le_bytes());
    }

    /// Damages one or several fields of an inode, or copies the slot of another inode over it.
    fn slot(&mut self) {
        let page = PmBlock(self.of(&self.sound.inode_pages)).offset().0;
        let at = page + self.below(20) as u64 * SLOT_SIZE;
        if self.below(6) == 0 {
            let other = self.get(page + self.below(20) as u64 * SLOT_SIZE, SLOT_SIZE as usize);
            return self.put(at, &other);
        }
        for _ in 0..=self.below(3) {
            let value = self.nasty();
            if self.coin() {
                self.put(at + self.below(16) as u64 * 8, &value.to_le_bytes());
            } else {
                let value = if self.coin() { self.below(32) as u32 } else { value as u32 };
                self.put(at + self.below(32) as u64 * 4, &value.to_le_bytes());
            }
        }
    }

    fn entries(&mut self) {
        if self.sound.nodes.is_empty() {
            return self.shared_table();
        }
        let node = self.of(&self.sound.nodes);
        for _ in 0..=self.below(4) {
            let value = match self.below(4) {
                0 => node,
                1 => self.of(&self.sound.nodes),
                _ => self.nasty(),
            };
            let index = if self.coin() { self.below(24) } else { self.below(512) };
            self.put(node * BLOCK_SIZE + 8 * index as u64, &value.to_le_bytes());
        }
    }

    /// Damages words of the shared table, and copies lines, so that the table has a key twice.
    fn shared_table(&mut self) {
        if self.sound.map_area.is_empty() {
            return self.table();
        }
        for _ in 0..=self.below(4) {
            // Used lines as often as empty lines.
            let line = |damaged: &Damaged<'_>| {
                let blocks = &damaged.sound.map_area;
                let used = |at: &u64| damaged.get(*at, 64).iter().any(|byte| *byte != 0);
                let mut lines =
                    blocks.iter().flat_map(|block| (0..64).map(move |line| block * BLOCK_SIZE + line * 64));
                let skipped = damaged.below(blocks.len() * 8);
                match damaged.coin() {
                    true => lines.by_ref().filter(used).nth(skipped % 8).unwrap_or(blocks[0] * BLOCK_SIZE),
                    false => damaged.of(blocks) * BLOCK_SIZE + damaged.below(64) as u64 * 64,
                }
            };
            let (at, other) = (line(self), line(self));
            match self.below(4) {
                0 => self.put(at, &self.get(other, 64)),
                1 => self.put(at, &self.get(other, 8)),
                _ => self.put(at + self.below(8) as u64 * 8, &self.nasty().to_le_bytes()),
            }
        }
    }

    /// A file map made of one node that names itself in every entry, so that one block stands for a huge
    /// tree.
    fn bomb(&mut self) {
        if self.sound.nodes.is_empty() {
            return self.shared_table();
        }
        let node = self.of(&self.sound.nodes);
        let child = if self.coin() { node } else { self.nasty() };
        let bytes: Vec<u8> = (0..512).flat_map(|_| child.to_le_bytes()).collect();
        self.put(node * BLOCK_SIZE, &bytes);
        let root = pack_root(1 + self.below(4) as u8, node);
        let page = PmBlock(self.of(&self.sound.inode_pages)).offset().0;
        let slot = page + self.below(20) as u64 * SLOT_SIZE;
        self.put(slot + InodeSlot::ROOT, &root.to_le_bytes());
        if self.coin() {
            self.put(slot + InodeSlot::SIZE, &(1u64 << (20 + self.below(25))).to_le_bytes());
        }
    }

    fn page(&mut self) -> (u64, Page) {
        let block = self.of(&self.sound.catalog_pages);
        let bytes = self.get(block * BLOCK_SIZE, BLOCK);
        let page = bytes.first_chunk().map_or(Page::new(0), |bytes| Page(Box::new(*bytes)));
        (block, page)
    }

    fn page_header(&mut self) {
        let (block, _) = self.page();
        let value = self.nasty().to_le_bytes();
        let at = block * BLOCK_SIZE + self.below(10) as u64;
        let length = 1 + self.below(2);
        self.put(at, &value[..length]);
    }

    /// Damages the offset of a cell, its lengths or its key.
    fn cell(&mut self) {
        let (block, page) = self.page();
        if page.count() == 0 || page.count() > 1000 {
            return;
        }
        let (index, other) = (self.below(page.count()), self.below(page.count()));
        let slot = block * BLOCK_SIZE + (PAGE_HEADER + 2 * index) as u64;
        let cell = block * BLOCK_SIZE + page.cell_offset(index).min(BLOCK - 24) as u64;
        let value = self.nasty().to_le_bytes();
        match self.below(5) {
            0 => self.put(slot, &(page.cell_offset(other) as u16).to_le_bytes()),
            1 => self.put(slot, &value[..2]),
            2 => self.put(cell, &value[..1]),
            3 => self.put(cell + 2, &value[..1]),
            _ => self.put(cell + 4 + self.below(14) as u64, &value[..1]),
        }
    }

    /// Damages the value of a cell: a child, the inode of a name, an extent, an intent or a bitmap.
    fn value(&mut self) {
        let (block, page) = self.page();
        if page.count() == 0 || page.count() > 1000 {
            return;
        }
        let index = self.below(page.count());
        let Ok((at, length)) = page.value_place(index) else { return };
        if length < 8 {
            return;
        }
        let place = block * BLOCK_SIZE + at as u64;
        if page.level() > 0 {
            let child = if self.coin() { block } else { self.of(&self.sound.catalog_pages) };
            return self.put(place, &child.to_le_bytes());
        }
        let value = self.nasty().to_le_bytes();
        match self.below(4) {
            0 => self.put(place, &[self.below(20) as u8]),
            1 => self.put(place, &value[..4]),
            2 => self.put(place + self.below(length - 7).min(12) as u64, &value[..2]),
            _ => self.put(place + self.below((length - 7) / 4 + 1) as u64 * 4 % (length as u64 - 7), &value),
        }
    }

    fn table(&mut self) {
        for _ in 0..=self.below(4) {
            let block = self.sound.some_block(&mut self.random.borrow_mut());
            let at = self.sound.geometry.table_entry(PmBlock(block)).0;
            let other = self
                .sound
                .geometry
                .table_entry(PmBlock(self.sound.some_block(&mut self.random.borrow_mut())))
                .0;
            match self.below(4) {
                0 => self.put(at, &[0; 16]),
                1 => self.put(at + 8, &self.nasty().to_le_bytes()),
                2 => self.put(at, &self.get(other, 16)),
                _ => self.put(at, &self.nasty().to_le_bytes()),
            }
        }
    }

    fn device_header(&mut self) {
        let block = self.device.block(DeviceBlock(0));
        let Ok((mut header, _)) = DeviceHeader::read_from_prefix(&block.0) else { return };
        let at = 8 + self.below(13) * 4;
        let value = self.nasty().to_le_bytes();
        header.as_mut_bytes()[at..at + 4].copy_from_slice(&value[..4]);
        let mut block = AlignedBlock::zeroed();
        block.0.copy_from_slice(&header.encode());
        self.device.set_block(DeviceBlock(0), block);
        self.tell(format!(" byte {at}: {:02x?}", &value[..4]));
    }

    fn device_block(&mut self) {
        let place = self.sound.some_device_block(&mut self.random.borrow_mut());
        let mut block = match self.below(3) {
            0 => AlignedBlock::zeroed(),
            1 => self.device.block(self.sound.some_device_block(&mut self.random.borrow_mut())),
            _ => self.device.block(place),
        };
        block.0[self.below(BLOCK)] ^= 1;
        self.device.set_block(place, block);
        self.tell(format!(" {place}"));
    }
}
