//! Giving back blocks that a change did not use: one owner of the rule when that is not allowed.

use crate::store::Store;

/// Runs `give_back`, unless a record failed on its way to PM. Such a record may be valid: the next mount may replay it,
/// so the blocks that it names must not be handed out again before (T8). The log takes no record after such a failure.
pub fn give_back_unless_named(store: &Store, give_back: impl FnOnce()) {
    if !store.persistent.wal().is_stopped() {
        give_back();
    }
}
