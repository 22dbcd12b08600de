//! The lower-tier devices of a pool: finds the device that the user means, and the fault of a device.

use super::look::open_to_read;
use super::superblock::open_failure;
use crate::failure::{Failure, Outcome, plain};
use crate::places::{header, is_ours, locate};
use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use terrace_engine::class_name;
use terrace_format::device::DeviceHeader;
use terrace_format::superblock::{DeviceRow, Superblock};
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_media::block::{AlignedBlock, FileDevice};
use terrace_media::{BlockMedium, OpenError};

/// A tier by its number, or by a class that only one tier has.
pub fn tier_named(rows: &[DeviceRow], name: &str) -> Result<u8, String> {
    if let Ok(number) = name.parse::<u8>() {
        return match number == 0 || rows.iter().any(|row| row.tier == number) {
            true => Ok(number),
            false => Err(format!("no tier {number}; see 'terrace status'")),
        };
    }
    if name == "pm" {
        return Ok(0);
    }
    let matching = rows.iter().filter(|row| class_name(row) == name);
    let mut tiers: Vec<u8> = matching.map(|row| row.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    match tiers.as_slice() {
        [tier] => Ok(*tier),
        [] => Err(format!("no tier '{name}'; see 'terrace status'")),
        _ => Err(format!("more than one tier of class {name}; give its number")),
    }
}

/// Opens a tier device and verifies that it is the pool's device of this index.
pub fn open_tier(pool: &Path, superblock: &Superblock, index: usize, read_only: bool) -> Outcome<FileDevice> {
    let Some(row) = superblock.device_rows().get(index) else {
        return Err(Failure::at(pool, format!("no device {index}")));
    };
    open_tier_at(superblock, index, locate(pool, superblock, row), read_only)
}

/// Opens a tier device at a path and verifies that it is the pool's device of this index.
pub fn open_tier_at(
    superblock: &Superblock,
    index: usize,
    path: PathBuf,
    read_only: bool,
) -> Outcome<FileDevice> {
    let row = &superblock.device_rows()[index];
    let tier = row.tier;
    // Another device of the pool at this path would fail as busy, which hides the real fault: so the header
    // is judged before the open.
    if let Some(found) = header(&path).filter(|found| !is_ours(found, superblock, row)) {
        is_meant(superblock, index, &path, &found.encode(), row.blocks.get())?;
    }
    let device = FileDevice::open(&path, true, read_only).map_err(|error| match &error {
        OpenError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Failure::new(format!("missing tier {tier}: {}: {}", path.display(), plain(source)))
        }
        OpenError::InvalidSize { size_bytes, .. } => resized(tier, &path, row, *size_bytes),
        OpenError::Unsupported { .. } => Failure::new(format!("foreign tier {tier}: {error}")),
        _ => open_failure(&error),
    })?;
    let mut first = [AlignedBlock::zeroed()];
    device.read(DeviceBlock(0), &mut first).map_err(|error| Failure::new(format!("tier {tier}: {error}")))?;
    is_meant(superblock, index, &path, &first[0].0, device.blocks())?;
    Ok(device)
}

/// Whether a device with this number of blocks and this first block is the device of a row.
fn is_meant(superblock: &Superblock, index: usize, path: &Path, first: &[u8], blocks: u64) -> Outcome<()> {
    let row = &superblock.device_rows()[index];
    let tier = row.tier;
    let header = DeviceHeader::decode(first)
        .map_err(|_| Failure::new(format!("foreign tier {tier}: {}: no Terrace device", path.display())))?;
    if header.pool_uuid != superblock.uuid {
        let text = format!("foreign tier {tier}: {}: belongs to another pool", path.display());
        return Err(Failure::new(text));
    }
    // The tier is the row's: the header may have an older tier, from the last mount that wrote it.
    if header.device_uuid != row.uuid || usize::from(header.index) != index {
        let found = format!("is device {} (tier {})", header.index, header.tier);
        return Err(Failure::new(format!("foreign tier {tier}: {}: {found} of this pool", path.display())));
    }
    if blocks != row.blocks.get() || header.blocks != row.blocks {
        return Err(resized(tier, path, row, blocks * BLOCK_SIZE));
    }
    Ok(())
}

