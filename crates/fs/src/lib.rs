//! The file system: inodes, directories, attributes, open files, POSIX rules, locks, and the migration
//! that moves blocks between tiers beside them (design 2, 6, 7).
//!
//! Entry points take `&self` on [`Engine`] and may be called by any number of threads.
//! Every operation that changes something runs as *attempts* (`store/attempt`): room in a lane is reserved and PM
//! blocks are claimed before any lock; if an attempt finds that it needs something it cannot get under
//! its locks (a cold block, a map node, room in a catalog page, space), it drops everything, the need
//! is provided, and it starts again.
//! Lock order (design L1): rename, inode stripes by index, catalog shards by number, orphan lists,
//! inode numbers, allocator, lanes.
#![forbid(unsafe_code)]

mod content;
mod engine;
mod migration;
mod names;
mod removal;
mod store;
mod sync;
mod write_back;

pub use engine::accounts::Accounts;
pub use engine::background::Background;
pub use engine::engine::Engine;
pub use engine::engine::Engine as Fs;
pub use engine::mkfs::{DeviceClass, FormatOptions, NewDevice, RootDirectory, format};
pub use engine::options::{MountOptions, PolicyKind, PoolMedia};
pub use engine::status::io::IoReport;
pub use engine::status::parameters::ParametersStatus;
pub use engine::status::placement::PlacementStatus;
pub use engine::status::pool::{FsStatus, StepPanics};
pub use engine::superblock::{mend_superblock, read_superblock, set_device_tier};
pub use migration::report::MigrationReport;
pub use migration::requested::progress::{HandMove, HandPlan, HandReport, HandState};
pub use migration::requested::sync_to::SyncPlan;
pub use store::error::{FsError, FsResult};
pub use store::operation::progress::Progress;
pub use store::parts::devices::io_count::{IoSums, TierIo};
pub use store::parts::devices::speeds::{SpeedStatus, class_name, speed_of, speed_status, tiers_of};
pub use store::parts::inodes::open_files::OpenMode;
pub use store::parts::inodes::referenced::Referenced;
pub use store::parts::mode::{InPlace, MetadataMoves};
pub use store::parts::pressure::memory_source::{Memory, MemorySource};
pub use store::parts::steering::prediction_score::{TallyReport, TallyRow};
pub use store::types::*;
pub use terrace_placement::threshold::MOST_SECONDS as MOST_DATAFLOW_SECONDS;
pub use terrace_placement::{Ablation, Parameters, name_of as policy_name};
