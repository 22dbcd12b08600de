//! The superblock of a pool, and refusals in the words of the user.

use crate::control;
use crate::failure::{Failure, Outcome, plain};
use crate::mounts;
use crate::output::human;
use crate::places::{header, is_ours, locate};
use std::fs::{self};
use std::io;
use std::path::{Path, PathBuf};
use terrace_format::device::DeviceHeader;
use terrace_format::geometry::{SUPERBLOCK_BLOCKS, SUPERBLOCK_COPIES};
use terrace_format::superblock::{Refused, Superblock};
use terrace_format::{BLOCK_SIZE, PmBlock};
use terrace_media::{OpenError, PmMedium};

use super::read::{checkpoint, checkpoint_of};
use super::tier0_file::Tier0File;

/// A medium that could not be opened, in the user's words.
pub fn open_failure(error: &OpenError) -> Failure {
    match error {
        OpenError::Busy { path } => match mounts::of_pool(path) {
            Ok(Some(mount)) => {
                Failure::at(path, format!("busy: already mounted at {}", mount.mountpoint.display()))
            }
            _ if let Some(copy) = mounts::elsewhere(|mount| mount.source == *path, None).first() => {
                let end = format!("'terrace umount {}' ends it", path.display());
                Failure::at(path, format!("busy: mounted at {}; {end}", copy.text()))
            }
            _ => {
                let owner = peek(path).ok().and_then(|found| control::owner(path, &uuid_text(&found)));
                let who = owner.map_or_else(String::new, |pid| format!(": {}", mounts::process_name(pid)));
                Failure::at(path, format!("busy: in use by another process{who}"))
            }
        },
        OpenError::Io { path, source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
            Failure::at(path, "in use; unmount it first")
        }
        OpenError::Io { path, source, .. } => Failure::at(path, plain(source)),
        OpenError::NoSpace { path, size_bytes, reason } => {
            Failure::at(path, format!("no space for {}: {reason}", human(*size_bytes)))
        }
        other => Failure::new(other.to_string()),
    }
}

/// A pool that cannot be used, in the user's words.
pub fn refusal(pool: &Path, refused: &Refused) -> Failure {
    match refused {
        Refused::NotAPool => Failure::at(pool, not_a_pool(pool)),
        Refused::Corrupt(corrupt) => {
            let what = "both copies of the superblock are damaged, and a check cannot repair that";
            Failure::at(pool, format!("{what}; bring back a copy of the pool ({corrupt})"))
        }
        other => Failure::at(pool, other),
    }
}

/// Says what lies at a path without a superblock.
pub(super) fn not_a_pool(path: &Path) -> String {
    match header(path) {
        Some(header) => format!(
            "a device (tier {}) of a Terrace pool, not the pool; a pool is named by the path of its tier 0",
            header.tier
        ),
        None => "no Terrace pool: neither copy of a superblock is there".to_string(),
    }
}

/// The absolute path of an existing file.
pub fn canonical(path: &Path) -> Outcome<PathBuf> {
    fs::canonicalize(path).map_err(|error| Failure::at(path, plain(&error)))
}

/// The absolute path of a pool. The failure about a missing pool in memory says that a reboot may have
/// removed it.
pub fn canonical_pool(pool: &Path) -> Outcome<PathBuf> {
    fs::canonicalize(pool).map_err(|error| not_there(pool, &error))
}

/// A pool that cannot be found: files in memory are lost with a reboot.
fn not_there(pool: &Path, error: &io::Error) -> Failure {
    let text = plain(error);
    let was_in_memory = error.kind() == io::ErrorKind::NotFound
        && std::path::absolute(pool).is_ok_and(|path| mounts::around(&path).is_ok_and(is_memory));
    if was_in_memory {
        let advice = "files in memory (tmpfs) are gone after a reboot, and a pool with them; 'terrace mkfs' makes a new one";
        return Failure::at(pool, format!("{text}: {advice}"));
    }
    Failure::at(pool, text)
}

/// Adds the likely reason to the failure of a path that was not found and may have been a pool.
pub fn explain(path: &Path, failure: Failure) -> Failure {
    let error = io::Error::from_raw_os_error(libc::ENOENT);
    if failure.text.ends_with(&plain(&error)) { not_there(path, &error) } else { failure }
}

/// Whether a mount, other than that of devices, keeps its files in memory.
fn is_memory(mount: Option<mounts::Mount>) -> bool {
    mount.is_some_and(|mount| {
        ["tmpfs", "ramfs", "hugetlbfs"].contains(&mount.fs_type.as_str())
            && mount.mountpoint != Path::new("/dev")
    })
}

