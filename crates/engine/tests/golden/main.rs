//! Golden images: pools of every format version that this program reads, as text beside this file. Each is
//! mounted and compared with a listing, its orphans and intents are removed, and it is checked before and
//! after.
//!
//! A change of the format brings a version row (crates/format/src/version.rs) and images of the new version:
//! `cargo test -p terrace-engine --test golden write_images -- --ignored`. Images of released versions never
//! change.

mod listing;
mod make;
mod text;

use listing::listing;
use std::fs::{create_dir_all, read_to_string, write};
use std::path::PathBuf;
use std::sync::Arc;
use terrace_check::Code;
use terrace_engine::{Atime, Engine, MountOptions, Simulation, read_superblock};
use terrace_format::device::decode_summary;
use terrace_format::seal::SealKey;
use terrace_format::version::{FORMAT_VERSION, VERSIONS};
use terrace_format::{DeviceBlock, DeviceId};
use terrace_media::block::DeviceImage;
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;
use terrace_testkit::SimulatedPool;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn folder(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

/// A pool with the media of an image.
fn expand(image: &str) -> Result<SimulatedPool, String> {
    let media = text::decode(image)?;
    let [(first, pm), (second, device)] = media.as_slice() else { return Err("two media expected".into()) };
    assert_eq!((first.as_str(), second.as_str()), ("pm", "device"));
    let later = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    Ok(SimulatedPool::from_images(pm.clone(), DeviceImage::from_bytes(device)).with_clock(later))
}

/// The number of valid group summaries on the device.
fn summaries(pool: &SimulatedPool, key: &SealKey) -> usize {
    let device = pool.device.visible_image();
    let blocks = (0..pool.device.blocks()).map(DeviceBlock);
    let decoded = blocks.map(|at| decode_summary(&device.block(at).0, key, (DeviceId(0), at)));
    decoded.filter(Result::is_ok).count()
}

fn mount(pool: &SimulatedPool) -> Arc<Engine> {
    pool.mount_with(MountOptions { atime: Atime::Never, ..Default::default() })
}

/// Images with partial shadows.
const WITH_SHADOWS: [&str; 8] =
    ["shadows", "checksummed", "data-checksums", "extents", "cuckoo", "hashfs-linear", "hashfs", "clustered"];

fn read_image(version: u32, name: &str) -> Outcome {
    let place = folder(version);
    let pool = expand(&read_to_string(place.join(format!("{name}.txt")))?)?;
    let expected = read_to_string(place.join(format!("{name}.tree")))?;
    let report = pool.check();
    assert!(report.is_clean(), "{name} before mount: {:#?}", report.findings);
    let summary = report.summary;
    assert_eq!((summary.clean_unmount, summary.orphans, summary.intents), (name != "killed", 1, 1));
    assert_eq!(summary.pm_blocks.partial, if WITH_SHADOWS.contains(&name) { 3 } else { 0 });
    assert_eq!(summary.pm_blocks.checksums > 30, name == "data-checksums");
    // Written cold blocks, which check reads. Preallocated and shadowed cold blocks exist too, and check
    // skips their content.
    assert!(summary.cold_blocks_read >= 40 && summary.cold_blocks >= 10 + summary.cold_blocks_read);
    let (superblock, _) = read_superblock(&*pool.pm, false)?;
    assert_eq!(
        superblock.seal_key().is_secret(),
        name == "keyed" || name != "shadows" && WITH_SHADOWS.contains(&name)
    );
    assert_eq!(summary.metadata_below > 0, name == "keyed");
    assert!(summaries(&pool, &superblock.seal_key()) > 0, "{name}: no group summary");
    let fs = mount(&pool);
    assert_eq!(fs.status()?.recovery.records_replayed > 5, name == "killed");
    assert_eq!(listing(&fs)?, expected, "{name}: the tree");
    fs.run_background(10_000);
    assert_eq!(listing(&fs)?, expected, "{name}: the tree after background work");
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let summary = pool.check().summary;
    assert_eq!((summary.clean_unmount, summary.orphans, summary.intents), (true, 0, 0));
    assert_eq!(listing(&mount(&pool))?, expected, "{name}: the tree after another mount");
    Ok(())
}

/// Every version in the version table has golden images, and each image can be read.
#[test]
fn images_of_all_versions_are_readable() -> Outcome {
    for row in VERSIONS {
        for (name, _, _) in make::RECIPES {
            read_image(row.version, name)?;
        }
    }
    Ok(())
}

/// A changed byte of an image is noticed before the image is compared with anything.
#[test]
fn damaged_text_of_an_image_is_refused() -> Outcome {
    let image = read_to_string(folder(1).join("clean.txt"))?;
    let media = text::decode(&image)?;
    let again: Vec<(&str, &[u8])> = media.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    assert!(image.ends_with(text::encode("", &again).split_once("pm ").ok_or("no medium")?.1));
    let (from, to) = ("54455252414345", "54455252414346");
    assert!(image.contains(from));
    assert!(text::decode(&image.replacen(from, to, 1)).is_err_and(|why| why.contains("CRC32C")));
    Ok(())
}

/// Check finds damage in an image, which proves that the comparison above compares content.
#[test]
fn a_changed_image_is_not_clean() -> Outcome {
    let pool = expand(&read_to_string(folder(1).join("clean.txt"))?)?;
    let (superblock, _) = read_superblock(&*pool.pm, false)?;
    pool.pm.write(superblock.geometry().table_entry(superblock.geometry().first_pool_block()), &[0; 16])?;
    assert!(pool.check().findings.iter().any(|finding| finding.code == Code::BlockOwner));
    Ok(())
}

/// Writes the missing images of the present version. For a new version or feature only.
#[test]
#[ignore = "writes files"]
fn write_images() -> Outcome {
    let place = folder(FORMAT_VERSION);
    create_dir_all(&place)?;
    for (name, what, recipe) in make::RECIPES {
        if place.join(format!("{name}.txt")).exists() {
            continue;
        }
        let pool = recipe()?;
        let (pm, device) = (pool.pm.visible_image().to_vec(), pool.device.visible_image().to_bytes());
        let sentence =
            format!("Format version {FORMAT_VERSION}, by crates/engine/tests/golden/make.rs. {what}");
        let image = text::encode(&sentence, &[("pm", &pm), ("device", &device)]);
        write(place.join(format!("{name}.tree")), listing(&mount(&expand(&image)?))?)?;
        write(place.join(format!("{name}.txt")), image)?;
    }
    Ok(())
}
