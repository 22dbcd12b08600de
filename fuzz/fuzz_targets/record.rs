//! Record: what verifies stays in PM, and its writes are those that the header counts; what is sealed verifies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::Lsn;
use terrace_format::record::{HEADER_SIZE, Record, padded, plausible_length, seal};

const SEED: u32 = 0x1234_5678;
const PM: u64 = 2 << 20;

fn judge(bytes: &[u8]) -> Option<Record> {
    let record = Record::verify(bytes.to_vec(), SEED, PM)?;
    assert_eq!(record.ring_bytes, padded(bytes.len()));
    let ends = record.writes().map(|(offset, content)| offset.0 + content.len() as u64);
    let checks = record.checks.iter().map(|check| check.offset.0 + u64::from(check.length));
    assert!(ends.chain(checks).all(|end| end <= PM));
    Some(record)
}

fuzz_target!(|input: &[u8]| {
    judge(input);
    if let Some(header) = input.first_chunk::<HEADER_SIZE>() {
        plausible_length(header, 4096).inspect(|length| assert!((HEADER_SIZE..=4096).contains(length)));
    }
    let Some(([writes, checks], body)) = input.split_first_chunk::<2>() else { return };
    let mut bytes = vec![0; HEADER_SIZE];
    bytes.extend_from_slice(body);
    seal(&mut bytes, Lsn(7), u16::from(*writes), u16::from(*checks), SEED, 0);
    if let Some(record) = judge(&bytes) {
        assert_eq!((record.lsn, record.writes().count()), (Lsn(7), usize::from(*writes)));
    }
    // Built as a transaction builds it: one write of the input.
    let content = &body[..body.len().min(3000)];
    let mut bytes = vec![0; HEADER_SIZE];
    bytes.extend_from_slice(&(4096u64 | (content.len() as u64) << 48).to_le_bytes());
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    seal(&mut bytes, Lsn(9), 1, 0, SEED, 0);
    let record = judge(&bytes).expect("a sealed record verifies");
    assert!(record.writes().eq([(terrace_format::PmOffset(4096), content)]));
});
