//! The compared file systems: how each is made on the device of the site, and which column of the
//! publications it stands for.
//!
//! | name | is | the publications' |
//! |---|---|---|
//! | `terrace` | Terrace through FUSE | TPFS-n, Ziggurat-n, AC-BPFS |
//! | `local` | Terrace in this process, without a kernel | – |
//! | `ext4` | ext4, data=ordered, on the device | ext4 |
//! | `ext4-journal` | ext4, data=journal, journal on the device | – |
//! | `xfs` | XFS on the device | – |
//! | `ext4-dj` | ext4, data=journal, journal on a PM loop device | EXT4-DJ |
//! | `xfs-ml` | XFS, log on a PM loop device | XFS-ML |
//! | `ext4-pm`, `xfs-pm` | wholly on a PM loop device; with a page cache, which the originals lack | EXT4-DAX, XFS-DAX, NOVA |
//! | `btrfs` | btrfs on the device | – |
//! | `tmpfs` | ceiling of the kernel's path | – |
//! | `null` | FUSE server that answers for one file: floor of the FUSE path | – |
//! | `mergerfs` | files on a PM loop device first, then on the device | – |
//! | `device` | the device itself, without a file system | – |
//! | `raw` | durable writes with O_DIRECT and RWF_DSYNC to a file of the disk | – |
//! | `given` | a directory that exists (`terrace bench run`) | – |

use crate::failure::Outcome;
use serde::Serialize;
use std::path::PathBuf;
use terrace_engine::{Ablation, LazyOption, MountOptions, PolicyKind};
use terrace_media::pm::PmSpeed;

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Terrace through FUSE.
    Terrace,
    /// Terrace in this process.
    Local,
    /// ext4 on the device.
    Ext4,
    /// ext4 on the device, with a journal of all data there.
    Ext4Journal,
    /// XFS on the device.
    Xfs,
    /// ext4 on the device, with a journal of all data in PM.
    Ext4Dj,
    /// XFS on the device, with its log in PM.
    XfsMl,
    /// ext4 in PM.
    Ext4Pm,
    /// XFS in PM.
    XfsPm,
    /// btrfs on the device.
    Btrfs,
    /// tmpfs.
    Tmpfs,
    /// The null server of FUSE.
    Null,
    /// mergerfs over PM and the device.
    Mergerfs,
    /// The device without a file system.
    Device,
    /// Durable writes to the device or file, without a file system.
    Raw,
    /// A directory that exists.
    Given,
}

impl Peer {
    pub(crate) const ALL: [(Peer, &'static str); 16] = [
        (Peer::Terrace, "terrace"),
        (Peer::Local, "local"),
        (Peer::Ext4, "ext4"),
        (Peer::Ext4Journal, "ext4-journal"),
        (Peer::Xfs, "xfs"),
        (Peer::Ext4Dj, "ext4-dj"),
        (Peer::XfsMl, "xfs-ml"),
        (Peer::Ext4Pm, "ext4-pm"),
        (Peer::XfsPm, "xfs-pm"),
        (Peer::Btrfs, "btrfs"),
        (Peer::Tmpfs, "tmpfs"),
        (Peer::Null, "null"),
        (Peer::Mergerfs, "mergerfs"),
        (Peer::Device, "device"),
        (Peer::Raw, "raw"),
        (Peer::Given, "given"),
    ];

    /// Whether the peer is Terrace, through FUSE or in this process.
    pub fn is_terrace(self) -> bool {
        matches!(self, Peer::Terrace | Peer::Local)
    }

    /// The peer of a name.
    pub fn parse(text: &str) -> Option<Peer> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(peer, _)| *peer)
    }

    /// The name of the peer.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(peer, _)| *peer == self).map_or("?", |(_, name)| name)
    }
}

/// Options of Terrace that differ from the defaults, of mount and of mkfs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tuning {
    /// Name of the policy.
    pub policy: Option<&'static str>,
    /// Bytes of clean pages in DRAM.
    pub cache_bytes: Option<u64>,
    /// Largest group, in bytes.
    pub group_bytes: Option<u64>,
    /// PM use in percent above which the policy demotes.
    pub threshold_percent: Option<u8>,
    /// Threshold of the synchronicity predictor, in blocks.
    pub sync_blocks: Option<u32>,
    /// In process only.
    #[serde(skip)]
    pub ablation: Ablation,
    /// Bytes of the window that is read around a missing cold block.
    pub prefetch_bytes: Option<u64>,
    /// Speed of emulated PM, as the mount option `emulate-pm` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulate_pm: Option<String>,
    /// File map of the pool; without a name that of mkfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<&'static str>,
    /// A partial write of a cold block reads the block first. In process only: there is no such mount option.
    pub no_partial_shadows: bool,
    /// Whether writes with home PM may wait in DRAM, as the mount option `lazy` has it; without a word `off`
    /// on emulated PM, so that rows about other things go on to measure writes to PM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lazy: Option<&'static str>,
    /// Most bytes of dirty pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<u64>,
    /// `atomic` or `ordered`, as the mount option `data` has it. Through FUSE only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<&'static str>,
    /// Tier 0 has a journal on the disk in place of PM. `raw` has a file of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<Journal>,
}