/// The health word and reason with which a mount would refuse a tier of an unmounted pool. It takes no lock,
/// so it may run beside a check. `None` when the tier is sound, or the caller may not read the device.
pub fn trouble_of_tier(pool: &Path, superblock: &Superblock, index: usize) -> Option<(&'static str, String)> {
    let path = locate(pool, superblock, superblock.device_rows().get(index)?);
    let look = || -> io::Result<([u8; BLOCK_SIZE as usize], u64)> {
        let mut file = open_to_read(&path)?;
        let mut first = [0; BLOCK_SIZE as usize];
        file.read_exact_at(&mut first, 0)?;
        Ok((first, file.seek(SeekFrom::End(0))?))
    };
    match look() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(("missing", plain(&error))),
        // Shorter than a block: the file cannot have a header.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Some(("foreign", "no Terrace device".into()))
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Some(("foreign", plain(&error))),
        // A user without the right to read the device cannot judge it; root's mount can.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(error) => Some(("failed", plain(&error))),
        Ok((first, size)) => {
            let failure = is_meant(superblock, index, &path, &first, size / BLOCK_SIZE).err()?;
            let health = if failure.text.starts_with("resized") { "resized" } else { "foreign" };
            Some((health, failure.text))
        }
    }
}

/// For check: opens a tier whose header is damaged, at the path that the user gave, or else at the device's
/// known path. A device of another pool is not opened.
pub fn open_damaged_tier(
    pool: &Path,
    superblock: &Superblock,
    (index, given): (usize, Option<PathBuf>),
    read_only: bool,
) -> Option<FileDevice> {
    let row = superblock.device_rows().get(index)?;
    let path = given.unwrap_or_else(|| locate(pool, superblock, row));
    let device = FileDevice::open(path, true, read_only).ok()?;
    let mut first = [AlignedBlock::zeroed()];
    device.read(DeviceBlock(0), &mut first).ok()?;
    let [AlignedBlock(bytes)] = &first;
    let possible = DeviceHeader::decode(bytes).map_or(true, |header| is_ours(&header, superblock, row));
    (possible && device.blocks() == row.blocks.get()).then_some(device)
}

/// The path, of the paths that the user gave, of a device with a damaged header: the device's known path if
/// it is among them, else a path with a device of its size.
pub fn given_tier(pool: &Path, superblock: &Superblock, index: usize, given: &[PathBuf]) -> Option<PathBuf> {
    let row = superblock.device_rows().get(index)?;
    let there = fs::canonicalize(locate(pool, superblock, row)).ok();
    let sized = |path: &&PathBuf| {
        let size = open_to_read(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        size.is_ok_and(|size| size / BLOCK_SIZE == row.blocks.get())
    };
    let named = given.iter().find(|path| Some(*path) == there.as_ref());
    named.or_else(|| given.iter().find(sized)).cloned()
}

fn resized(tier: u8, path: &Path, row: &DeviceRow, now: u64) -> Failure {
    let was = row.blocks.get() * BLOCK_SIZE;
    Failure::new(format!(
        "resized tier {tier}: {}: was {was} bytes, is {now}; bring back its size",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::Geometry;

    #[test]
    fn tiers_are_named_by_number_or_by_an_unambiguous_class() -> Result<(), String> {
        let mut rows = Superblock::new(&Geometry::choose(16 << 20, 4096)?).devices;
        // The devices of a tier need not lie side by side.
        for (row, (tier, class)) in rows.iter_mut().zip([(2, 6), (1, 5), (2, 1), (3, 7), (4, 7)]) {
            (row.tier, row.class, row.speed_class) = (tier, 1, class);
        }
        let found = |name| tier_named(&rows[..5], name);
        assert_eq!([found("0"), found("pm"), found("3"), found("nvme")], [Ok(0), Ok(0), Ok(3), Ok(1)]);
        assert_eq!([found("sata"), found("ssd")], [Ok(2), Ok(2)]);
        assert!(found("disk").is_err_and(|error| error.contains("more than one tier")));
        for name in ["5", "optane", "hdd", "-1", ""] {
            assert!(found(name).is_err_and(|error| error.contains("no tier")), "{name}");
        }
        Ok(())
    }
}
