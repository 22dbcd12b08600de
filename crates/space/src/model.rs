//! The space of a device against a plain model: a list of used blocks for each chunk, and the documented order of preference.

use crate::chunk::{Chunk, Content, GRAINS, WHOLE_BUCKET, grains};
use crate::chunk_space::ChunkSpace;
use crate::device_space::{DeviceSpace, MAX_CANDIDATE_CHUNKS};
use crate::fill::{Filling, MAX_CHOSEN_CHUNKS};
use crate::io_pins::IoPins;
use crate::lower_space::{Device, LowerSpace, by_free_share};
use crate::reservation::Source;
use terrace_blocks::bits::Run;
use terrace_catalog::DeviceRun;
use terrace_catalog::chunks::{ChunkIndex, Piece};
use terrace_format::{DeviceBlock, DeviceId, Lsn};

/// Numbers at random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The holes among some blocks: first and length.
fn plain_holes(used: &[bool]) -> Vec<(u64, u64)> {
    let mut holes: Vec<(u64, u64)> = Vec::new();
    for (bit, used) in (0u64..).zip(used) {
        match holes.last_mut() {
            _ if *used => {}
            Some((start, length)) if *start + *length == bit => *length += 1,
            _ => holes.push((bit, 1)),
        }
    }
    holes
}

fn plain_grains(used: &[bool]) -> [u16; GRAINS] {
    std::array::from_fn(|grain| {
        let long = |(_, length): &(u64, u64)| *length >= 1 << grain;
        plain_holes(used).iter().filter(|hole| long(hole)).map(|(_, length)| *length as u16).sum()
    })
}

/// The first hole of at least `enough`, else the first of the longest.
fn plain_longest(used: &[bool], enough: u64) -> (u64, u64) {
    let holes = plain_holes(used);
    let longest = holes.iter().copied().rev().max_by_key(|(_, length)| *length).unwrap_or((0, 0));
    holes.into_iter().find(|(_, length)| *length >= enough).unwrap_or(longest)
}

fn words_of(used: &[bool]) -> Vec<u64> {
    let word = |bits: &[bool]| (0..64).fold(0, |word, bit| word | u64::from(bits[bit]) << bit);
    used.chunks(64).map(word).collect()
}

/// Used blocks in random runs, so that holes lie within words, across words, and over whole words.
fn random_blocks(numbers: &mut Numbers, count: usize) -> Vec<bool> {
    let most = [2, 9, 70, 200][numbers.below(4) as usize];
    let mut used = Vec::new();
    while used.len() < count {
        let (value, length) = (numbers.below(2) == 0, 1 + numbers.below(most));
        used.extend(std::iter::repeat_n(value, length as usize));
    }
    used.truncate(count);
    used
}

#[test]
fn grains_of_random_chunks_equal_a_count_over_holes() {
    let mut numbers = Numbers(1);
    for turn in 0..3000 {
        let count = 64 * (1 + numbers.below(5));
        let used = random_blocks(&mut numbers, count as usize);
        assert_eq!(grains(&words_of(&used)), plain_grains(&used), "{turn}");
    }
}

/// A device of which each block is told apart.
#[derive(Clone)]
struct Plain {
    size: u64,
    chunks: Vec<Vec<bool>>,
    filling: Vec<usize>,
    from: u64,
    grain: usize,
}

impl Plain {
    fn free_in(&self, chunk: usize) -> u64 {
        self.chunks[chunk].iter().filter(|used| !**used).count() as u64
    }
    fn free(&self) -> u64 {
        (0..self.chunks.len()).map(|chunk| self.free_in(chunk)).sum()
    }
    fn run(&self, chunk: usize, bit: u64, length: u64) -> DeviceRun {
        let start = DeviceBlock(1 + chunk as u64 * self.size + bit);
        DeviceRun { device: DeviceId(0), start, length }
    }
    fn set(&mut self, chunk: usize, bit: u64, length: u64, used: bool) {
        let place = &mut self.chunks[chunk];
        let end = (bit + length).min(place.len() as u64);
        place[bit as usize..end as usize].fill(used);
    }
    /// Blocks of a chunk with those that are pinned.
    fn open(&self, chunk: usize, pins: &IoPins) -> Vec<bool> {
        let mut used = self.chunks[chunk].clone();
        for (bit, used) in (0u64..).zip(used.iter_mut()) {
            let block = self.run(chunk, bit, 1).start.0;
            let covers = |run: &DeviceRun| (run.start.0..run.start.0 + run.length).contains(&block);
            *used |= pins.runs().any(|run| run.device == DeviceId(0) && covers(run));
        }
        used
    }
    /// Bucket of a chunk; none when nothing of it is free.
    fn bucket(&self, chunk: usize) -> Option<usize> {
        match plain_longest(&self.chunks[chunk], u64::MAX).1 {
            0 => None,
            _ if self.free_in(chunk) == self.chunks[chunk].len() as u64 => Some(WHOLE_BUCKET),
            longest => Some(longest.ilog2() as usize),
        }
    }

