//! Bodies that are no transaction and may meet metadata below PM: run again after each page that was fetched.

use crate::attempt::provide::provide;
use crate::error::{FsError, FsResult};
use crate::operation::need::{Attempt, Fail, Need};
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::Wait;
use std::collections::BTreeSet;
use terrace_format::Corrupt;
use terrace_wal::{Error, NoSpace, PageBelow};

/// The result of an attempt to install a fetched metadata page. In a sound pool the attempt can lack only PM
/// space; another need means damage.
pub(crate) fn settled<T>(attempt: Attempt<T>) -> FsResult<T> {
    match attempt {
        Ok(value) => Ok(value),
        Err(Fail::Error(error)) => Err(error),
        Err(Fail::Need(Need::PmSpace | Need::LargerClaim)) => Err(NoSpace::Pm.into()),
        Err(Fail::Need(need)) => {
            let site = "what the fetch of a metadata page lacks";
            Err(Corrupt::new(site, "nothing but space", format!("{need:?}")).into())
        }
    }
}

/// Runs a `body` without a transaction that may meet metadata pages on a lower tier, and runs it again after
/// each fetched page. `body` holds no lock when it returns.
pub fn with_pages<T>(store: &Store, wait: Wait, body: impl FnMut() -> FsResult<T>) -> FsResult<T> {
    // A fetch may use the reserve: it gives back a device block, to which another metadata page can be
    // demoted.
    run_with_pages(store, || Op::reclaiming(wait), body)
}

fn run_with_pages<T>(
    store: &Store,
    new_op: impl Fn() -> Op,
    mut body: impl FnMut() -> FsResult<T>,
) -> FsResult<T> {
    let mut fetching: Option<(Op, BTreeSet<PageBelow>, u32)> = None;
    loop {
        match body() {
            Err(FsError::Engine(Error::PageBelow(page))) => {
                let (op, met, provided) = fetching.get_or_insert_with(|| (new_op(), BTreeSet::new(), 0));
                // The limit of needs counts only fetches of the same page, again and again: a large file has
                // more pages than an operation may have needs.
                if met.insert((*page).clone()) {
                    *provided = 0;
                }
                provide(store, op, Need::MetadataPage(page), provided)?;
            }
            Err(FsError::Engine(Error::TableUnread)) => {
                let (op, ..) = fetching.get_or_insert_with(|| (new_op(), BTreeSet::new(), 0));
                provide(store, op, Need::TableScan, &mut 0)?;
            }
            Err(FsError::Engine(Error::Hidden(ino))) => {
                let (op, ..) = fetching.get_or_insert_with(|| (new_op(), BTreeSet::new(), 0));
                provide(store, op, Need::Hidden(ino), &mut 0)?;
            }
            other => return other,
        }
    }
}

/// As [`with_pages`], for a body that only reads ([`load_to_read`]): if PM has no block for a metadata page,
/// the body gets a copy in DRAM.
///
/// # Errors
/// The body's; `WouldBlock`; EIO. Never ENOSPC or EROFS: a read needs no space and changes no metadata.
pub fn reading<T>(store: &Store, wait: Wait, body: impl FnMut() -> FsResult<T>) -> FsResult<T> {
    run_with_pages(store, || Op::reading(wait), body)
}
