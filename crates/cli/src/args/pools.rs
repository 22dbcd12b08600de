//! Arguments of commands that make, mount, end and check pools.

use crate::completion::{mounts_and_pools, pools};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use std::ffi::OsString;
use std::path::PathBuf;
use terrace_engine::{MAPS, POLICIES, PolicyKind};
use terrace_format::map_kind::MapKind;

/// The file maps with their sentences, from the table of `map`.
fn maps() -> impl TypedValueParser<Value = MapKind> {
    let values = MAPS.iter().map(|row| PossibleValue::new(row.name).help(row.sentence));
    PossibleValuesParser::new(values)
        .map(|name| MAPS.iter().find(|row| row.name == name).map_or(MapKind::default(), |row| row.kind))
}

/// The policies with their sentences, from the table of `placement`.
fn policies() -> impl TypedValueParser<Value = PolicyKind> {
    let values = POLICIES.iter().map(|row| PossibleValue::new(row.name).help(row.sentence));
    PossibleValuesParser::new(values).map(|name| PolicyKind::named(&name).unwrap_or(PolicyKind::DEFAULT))
}

/// Data modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Data {
    /// A write is all or nothing after a crash.
    Atomic,
    /// Overwrites happen in place.
    Ordered,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is done.
    On,
    /// It is not.
    Off,
}

/// `terrace mkfs`
#[derive(Debug, Args)]
pub struct Mkfs {
    /// A fast tier without persistent memory: held in memory, and durable by a log on an SSD, a partition or a file, which
    /// names the pool; memory: size of the tier (an eighth of memory, at most 16G); log: twice that, at least 256M
    #[arg(long, value_name = "PATH[,memory=SIZE][,log=SIZE]", conflicts_with_all = ["pm", "pool", "pm_size", "size"])]
    pub journal: Option<OsString>,
    /// Take over the tier 0 of this unmounted pool, with all its files: the pool keeps its devices and is named by the journal
    /// from then on; what was its tier 0 is no pool any more
    #[arg(long, value_name = "POOL", requires = "journal",
          conflicts_with_all = ["tiers", "map", "policy", "data", "data_checksum", "label"])]
    pub from: Option<PathBuf>,
    /// Persistent memory: a file on tmpfs, hugetlbfs or a DAX file system; made when it does not exist
    #[arg(long, value_name = "PATH", required_unless_present_any = ["pool", "journal"])]
    pub pm: Option<PathBuf>,
    /// Size of the persistent memory file to make
    #[arg(long, value_name = "SIZE")]
    pub pm_size: Option<String>,
    /// The same as --pm, as mkfs(8) gives it
    #[arg(value_name = "POOL", conflicts_with = "pm")]
    pub pool: Option<PathBuf>,
    /// The same as --pm-size
    #[arg(value_name = "SIZE", conflicts_with = "pm_size")]
    pub size: Option<String>,
    /// mkfs(8): more words.
    #[arg(short = 'v', hide = true)]
    pub verbose: bool,
    /// A device below: a block device or file. Devices of similar speed form one tier, faster tiers come first; of
    /// several devices those without a class (ssd, hdd, optane, nvme, sata, disk, or
    /// READ_NS:WRITE_NS:READ_BYTES_PER_S:WRITE_BYTES_PER_S) are measured
    #[arg(long = "tier", value_name = "PATH[,size=SIZE][,class=CLASS]")]
    pub tiers: Vec<OsString>,
    /// File map
    #[arg(long, value_parser = maps(), default_value = "radix")]
    pub map: MapKind,
    /// Placement policy
    #[arg(long, value_parser = policies(), default_value = "predictive")]
    pub policy: PolicyKind,
    /// What a crash may leave of a write
    #[arg(long, value_enum, default_value = "atomic")]
    pub data: Data,
    /// Checksums of file data in persistent memory, verified whenever it is read (blocks that hold
    /// some lines over a cold copy have none); not with --data ordered
    #[arg(long, value_enum, value_name = "on|off", default_value = "off")]
    pub data_checksum: Switch,
    /// Name of the pool, at most 64 bytes
    #[arg(long, default_value = "")]
    pub label: String,
    /// Overwrite whatever is there
    #[arg(long)]
    pub force: bool,
    /// Only show which tiers the devices would make
    #[arg(long)]
    pub dry_run: bool,
}

