//! Reads for an opening: large pieces, and single blocks where a piece cannot be read. Writes of the log, and of home.

use crate::BlockMedium;
use crate::block::{AlignedBlock, BlockRead, Run};
use std::collections::BTreeSet;
use terrace_format::BLOCK_SIZE;
use terrace_format::journal::Layout;

/// Blocks of a read: 1 MiB.
pub(super) const PIECE_BLOCKS: usize = 256;
/// Reads in flight together.
pub(super) const READS_AT_ONCE: usize = 32;

/// Does reads, and the reads that fail once more block by block. Gives the blocks that cannot be read, counted through all
/// reads.
pub(super) fn read_pieces(device: &dyn BlockMedium, reads: &mut [BlockRead<'_>]) -> BTreeSet<usize> {
    device.read_all(reads);
    let mut unreadable = BTreeSet::new();
    let mut before = 0;
    for read in reads {
        if read.result.is_err() {
            for (index, block) in read.into.iter_mut().enumerate() {
                if device.read(read.first.plus(index as u64), std::slice::from_mut(block)).is_err() {
                    unreadable.insert(before + index);
                }
            }
        }
        before += read.into.len();
    }
    unreadable
}

/// Writes of blocks from a position of the log on.
pub(super) fn log_runs<'a>(layout: &Layout, position: u64, blocks: &'a [AlignedBlock]) -> Vec<Run<'a>> {
    let bytes = blocks.len() as u64 * BLOCK_SIZE;
    assert!(bytes <= layout.log_bytes(), "{bytes} bytes lap the log");
    let (mut runs, mut at, mut rest) = (Vec::new(), position, blocks);
    while !rest.is_empty() {
        let (first, room) = layout.log_block(at);
        let (now, later) = rest.split_at(rest.len().min(room as usize));
        runs.push((first, now));
        at += now.len() as u64 * BLOCK_SIZE;
        rest = later;
    }
    runs
}

/// Writes of pages with ascending numbers, neighbours in one run.
pub(super) fn writes_home<'a>(layout: &Layout, numbers: &[u64], blocks: &'a [AlignedBlock]) -> Vec<Run<'a>> {
    let mut rest = blocks;
    let runs = runs_of(numbers).into_iter().map(|(first, count)| {
        let (now, later) = rest.split_at(count as usize);
        rest = later;
        (layout.home().plus(first), now)
    });
    runs.collect()
}

/// Runs of neighbours among ascending numbers: first and count.
pub(super) fn runs_of(numbers: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == *number => *count += 1,
            _ => runs.push((*number, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Operation, SimulatedDevice, Times};
    use terrace_format::DeviceBlock;

    #[test]
    fn a_bad_block_costs_no_other_block_of_its_piece() {
        let device = SimulatedDevice::new(64);
        for block in 0..64 {
            device.write(DeviceBlock(block), &[AlignedBlock([block as u8; 4096])]).unwrap();
        }
        device.fail_next(Operation::Read, 11..12, 5, Times::Forever);
        device.fail_next(Operation::Read, 40..41, 5, Times::Forever);
        let mut buffers = [vec![AlignedBlock::zeroed(); 16], vec![AlignedBlock::zeroed(); 32]];
        let [front, back] = &mut buffers;
        let mut reads = [BlockRead::new(DeviceBlock(0), front), BlockRead::new(DeviceBlock(32), back)];
        assert_eq!(read_pieces(&device, &mut reads), BTreeSet::from([11, 16 + 8]));
        for (index, block) in
            buffers.iter().flatten().enumerate().filter(|(index, _)| ![11, 24].contains(index))
        {
            assert_eq!(block.0[0] as usize, if index < 16 { index } else { 16 + index }, "block {index}");
        }
    }
}