/// The journal of a tier 0 in DRAM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Journal {
    /// Bytes of the log; without a number twice the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// The class of the disk of the journal; without a name the class of the other devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<&'static str>,
    /// The class of tier 1; without a name the class of the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_class: Option<&'static str>,
    /// The kind of file below the journal.
    pub place: JournalPlace,
}

/// The kind of file below a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JournalPlace {
    /// A loop device over a file, as peers have. Further tiers of the pool have loop devices too.
    #[default]
    Loop,
    /// The file itself.
    File,
}

impl Tuning {
    /// The argument of `terrace mount -o`.
    pub(super) fn words(&self) -> String {
        let mut words = vec!["defaults".to_string()];
        words.extend(self.policy.map(|name| format!("policy={name}")));
        // The same cache size as in process, so rows do not depend on the memory of the machine.
        words.push(format!("cache={}", self.cache_bytes.unwrap_or(MountOptions::default().cache_bytes)));
        words.extend(self.group_bytes.map(|bytes| format!("group={bytes}")));
        words.extend(self.threshold_percent.map(|percent| format!("threshold={percent}")));
        words.extend(self.sync_blocks.map(|blocks| format!("sync_blocks={blocks}")));
        words.extend(self.prefetch_bytes.map(|bytes| format!("prefetch={bytes}")));
        words.extend(self.lazy().map(|lazy| format!("lazy={lazy}")));
        words.extend(self.buffer_bytes.map(|bytes| format!("buffer={bytes}")));
        words.extend(self.data.map(|data| format!("data={data}")));
        words.extend(self.emulate_pm.as_ref().map(|speed| format!("emulate-pm={speed}")));
        words.join(",")
    }

    pub(super) fn options(&self) -> Outcome<MountOptions> {
        let mut options = MountOptions::default();
        let named = |name| PolicyKind::named(name).ok_or_else(|| format!("no policy {name}"));
        options.policy = self.policy.map(named).transpose()?;
        options.cache_bytes = self.cache_bytes.unwrap_or(options.cache_bytes);
        options.group_bytes = self.group_bytes.unwrap_or(options.group_bytes);
        options.threshold_percent = self.threshold_percent;
        options.parameters.sync_blocks = self.sync_blocks.unwrap_or(options.parameters.sync_blocks);
        options.ablation = self.ablation;
        options.prefetch_bytes = self.prefetch_bytes.unwrap_or(options.prefetch_bytes);
        options.no_partial_shadows = self.no_partial_shadows;
        options.buffer.lazy = match self.lazy() {
            Some("on") => LazyOption::On,
            Some("off") => LazyOption::Off,
            _ => LazyOption::Auto,
        };
        Ok(options)
    }

    fn lazy(&self) -> Option<&'static str> {
        self.lazy.or(self.emulate_pm.is_some().then_some("off"))
    }
}

/// The two models of PM for rows in which its speed matters (docs/evaluation.md), by name. [HiNFS]: 200 ns
/// for each flushed line and 1 GB/s. [TPFS table 1]: 0.1 µs for each contiguous run and 15 GB/s, and 0.3 µs
/// for each run read.
pub const PM_MODELS: [(&str, &str); 2] =
    [("line", "line:200:1000000000"), ("run", "run:100:15000000000:300")];

/// The speed of a model's name, or of a speed in words.
///
/// # Errors
/// The error in the text.
pub fn pm_speed(text: &str) -> Result<String, String> {
    let named = PM_MODELS.iter().find(|(name, _)| *name == text).map_or(text, |(_, speed)| speed);
    PmSpeed::parse(named).map(|_| named.to_string())
}

/// A file system under test in a row.
#[derive(Debug, Clone, Serialize)]
pub struct Subject {
    /// Unique in the row.
    pub label: String,
    /// The kind of file system.
    pub peer: Peer,
    /// PM of Terrace; for peers the size of the PM loop device.
    pub pm_bytes: u64,
    /// The slow device.
    pub device_bytes: u64,
    /// Mount options of Terrace.
    pub tuning: Tuning,
    /// For `given`: the directory that gets a new directory for the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given: Option<PathBuf>,
}

impl Subject {
    /// The label as part of names of files and mount points.
    pub(super) fn file_name(&self) -> String {
        self.label.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::pm::PmModel;

    #[test]
    fn both_models_of_pm_reach_the_mount_option() {
        let models = PM_MODELS.map(|(name, _)| pm_speed(name).unwrap());
        let parsed = models.each_ref().map(|text| PmSpeed::parse(text).unwrap().model);
        assert_eq!(parsed, [PmModel::Line, PmModel::Run]);
        for speed in models {
            let tuning = Tuning { emulate_pm: Some(speed.clone()), ..Tuning::default() };
            let words = tuning.words();
            assert!(words.starts_with("defaults,cache=") && words.ends_with(&format!(",emulate-pm={speed}")));
        }
        assert_eq!(pm_speed("run:300:2G"), Ok("run:300:2G".to_string()));
        assert!(pm_speed("fast").is_err());
    }
}
