//! Changed words of a map page in a record.

use smallvec::SmallVec;
use terrace_format::PmOffset;
use terrace_wal::Tx;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Logs the words of `new` at `at` that differ from `old`, each run of them as one write.
pub(crate) fn log_changes(tx: &mut Tx, at: PmOffset, old: &[U64], new: &[U64]) {
    let mut at = at;
    let (mut old, mut new) = (old, new);
    while !new.is_empty() {
        let pairs = || old.iter().zip(new);
        let same = pairs().take_while(|(old, new)| old == new).count();
        let differ = pairs().skip(same).take_while(|(old, new)| old != new).count();
        let length = same + differ;
        let run = new.iter().take(length).skip(same);
        if differ != 0 {
            let bytes: SmallVec<[U64; 32]> = run.copied().collect();
            tx.write(at.plus(8 * same as u64), bytes.as_bytes());
        }
        at = at.plus(8 * length as u64);
        (old, new) = (old.split_at(length).1, new.split_at(length).1);
    }
}
