//! The limit of a peer's dirty pages in the kernel. The publications limited the memory of the whole machine,
//! and so also its dirty pages. Here only a memory cgroup is small: the machine's dirty thresholds exceed it
//! many times, version 1 of cgroups has no threshold of its own, and the kernel kills a process when its
//! group is full of dirty pages.
//!
//! So the devices of the peers get a limit. Linux 6.2 and later has limits per device; vm.dirty_bytes would
//! also slow the servers of emulated devices and all other processes. The limit is lifted when the loop
//! device is given back. A killed run leaves its limit behind, and the next run sets its own.

use crate::failure::Outcome;
use std::fs;
use std::path::{Path, PathBuf};

/// Divisor for the kernel's default vm.dirty_ratio (20 %). Write-back begins at half of the limit, for a
/// device too.
const SHARE: u64 = 5;
const ALL: &str = "/sys/class/bdi";

/// Dirty bytes for a memory of `limit_bytes`, if the kernel can limit single devices.
///
/// # Errors
/// The reason why the kernel cannot.
pub fn share_of(limit_bytes: u64) -> Result<u64, String> {
    let all = fs::read_dir(ALL).into_iter().flatten().flatten();
    let known = |bdi: &fs::DirEntry| bdi.path().join("max_bytes").exists();
    match all.take(1).any(|bdi| known(&bdi)) {
        true => Ok(limit_bytes / SHARE),
        false => Err("this kernel limits no device's dirty pages (Linux 6.2 does)".to_string()),
    }
}

/// The kernel's directory of settings for a loop device's pages.
pub fn of_loop(device: &str) -> PathBuf {
    Path::new("/sys/block").join(device.trim_start_matches("/dev/")).join("bdi")
}

/// The same for a mounted btrfs, whose dirty pages do not count for its device.
///
/// # Errors
/// When no mounted btrfs lies on the device.
pub fn of_btrfs(device: &str) -> Outcome<PathBuf> {
    let name = device.trim_start_matches("/dev/");
    let all = fs::read_dir("/sys/fs/btrfs")?.flatten().map(|entry| entry.path());
    let found = all.filter(|path| path.join("devices").join(name).exists()).map(|path| path.join("bdi"));
    found.last().ok_or_else(|| format!("no btrfs on {device} is mounted").into())
}

/// Sets the limit, below the machine's own too.
///
/// # Errors
/// When the kernel refuses.
pub fn limit(bdi: &Path, bytes: u64) -> Outcome<()> {
    for (name, value) in [("max_bytes", bytes), ("strict_limit", 1)] {
        let path = bdi.join(name);
        fs::write(&path, value.to_string()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Sets the kernel's defaults again. Best effort.
pub fn lift(bdi: &Path) {
    for (name, value) in [("strict_limit", "0"), ("max_ratio", "100")] {
        let _ = fs::write(bdi.join(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_set_and_lifted() {
        let bdi = tempfile::tempdir().unwrap();
        let value = |name: &str| fs::read_to_string(bdi.path().join(name)).unwrap();
        limit(bdi.path(), 13 << 20).unwrap();
        assert_eq!((value("max_bytes"), value("strict_limit")), ((13 << 20).to_string(), "1".to_string()));
        lift(bdi.path());
        assert_eq!((value("max_ratio"), value("strict_limit")), ("100".to_string(), "0".to_string()));
        assert_eq!(of_loop("/dev/loop7"), Path::new("/sys/block/loop7/bdi"));
        assert!(limit(Path::new("/sys/block/none/bdi"), 1).is_err());
        if let Ok(bytes) = share_of(100) {
            assert_eq!(bytes, 20);
        }
    }
}