    fn choose(&mut self) {
        (self.filling, self.from, self.grain) = (Vec::new(), 0, 0);
        let enough = (self.free() / self.chunks.len() as u64 / 4).max(1);
        let grains: Vec<_> = self.chunks.iter().map(|chunk| plain_grains(chunk)).collect();
        let of = |chunk: usize, grain: usize| u64::from(grains[chunk][grain]);
        let all = 0..self.chunks.len();
        for grain in (0..GRAINS).rev() {
            let mut found: Vec<usize> = all.clone().filter(|chunk| of(*chunk, grain) >= enough).collect();
            if !found.is_empty() {
                found.sort_by_key(|chunk| (std::cmp::Reverse(of(*chunk, grain)), *chunk));
                found.truncate(MAX_CHOSEN_CHUNKS);
                found.reverse();
                (self.filling, self.grain) = (found, grain);
                return;
            }
        }
    }

    fn fill(&mut self, chunk: usize, left: u64, pins: &IoPins, runs: &mut Vec<DeviceRun>) -> u64 {
        let (from, mut taken) = (self.from, 0);
        for (bit, length) in plain_holes(&self.open(chunk, pins)) {
            let rest_of_before = from > 0 && bit <= from && from < bit + length;
            let begin = bit.max(from);
            let usable = (bit + length).saturating_sub(begin);
            if taken == left || usable == 0 || (usable < 1 << self.grain && !rest_of_before) {
                continue;
            }
            let length = usable.min(left - taken);
            self.set(chunk, begin, length, true);
            runs.push(self.run(chunk, begin, length));
            (self.from, taken) = (begin + length, taken + length);
        }
        taken
    }

    /// Holes of the chunks at work, then of chosen ones as long as these give something, at last of all.
    fn claim_holes(&mut self, want: u64, pins: &IoPins) -> Vec<DeviceRun> {
        let (mut runs, mut left, mut gave, mut next) = (Vec::new(), want, true, 0);
        while left > 0 && self.free() > 0 {
            if let Some(chunk) = self.filling.last().copied() {
                let taken = self.fill(chunk, left, pins, &mut runs);
                gave |= taken > 0;
                left -= taken;
                if left > 0 {
                    self.filling.pop();
                    self.from = 0;
                }
                continue;
            }
            (self.from, self.grain) = (0, 0);
            if gave {
                self.choose();
            }
            if self.filling.is_empty() {
                let Some(chunk) = (next..self.chunks.len()).find(|chunk| self.free_in(*chunk) > 0) else {
                    break;
                };
                (self.filling, next) = (vec![chunk], chunk + 1);
            }
            gave = false;
        }
        runs
    }

    /// Large requests look at whole chunks first and small ones last; else at the chunks with the shortest of the holes that can
    /// be long enough, then at shorter ones where less is enough.
    fn find(&self, want: u64, enough: u64, pins: &IoPins) -> Option<(usize, u64, u64)> {
        let whole = want * 2 >= self.size;
        let log = want.ilog2() as usize;
        let mut order: Vec<usize> = (log..WHOLE_BUCKET).collect();
        order.insert(if whole { 0 } else { order.len() }, WHOLE_BUCKET);
        if enough < want {
            order.extend((0..log).rev());
        }
        let mut best: Option<(usize, u64, u64)> = None;
        for bucket in order {
            let members = (0..self.chunks.len()).filter(|chunk| self.bucket(*chunk) == Some(bucket));
            for chunk in members.take(MAX_CANDIDATE_CHUNKS) {
                let (bit, length) = plain_longest(&self.open(chunk, pins), want);
                if length >= want {
                    return Some((chunk, bit, length.min(want)));
                }
                let long = plain_longest(&self.chunks[chunk], u64::MAX).1 >= enough && length >= enough;
                if long && best.is_none_or(|best| length > best.2) {
                    best = Some((chunk, bit, length));
                }
            }
        }
        best
    }
}

