//! A mounted pool: mount and unmount, background steps, status, and the public entry points.
//!
//! Entry points take `&self` on [`Engine`] and may be called by any number of threads. The engine sets the
//! one provider of needs ([`terrace_store::operation::provide::Provide`]); no crate below calls upward
//! otherwise.
//!
//! Lock order (L1): rename, inode stripes by index, catalog shards by number, orphan lists, inode numbers,
//! allocator, lanes.
#![forbid(unsafe_code)]

mod accounts;
mod api;
mod background;
mod engine;
mod journal_step;
mod line_costs;
mod memory;
mod memory_source;
mod mkfs;
mod mount;
mod options;
mod provide;
mod requests;
mod status;
mod superblock;
mod unmount;

pub use accounts::Accounts;
pub use api::{Durability, Mappings, Movements, Simulation};
pub use background::Background;
pub use engine::Engine;
pub use memory_source::{Memory, MemorySource};
pub use mkfs::{DeviceClass, FormatOptions, NewDevice, RootDirectory, format};
pub use mount::mount_with_map;
pub use options::{MakeMap, MountOptions, PoolMedia};
pub use status::io::IoReport;
pub use status::parameters::ParametersStatus;
pub use status::placement::PlacementStatus;
pub use status::pool::{FsStatus, StepPanics};
pub use superblock::{mark_moved, mend_superblock, read_superblock, set_device_tier};
pub use terrace_fs::names::open::HowToOpen;
pub use terrace_fs::sync::Durable;
pub use terrace_map::registry::{MAPS, name_of as map_name};
pub use terrace_migration::report::MigrationReport;
pub use terrace_migration::requested::progress::{MovePlan, MoveRequest, RequestReport, RequestState};
pub use terrace_migration::requested::sync_to::SyncPlan;
pub use terrace_placement::threshold::MOST_SECONDS as MOST_DATAFLOW_SECONDS;
pub use terrace_placement::{
    Ablation, POLICIES, Parameters, PolicyKind, Threshold as PolicyThreshold, name_of as policy_name,
    names as policy_names, threshold_of as policy_threshold,
};
pub use terrace_store::error::{FsError, FsResult};
pub use terrace_store::operation::progress::Progress;
pub use terrace_store::parts::devices::io_count::{IoSums, TierIo};
pub use terrace_store::parts::devices::speeds::{SpeedStatus, class_name, speed_of, speed_status, tiers_of};
pub use terrace_store::parts::dram::lazy_writes::{BufferOptions, LazyAblation, LazyOption};
pub use terrace_store::parts::inodes::front_end::{Asks, FrontEnd, NoCache, Note, Prefer};
pub use terrace_store::parts::inodes::referenced::Referenced;
pub use terrace_store::parts::mode::{InPlace, MetadataMoves};
pub use terrace_store::parts::steering::prediction_score::{TallyReport, TallyRow};
pub use terrace_store::types::{
    Allocate, Atime, Attributes, BlockRange, Caller, DirectoryEntry, Predictions, Seek, SetAttributes,
    SetTime, Space, Wait, Whereabouts, WriteFlags, XattrMode,
};
