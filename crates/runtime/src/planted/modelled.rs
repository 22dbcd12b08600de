//! The mistakes of models.

use super::Mistake;

/// Mistakes that a model under the scheduler finds (crates/models); the simulator does not search for them.
pub const MODELLED: &[(Mistake, &str, &str)] = &[
    (
        Mistake::OneVersionInPlace,
        "one-version-in-place",
        "the version of a block rises before the lines of a lazy page are stored in place, and not when they become valid",
    ),
    (
        Mistake::StoresNotWaitedFor,
        "stores-not-waited-for",
        "a direct write, a truncation or a movement does not wait for lines that write-back stores without the inode's lock",
    ),
    (
        Mistake::SyncSkipsInFlight,
        "sync-skips-in-flight",
        "an fsync leaves lazy pages to the step that has them in flight, and returns before they are written",
    ),
    (
        Mistake::LaterWriteForgotten,
        "later-write-forgotten",
        "a page whose copy is installed counts as clean, although a write came after the copy",
    ),
    (
        Mistake::ClaimIgnoresQuarantine,
        "claim-ignores-quarantine",
        "a claim that is short of blocks takes freed ones whose freeing record the checkpoint has not passed",
    ),
    (
        Mistake::ClaimIgnoresClaims,
        "claim-ignores-claims",
        "a change of the clustered map takes a free line that another change under way has claimed",
    ),
    (
        Mistake::SearchIgnoresMoves,
        "search-ignores-moves",
        "a search in the cuckoo map does not look whether the first bucket has changed when the second has no entry",
    ),
];