/// A device tells of itself what the model has.
fn compare(device: &Device, plain: &Plain) {
    let (space, filling) = (&device.space, &device.filling);
    assert_eq!(space.free, plain.free());
    for (chunk, used) in plain.chunks.iter().enumerate() {
        let place = &space.chunks[chunk];
        let mut padded = used.clone();
        padded.resize((plain.size as usize).div_ceil(64) * 64, true);
        assert_eq!(space.words(ChunkIndex(chunk as u64)), words_of(&padded), "chunk {chunk}");
        assert_eq!(space.capacity(ChunkIndex(chunk as u64)), used.len() as u64);
        assert_eq!(u64::from(place.free), plain.free_in(chunk));
        assert_eq!(u64::from(place.largest), plain_longest(used, u64::MAX).1, "chunk {chunk}");
        assert_eq!(place.grains, plain_grains(used));
        let kind = match &place.content {
            Content::Free => plain.free_in(chunk) == used.len() as u64,
            Content::Full => plain.free_in(chunk) == 0,
            Content::Part(_) => (1..used.len() as u64).contains(&plain.free_in(chunk)),
            Content::Unknown => false,
        };
        assert!(kind, "chunk {chunk}");
        for (bucket, members) in space.buckets.iter().enumerate() {
            assert_eq!(members.contains(&(chunk as u32)), plain.bucket(chunk) == Some(bucket));
        }
    }
    let at_work: Vec<_> = filling.chunks.iter().map(|chunk| chunk.0 as usize).collect();
    assert_eq!(at_work, plain.filling);
    if !at_work.is_empty() {
        assert_eq!((filling.from, filling.grain), (plain.from, plain.grain));
    }
}

/// A device of some chunks of `size` blocks, the last of `last`, used as given.
fn device_of(size: u32, chunks: Vec<Vec<bool>>) -> (Device, Plain) {
    let blocks = 1 + chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
    let mut device =
        Device { space: DeviceSpace::new(DeviceId(0), blocks, size), filling: Filling::default() };
    assert_eq!(device.space.chunks.len(), chunks.len());
    device.space.next_load = chunks.len();
    for (index, chunk) in chunks.iter().enumerate() {
        let mut padded = chunk.clone();
        padded.resize(chunk.len().div_ceil(64) * 64, false);
        let bitmap = if chunk.contains(&true) { words_of(&padded) } else { Vec::new() };
        device.space.publish(ChunkIndex(index as u64), Lsn(1), Some(bitmap));
    }
    let plain = Plain { size: size.into(), chunks, filling: Vec::new(), from: 0, grain: 0 };
    compare(&device, &plain);
    (device, plain)
}

fn random_pins(numbers: &mut Numbers, plain: &Plain) -> IoPins {
    let end = plain.chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
    let mut pins = IoPins::default();
    for _ in 0..numbers.below(5) {
        let start = 1 + numbers.below(end);
        let length = 1 + numbers.below(plain.size).min(end - start);
        let device = DeviceId(numbers.below(4) as u8 / 3);
        pins.hold(DeviceRun { device, start: DeviceBlock(start), length });
    }
    pins
}

fn piece(chunk: usize, bit: u64, length: u64) -> Piece {
    Piece { chunk: ChunkIndex(chunk as u64), bits: Run::new(bit, length) }
}

impl Device {
    fn holes(&mut self, want: u64, pins: &IoPins) -> Vec<DeviceRun> {
        self.filling.claim_holes(&mut self.space, pins, want)
    }
    fn found(&self, want: u64, enough: u64, pins: &IoPins) -> Option<(usize, u64, u64)> {
        let found = self.space.find(want, enough, pins);
        found.map(|piece| (piece.chunk.0 as usize, piece.bits.start, piece.bits.length))
    }
}

