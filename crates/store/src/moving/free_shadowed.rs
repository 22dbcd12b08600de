//! Space below PM copies: when no lower tier has room, the cold copies under whole shadows are given up (P1).
//!
//! Safe at any crash: the PM copy is the newest content, and it is not touched (S1, I3).

use crate::error::FsResult;
use crate::moving::complete_partial::{complete, complete_in_pm};
use crate::moving::errors::concerns_all_files;
use crate::moving::evict_clean::evict_clean;
use crate::moving::in_place::write_all_in_place;
use crate::moving::look_at::look_at;
use crate::moving::victim::Victim;
use crate::store::Store;

/// Writes victims over the cold copies that they hide. Returns the number of PM blocks freed.
pub fn move_to_places(store: &Store, victims: &[Victim]) -> FsResult<u64> {
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
