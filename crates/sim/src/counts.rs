//! The work of a run, in numbers.

use std::ops::AddAssign;

/// Declares a group of counters that are added field by field.
macro_rules! counters {
    ($(#[$doc:meta])* $group:ident { $($(#[$field_doc:meta])* $field:ident: $of:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Clone, Copy)]
        pub struct $group {
            $($(#[$field_doc])* pub $field: $of,)*
        }

        impl AddAssign for $group {
            fn add_assign(&mut self, other: $group) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// The operations of a run.
    Work {
        /// Operations done.
        operations: u64,
        /// Operations on the content of files.
        file_operations: u64,
        /// File operations with a cold or shadowed block in their range.
        met_cold: u64,
        /// Operations done in the middle of another operation or of background work.
        amid: u64,
        /// Files read whole in the middle of a truncation.
        amid_intents: u64,
        /// Operations that got ENOSPC.
        no_space: u64,
        /// Operations that got "would block".
        would_block: u64,
        /// Operations that got EIO while a device misbehaved.
        errors: u64,
    }
}

counters! {
    /// The movements of blocks and pages.
    Moved {
        /// Bytes demoted.
        demoted_bytes: u64,
        /// Demoted bytes that were written in place, over cold copies.
        in_place_bytes: u64,
        /// Bytes promoted.
        promoted_bytes: u64,
        /// Bytes of clean blocks dropped from PM.
        clean_evicted_bytes: u64,
        /// Bytes that a demotion passed over because they had changed.
        skipped_bytes: u64,
        /// Metadata pages demoted.
        lowered: u64,
        /// Metadata pages fetched.
        fetched: u64,
        /// Bytes relocated.
        moved_below_bytes: u64,
        /// Bytes relocated by a spill.
        spilled_bytes: u64,
        /// Spills that failed, or moved nothing.
        spill_failures: u64,
        /// Requested movements that succeeded.
        hand_done: u64,
        /// Requested movements that failed.
        hand_failed: u64,
        /// Bytes that the predictors steered to a lower tier, through DRAM.
        steered_bytes: u64,
        /// Bytes that left PM for a lower tier and DRAM because they were read much.
        to_dram_bytes: u64,
    }
}

counters! {
    /// Faults and damage.
    Troubles {
        /// Faults injected.
        faults: u64,
        /// Damages done to copies of PM.
        flips: u64,
        /// Damages that a refused mount or an error reported.
        flips_told: u64,
        /// Failures of write-back reported to a descriptor whose own fsync met no fault.
        told: u64,
    }
}

counters! {
    /// Losses of power.
    Crashes {
        /// All crashes.
        all: u64,
        /// Crashes inside an operation.
        amid_operation: u64,
        /// Crashes inside background work.
        amid_background: u64,
        /// Crashes inside recovery.
        amid_recovery: u64,
    }
}

counters! {
    /// All counters of a run.
    Counts {
        /// Operations.
        work: Work,
        /// Movements.
        moved: Moved,
        /// Faults and damage.
        trouble: Troubles,
        /// Losses of power.
        crashes: Crashes,
        /// Orderly remounts.
        remounts: u64,
        /// Images with different hashes that were recovered, checked and compared.
        states: u64,
        /// Files with dirty pages when power failed, taken over as the mount showed them.
        taken_over: u64,
        /// Partial shadows, summed over the checked pools.
        partial: u64,
        /// Blocks with a checksum of their data, summed over the checks.
        data_checksums: u64,
        /// Moments at which leaks were judged.
        judged: u64,
    }
}