fn random_steps(numbers: &mut Numbers, size: u32, count: usize, last: usize, steps: usize) {
    let length = |chunk: usize| if chunk + 1 == count { last } else { size as usize };
    let chunks = (0..count).map(|chunk| random_blocks(numbers, length(chunk))).collect();
    let (mut device, mut plain) = device_of(size, chunks);
    for step in 0..steps {
        let pins = random_pins(numbers, &plain);
        let want = 1 + match numbers.below(3) {
            0 => numbers.below(size.into()),
            1 => numbers.below(9),
            _ => numbers.below(70).min(u64::from(size) - 1),
        };
        let chunk = numbers.below(count as u64) as usize;
        let bit = numbers.below(plain.chunks[chunk].len() as u64);
        match numbers.below(6) {
            0 => {
                let enough = 1 + numbers.below(want);
                for enough in [want, enough] {
                    let found = device.found(want, enough, &pins);
                    assert_eq!(found, plain.find(want, enough, &pins), "step {step}: {want}, {enough}");
                    if let Some((chunk, bit, length)) = found {
                        device.space.take(piece(chunk, bit, length));
                        plain.set(chunk, bit, length, true);
                        compare(&device, &plain);
                    }
                }
            }
            1 | 2 => {
                let most = if numbers.below(8) == 0 { u64::from(size) * count as u64 } else { want };
                let runs = device.holes(most, &pins);
                assert_eq!(runs, plain.claim_holes(most, &pins), "step {step}: {most}");
            }
            // Cleared blocks may be clear in part, and reach beyond the end of a short chunk.
            kind => {
                let length = want.min(u64::from(size) - bit);
                if kind == 3 {
                    device.space.take(piece(chunk, bit, length));
                } else {
                    device.space.free(piece(chunk, bit, length));
                }
                plain.set(chunk, bit, length, kind == 3);
            }
        }
        compare(&device, &plain);
    }
}

#[test]
fn claims_and_frees_agree_with_the_model_and_with_its_order_of_preference() {
    for seed in 0..24 {
        let mut numbers = Numbers(seed);
        let size = [64, 192, 256, 640][seed as usize % 4];
        let (count, last) = (2 + numbers.below(5) as usize, 1 + numbers.below(size.into()) as usize);
        random_steps(&mut numbers, size, count, last, 120);
    }
}

/// More chunks than are chosen at once, or looked at as candidates.
#[test]
fn many_chunks_agree_with_the_model() {
    for seed in 0..3 {
        random_steps(&mut Numbers(100 + seed), 64, 3 * MAX_CHOSEN_CHUNKS / 2, 40, 150);
    }
    // All chunks are alike, so the chunk number alone decides.
    let chunk: Vec<bool> = (0..64).map(|bit| bit % 8 == 0).collect();
    let (mut device, mut plain) = device_of(64, vec![chunk; 2 * MAX_CHOSEN_CHUNKS]);
    for want in [3, 7, 8, 100, 500, 2000] {
        assert_eq!(device.holes(want, &IoPins::default()), plain.claim_holes(want, &IoPins::default()));
        compare(&device, &plain);
    }
}

/// A search looks at 32 chunks of a kind: of 33 chunks the last, which has the longest hole, is not found.
#[test]
fn a_claim_looks_at_a_bounded_number_of_candidates_of_each_kind() {
    let part = |hole: u64| (0..64).map(|bit| bit >= hole).collect::<Vec<bool>>();
    let mut chunks = vec![part(8); MAX_CANDIDATE_CHUNKS];
    chunks.push(part(15));
    let (device, plain) = device_of(64, chunks);
    assert_eq!(device.found(15, 8, &IoPins::default()), Some((0, 0, 8)));
    assert_eq!(plain.find(15, 8, &IoPins::default()), Some((0, 0, 8)));
    assert_eq!(device.found(15, 9, &IoPins::default()), None);
}

