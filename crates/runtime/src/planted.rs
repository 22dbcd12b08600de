//! Mistakes that can be planted. A mistake makes a single place of the engine wrong, to prove that the tests
//! find such an error (docs/crash-consistency.md names for each mistake the test that found it, and the
//! number of states until then).
//!
//! Only with the feature `simulation`, which nothing but `terrace-sim` and `terrace-models` turn on; without it [`planted`] is the constant
//! false and the wrong code is not compiled. A mistake is planted for the calling thread alone.
//!
//! The wrong code of a mistake stands in `mod wrong` at the end of its file. A mistake that only leaves something out is
//! a condition at its place.
//!
//! The list was written before the crash explorer and grows only with what is built: the traps of other file systems,
//! one row or more for each, and five that the design's own rules guard against.

mod journaled;
mod modelled;

pub use journaled::JOURNALED;
pub use modelled::MODELLED;

/// A mistake. See [`MISTAKES`], [`MODELLED`] and [`JOURNALED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the table says what each is
pub enum Mistake {
    FreedBeforeRecord,
    ReuseBeforeCheckpoint,
    StaleRecordsCount,
    RecoveryReadsPastHole,
    DataChecksumNotStored,
    CommitMarkFirst,
    RangeToSyncReplaced,
    StaysCleanWhenWritten,
    ExtentBeforeData,
    EvictOnlyCopy,
    DropBeforeFlush,
    ReserveOpenToAll,
    SizeBeforeBlocks,
    MigrationSpins,
    FsyncFlushesDevices,
    MountScansPool,
    NoFenceInCommit,
    RenameInTwo,
    UnloggedLinkCount,
    SizeFromBeforeTheWait,
    EdgeLineNotWritten,
    CheckpointCopiesAtOnce,
    CloseOfOneHandle,
    DataCheckOfAnyRecord,
    PunchIgnoredByVersion,
    LinesLostAtUnion,
    WriteBackWithoutFlush,
    WriteBackIgnoresVersion,
    SizeWithTheWrite,
    CleanBeforeWritten,
    OlderCopyInstalled,
    ErrorToldOnce,
    MaskBeforeLines,
    PartialCountsAsFull,
    MoveWithoutFlush,
    PartialInPlace,
    SpareClaimKept,
    PromiseKept,
    RunAcrossIntent,
    PageMovesAmidNumber,
    FetchKeepsChanged,
    HashTakenForName,
    EntryReferenceStays,
    RunNotCorrected,
    EvictionClearsFirst,
    PresenceBeforeCommit,
    SearchIgnoresMoves,
    ClaimIgnoresQuarantine,
    CursorIgnoresVersion,
    ProbeEndsAtFreeSlot,
    ReachAfterInsert,
    LazyLineForgotten,
    LazyReadBelow,
    LazyPageStays,
    LazyUnconfirmed,
    PromiseEndsTwice,
    CleanBeforeFence,
    OneVersionInPlace,
    StoresNotWaitedFor,
    SyncSkipsInFlight,
    LaterWriteForgotten,
    ClaimIgnoresClaims,
    ImageBeforeRing,
    PlaceBeforeRead,
    HomeBeforeLog,
    AnchorBeforeFlush,
    LogFreeBeforeAnchor,
    ChainNotChecked,
    AcknowledgedOutOfOrder,
    PersistErrorSwallowed,
    ForgottenWhenFreed,
    StampBeforePersist,
}

