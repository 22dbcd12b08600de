//! The command line (cli.md).

use crate::mount_help::MOUNT_OPTIONS;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

mod mounted;
mod pools;

pub use mounted::{Iostat, Migrate, Pin, Status, Sync, Unpin, Where};
pub use pools::{Check, Data, Mkfs, Mount, Switch, Tier, Umount};

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

/// The version of the program and the version of the format.
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
    #[command(
        after_help = "Words of a line: \"copies in DRAM\" of blocks of lower tiers; \"only in DRAM\" waits for fsync or write-back;\n\
                      \"synchronous\", \"large\", \"read-dominated\": what the predictors expect of the file; \"eager\": blocks whose\n\
                      syncs have shown that their writes go to the fast tier at once.\n\n\
                      Example: terrace where /mnt/database.sqlite /mnt/archive"
    )]
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
    /// Let each flush take so many microseconds, and each durable write behind its bytes; flushes follow one another
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub flush_us: Option<u32>,
    /// Keep writes in memory until they are flushed, as the cache of a disk does: SIGUSR1 drops a random subset of the
    /// unflushed sectors of 512 bytes; files that were open then give EIO. Implies --no-sync
    #[arg(long)]
    pub volatile: bool,
    /// The number that decides which sectors are dropped (default: another each time)
    #[arg(long, requires = "volatile")]
    pub seed: Option<u64>,
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

impl Later {
    /// The refusal.
    pub fn refuse(&self, name: &str) -> terrace_daemon::failure::Failure {
        terrace_daemon::failure::Failure::not_built(name)
    }
}