#[test]
fn claims_ask_the_device_with_the_largest_free_share_first() {
    let mut devices: Vec<Device> = [(10, 100), (6, 10), (30, 90), (3, 30), (60, 100)]
        .into_iter()
        .zip(0..)
        .map(|((free, blocks), id)| {
            let mut device = device_of(64, vec![vec![false; 64]]).0;
            let space = &mut device.space;
            (space.id, space.free, space.blocks) = (DeviceId(id), free, blocks);
            device
        })
        .collect();
    let mut order = |ids: &[u8]| {
        let ids: Vec<_> = ids.iter().map(|id| DeviceId(*id)).collect();
        by_free_share(&mut devices, &ids).iter().map(|device| device.space.id.0).collect::<Vec<_>>()
    };
    assert_eq!(order(&[0, 1, 2, 3, 4]), [1, 4, 2, 0, 3], "of equal ones the first");
    assert_eq!((order(&[3, 2]), order(&[9]), order(&[])), (vec![2, 3], vec![], vec![]));
}

#[test]
fn a_chunk_needs_memory_for_itself_and_its_place_in_a_set() {
    let each = size_of::<Chunk>() as u64 + 16;
    assert_eq!(ChunkSpace::bytes_needed(64, &[(DeviceId(0), 129)]), Some(3 * each));
}

/// Bits beyond the end of a short chunk count for nothing; a damaged bitmap is full.
#[test]
fn a_loaded_bitmap_counts_as_stored_and_a_damaged_bitmap_counts_as_full() {
    let mut device = device_of(64, vec![vec![false; 64], vec![false; 5]]).0.space;
    device.publish(ChunkIndex(1), Lsn(3), Some(vec![u64::MAX << 5 | 1]));
    assert_eq!((device.free, device.chunks[1].free, device.chunks[1].loaded), (68, 4, Lsn(3)));
    device.publish(ChunkIndex(0), Lsn(2), None);
    assert_eq!((device.free, device.words(ChunkIndex(0))), (4, vec![u64::MAX]));
    assert!(matches!(device.chunks[0].content, Content::Full));
    assert_eq!(device.words(ChunkIndex(7)), [u64::MAX], "no such chunk");
}

#[test]
fn a_free_changes_only_chunks_loaded_before_its_record() {
    let (mut device, _) = device_of(64, vec![vec![true; 64], vec![true; 64]]);
    device.space.publish(ChunkIndex(1), Lsn(9), Some(vec![u64::MAX]));
    let mut space = LowerSpace { devices: vec![device], ..LowerSpace::default() };
    let run = |device| DeviceRun { device: DeviceId(device), start: DeviceBlock(63), length: 4 };
    let mut free = |run, lsn| {
        space.free_run(run, Lsn(lsn));
        space.devices[0].space.free
    };
    assert_eq!((free(run(5), 20), free(run(0), 0)), (0, 0));
    assert_eq!(free(run(0), 8), 2, "the first chunk was loaded before");
    assert_eq!(free(run(0), 9), 4, "the first record that the load did not see");
    space.free_run(DeviceRun { start: DeviceBlock(200), ..run(0) }, Lsn(20));
    assert_eq!(space.devices[0].space.free, 4, "no such chunk");
}

fn claimed_of_two() -> (LowerSpace, DeviceRun) {
    let (device, _) = device_of(64, vec![vec![false; 64], vec![false; 64]]);
    let mut space = LowerSpace { devices: vec![device], ..LowerSpace::default() };
    let run = space.claim_run(&[DeviceId(0)], 5, 5, Source::Unpromised).unwrap();
    (space, run)
}

#[test]
#[should_panic(expected = "is released twice")]
fn a_claim_released_twice_panics() {
    let (mut space, run) = claimed_of_two();
    space.release(run);
    assert_eq!(space.devices[0].space.free, 128);
    space.release(run);
}

#[test]
#[should_panic(expected = "124 blocks are promised, 123 are free")]
fn a_promise_beyond_the_free_blocks_panics() {
    let (mut space, _) = claimed_of_two();
    assert!(space.promise(123) && !space.promise(1));
    space.reservation.add(1);
    space.promise(0);
}

#[test]
#[should_panic(expected = "is dropped once")]
fn an_io_pin_dropped_twice_panics() {
    let (mut space, run) = claimed_of_two();
    let pin = space.pins.hold(run);
    space.pins.let_go(pin);
    space.pins.let_go(pin);
}