/// Reads the superblock without opening the pool (it may be in use), the second copy when the first is damaged.
pub fn peek(pool: &Path) -> Outcome<Superblock> {
    if pool.is_dir() {
        return Err(Failure::at(pool, "is a directory and no Terrace mount"));
    }
    let file = Tier0File::open(pool).map_err(|error| not_there(pool, &error))?;
    let read = |copy: PmBlock| {
        let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
        match file.read_at(&mut bytes, copy.offset().0) {
            Ok(()) => Superblock::verify(&bytes, false),
            Err(_) => Err(Refused::NotAPool),
        }
    };
    match read(SUPERBLOCK_COPIES[0]) {
        Err(first @ (Refused::Corrupt(_) | Refused::NotAPool)) => {
            read(SUPERBLOCK_COPIES[1]).map_err(|_| refusal(pool, &first))
        }
        other => other.map_err(|refused| refusal(pool, &refused)),
    }
}

/// Warnings about damaged superblock copies of an unmounted pool.
pub fn warnings(pool: &Path) -> Vec<String> {
    let Ok(file) = Tier0File::open(pool) else { return Vec::new() };
    let damage = |(index, copy): (usize, PmBlock)| {
        let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
        let read = file.read_at(&mut bytes, copy.offset().0);
        let refused = read.map_or(Some(Refused::NotAPool), |()| Superblock::verify(&bytes, false).err())?;
        let damaged = matches!(refused, Refused::Corrupt(_) | Refused::NotAPool);
        damaged
            .then(|| format!("superblock copy {index} is damaged ({refused}); a mount for writing mends it"))
    };
    SUPERBLOCK_COPIES.into_iter().enumerate().filter_map(damage).collect()
}

/// Whether the pool was unmounted in order; `None` when no checkpoint is readable.
pub fn is_clean(pool: &Path, superblock: &Superblock) -> Option<bool> {
    if Tier0File::open(pool).is_ok_and(|file| file.has_log()) {
        return Some(false);
    }
    checkpoint(pool, superblock).map(|checkpoint| checkpoint.clean)
}

/// Refuses a tier 0 that is an older copy: one of its devices was used by a later mount. The copy takes the
/// blocks that the later mount wrote for free space, and would write over them.
pub fn refuse_older(pool: &Path, pm: &dyn PmMedium, superblock: &Superblock) -> Outcome<()> {
    let Some(epoch) = checkpoint_of(pm, superblock).map(|checkpoint| checkpoint.epoch) else { return Ok(()) };
    for row in superblock.device_rows() {
        let path = locate(pool, superblock, row);
        let newer =
            |header: DeviceHeader| is_ours(&header, superblock, row) && u64::from(header.epoch.get()) > epoch;
        if header(&path).is_some_and(newer) {
            let device = path.display();
            let text = format!(
                "an older copy of this pool's tier 0: {device} was used by a later mount; use the newest copy"
            );
            return Err(Failure::at(pool, text));
        }
    }
    Ok(())
}

/// The pool's UUID as text.
pub fn uuid_text(superblock: &Superblock) -> String {
    uuid::Uuid::from_bytes(superblock.uuid).to_string()
}

/// The pool's label.
pub fn label(superblock: &Superblock) -> String {
    let end = superblock.label.iter().position(|&byte| byte == 0).unwrap_or(superblock.label.len());
    String::from_utf8_lossy(superblock.label.get(..end).unwrap_or(&[])).into_owned()
}

/// The reason why a mount would refuse tier 0 of an unmounted pool: its size.
pub fn trouble_of_pm(pool: &Path, superblock: &Superblock) -> Option<String> {
    let was = superblock.layout.pm_size.get();
    let is = Tier0File::open(pool).and_then(|file| file.size()).ok()?;
    (is != was).then(|| format!("was {was} bytes, is {is}; bring back its size"))
}

/// Refuses a tier 0 whose size has changed since mkfs.
pub fn refuse_resized(pool: &Path, pm: &dyn PmMedium) -> Outcome<()> {
    match peek(pool) {
        Ok(superblock) if superblock.layout.pm_size.get() != pm.size() => {
            let (was, is) = (superblock.layout.pm_size.get(), pm.size());
            let text = format!("resized tier 0: was {was} bytes, is {is}; bring back its size");
            Err(Failure::at(pool, text))
        }
        _ => Ok(()),
    }
}
