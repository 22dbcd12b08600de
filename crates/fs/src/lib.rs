//! The file system: inodes, directories, attributes, open files, POSIX rules, locks, and the migration
//! that moves blocks between tiers beside them (design 2, 6, 7).
//!
//! Entry points take `&self` on [`Fs`] and may be called by any number of threads.
//! Every operation that changes something runs as *attempts* (op.rs): room in a lane is reserved and PM
//! blocks are claimed before any lock; if an attempt finds that it needs something it cannot get under
//! its locks (a cold block, a map node, room in a catalog page, space), it drops everything, the need
//! is provided, and it starts again.
//! Lock order (design L1): rename, inode stripes by index, catalog shards by number, orphan lists,
//! inode numbers, allocator, lanes.
#![forbid(unsafe_code)]

mod absorb;
mod accounts;
mod buffered;
mod cold;
mod courtesy;
mod data_checksum;
mod device;
mod errno;
mod fallocate;
mod files;
mod fs;
mod intent;
mod io_count;
mod locks;
mod memory;
mod metadata_status;
mod migration;
mod mkfs;
mod mount;
mod namei;
mod numbers;
mod op;
mod orphan;
mod pages;
mod parameters_status;
mod partial;
mod pin;
mod place;
mod pressure;
mod read;
mod read_ahead;
mod readdir;
mod reclaim;
mod reclaim_queue;
mod references;
mod relatives;
mod rename;
mod setattr;
mod slot;
mod speeds;
mod status;
mod sync;
mod tally;
mod temperature;
mod tier_order;
mod truncate;
mod turns;
mod types;
mod unwritten;
mod write;
mod write_back_file;
mod write_back_step;
mod write_block;
mod write_entries;
mod write_errors;
mod writeback;
mod xattr;

pub use accounts::{Accounts, Referenced};
pub use errno::{FsError, FsResult};
pub use fs::Fs;
pub use io_count::{IoReport, IoSums, TierIo};
pub use memory::{Memory, MemorySource};
pub use migration::{HandMove, HandPlan, HandReport, HandState, MigrationReport};
pub use mkfs::{DeviceClass, FormatOptions, NewDevice, RootDirectory, format};
pub use mount::{
    Background, InPlace, MetadataMoves, MountOptions, PolicyKind, PoolMedia, mend_superblock, read_superblock,
};
pub use parameters_status::ParametersStatus;
pub use references::OpenMode;
pub use speeds::{SpeedStatus, class_name, speed_of, speed_status};
pub use status::{FsStatus, PlacementStatus, StepPanics};
pub use sync::SyncPlan;
pub use tally::{TallyReport, TallyRow};
pub use terrace_placement::threshold::MOST_SECONDS as MOST_DATAFLOW_SECONDS;
pub use terrace_placement::{Ablation, Parameters, name_of as policy_name};
pub use tier_order::{set_device_tier, tiers_of};
pub use turns::Progress;
pub use types::*;
