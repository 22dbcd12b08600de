//! The disks below a medium, their class by the kernel's word, and the load that other programs put on them.
//!
//! /sys tells: a partition lies on its disk, a device of the device mapper or of md on its slaves, a loop
//! device on the disk of its backing file, a file on the disk of its file system.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use terrace_daemon::mounts;
use terrace_media::block::probe::Watch;
use terrace_runtime::{Clock, SystemClock};

/// The disks below a medium, by their names in /sys/class/block; `memory` for tmpfs, `MAJOR:MINOR` of the
/// file system if its disks are not known.
pub type Disks = BTreeSet<String>;

/// Bound for loop devices over files on loop devices.
const DEPTH: u32 = 16;

/// The disks below the block device, or below the file system of the directory or file, at a path.
pub fn below(path: &Path) -> Disks {
    let mut disks = Disks::new();
    of_path(Path::new("/sys"), path, DEPTH, &mut disks);
    disks
}

fn of_path(sys: &Path, path: &Path, depth: u32, disks: &mut Disks) {
    let Ok(found) = fs::metadata(path) else { return };
    let device = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    if let Ok(directory) = fs::canonicalize(sys.join("dev/block").join(&numbers)) {
        return of_device(sys, &directory, depth, disks);
    }
    // File systems that call themselves by a device of their own: Btrfs and tmpfs.
    let mount = fs::canonicalize(path).ok().and_then(|path| mounts::around(&path).ok().flatten());
    match mount {
        Some(mount) if matches!(mount.fs_type.as_str(), "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs") => {
            disks.insert("memory".to_string());
        }
        Some(mount)
            if depth > 0
                && fs::metadata(&mount.source).is_ok_and(|found| found.file_type().is_block_device()) =>
        {
            of_path(sys, &mount.source, depth - 1, disks);
        }
        _ => {
            disks.insert(numbers);
        }
    }
}

/// `directory`: the directory of a block device in /sys/devices.
fn of_device(sys: &Path, directory: &Path, depth: u32, disks: &mut Disks) {
    if directory.join("partition").exists()
        && let Some(disk) = directory.parent()
    {
        return of_device(sys, disk, depth, disks);
    }
    let slaves: Vec<PathBuf> = fs::read_dir(directory.join("slaves"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|slave| fs::canonicalize(slave.path()).ok())
        .collect();
    if depth > 0 && !slaves.is_empty() {
        slaves.iter().for_each(|slave| of_device(sys, slave, depth - 1, disks));
        return;
    }
    if depth > 0
        && let Some(backing) = backing_file(directory)
    {
        return of_path(sys, &backing, depth - 1, disks);
    }
    disks.extend(directory.file_name().map(|name| name.to_string_lossy().into_owned()));
}

fn backing_file(directory: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let text = fs::read(directory.join("loop/backing_file")).ok()?;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(text.trim_ascii_end()));
    path.exists().then_some(path)
}

/// The device class by the kernel's description of the disks: `hdd` if a disk rotates, `nvme` if each disk is
/// NVMe, else `ssd`.
pub fn class_by_kernel(disks: &Disks) -> &'static str {
    let rotates = |disk: &String| {
        let told = fs::read_to_string(format!("/sys/class/block/{disk}/queue/rotational"));
        told.is_ok_and(|text| text.trim() == "1")
    };
    class_of(disks, rotates)
}

fn class_of(disks: &Disks, rotates: impl Fn(&String) -> bool) -> &'static str {
    match () {
        () if disks.iter().any(rotates) => "hdd",
        () if !disks.is_empty() && disks.iter().all(|disk| disk.starts_with("nvme")) => "nvme",
        () => "ssd",
    }
}

/// Watches whether other programs keep disks or processors busy while a probe runs.
pub struct Load {
    disks: Disks,
    bytes: u64,
    stalled_us: Option<u64>,
    clock: SystemClock,
    began_ns: u64,
}

/// Other programs may transfer 1/OTHERS of the bytes that the probe transfers.
const OTHERS: u64 = 4;
/// Bytes that other programs always write: a journal, a log.
const BACKGROUND_BYTES: u64 = 2 << 20;
/// Programs may wait for a processor during 1/STALLED of the time.
const STALLED: u64 = 4;

impl Load {
    /// A watch over these disks.
    pub fn new(disks: Disks) -> Load {
        Load { disks, bytes: 0, stalled_us: None, clock: SystemClock::default(), began_ns: 0 }
    }

