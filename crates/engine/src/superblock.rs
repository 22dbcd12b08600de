//! The order of the lower tiers of a pool that is not mounted: `terrace tier`.
//!
//! The tier of a device stands in its superblock row alone: metadata names devices, not tiers, so a new order
//! moves no block. The next mount that writes brings the copy in the device header up to date. Tier pins name
//! tiers by number: see [`standing_in`].

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use terrace_format::BLOCK_SIZE;
use terrace_format::geometry::{SUPERBLOCK_BLOCKS, SUPERBLOCK_COPIES};
use terrace_format::moved::encode_moved;
use terrace_format::superblock::{Refused, Superblock};
use terrace_media::{MediaError, PmMedium};
use zerocopy::IntoBytes;

/// Gives a device, by its index, another tier. A crash at any instant leaves a pool with the old order or
/// with the new one: the copy of the superblock that mounts use is written last, when the other copy is
/// durable.
///
/// # Errors
/// The medium's.
pub fn set_device_tier(
    pm: &dyn PmMedium,
    superblock: &Superblock,
    device: usize,
    tier: u8,
) -> Result<Superblock, MediaError> {
    assert!(tier > 0 && device < superblock.device_rows().len(), "device {device}, tier {tier}");
    let mut changed = *superblock;
    if let Some(row) = changed.devices.get_mut(device) {
        row.tier = tier;
    }
    changed.seal();
    // Mounts use the first copy if it is sound.
    let in_use = usize::from(!is_sound(pm, 0));
    for copy in [SUPERBLOCK_COPIES[1 - in_use], SUPERBLOCK_COPIES[in_use]] {
        pm.write(copy.offset(), changed.as_bytes())?;
        pm.persist()?;
    }
    Ok(changed)
}

/// Marks a tier 0 whose content the journal at `path` has: no mount accepts it any more. A crash at any instant leaves the pool
/// or the mark.
///
/// # Errors
/// The medium's.
pub fn mark_moved(pm: &dyn PmMedium, path: &Path) -> Result<(), MediaError> {
    let mark = encode_moved(path.as_os_str().as_bytes());
    // Mounts use the first copy if it is sound, and the mark is.
    for copy in SUPERBLOCK_COPIES {
        pm.write(copy.offset(), &mark)?;
        pm.persist()?;
    }
    Ok(())
}

/// Reads the superblock; if the first copy is damaged the second, with a sentence about the damage.
///
/// # Errors
/// See [`Refused`].
pub fn read_superblock(pm: &dyn PmMedium, write: bool) -> Result<(Superblock, Option<String>), Refused> {
    let read = |index: usize| -> Result<Superblock, Refused> {
        let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
        let copy = SUPERBLOCK_COPIES[index];
        if pm.read(copy.offset(), &mut bytes).is_err() {
            let expected = "a readable copy";
            return Err(terrace_format::Corrupt::new("superblock", expected, "an unreadable one").into());
        }
        let superblock = Superblock::verify(&bytes, write)?;
        if superblock.geometry().pm_size > pm.size() {
            let found = format!("{} bytes", pm.size());
            let expected = format!("persistent memory of {} bytes", superblock.geometry().pm_size);
            return Err(terrace_format::Corrupt::new("tier 0", expected, found).into());
        }
        Ok(superblock)
    };
    match read(0) {
        Ok(superblock) => Ok((superblock, second_copy_warning(pm, read(1)))),
        Err(first @ (Refused::Corrupt(_) | Refused::NotAPool)) => match read(1) {
            Ok(superblock) => {
                let warning = format!("superblock copy 0 is damaged ({first}); copy 1 is used");
                Ok((superblock, Some(warning)))
            }
            Err(
                second
                @ (Refused::Version(_) | Refused::Features(_) | Refused::Repairing | Refused::Moved(_)),
            ) => Err(second),
            Err(_) => Err(first),
        },
        Err(other) => Err(other),
    }
}

