//! The command line (cli.md).

use crate::completion::{files, mounted_directories, mounts_and_pools, pools, tiers};
use crate::mount_help::MOUNT_OPTIONS;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use std::ffi::OsString;
use std::path::PathBuf;

/// A tiered file system in user space.
#[derive(Debug, Parser)]
#[command(name = "terrace", version = version())]
#[command(
    after_help = "Example: terrace mkfs --pm /dev/shm/terrace/pool --pm-size 512M --tier disk.img,size=8G\n         \
                        terrace mount /dev/shm/terrace/pool /mnt\n         terrace status /mnt"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The version, and that of the format.
pub fn version() -> &'static str {
    use std::sync::OnceLock;
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        format!("{} (format version {})", env!("CARGO_PKG_VERSION"), terrace_format::version::FORMAT_VERSION)
    })
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a pool
    #[command(after_help = "Example: terrace mkfs --pm /dev/pmem0.img --pm-size 4G --tier /dev/nvme1n1 \
                            --tier /srv/cold.img,size=1T,class=hdd")]
    Mkfs(Mkfs),
    /// Mount a pool; returns when the mount answers
    #[command(after_help = MOUNT_OPTIONS)]
    Mount(Mount),
    /// Unmount, and wait until the pool is marked clean
    #[command(after_help = "Example: terrace umount /mnt\n         terrace umount /dev/shm/pool --force")]
    Umount(Umount),
    /// Show tiers, devices, policy and migration
    #[command(after_help = "Example: terrace status /mnt --json")]
    Status(Status),
    /// Show on which tiers the bytes of files, or of all files below directories, are
    #[command(after_help = "Example: terrace where /mnt/database.sqlite /mnt/archive")]
    Where(Where),
    /// Make everything written so far durable, on a tier or below it
    #[command(after_help = "Example: terrace sync /mnt --to 1")]
    Sync(Sync),
    /// Show what passes through each tier and through DRAM
    #[command(after_help = "Example: terrace iostat /mnt 5")]
    Iostat(Iostat),
    /// Move a file or a directory with all below it to one tier
    #[command(after_help = "Example: terrace migrate /mnt/archive --to 1 --wait")]
    Migrate(Migrate),
    /// Keep a file or a directory with all below it on a tier
    #[command(after_help = "Example: terrace pin /mnt/database --tier 0")]
    Pin(Pin),
    /// Keep a file or a directory with all below it on no tier any more
    #[command(after_help = "Example: terrace unpin /mnt/database")]
    Unpin(Unpin),
    /// Give a device of an unmounted pool another place in the order of tiers; moves no data
    #[command(after_help = "Example: terrace tier /dev/shm/terrace/pool /dev/sdb --to 2")]
    Tier(Tier),
    /// Check an unmounted pool; writes nothing without --repair
    #[command(after_help = "Example: terrace check /dev/shm/terrace/pool")]
    Check(Check),
    /// Measure
    #[command(after_help = "Example: terrace bench smoke --rows a,b")]
    Bench {
        /// What to measure.
        #[command(subcommand)]
        what: Bench,
    },
    /// Print a completion script
    #[command(after_help = "Example: terrace completions bash > /etc/bash_completion.d/terrace")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version
    #[command(after_help = "Example: terrace version")]
    Version,
    /// Write man pages to a directory
    #[command(hide = true)]
    ManPages {
        /// The directory, made when it is not there
        dir: PathBuf,
    },
    /// Not built yet
    #[command(hide = true, disable_help_flag = true)]
    Inspect(Later),
    /// What the daemon has done in a process of its own
    #[command(hide = true)]
    Outside(Outside),
}

