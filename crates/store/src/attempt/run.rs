//! Attempts: how an operation gets what it needs without waiting under locks (design T7, L2, P1).

use crate::attempt::log_space::wait_for_log;
use crate::attempt::provide::provide;
use crate::error::{FsError, FsResult};
use crate::operation::need::{Attempt, Fail};
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::Wait;
use terrace_wal::{Error, Reservation};

/// Record room for anything: a quarter lane.
pub fn large_record(store: &Store) -> usize {
    store.persistent.wal().max_record()
}

/// Reserves the room of an attempt's record.
///
/// # Errors
/// As `Wal::reserve`.
pub fn reserve_record<'a>(store: &'a Store, op: &Op, record: usize) -> FsResult<Reservation<'a>> {
    let wal = store.persistent.wal();
    Ok(wal.reserve(record.max(op.record).min(wal.max_record()))?)
}

/// Runs attempts until one succeeds or fails for good.
pub fn run_attempts<T>(
    store: &Store,
    op: &mut Op,
    record: usize,
    mut attempt: impl FnMut(Reservation<'_>, &mut Op) -> Attempt<T>,
) -> FsResult<T> {
    if store.mode.read_only {
        return Err(FsError::ReadOnly);
    }
    // A request thread goes on: a waiting thread would repeat all of its work.
    if op.wait != Wait::Never {
        wait_for_log(store, 0, op.wait)?;
    }
    let mut provided = 0;
    loop {
        let reservation = reserve_record(store, op, record)?;
        match attempt(reservation, op) {
            Ok(value) => return Ok(value),
            // Piece sizes are chosen for usual pages; the worst pages make larger records (T7).
            Err(Fail::Error(FsError::Engine(Error::RecordTooLarge { .. }))) if op.piece_halvings < 9 => {
                op.piece_halvings += 1;
            }
            Err(Fail::Error(error)) => return Err(error),
            Err(Fail::Need(need)) => provide(store, op, need, &mut provided)?,
        }
    }
}
