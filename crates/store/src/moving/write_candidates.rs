//! Candidates are read from PM and written to their runs.

use crate::change::new_extent::DeviceCopy;
use crate::error::FsResult;
use crate::moving::candidate::Candidate;
use crate::moving::complete_partial::copy_content;
use crate::moving::device_run::Part;
use crate::moving::look_at::refuse;
use crate::moving::outbox::write_items;
use crate::parts::devices::read_priority::LEAST_PIECE;
use crate::pressure::processor::offer_processor;
use crate::store::Store;
use terrace_format::checksum::crc32c;
use terrace_format::device::SummaryEntry;
use terrace_media::Durable;
use terrace_media::block::AlignedBlock;
use terrace_runtime::planted::Mistake;

/// Copies candidates to their parts of a device and flushes it. Returns the durable copies.
pub(crate) fn write_blocks(
    store: &Store,
    candidates: &mut [Candidate<'_>],
    parts: &[Part],
) -> FsResult<Vec<Durable<DeviceCopy>>> {
    let written = write_items(store, candidates, parts, Mistake::DropBeforeFlush, |slice, into, entries| {
        read_candidates(store, slice, into, entries);
    })?;
    store.pressure.moved().note_down(written.len() as u64, store.clock.monotonic_ns());
    Ok(written)
}

/// Reads blocks from PM into a buffer, with a summary entry for each.
fn read_candidates(
    store: &Store,
    slice: &mut [Candidate<'_>],
    into: &mut [AlignedBlock],
    entries: &mut Vec<SummaryEntry>,
) {
    let lsn = store.persistent.wal().next_lsn();
    for (index, (candidate, target)) in slice.iter_mut().zip(into.iter_mut()).enumerate() {
        if index % LEAST_PIECE == 0 {
            offer_processor(store);
        }
        let read = copy_content(store, candidate, &mut target.0);
        candidate.unpin();
        let mut crc = crc32c(&target.0);
        if let Err(error) = read {
            // Not installed; what is written in its stead must not look like its content.
            candidate.read_error = Some(error);
            refuse(store, candidate.pm);
            crc = !crc;
        }
        let Candidate { ino, generation, block, .. } = *candidate;
        entries.push(SummaryEntry { ino, generation, block, crc, lsn });
    }
}
