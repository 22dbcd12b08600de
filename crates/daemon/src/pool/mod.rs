//! Finding and opening the media of a pool.

pub(crate) mod look;
mod open;
pub(crate) mod read;
mod superblock;
mod tier;
mod tier0;
mod tier0_file;

pub use look::open_to_read;
pub use open::{OpenPool, open};
pub use read::checkpoint;
pub use superblock::{
    canonical, canonical_pool, explain, is_clean, label, open_failure, peek, refusal, refuse_older,
    refuse_resized, trouble_of_pm, uuid_text, warnings,
};
pub use tier::{given_tier, open_damaged_tier, open_tier, tier_named, trouble_of_tier};
pub use tier0::{Tier0, open_tier0, open_tier0_or_say, tier0_failure};
pub use tier0_file::{Tier0File, kind_of_tier0};
