//! Changes of a group by pieces, each of one run of blocks of one file and one transaction.

use crate::attempt::run::{large_record, run_attempts};
use crate::error::FsResult;
use crate::moving::candidate::Candidate;
use crate::moving::errors::{demoting, install_limit};
use crate::operation::need::Attempt;
use crate::store::Store;

/// Changes consecutive blocks of files in transactions as large as their records allow; returns the sum of
/// the results of `change`.
pub fn by_pieces(
    store: &Store,
    candidates: &[Candidate<'_>],
    change: impl Fn(terrace_wal::Reservation<'_>, &[Candidate<'_>]) -> Attempt<u64>,
) -> FsResult<u64> {
    let mut sum = 0;
    for run in candidates.chunk_by(|a, b| a.ino == b.ino && b.block == a.block.plus(1)) {
        let (mut op, mut rest) = (demoting(), run);
        while !rest.is_empty() {
            let (done, count) = run_attempts(store, &mut op, large_record(store), |reservation, op| {
                let most = rest.len().min((install_limit(store) >> op.piece_halvings).max(1));
                Ok((most, change(reservation, &rest[..most])?))
            })?;
            sum += count;
            rest = &rest[done..];
        }
    }
    Ok(sum)
}