/// `terrace bench`
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Measure the tables of docs/benchmarks.md
    #[command(disable_help_flag = true)]
    Smoke {
        /// Options; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Export a file as DIR/device with the latency and bandwidth of a device class, until DIR is unmounted
    #[command(
        after_help = "Example: terrace bench device /dev/shm/terrace/disk.img /mnt/disk --class sata\n         \
                            umount /mnt/disk"
    )]
    Device(BenchDevice),
    /// Run a workload side by side in directories
    #[command(disable_help_flag = true)]
    Run {
        /// The workload, the directories, and options; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Measure a row of docs/evaluation.md
    #[command(disable_help_flag = true)]
    Paper {
        /// The row, and options; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
}

/// `terrace bench device`
#[derive(Debug, Args)]
pub struct BenchDevice {
    /// The file that holds the content; its size is the device's. Faster than the class: on tmpfs, or a fast disk
    #[arg(value_name = "BACKING_FILE")]
    pub backing: PathBuf,
    /// Where DIR/device appears
    pub dir: PathBuf,
    /// ssd, hdd, pm, optane, nvme, sata, disk, or READ_NS:WRITE_NS:READ_BYTES_PER_S:WRITE_BYTES_PER_S
    #[arg(long)]
    pub class: String,
    /// Answer flushes as the class does a write, without flushing the backing file: for benches; what is written is lost
    /// with the machine
    #[arg(long)]
    pub no_sync: bool,
    /// Keep the processor from sleeping for 2 ms after each request, which then does not wait for it to wake: where the
    /// server has a processor that nobody else needs
    #[arg(long)]
    pub awake: bool,
    /// Stay in the foreground
    #[arg(long)]
    pub foreground: bool,
    /// The server itself: reports readiness on standard output, then detaches.
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// Arguments of a command that is not built yet.
#[derive(Debug, Args)]
pub struct Later {
    /// Anything.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub anything: Vec<OsString>,
}

/// File maps of cli.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Map {
    /// A radix tree per file.
    Radix,
    /// Not built yet.
    #[value(hide = true)]
    Extent,
    /// Not built yet.
    #[value(hide = true)]
    Cuckoo,
    /// Not built yet.
    #[value(hide = true)]
    Hashfs,
}

/// Policies of cli.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Moves nothing before the fast tier is full; then what there is no room for goes down, least recently used first.
    Static,
    /// Least recently used blocks go down above a threshold.
    Anticache,
    /// Predictors steer writes, write-cold and read-hot data moves.
    Predictive,
    /// The same for writes alone.
    WriteOnly,
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
    /// Persistent memory: a file on tmpfs, hugetlbfs or a DAX file system; made when it does not exist
    #[arg(long, value_name = "PATH", required_unless_present = "pool")]
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
    #[arg(long, value_enum, default_value = "radix")]
    pub map: Map,
    /// Placement policy
    #[arg(long, value_enum, default_value = "predictive")]
    pub policy: Policy,
    /// What a crash may leave of a write
    #[arg(long, value_enum, default_value = "atomic")]
    pub data: Data,
    /// Checksums of file data in persistent memory, verified whenever it is read; not with --data ordered
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

/// `terrace outside`: what the daemon has done in a process of its own
#[derive(Debug, Args)]
pub struct Outside {
    #[command(subcommand)]
    pub task: OutsideTask,
}

/// Tasks of `terrace outside`
#[derive(Debug, Subcommand)]
pub enum OutsideTask {
    /// Have the kernel write the pages of shared mappings
    Pages { device: String },
    /// Unmount a directory
    Unmount { dir: PathBuf },
}

/// `terrace status`
#[derive(Debug, Args)]
pub struct Status {
    /// A mounted directory or a pool's tier-0 path
    #[arg(value_name = "DIR|POOL", add = ArgValueCompleter::new(mounts_and_pools))]
    pub path: PathBuf,
    /// Also what the policy goes by: predictors, thresholds and limits in force
    #[arg(long, short)]
    pub verbose: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// The name of a tier as the daemon takes it: reports call persistent memory by its kind.
fn tier_name(text: &str) -> Result<String, std::convert::Infallible> {
    let name = text.to_ascii_lowercase();
    Ok(if name == "ram" { "pm".to_string() } else { name })
}

/// `terrace where`
#[derive(Debug, Args)]
pub struct Where {
    /// Files in a mounted pool, or directories: these with the sums of all files below them
    #[arg(required = true, value_name = "PATH", add = ArgValueCompleter::new(files))]
    pub paths: Vec<PathBuf>,
    /// A JSON array
    #[arg(long)]
    pub json: bool,
}

/// `terrace sync`
#[derive(Debug, Args)]
pub struct Sync {
    /// A mounted directory
    #[arg(add = ArgValueCompleter::new(mounted_directories))]
    pub dir: PathBuf,
    /// Tier number (0 is persistent memory, pm or ram too), or class when only one tier has it
    #[arg(long, alias = "tier", value_name = "TIER", value_parser = tier_name, add = ArgValueCompleter::new(tiers))]
    pub to: Option<String>,
    /// Only say what would move
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run: one JSON object
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}

/// `terrace iostat`
#[derive(Debug, Args)]
pub struct Iostat {
    /// Leave out the first report, which covers the time since the mount
    #[arg(short = 'y')]
    pub since_now: bool,
    /// For scripts: no header, one tab between fields
    #[arg(short = 'H')]
    pub script: bool,
    /// Exact numbers: bytes and nanoseconds
    #[arg(short = 'p')]
    pub exact: bool,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// A mounted directory
    #[arg(add = ArgValueCompleter::new(mounted_directories))]
    pub dir: PathBuf,
    /// Seconds between reports; without it there is one report
    pub interval: Option<f64>,
    /// How many reports; without it until interrupted
    #[arg(requires = "interval")]
    pub count: Option<u64>,
}

/// `terrace migrate`
#[derive(Debug, Args)]
pub struct Migrate {
    /// A file or directory in a mounted pool
    #[arg(add = ArgValueCompleter::new(files))]
    pub path: PathBuf,
    /// Tier number (0 is persistent memory, pm or ram too), or class when only one tier has it
    #[arg(long, alias = "tier", value_name = "TIER", value_parser = tier_name, add = ArgValueCompleter::new(tiers))]
    pub to: String,
    /// Wait until it is done; interrupting the wait does not stop the move
    #[arg(long)]
    pub wait: bool,
    /// Only say what would move
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `terrace pin`
#[derive(Debug, Args)]
pub struct Pin {
    /// A file or directory in a mounted pool
    #[arg(add = ArgValueCompleter::new(files))]
    pub path: PathBuf,
    /// Tier number (0 is persistent memory, pm or ram too), or class when only one tier has it
    #[arg(long, alias = "to", value_name = "TIER", value_parser = tier_name, add = ArgValueCompleter::new(tiers))]
    pub tier: String,
    /// Also wait until all of it is there
    #[arg(long)]
    pub wait: bool,
    /// Only say what would be pinned and moved
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `terrace unpin`
#[derive(Debug, Args)]
pub struct Unpin {
    /// A file or directory in a mounted pool
    #[arg(add = ArgValueCompleter::new(files))]
    pub path: PathBuf,
    /// Only say what it would concern
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
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

impl Later {
    /// The refusal.
    pub fn refuse(&self, name: &str) -> crate::failure::Failure {
        crate::failure::Failure::not_built(name)
    }
}
