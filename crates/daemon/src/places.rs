//! Finds the devices of a pool.
//!
//! A superblock names paths, but devices move: only a header with both UUIDs identifies a device. Files whose
//! open may wait or have an effect are not opened.

use crate::failure::{Failure, Outcome, plain};
use crate::pool::look::open_to_read;
use crate::pool::read::checkpoint;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use terrace_format::BLOCK_SIZE;
use terrace_format::device::DeviceHeader;
use terrace_format::superblock::{DeviceRow, Superblock};

/// The path of a tier device, found by its header. Disks change their names with each boot, so a device that
/// is not at its path is looked for at the paths of the pool's other devices, among the block devices of its
/// size, and among the files beside the pool. If it is not found, the path in the superblock.
pub fn locate(pool: &Path, superblock: &Superblock, row: &DeviceRow) -> PathBuf {
    let hint = at_or_beside(pool, row);
    let is_it = |path: &PathBuf| header(path).is_some_and(|header| is_ours(&header, superblock, row));
    if is_it(&hint) {
        return hint;
    }
    let others = superblock.device_rows().iter().map(|other| at_or_beside(pool, other));
    let size = row.blocks.get() * BLOCK_SIZE;
    let found = others.chain(block_devices(size)).find(is_it);
    found.or_else(|| file_beside(pool, superblock, row)).unwrap_or(hint)
}

/// The file beside a pool that is a tier device by its header and that the pool's last mount has used: an
/// older copy of the device lacks newer blocks.
fn file_beside(pool: &Path, superblock: &Superblock, row: &DeviceRow) -> Option<PathBuf> {
    let size = row.blocks.get() * BLOCK_SIZE;
    let mut sized = files_beside(pool, size).peekable();
    sized.peek()?;
    let epoch = checkpoint(pool, superblock)?.epoch;
    // The checkpoint in home may be older than the log of a journal: so the newest copy is the device.
    let used = |path: PathBuf| {
        let found = header(&path).filter(|header| is_ours(header, superblock, row))?;
        let used = u64::from(found.epoch.get());
        (used >= epoch).then_some((used, path))
    };
    sized.filter_map(used).max_by_key(|(used, _)| *used).map(|(_, path)| path)
}

/// Most files beside a pool that are looked at.
const MOST_FILES_BESIDE: usize = 4096;

/// The regular files of this size in the directory of a pool. Links are not followed.
fn files_beside(pool: &Path, bytes: u64) -> impl Iterator<Item = PathBuf> {
    let names = pool.parent().and_then(|directory| fs::read_dir(directory).ok());
    let names = names.into_iter().flatten().take(MOST_FILES_BESIDE).flatten();
    let sized = names.filter(move |name| {
        name.file_type().is_ok_and(|kind| kind.is_file())
            && name.metadata().is_ok_and(|found| found.len() == bytes)
    });
    sized.map(|name| name.path())
}

/// The device header at a path, if a sound one is there.
pub fn header(path: &Path) -> Option<DeviceHeader> {
    let mut first = [0; BLOCK_SIZE as usize];
    open_to_read(path).and_then(|file| file.read_exact_at(&mut first, 0)).ok()?;
    DeviceHeader::decode(&first).ok()
}

/// Whether a device header belongs to the pool of a superblock, at the place of `row`.
pub fn is_ours(header: &DeviceHeader, superblock: &Superblock, row: &DeviceRow) -> bool {
    header.pool_uuid == superblock.uuid && header.device_uuid == row.uuid
}

/// The block devices of this machine with this size.
fn block_devices(bytes: u64) -> impl Iterator<Item = PathBuf> {
    let sectors = (bytes / 512).to_string();
    let names = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let sized = names.filter(move |name| {
        fs::read_to_string(name.path().join("size")).is_ok_and(|size| size.trim() == sectors)
    });
    sized.map(|name| Path::new("/dev").join(name.file_name()))
}

/// The path that a row names, or, for a pool that was moved with its files, the path of that name beside the
/// pool.
pub fn at_or_beside(pool: &Path, row: &DeviceRow) -> PathBuf {
    let hint = Path::new(OsStr::from_bytes(row.path()));
    if fs::symlink_metadata(hint).is_err()
        && let (Some(directory), Some(name)) = (pool.parent(), hint.file_name())
        && directory.join(name).exists()
    {
        return directory.join(name);
    }
    hint.to_path_buf()
}

/// The treatment of tier devices that are not at their paths.
#[derive(Debug, Clone, Default)]
pub struct Lenience {
    /// Mount without missing and foreign devices, with a warning.
    pub degraded: bool,
    /// Paths of devices by the user's word; the header at each path identifies the device.
    pub tiers: Vec<PathBuf>,
}

impl Lenience {
    /// The paths that the user gave, by the index of the device.
    pub fn places(&self, superblock: &Superblock) -> Outcome<Vec<Option<PathBuf>>> {
        let rows = superblock.device_rows();
        let mut places = vec![None; rows.len()];
        for path in &self.tiers {
            let found =
                open_to_read(path).map_err(|error| Failure::at(path, plain(&error))).map(|_| header(path))?;
            let mine = |row: &DeviceRow| found.as_ref().is_some_and(|found| is_ours(found, superblock, row));
            let index = rows.iter().position(mine);
            let place = index.and_then(|index| places.get_mut(index)).ok_or_else(|| {
                Failure::at(path, "no device of this pool; give -o tier= the path of one of its devices")
            })?;
            *place = Some(path.clone());
        }
        Ok(places)
    }

    /// Adds advice to the failure of a device that cannot be opened.
    pub fn advise(failure: Failure) -> Failure {
        let advice = match () {
            () if failure.text.starts_with("missing") => {
                "where it has moved, -o tier=PATH says so; -o degraded mounts without it"
            }
            () if failure.text.starts_with("foreign") || failure.text.starts_with("resized") => {
                "-o degraded mounts without it"
            }
            () => return failure,
        };
        Failure { text: format!("{}; {advice}", failure.text), ..failure }
    }
}
