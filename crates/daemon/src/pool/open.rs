//! Opening the media of a pool.

use crate::failure::{Failure, Outcome};
use crate::names::PoolFile;
use crate::places::{Lenience, at_or_beside, header, locate};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_engine::PoolMedia;
use terrace_format::superblock::{Refused, Superblock};
use terrace_media::block::MissingDevice;
use terrace_media::pm::{JournalError, JournalOptions};
use terrace_media::{Access, BlockMedium, OpenError};

use super::superblock::{canonical, not_a_pool, refusal, refuse_older, refuse_resized};
use super::tier;
use super::tier0::{Tier0, open_tier0, tier0_failure};

/// An opened pool, its media locked.
pub struct OpenPool {
    /// The media for the file system.
    pub media: PoolMedia,
    /// The superblock used.
    pub superblock: Superblock,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The canonical paths of all tiers' existing files, with their owners and modes.
    pub files: Vec<(PathBuf, Access)>,
    /// The files by which the pool is found again.
    pub names: Vec<PoolFile>,
}

/// Opens tier 0, verifies the superblock and opens all tiers.
pub fn open(pool: &Path, write: bool, lenience: &Lenience, journal: JournalOptions) -> Outcome<OpenPool> {
    let journal = JournalOptions { resident: true, ..journal };
    let Tier0 { pm, access, name, warnings: mut warnings_of_tier0, .. } = open_tier0(pool, false, journal)
        .map_err(|error| match &error {
            JournalError::Open(OpenError::InvalidSize { .. } | OpenError::Unsupported { .. })
                if header(pool).is_some() =>
            {
                Failure::at(pool, not_a_pool(pool))
            }
            JournalError::Open(OpenError::InvalidSize { .. }) => refusal(pool, &Refused::NotAPool),
            _ => tier0_failure(&error),
        })?;
    refuse_resized(pool, &*pm)?;
    let (superblock, warning) =
        terrace_engine::read_superblock(&*pm, write).map_err(|refused| refusal(pool, &refused))?;
    refuse_older(pool, &*pm, &superblock)?;
    let mut block: Vec<Arc<dyn BlockMedium>> = Vec::new();
    let mut files = vec![(canonical(pool)?, access)];
    let mut names: Vec<PoolFile> = name.into_iter().collect();
    let mut missing = Vec::new();
    let places = lenience.places(&superblock)?;
    let mut elsewhere = Vec::new();
    for ((index, row), place) in superblock.device_rows().iter().enumerate().zip(places) {
        let given = place.is_some();
        let path = place.unwrap_or_else(|| locate(pool, &superblock, row));
        let expected = at_or_beside(pool, row);
        if !given && path != expected && path.is_file() {
            let (tier, path, expected) = (row.tier, path.display(), expected.display());
            elsewhere.push(format!(
                "a device of tier {tier} was found by its header at {path}, not at {expected}"
            ));
        }
        match tier::open_tier_at(&superblock, index, path, !write) {
            Ok(device) => {
                files.push((canonical(device.path())?, device.access()));
                names.extend(PoolFile::new(device.path(), device.file()));
                block.push(Arc::new(device));
            }
            Err(failure) if lenience.degraded => {
                let path = String::from_utf8_lossy(row.path()).into_owned();
                block.push(Arc::new(MissingDevice::new(path, row.blocks.get())));
                missing.push(format!(
                    "mounted without a device: {}; what lies there cannot be read",
                    failure.text
                ));
            }
            Err(failure) => return Err(Lenience::advise(failure)),
        }
    }
    let mut warnings: Vec<String> =
        warning.map(|text| format!("{}: {text}", pool.display())).into_iter().collect();
    warnings.append(&mut warnings_of_tier0);
    warnings.extend(elsewhere);
    warnings.extend(missing);
    Ok(OpenPool { media: PoolMedia { pm, block }, superblock, warnings, files, names })
}
