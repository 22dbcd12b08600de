//! Batches of a journal's log: header, CRC and entries. Entries that decode lie inside the batch and the image, fill no more
//! memory than the batch, and are encoded to the bytes that were read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::PmOffset;
use terrace_format::journal::{
    BATCH_HEADER_BYTES, BatchHeader, ENTRY_HEADER_BYTES, Entry, EntryKind, MAX_BATCH_BYTES, entries,
    entry_bytes,
};
use terrace_fuzz::patched;

const UUID: [u8; 16] = [3; 16];
const IMAGE_BYTES: u64 = 1 << 20;
const HEADER: usize = BATCH_HEADER_BYTES as usize;

/// The bytes of entries behind a header, in whole blocks.
fn content<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    for entry in entries {
        let end = bytes.len() + entry_bytes(entry.bytes.len()) as usize;
        bytes.extend_from_slice(&entry.header());
        bytes.extend_from_slice(entry.bytes);
        bytes.resize(end, 0);
    }
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

fn judge_entries(batch: &[u8]) {
    let Ok(found) = entries(batch, IMAGE_BYTES) else { return };
    assert!(found.len() as u64 * ENTRY_HEADER_BYTES <= batch.len() as u64, "entries without bytes");
    let taken: u64 = found.iter().map(|entry| entry_bytes(entry.bytes.len())).sum();
    // The filling of the last entry may be missing.
    assert!(taken <= (batch.len() as u64).next_multiple_of(8), "more bytes than the batch has");
    for entry in found.iter().filter(|entry| entry.kind == EntryKind::Store) {
        assert!(!entry.bytes.is_empty() && entry.offset.0 + entry.bytes.len() as u64 <= IMAGE_BYTES);
    }
    let again = content(found.iter().copied());
    assert_eq!(entries(&again, IMAGE_BYTES), Ok(found));
}

/// The header of a batch at any place; a header that decodes is encoded to the same numbers, and the batch verifies.
fn judge_header(batch: &[u8]) {
    let Some(header) = BatchHeader::peek_any(batch) else { return };
    assert!((1..=MAX_BATCH_BYTES).contains(&header.length) && header.length.is_multiple_of(4096));
    assert!(header.acknowledged <= header.position);
    assert_eq!(BatchHeader::peek(batch, header.position), Some(header));
    assert_eq!(BatchHeader::peek(batch, header.position ^ 4096), None);
    let whole = batch.len() as u64 == header.length;
    assert!(whole || header.verify(&UUID, batch).is_none(), "a part of a batch verifies");
    if whole {
        let (bytes, crc) = header.encode(&UUID, [&batch[HEADER..]]);
        let again = [bytes.as_slice(), &batch[HEADER..]].concat();
        assert_eq!(BatchHeader::peek(&again, header.position), Some(header));
        assert_eq!(header.verify(&UUID, &again), Some(crc));
        assert_eq!(header.verify(&[4; 16], &again), None, "a batch of another journal");
    }
}

fuzz_target!(|input: &[u8]| {
    let going: Vec<u8> = [5u32, 2, 70, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let part = &input[..input.len().min(300)];
    let mut list = vec![
        Entry { kind: EntryKind::Store, offset: PmOffset(4096), bytes: b"first" },
        Entry { kind: EntryKind::GoingHome, offset: PmOffset(0), bytes: &going },
    ];
    if !part.is_empty() {
        list.push(Entry { kind: EntryKind::Store, offset: PmOffset(IMAGE_BYTES - 300), bytes: part });
    }
    let mut batch = content(list.iter().copied());
    assert_eq!(entries(&batch, IMAGE_BYTES).as_ref(), Ok(&list));
    let length = batch.len() as u64;
    let header =
        BatchHeader { epoch: 2, sequence: 9, position: 8192, length, previous: 7, acknowledged: 4096 };
    let (bytes, _) = header.encode(&UUID, [&batch[HEADER..]]);
    batch[..HEADER].copy_from_slice(&bytes);
    // Changes of the header, of the entries, and of both: `patched` wraps around inside of its bytes.
    let head = [patched(&batch[..HEADER], input), batch[HEADER..].to_vec()].concat();
    let tail = [
        batch[..HEADER].to_vec(),
        patched(&batch[HEADER..HEADER + 96], input),
        batch[HEADER + 96..].to_vec(),
    ]
    .concat();
    for batch in [input, &head, &tail, &patched(&batch, input)] {
        judge_header(batch);
        judge_entries(batch);
    }
});