    /// Bytes that the disks have read and written since the machine started.
    fn transferred(&self) -> u64 {
        let of = |disk: &String| {
            let text = fs::read_to_string(format!("/sys/class/block/{disk}/stat")).unwrap_or_default();
            sectors(&text) * 512
        };
        self.disks.iter().map(of).sum()
    }
}

/// Sectors read and written, of a line of /sys/class/block/*/stat.
fn sectors(text: &str) -> u64 {
    let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
    words.get(2).unwrap_or(&0) + words.get(6).unwrap_or(&0)
}

/// The time during which some program waited for a processor, from the text of /proc/pressure/cpu.
fn stalled_us(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split("total=").nth(1)?.trim().parse().ok()
}

impl Watch for Load {
    fn begin(&mut self) {
        self.bytes = self.transferred();
        self.stalled_us = fs::read_to_string("/proc/pressure/cpu").ok().and_then(|text| stalled_us(&text));
        self.began_ns = self.clock.monotonic_ns();
    }

    fn is_undisturbed(&mut self, own_bytes: u64) -> bool {
        // Mirrors write each byte to each disk.
        let own = own_bytes * self.disks.len().max(1) as u64;
        let others = self.transferred().saturating_sub(self.bytes).saturating_sub(own);
        let now = fs::read_to_string("/proc/pressure/cpu").ok().and_then(|text| stalled_us(&text));
        let stalled_us = now.zip(self.stalled_us).map_or(0, |(now, before)| now.saturating_sub(before));
        let elapsed_us = (self.clock.monotonic_ns() - self.began_ns) / 1000;
        others <= BACKGROUND_BYTES + own_bytes / OTHERS && stalled_us <= elapsed_us / STALLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files of one disk once became two tiers.
    #[test]
    fn files_partitions_and_mapped_devices_are_found_on_disks() {
        let root = std::env::temp_dir().join(format!("terrace-disk-{}", std::process::id()));
        let make = |name: &str| fs::create_dir_all(root.join(name)).unwrap();
        for name in ["sda/sda1", "sdb", "dm-0/slaves", "md0/slaves", "loop0/loop"] {
            make(name);
        }
        fs::write(root.join("sda/sda1/partition"), "1\n").unwrap();
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(root.join(to), root.join(at)).unwrap();
        link("sda/sda1", "dm-0/slaves/sda1");
        link("dm-0", "md0/slaves/dm-0");
        link("sdb", "md0/slaves/sdb");
        let found = |name: &str| {
            let mut disks = Disks::new();
            of_device(Path::new("/nowhere"), &fs::canonicalize(root.join(name)).unwrap(), DEPTH, &mut disks);
            disks.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(["sda", "sda/sda1", "dm-0"].map(found), ["sda", "sda", "sda"]);
        assert_eq!(["sdb", "md0"].map(found), ["sdb", "sda sdb"]);
        // A loop device without its backing file counts as a disk itself.
        fs::write(root.join("loop0/loop/backing_file"), "/nowhere/else\n").unwrap();
        assert_eq!(found("loop0"), "loop0");
        fs::write(root.join("loop0/loop/backing_file"), format!("{}\n", root.join("sda").display())).unwrap();
        assert_eq!(below(&root), {
            let mut disks = Disks::new();
            of_device(Path::new("/sys"), &root.join("loop0"), DEPTH, &mut disks);
            disks
        });
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(below(Path::new("/dev/shm")), Disks::from(["memory".to_string()]));
    }

    #[test]
    fn the_kernel_tells_kinds_and_load() {
        let disks = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<Disks>();
        let class = |names: &[&str], rotating: &str| class_of(&disks(names), |disk| disk == rotating);
        assert_eq!(class(&["sda", "nvme0n1"], "sda"), "hdd");
        assert_eq!(class(&["nvme0n1", "nvme1n1"], ""), "nvme");
        assert_eq!([class(&["sda", "nvme0n1"], ""), class(&["memory"], ""), class(&[], "")], ["ssd"; 3]);
        assert_eq!(sectors("   10    2   300   4   50   6  7000   8 0 9 10 0 0 0 0"), 7300);
        let pressure = "some avg10=0.00 avg60=0.10 avg300=0.05 total=123456\nfull avg10=0.00 total=7\n";
        assert_eq!((stalled_us(pressure), stalled_us("")), (Some(123_456), None));
    }
}
