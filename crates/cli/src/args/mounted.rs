//! Arguments of commands about what is mounted: its state, and where its files lie.

use crate::completion::{files, mounted_directories, mounts_and_pools, tiers};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use std::path::PathBuf;

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
