//! The user of a block device or of the file behind a loop device, by the word of the kernel and without an
//! open: a system may answer the open of a device in use with EPERM, or refuse it always.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use terrace_daemon::mounts;
use terrace_media::Found;

/// The user of a block device: a mount, swap, or a device above it or above its partitions.
pub fn by(found: &Found) -> Option<String> {
    if !found.is_block_device() {
        return None;
    }
    let (major, minor) = found.device_numbers();
    let directory = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok();
    user_of(&format!("{major}:{minor}"), directory.as_deref()).or_else(|| {
        let partitions = fs::read_dir(directory?).ok()?.flatten().map(|entry| entry.path());
        partitions.filter(|path| path.join("partition").exists()).find_map(|partition| {
            let numbers = fs::read_to_string(partition.join("dev")).ok()?;
            let user = user_of(numbers.trim(), Some(&partition))?;
            Some(format!("its partition {} is {user}", partition.file_name()?.to_string_lossy()))
        })
    })
}

/// The user of the device with these numbers and this directory in /sys.
fn user_of(numbers: &str, directory: Option<&Path>) -> Option<String> {
    let all = mounts::all().unwrap_or_default();
    if let Some(mount) = all.iter().find(|mount| mount.device == numbers) {
        return Some(format!("mounted at {}", mount.mountpoint.display()));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let numbers_of = |path: &str| fs::metadata(path).map(|found| mounts::device_text(found.rdev())).ok();
    let swap_files = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    if swap_files.filter_map(numbers_of).any(|found| found == numbers) {
        return Some("swap space".to_string());
    }
    let mut above = fs::read_dir(directory?.join("holders")).ok()?.flatten();
    above.next().map(|holder| format!("used by /dev/{}", holder.file_name().to_string_lossy()))
}

/// The loop device that is backed by this file.
pub fn loop_device(path: &Path) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let is_backed = |directory: &PathBuf| {
        let backing = fs::read(directory.join("loop/backing_file"));
        backing.is_ok_and(|backing| backing.trim_ascii_end() == path.as_os_str().as_bytes())
    };
    let found = devices.map(|device| device.path()).find(is_backed)?;
    Some(Path::new("/dev").join(found.file_name()?))
}