/// A warning about copy 1 when copy 0 is used and copy 1 is damaged.
fn second_copy_warning(pm: &dyn PmMedium, second: Result<Superblock, Refused>) -> Option<String> {
    let Err(error @ (Refused::Corrupt(_) | Refused::NotAPool)) = second else { return None };
    // A pool size that does not fit the medium is not damage of the copy.
    (!is_sound(pm, 1)).then(|| format!("superblock copy 1 is damaged ({error}); copy 0 is used"))
}

/// Whether a copy of the superblock is sound, of whatever version.
pub fn is_sound(pm: &dyn PmMedium, index: usize) -> bool {
    let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
    let read = pm.read(SUPERBLOCK_COPIES[index].offset(), &mut bytes);
    let damaged = |refused: &Refused| matches!(refused, Refused::Corrupt(_) | Refused::NotAPool);
    read.is_ok() && Superblock::verify(&bytes, false).err().is_none_or(|refused| !damaged(&refused))
}

/// Rewrites a damaged copy of the superblock from the sound one; true when a copy was damaged. The sound copy
/// is not touched, so a crash meanwhile leaves the pool as usable as before.
///
/// # Errors
/// The medium's; also when the copy does not read back sound.
pub fn mend_superblock(
    pm: &dyn PmMedium,
    superblock: &Superblock,
) -> Result<bool, terrace_media::MediaError> {
    let damaged: Vec<usize> = (0..SUPERBLOCK_COPIES.len()).filter(|index| !is_sound(pm, *index)).collect();
    let &[index] = damaged.as_slice() else { return Ok(false) };
    let place = SUPERBLOCK_COPIES[index].offset();
    pm.write(place, superblock.as_bytes())?;
    pm.persist()?;
    if !is_sound(pm, index) {
        let length = SUPERBLOCK_BLOCKS * BLOCK_SIZE;
        return Err(terrace_media::MediaError::Pm { offset: place, length });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrace_format::Geometry;
    use terrace_media::pm::{CrashSnapshot, PmImage, RecordedPm};
    use terrace_runtime::sync::Mutex;
    use terrace_store::parts::devices::speeds::standing_in;

    /// A changed order of tiers may leave the number of a tier pin without a tier.
    #[test]
    fn a_pin_to_an_absent_tier_means_the_next_slower_tier() {
        let means = |wanted| standing_in(wanted, [2, 4].into_iter());
        assert_eq!([0, 1, 2, 3, 4, 5, 255].map(means), [0, 2, 2, 4, 4, 4, 4]);
        assert_eq!(standing_in(3, std::iter::empty()), 3);
    }

    #[test]
    fn a_crash_while_a_tier_0_is_marked_leaves_the_pool_or_the_mark() {
        let geometry = Geometry::choose(4 << 20, 4096).unwrap();
        let mut superblock = Superblock::new(&geometry);
        (superblock.map, superblock.policy, superblock.data_mode) = (1, 2, 1);
        superblock.uuid = [7; 16];
        superblock.seal();
        let pm = Arc::new(RecordedPm::new(4 << 20));
        SUPERBLOCK_COPIES.iter().for_each(|copy| pm.write(copy.offset(), superblock.as_bytes()).unwrap());
        pm.persist().unwrap();
        let moments: Arc<Mutex<Vec<CrashSnapshot>>> = Arc::default();
        let (kept, weak) = (moments.clone(), Arc::downgrade(&pm));
        pm.clock().on_event(Some(Box::new(move |_| {
            if let Some(pm) = weak.upgrade() {
                kept.lock().push(pm.snapshot());
            }
        })));
        mark_moved(&*pm, Path::new("/journal")).unwrap();
        pm.clock().on_event(None);
        let read = |image: PmImage| {
            read_superblock(&RecordedPm::from_image(image), true).map(|(superblock, _)| superblock.uuid)
        };
        let moved = Err(Refused::Moved("/journal".to_string()));
        let mut pools = 0;
        for (moment, seed) in moments.lock().iter().flat_map(|moment| (0..16).map(move |seed| (moment, seed)))
        {
            let found = read(moment.image_random(seed));
            pools += u64::from(found == Ok([7; 16]));
            assert!(found == Ok([7; 16]) || found == moved, "{found:?}");
        }
        assert!(pools > 0);
        assert_eq!(read(pm.snapshot().image_oldest()), moved, "the mark is not durable at the end");
    }
}
