//! Damage of a journal: random, old blocks put back, or one structure forged with its checksum made right again.

use super::states::{Random, State, USED, UUID, batches, layout, newest_anchor};
use std::collections::BTreeSet;
use terrace_format::journal::{
    ANCHOR_COPIES, Anchor, BATCH_HEADER_BYTES, BatchHeader, TABLE_ENTRIES, encode_table,
};
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_media::block::{AlignedBlock, DeviceImage};

const BLOCK: usize = BLOCK_SIZE as usize;

/// A damaged journal.
pub struct Damaged {
    pub image: DeviceImage,
    /// Blocks whose reads fail.
    pub unreadable: BTreeSet<u64>,
    /// Blocks that differ from the sound journal, or cannot be read.
    pub hit: BTreeSet<u64>,
    pub is_forged: bool,
    pub story: Vec<String>,
}

impl Damaged {
    fn change(&mut self, name: &str, block: DeviceBlock, content: AlignedBlock) {
        self.story.push(format!("{name} {}", block.0));
        self.image.set_block(block, content);
        self.hit.insert(block.0);
    }
}

/// Blocks in use, by structure: anchors, tables, home, log.
fn sites(state: &State) -> [Vec<DeviceBlock>; 4] {
    let layout = layout();
    let tables = 0..2 * layout.table_blocks();
    let mut log: Vec<DeviceBlock> = Vec::new();
    if let Some(anchor) = newest_anchor(&state.image) {
        log.extend(batches(&state.image, &anchor).iter().flat_map(|batch| batch.blocks()));
        let end = log.len() as u64 * BLOCK_SIZE + anchor.start;
        log.extend((0..4).map(|block| layout.log_block(end + block * BLOCK_SIZE).0));
    }
    [
        ANCHOR_COPIES.to_vec(),
        tables.map(|block| layout.table(0).plus(block)).collect(),
        USED.map(|page| layout.home().plus(page)).collect(),
        log,
    ]
}

fn pick(sites: &[Vec<DeviceBlock>; 4], random: &mut Random) -> DeviceBlock {
    // The end of the log most often: its damage looks like the tear of a crash.
    let site = &sites[[0, 1, 2, 2, 3, 3][random.below(6) as usize]];
    let last = site.len() - 1;
    let index = if random.below(3) == 0 {
        last - last.min(random.below(6) as usize)
    } else {
        random.below(site.len() as u64) as usize
    };
    site[index]
}

/// Damages a journal; equal random numbers give equal damage.
pub fn damage(state: &State, random: &mut Random) -> Damaged {
    let mut damaged = Damaged {
        image: state.image.clone(),
        unreadable: BTreeSet::new(),
        hit: BTreeSet::new(),
        is_forged: false,
        story: Vec::new(),
    };
    let sites = sites(state);
    let count = [1, 1, 1, 2, 3, 10][random.below(6) as usize];
    for _ in 0..count {
        let (block, other) = (pick(&sites, random), pick(&sites, random));
        let content = damaged.image.block(block);
        match random.below(14) {
            0..3 => flip(&mut damaged, block, content, random),
            3 => damaged.change("zeros", block, AlignedBlock::zeroed()),
            4..6 => part(&mut damaged, block, content, random),
            6 => {
                let second = damaged.image.block(other);
                damaged.change("swap", block, second);
                damaged.change("with", other, content);
            }
            7 => damaged.change("copy over", block, state.image.block(other)),
            8..10 => damaged.change("old", block, state.old.block(block)),
            10 => old_structure(&mut damaged, state, &sites, random),
            11..13 => {
                damaged.story.push(format!("unreadable {}", block.0));
                damaged.unreadable.insert(block.0);
                damaged.hit.insert(block.0);
            }
            _ if count == 1 && random.below(3) == 0 => cut(&mut damaged, random),
            _ if count == 1 => forge(&mut damaged, state, random),
            _ => {}
        }
    }
    let is_changed = |block: &u64| {
        *block >= damaged.image.blocks()
            || damaged.image.block(DeviceBlock(*block)).0 != state.image.block(DeviceBlock(*block)).0
    };
    damaged.hit.retain(|block| damaged.unreadable.contains(block) || is_changed(block));
    damaged
}

fn flip(damaged: &mut Damaged, block: DeviceBlock, mut content: AlignedBlock, random: &mut Random) {
    for _ in 0..=random.below(4) {
        // Half of them in the header.
        let at = if random.below(2) == 0 { random.below(160) } else { random.below(BLOCK_SIZE) };
        content.0[at as usize] ^= 1 << random.below(8);
    }
    damaged.change("flip", block, content);
}

