//! Reports the new pool, with warnings for its user.

use super::target::{CHUNK_BLOCKS, Target};
use super::tier0::Tier0;
use std::path::Path;
use terrace_daemon::output::{self, human};
use terrace_daemon::{ownership, pool};
use terrace_engine::{class_name, policy_name, speed_of};
use terrace_format::BLOCK_SIZE;
use terrace_format::superblock::Superblock;
use terrace_media::Promise;
use terrace_media::found::is_in_memory;
use terrace_media::speed::FIGURES;

pub fn report(tier0: &Tier0, tiers: &[Target], superblock: &Superblock) {
    let pm = tier0.target();
    let geometry = superblock.geometry();
    let table = geometry.block_count() * 16;
    output::print(format!("pool {} made, uuid {}", pm.path.display(), pool::uuid_text(superblock)));
    output::print(format!(
        "tier 0: {}, {}: {} lanes of {}, block table {}, {} blocks of 4 KiB to use; promise {}",
        pm.path.display(),
        human(geometry.pm_size),
        geometry.lane_count,
        human(geometry.lane_size),
        human(table),
        geometry.block_count() - geometry.first_pool_block().0,
        tier0.promise().name(),
    ));
    if let Tier0::Journal(_, layout) = tier0 {
        let (image, log) = (human(layout.image_bytes()), human(layout.log_bytes()));
        output::print(format!(
            "journal: an image of {image}, held in memory while mounted, and a log of {log}"
        ));
    }
    output::print(format!(
        "map {}  policy {}  data {}",
        geometry.map.name(),
        policy_name(superblock.policy).unwrap_or("-"),
        if superblock.data_mode == 2 { "ordered" } else { "atomic" },
    ));
    if superblock.has_data_checksums() {
        output::print("file data in persistent memory has checksums");
    }
    if matches!(tier0, Tier0::Pm(_)) && !is_memory(&pm.path) {
        output::warn(ordinary(&pm.path));
    }
    for target in std::iter::once(pm).chain(tiers) {
        let Some(existing) = &target.existing else { continue };
        let access = existing.found.access();
        let user = rustix::process::geteuid().as_raw();
        let changeable = ownership::changeable(access, user);
        let changeable = changeable.map(|why| format!("{}: {why}", target.path.display()));
        if let Some(text) = changeable.or_else(|| ownership::readable(&target.path, access)) {
            output::warn(text);
        }
    }
    let mut rows: Vec<_> = tiers.iter().zip(superblock.device_rows()).collect();
    rows.sort_by_key(|(_, row)| row.tier);
    for (tier, row) in rows {
        let chunks = (tier.size / BLOCK_SIZE - 1).div_ceil(u64::from(CHUNK_BLOCKS));
        let speed = match (speed_of(row), row.speed_class) {
            (Some(_), FIGURES) if tier.speed.is_none() => ", measured: ",
            (Some(_), _) => ", ",
            (None, _) => "",
        };
        let figures = speed_of(row).map(|figures| figures.to_string()).unwrap_or_default();
        output::print(format!(
            "tier {}: {}, {}: {}{speed}{figures}, {chunks} chunks of 16 MiB; promise {}",
            row.tier,
            tier.path.display(),
            human(tier.size),
            class_name(row),
            if is_in_memory(&tier.path) { Promise::ProcessCrash } else { Promise::PowerFail }.name(),
        ));
        if tier.existing.is_none() {
            output::warn(sparse(tier));
        }
        if tier.existing.as_ref().is_some_and(|existing| existing.found.is_block_device()) {
            output::warn(disguise(&tier.path));
        }
    }
}

/// Whether a file is memory: on tmpfs, ramfs, hugetlbfs, or mapped without a page cache (DAX).
fn is_memory(path: &Path) -> bool {
    let flags = rustix::fs::AtFlags::empty();
    let dax = rustix::fs::statx(rustix::fs::CWD, path, flags, rustix::fs::StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(rustix::fs::StatxAttributes::DAX));
    dax || is_in_memory(path)
}

/// The warning for persistent memory in a page cache.
fn ordinary(path: &Path) -> String {
    let what = "not on tmpfs, hugetlbfs or DAX: its file system writes pages back in an order of its own";
    format!(
        "{}: {what}, so the pool survives the end of the daemon (process-crash), not of the machine",
        path.display()
    )
}

/// The warning about other programs, to which a device looks empty.
fn disguise(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path}: other programs see no more than an empty partition table (blkid: dos); do not partition or format it"
    )
}

/// A sparse file can meet a full host later.
fn sparse(tier: &Target) -> String {
    let directory = tier.path.parent().unwrap_or(Path::new("/"));
    let free = rustix::fs::statvfs(directory).map_or(0, |space| space.f_bavail * space.f_frsize);
    let path = tier.path.display();
    format!("{path}: sparse file; its file system has {} free and must not run full", human(free))
}