/// Every mistake: its name on command lines, and what is wrong.
pub const MISTAKES: &[(Mistake, &str, &str)] = &[
    (
        Mistake::FreedBeforeRecord,
        "freed-before-record",
        "a replaced block may be used again before the record that replaces it is in its lane",
    ),
    (
        Mistake::ReuseBeforeCheckpoint,
        "reuse-before-checkpoint",
        "a freed block is used again before the checkpoint has passed the record that freed it",
    ),
    (
        Mistake::StaleRecordsCount,
        "stale-records-count",
        "the checksum of a record does not depend on its place in the ring and on the mount",
    ),
    (
        Mistake::RecoveryReadsPastHole,
        "recovery-reads-past-hole",
        "recovery goes on behind a record that is not valid",
    ),
    (
        Mistake::DataChecksumNotStored,
        "data-checksum-not-stored",
        "the checksum of data that a record names is computed and not stored",
    ),
    (
        Mistake::CommitMarkFirst,
        "commit-mark-first",
        "the first line of a record is stored and fenced before the rest, and recovery believes it",
    ),
    (
        Mistake::RangeToSyncReplaced,
        "range-to-sync-replaced",
        "the lines to be written back by the checkpoint are those of the last record, not of all",
    ),
    (
        Mistake::StaysCleanWhenWritten,
        "stays-clean-when-written",
        "a block whose cold copy is good still counts as clean after it was overwritten",
    ),
    (
        Mistake::ExtentBeforeData,
        "extent-before-data",
        "a demotion commits its extent before the data is written below",
    ),
    (Mistake::EvictOnlyCopy, "evict-only-copy", "eviction takes blocks that have no good copy below"),
    (
        Mistake::DropBeforeFlush,
        "drop-before-flush",
        "a demotion drops the PM copy before the device was flushed",
    ),
    (
        Mistake::ReserveOpenToAll,
        "reserve-open-to-all",
        "writes may use the reserve, so that nothing is left for unlink and demotion",
    ),
    (
        Mistake::SizeBeforeBlocks,
        "size-before-blocks",
        "a write commits the new size before it has its blocks",
    ),
    (Mistake::MigrationSpins, "migration-spins", "a group that failed is tried again at once and for ever"),
    (Mistake::FsyncFlushesDevices, "fsync-flushes-devices", "fsync of data in PM waits for the lower tiers"),
    (
        Mistake::MountScansPool,
        "mount-scans-pool",
        "recovery reads the whole block table before the mount answers",
    ),
    (Mistake::NoFenceInCommit, "no-fence-in-commit", "a commit returns without its fence"),
    (Mistake::RenameInTwo, "rename-in-two", "rename removes the old name in a transaction of its own"),
    (
        Mistake::UnloggedLinkCount,
        "unlogged-link-count",
        "a link count is stored in place without a record, and an older record is replayed over it",
    ),
    (
        Mistake::SizeFromBeforeTheWait,
        "size-from-before-the-wait",
        "a write that had to wait goes by the size it saw before",
    ),
    (
        Mistake::EdgeLineNotWritten,
        "edge-line-not-written",
        "the last line of an unaligned store is not written back",
    ),
    (
        Mistake::CheckpointCopiesAtOnce,
        "checkpoint-copies-at-once",
        "both copies of the checkpoint are written without a fence between",
    ),
    (
        Mistake::CloseOfOneHandle,
        "close-of-one-handle",
        "the first close of a file that is open twice counts as the last",
    ),
    (
        Mistake::DataCheckOfAnyRecord,
        "data-check-of-any-record",
        "checksums of data are judged on records that are not the last of their lane",
    ),
    (
        Mistake::PunchIgnoredByVersion,
        "punch-ignored-by-version",
        "a version check does not notice that a hole was punched",
    ),
    (
        Mistake::LinesLostAtUnion,
        "lines-lost-at-union",
        "a second small write to a partial block forgets that the lines of the first are valid",
    ),
    (
        Mistake::WriteBackWithoutFlush,
        "write-back-without-flush",
        "a write-back installs what the device was not asked to flush",
    ),
    (
        Mistake::WriteBackIgnoresVersion,
        "write-back-ignores-version",
        "a write-back that was under way is installed over what was written to PM meanwhile",
    ),
    (
        Mistake::SizeWithTheWrite,
        "size-with-the-write",
        "a write into DRAM commits the size before its bytes are written back",
    ),
    (
        Mistake::CleanBeforeWritten,
        "clean-before-written",
        "a dirty page counts as clean as soon as it was copied, before the device has it",
    ),
    (
        Mistake::OlderCopyInstalled,
        "older-copy-installed",
        "of two copies of a dirty page that are under way the older may be installed last",
    ),
    (
        Mistake::ErrorToldOnce,
        "error-told-once",
        "a write-back that failed is told to the first descriptor that asks, and to no other",
    ),
    (
        Mistake::MaskBeforeLines,
        "mask-before-lines",
        "the mask of a partial block says that lines are valid before they are stored",
    ),
    (
        Mistake::PartialCountsAsFull,
        "partial-counts-as-full",
        "after a mount a partial block counts as one that holds all lines",
    ),
    (
        Mistake::MoveWithoutFlush,
        "move-without-flush",
        "a move between lower tiers gives up the old copy before the new one was flushed",
    ),
    (
        Mistake::PartialInPlace,
        "partial-in-place",
        "a partial block is completed and written over the cold copy that has its other lines",
    ),
    (
        Mistake::SpareClaimKept,
        "spare-claim-kept",
        "fallocate keeps the claim for the blocks below that it did not need",
    ),
    (
        Mistake::PromiseKept,
        "promise-kept",
        "dirty pages that are dropped keep the space below that was promised to them",
    ),
    (
        Mistake::RunAcrossIntent,
        "run-across-intent",
        "a run of PM blocks is read on into a hole that is not finished",
    ),
    (
        Mistake::PageMovesAmidNumber,
        "page-moves-amid-number",
        "an inode page moves below PM while one of its numbers is being taken",
    ),
    (
        Mistake::FetchKeepsChanged,
        "fetch-keeps-changed",
        "a fetch that gives up keeps pages whose blocks changed each time that it looked",
    ),
    (
        Mistake::HashTakenForName,
        "hash-taken-for-name",
        "a name is taken for another one that has the same hash",
    ),
    (
        Mistake::EntryReferenceStays,
        "entry-reference-stays",
        "the reference to an entry of readdirplus that the kernel did not take stays",
    ),
    (
        Mistake::RunNotCorrected,
        "run-not-corrected",
        "a removal from the midst of a run of the cuckoo map leaves the counts of the other blocks as they were",
    ),
    (
        Mistake::EvictionClearsFirst,
        "eviction-clears-first",
        "an eviction of the cuckoo map clears the old place before the record that copies the entry",
    ),
    (
        Mistake::PresenceBeforeCommit,
        "presence-before-commit",
        "memory takes over the blocks of a change before its commit, and keeps them when it fails",
    ),
    (
        Mistake::CursorIgnoresVersion,
        "cursor-ignores-version",
        "a cursor of a file map is believed at a changed version of its leaf",
    ),
    (
        Mistake::ProbeEndsAtFreeSlot,
        "probe-ends-at-free-slot",
        "a search in a table that is the map ends at a line that is free or has a free slot",
    ),
    (
        Mistake::ReachAfterInsert,
        "reach-after-insert",
        "the reach of a table that is the map is stored with the change after that of the block that needs it",
    ),
    (
        Mistake::LazyLineForgotten,
        "lazy-line-forgotten",
        "the write-back of a lazy page forgets the last dirty line",
    ),
    (Mistake::LazyReadBelow, "lazy-read-below", "a read takes lines from PM that a lazy page has"),
    (Mistake::LazyPageStays, "lazy-page-stays", "a direct write leaves the lazy page of its block"),
    (
        Mistake::LazyUnconfirmed,
        "lazy-unconfirmed",
        "lines of a lazy page are stored in place over bytes that the last record of a lane names by checksum",
    ),
    (
        Mistake::PromiseEndsTwice,
        "promise-ends-twice",
        "the promise of a PM block to a lazy page is given back twice",
    ),
    (
        Mistake::CleanBeforeFence,
        "clean-before-fence",
        "a lazy page is installed and counts as clean before the lines of its write-back are fenced",
    ),
];

#[cfg(feature = "simulation")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

/// Plants a mistake for the calling thread, in place of the one planted before.
#[cfg(feature = "simulation")]
pub fn plant(mistake: Option<Mistake>) {
    PLANTED.set(mistake);
}

/// Whether the engine is to make this mistake here.
#[cfg(feature = "simulation")]
pub fn planted(mistake: Mistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Whether the engine is to make this mistake here: never, without the feature.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub const fn planted(_mistake: Mistake) -> bool {
    false
}