/// Zeros or noise in a part of a block.
fn part(damaged: &mut Damaged, block: DeviceBlock, mut content: AlignedBlock, random: &mut Random) {
    let (from, length) = (random.below(8) as usize * 512, 1 << random.below(11));
    let noise = random.below(2);
    for byte in content.0.iter_mut().skip(from).take(length) {
        *byte = (noise * random.below(256)) as u8;
    }
    damaged.change("part of", block, content);
}

/// Anchors, tables, the whole home or the whole log as they were.
fn old_structure(damaged: &mut Damaged, state: &State, sites: &[Vec<DeviceBlock>; 4], random: &mut Random) {
    let site = random.below(5) as usize;
    for (index, blocks) in sites.iter().enumerate().filter(|(index, _)| site == *index || site == 4) {
        damaged.story.push(format!("structure {index} as it was"));
        for block in blocks {
            // All but the anchors at once would be a sound journal of an earlier time.
            damaged.change("old", *block, state.old.block(*block));
        }
        if site == 4 && index == 2 {
            break;
        }
    }
}

fn cut(damaged: &mut Damaged, random: &mut Random) {
    let total = layout().total_blocks();
    let blocks = [1, 200, 300, 512, layout().log().0, total - 1][random.below(6) as usize];
    let mut image = DeviceImage::zeroed(blocks);
    for block in 0..blocks {
        image.set_block(DeviceBlock(block), damaged.image.block(DeviceBlock(block)));
    }
    damaged.story.push(format!("cut to {blocks} blocks"));
    damaged.image = image;
    damaged.hit.extend(blocks..total);
}

fn nasty(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => u64::MAX >> random.below(40),
        2 => (1 << 62) - 1 - random.below(3),
        3 => random.below(64) * BLOCK_SIZE,
        4 => 1 << random.below(62),
        _ => random.below(100),
    }
}

/// A structure with wrong content and the right checksum.
fn forge(damaged: &mut Damaged, state: &State, random: &mut Random) {
    let Some(anchor) = newest_anchor(&state.image) else { return };
    damaged.is_forged = true;
    match random.below(3) {
        0 => forge_anchor(damaged, anchor, random),
        1 => forge_batch(damaged, state, &anchor, random),
        _ => {
            let number = random.below(layout().table_blocks());
            let words: Vec<u32> = (0..TABLE_ENTRIES).map(|_| nasty(random) as u32).collect();
            let block = encode_table(&UUID, number, &words).try_into().map(AlignedBlock).unwrap();
            damaged.change("forged table", layout().table(anchor.table).plus(number), block);
        }
    }
}

fn forge_anchor(damaged: &mut Damaged, mut anchor: Anchor, random: &mut Random) {
    let value = nasty(random);
    match random.below(9) {
        0 => anchor.image_bytes = value,
        1 => anchor.log_bytes = value,
        2 => anchor.number = value,
        3 => anchor.epoch = value,
        4 => anchor.start = value,
        5 => anchor.sequence = value,
        6 => anchor.acknowledged = value,
        7 => anchor.named = value,
        _ => anchor.table = 1 - anchor.table,
    }
    for number in [anchor.number | 1, anchor.number & !1] {
        let anchor = Anchor { number, ..anchor };
        let block = anchor.encode().try_into().map(AlignedBlock).unwrap();
        damaged.change("forged anchor", ANCHOR_COPIES[(number % 2) as usize], block);
    }
    damaged.story.push(format!("{anchor:?}"));
}

fn forge_batch(damaged: &mut Damaged, state: &State, anchor: &Anchor, random: &mut Random) {
    let known = batches(&state.image, anchor);
    let Some(batch) = known.get(random.below(known.len().max(1) as u64) as usize) else { return };
    let blocks: Vec<DeviceBlock> = batch.blocks().collect();
    let mut bytes: Vec<u8> = blocks.iter().flat_map(|block| state.image.block(*block).0).collect();
    let mut header: BatchHeader = batch.header;
    match random.below(4) {
        0 => header.epoch = nasty(random),
        1 => header.acknowledged = nasty(random),
        _ => {
            // The header of the first entry: kind, length, offset.
            let at = BATCH_HEADER_BYTES as usize + [0, 4, 8][random.below(3) as usize];
            let value = nasty(random).to_le_bytes();
            let length = 1 + random.below(8) as usize;
            bytes[at..at + length].copy_from_slice(&value[..length]);
        }
    }
    let content = bytes.split_off(BATCH_HEADER_BYTES as usize);
    let (head, _) = header.encode(&UUID, [content.as_slice()]);
    let bytes = [head.as_slice(), &content].concat();
    for (block, part) in blocks.into_iter().zip(bytes.as_chunks::<BLOCK>().0) {
        damaged.change("forged batch", block, AlignedBlock(*part));
    }
}
