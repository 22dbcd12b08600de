//! Space below PM copies: when no lower tier has room, the stale cold copies of blocks that are in PM are
//! given up (design P1: "cold space hidden by full masks is reclaimed before ENOSPC").
//!
//! Safe at any crash: the PM copy is the newest content, and it is not touched (S1, I3).

use crate::store::error::FsResult;
use crate::store::moving::complete_partial::{complete, complete_in_pm};
use crate::store::moving::errors::concerns_all_files;
use crate::store::moving::evict_clean::evict_clean;
use crate::store::moving::in_place::write_all_in_place;
use crate::store::moving::look_at::look_at;
use crate::store::moving::victim::Victim;
use crate::store::store::Store;

/// Writes victims to the places below that they hide; gives how many PM blocks that freed.
pub(crate) fn move_to_places(store: &Store, victims: &[Victim]) -> FsResult<u64> {
    let mut trouble = None;
    let candidates = look_at(store, victims, &mut trouble);
    let (clean, rest): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.clean);
    let mut freed = evict_clean(store, clean, &mut trouble)?;
    let whole = rest.into_iter().filter(|candidate| !candidate.unwritten).collect();
    let mut whole = complete(store, whole, &mut trouble);
    complete_in_pm(store, &mut whole)?;
    freed += write_all_in_place(store, whole, &mut trouble);
    match trouble {
        Some(error) if freed == 0 && concerns_all_files(store, &error) => Err(error),
        _ => Ok(freed),
    }
}