/// `terrace tier`
#[derive(Debug, Args)]
pub struct Tier {
    /// The pool's tier-0 path
    #[arg(add = ArgValueCompleter::new(pools))]
    pub pool: PathBuf,
    /// A device of the pool
    pub device: PathBuf,
    /// Number of its tier from now on, 1 the fastest; it may be a new one, between two or at the end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=254))]
    pub to: u8,
    /// Only show the order that would result
    #[arg(long)]
    pub dry_run: bool,
}

/// `terrace mount`
#[derive(Debug, Args)]
pub struct Mount {
    /// The pool's tier-0 path
    #[arg(add = ArgValueCompleter::new(pools))]
    pub pool: PathBuf,
    /// Where to mount it
    pub dir: PathBuf,
    /// Options as in mount(8), with commas between them; listed below
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// The daemon itself: reports readiness on standard output, then detaches.
    #[arg(long, hide = true)]
    pub daemon: bool,
    /// mount(8) passes these on.
    #[arg(short = 's', hide = true)]
    pub sloppy: bool,
    /// mount(8): do everything but mounting.
    #[arg(short = 'f', hide = true)]
    pub fake: bool,
    /// mount(8): no mtab.
    #[arg(short = 'n', hide = true)]
    pub no_mtab: bool,
    /// mount(8): more words.
    #[arg(short = 'v', hide = true)]
    pub verbose: bool,
    /// mount(8): read-only.
    #[arg(short = 'r', hide = true)]
    pub read_only: bool,
    /// mount(8): read-write.
    #[arg(short = 'w', hide = true)]
    pub read_write: bool,
    /// mount(8): type.
    #[arg(short = 't', hide = true)]
    pub fs_type: Option<String>,
}

/// `terrace umount`
#[derive(Debug, Args)]
pub struct Umount {
    /// Where the pool is mounted, or its tier-0 path: then the pool ends wherever it is mounted, in other mount namespaces too
    #[arg(value_name = "DIR|POOL", add = ArgValueCompleter::new(mounts_and_pools))]
    pub dir: PathBuf,
    /// Cut off who still uses the pool, wherever it is mounted; what was written is kept
    #[arg(long)]
    pub force: bool,
}

/// `terrace check`
#[derive(Debug, Args)]
pub struct Check {
    /// The pool's tier-0 path
    #[arg(add = ArgValueCompleter::new(pools))]
    pub pool: PathBuf,
    /// Repair what can be repaired; what nothing names goes to lost+found
    #[arg(long)]
    pub repair: bool,
    /// A device of the pool whose header is lost: --repair writes it anew there if the device holds what the pool says
    #[arg(long, value_name = "PATH")]
    pub tier: Vec<PathBuf>,
    /// Also read every block of the lower tiers and compare checksums
    #[arg(long)]
    pub data: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// fsck(8): repair by yourself.
    #[arg(short = 'a', hide = true)]
    pub automatic: bool,
    /// fsck(8): repair by yourself.
    #[arg(short = 'p', hide = true)]
    pub preen: bool,
    /// fsck(8): answer yes.
    #[arg(short = 'y', hide = true)]
    pub yes: bool,
    /// fsck(8): change nothing.
    #[arg(short = 'n', hide = true)]
    pub no: bool,
    /// fsck(8): even if clean.
    #[arg(short = 'f', hide = true)]
    pub full: bool,
    /// fsck(8): more words.
    #[arg(short = 'V', short_alias = 'v', hide = true)]
    pub verbose: bool,
    /// fsck(8): no title.
    #[arg(short = 'T', hide = true)]
    pub no_title: bool,
    /// fsck(8): progress descriptor.
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = false)]
    pub progress: Option<Option<i32>>,
}
