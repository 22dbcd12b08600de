//! The mistakes of the journaled medium.

use super::Mistake;

/// Mistakes of the journaled medium: its model under the scheduler or its refinement finds them (crates/models,
/// crates/sim/tests/journal.rs).
pub const JOURNALED: &[(Mistake, &str, &str)] = &[
    (
        Mistake::ImageBeforeRing,
        "image-before-ring",
        "a store goes into the image before its place in the ring is reserved",
    ),
    (
        Mistake::PlaceBeforeRead,
        "place-before-read",
        "a write-back reserves its place in the ring before the lines are read",
    ),
    (
        Mistake::HomeBeforeLog,
        "home-before-log",
        "a page goes home before the log is durable up to the page's stores",
    ),
    (
        Mistake::AnchorBeforeFlush,
        "anchor-before-flush",
        "an anchor is written before pages and table are flushed",
    ),
    (
        Mistake::LogFreeBeforeAnchor,
        "log-free-before-anchor",
        "the log is used again before the anchor that passes it is durable",
    ),
    (
        Mistake::ChainNotChecked,
        "chain-not-checked",
        "opening takes a batch of an earlier history for the next one: the CRC of the batch before is not compared",
    ),
    (
        Mistake::AcknowledgedOutOfOrder,
        "acknowledged-out-of-order",
        "a batch is acknowledged when it is written, before an earlier batch is",
    ),
    (Mistake::PersistErrorSwallowed, "persist-error-swallowed", "a batch whose write failed is acknowledged"),
    (
        Mistake::ForgottenWhenFreed,
        "forgotten-when-freed",
        "a block's page is forgotten when the block is freed, and a home round ends before the freeing record is durable",
    ),
    (
        Mistake::StampBeforePersist,
        "stamp-before-persist",
        "devices are stamped with an epoch that the journal does not have yet",
    ),
];
