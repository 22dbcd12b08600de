//! The loop of every movement below PM: a group is installed piece by piece, each by a transaction of its own.
//!
//! Demotion, write-back, relocation and write-back in place differ in what a piece is and what its transaction does
//! ([`Install`]); the order of attempts, skipped blocks, and blocks that are given back after a failure is here, once.

use crate::attempt::run::{large_record, run_attempts};
use crate::error::{FsError, FsResult};
use crate::moving::errors::{demoting, install_limit};
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use terrace_runtime::interleave;
use terrace_wal::Reservation;

/// How often a piece is halved: until it is one block, and in two more attempts where its record is too large.
const MOST_HALVINGS: u32 = 9;

/// How copies of one kind of movement are installed.
pub trait Install {
    /// A block that was copied.
    type Item;

    /// The point between two transactions at which a simulator lets other work in.
    const BETWEEN: &'static str;

    /// Called before each transaction, without locks and without room in a lane.
    fn begin(&self) {}

    /// How many blocks at the beginning of `rest` are tried at once; at least one, at most about `limit`.
    fn piece(&self, rest: &[Self::Item], limit: usize) -> usize {
        rest.len().min(limit)
    }

    /// Takes the leading blocks of a piece: skips changed blocks, and installs the unchanged blocks behind
    /// them in one transaction. Returns the number skipped and the number installed; together at least one.
    ///
    /// # Errors
    /// Needs of an attempt; damage of the file; EIO.
    fn install_first(
        &self,
        reservation: Reservation<'_>,
        op: &mut Op,
        piece: &[Self::Item],
    ) -> Attempt<(usize, usize)>;

    /// Blocks were skipped, the next ones installed.
    fn taken(&mut self, skipped: &[Self::Item], installed: &[Self::Item]);

    /// Blocks were not installed because of an error.
    fn failed(&mut self, left: &[Self::Item]);

    /// Whether a smaller piece may succeed after this error.
    fn may_succeed_smaller(&self, _error: &FsError) -> bool {
        false
    }
}

/// Installs blocks in order. After an error [`Install::failed`] has got all blocks that were not taken.
///
/// # Errors
/// The first error of a transaction.
pub fn install_pieces<I: Install>(store: &Store, how: &mut I, items: &[I::Item]) -> FsResult<()> {
    let (mut rest, mut halvings) = (items, 0);
    while !rest.is_empty() {
        interleave::point(I::BETWEEN);
        how.begin();
        let mut op = Op { piece_halvings: halvings, ..demoting() };
        let mut tried = 0;
        let done = run_attempts(store, &mut op, large_record(store), |reservation, op| {
            tried = how.piece(rest, (install_limit(store) >> op.piece_halvings).max(1));
            assert!(tried > 0, "a piece of {} blocks has at least one", rest.len());
            how.install_first(reservation, op, &rest[..tried])
        });
        halvings = op.piece_halvings;
        assert!(halvings <= MOST_HALVINGS, "a piece is halved {halvings} times (T7)");
        match done {
            Ok((skipped, installed)) => {
                assert!(skipped + installed > 0, "an installation takes at least one block");
                let taken = skipped + installed;
                assert!(taken <= tried, "{taken} blocks of a piece of {tried} are taken (M2)");
                let (gone, tail) = rest.split_at(skipped);
                let (installed, tail) = tail.split_at(installed);
                how.taken(gone, installed);
                rest = tail;
            }
            // Fewer blocks need less room in catalog pages, and the blocks that they free serve the others.
            Err(error) if tried > 1 && how.may_succeed_smaller(&error) => halvings += 1,
            Err(error) => {
                how.failed(rest);
                return Err(error);
            }
        }
    }
    Ok(())
}
