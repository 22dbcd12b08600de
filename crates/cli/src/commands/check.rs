//! `terrace check`, fsck.terrace

use crate::args::Check;
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use terrace_check::{Code, MapSummary, Options, Report};
use terrace_daemon::failure::{Failure, Outcome, status};
use terrace_daemon::pool::{Tier0, Tier0File};
use terrace_daemon::{mounts, output, pool};
use terrace_format::BLOCK_SIZE;
use terrace_format::geometry::{SUPERBLOCK_BLOCKS, SUPERBLOCK_COPIES};
use terrace_format::superblock::{Refused, Superblock};
use terrace_media::pm::{JournalError, JournalOptions};
use terrace_media::{BlockMedium, OpenError, PmMedium};
use terrace_repair::{Media, Repair};

pub fn run(args: &Check) -> Outcome<u8> {
    let operational = |failure: Failure| failure.with_status(status::FSCK_OPERATIONAL);
    let repair = (args.repair || args.automatic || args.preen || args.yes) && !args.no;
    let Opened { media, given, cut } = open(args, repair).map_err(operational)?;
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let length = Cell::new(0);
    let progress = |done: u64, all: u64| {
        if length.replace(all) != all {
            bar.set_length(all);
        }
        bar.set_position(done);
    };
    let read_cold = args.data || args.full;
    let options = Options { read_cold, progress: Some(&progress), given: &given };
    if repair {
        let mut result = terrace_repair::repair(&media, &options);
        bar.finish_and_clear();
        if let Some(cut) = cut {
            result.written = true;
            result.lost.insert(0, cut);
        }
        if let Err(error) = media.pm.close() {
            result.failure.get_or_insert(error.to_string());
        }
        if args.json {
            output::print_json(&result);
        } else {
            show_repair(args, &result, read_cold);
        }
        return Ok(result.exit_status() as u8);
    }
    let report = terrace_check::check(&media.view(), &options);
    bar.finish_and_clear();
    if args.json {
        output::print_json(&report);
    } else {
        show(args, &report, read_cold);
    }
    Ok(report.exit_status() as u8)
}

/// The media of a pool to check.
struct Opened {
    media: Media,
    /// Devices whose paths the user named.
    given: Vec<usize>,
    /// The loss by a log that was cut.
    cut: Option<String>,
}

/// Opens the media that exist; the check reports missing ones.
fn open(args: &Check, repair: bool) -> Outcome<Opened> {
    let path = mounts::absolute(&args.pool)?;
    refuse_directory(&path)?;
    // Not at each boot (-a): what was acknowledged is given up.
    let options = JournalOptions { cut_log: args.repair || args.yes, ..JournalOptions::default() };
    let opened = pool::open_tier0(&path, !repair, options);
    let Tier0 { pm, warnings, cut, .. } = opened.map_err(|error| match &error {
        JournalError::Open(OpenError::InvalidSize { .. }) => {
            resized(&path).unwrap_or_else(|| Failure::at(&path, "no Terrace pool"))
        }
        _ => pool::tier0_failure(&error),
    })?;
    warnings.iter().chain(&cut).for_each(output::warn);
    if let Some(failure) = resized(&path) {
        return Err(failure);
    }
    let mut block: Vec<Option<Arc<dyn BlockMedium>>> = Vec::new();
    let mut tiers = args.tier.iter().map(|tier| pool::canonical(tier)).collect::<Outcome<Vec<_>>>()?;
    let mut given = Vec::new();
    match superblock(&*pm) {
        Ok((superblock, warning)) => {
            if let Some(warning) = warning {
                output::warn(format!("{}: {warning}", path.display()));
            }
            pool::refuse_older(&path, &*pm, &superblock)?;
            for index in 0..superblock.device_rows().len() {
                let opened = pool::open_tier(&path, &superblock, index, !repair).or_else(|failure| {
                    let tier = pool::given_tier(&path, &superblock, index, &tiers);
                    if let Some(tier) = &tier {
                        tiers.retain(|other| other != tier);
                        given.push(index);
                    }
                    pool::open_damaged_tier(&path, &superblock, (index, tier), !repair).ok_or(failure)
                });
                match opened {
                    Ok(device) => block.push(Some(Arc::new(device))),
                    Err(failure) => {
                        output::warn(&failure.text);
                        block.push(None);
                    }
                }
            }
        }
        Err(refused) => return Err(pool::refusal(&path, &refused)),
    }
    if let Some(tier) = tiers.iter().find(|tier| !is_open(&block, tier)) {
        return Err(Failure::at(
            tier,
            "--tier: no device of this pool is damaged or missing that has its size",
        ));
    }
    Ok(Opened { media: Media { pm, block }, given, cut })
}

fn is_open(block: &[Option<Arc<dyn BlockMedium>>], path: &Path) -> bool {
    block.iter().flatten().any(|device| std::fs::canonicalize(device.name()).is_ok_and(|found| found == path))
}

/// A mount point given in place of the pool is refused, and the text names the pool.
fn refuse_directory(path: &Path) -> Outcome<()> {
    match mounts::at(path)? {
        Some(mount) if mount.fs_type == mounts::FS_TYPE => {
            let pool = mount.source.display();
            let what = format!("is the mount of {pool}; unmount it and check {pool}");
            Err(Failure::at(path, what))
        }
        _ if path.is_dir() => Err(Failure::at(path, "is a directory and no Terrace mount")),
        _ => Ok(()),
    }
}

/// Refuses a tier 0 whose size differs from the superblock's, also of a pool half repaired: a mount refuses
/// it too, and with its old size it may be sound, so a repair could only do harm.
fn resized(path: &Path) -> Option<Failure> {
    let file = Tier0File::open(path).ok()?;
    let mut copies = SUPERBLOCK_COPIES.iter().filter_map(|copy| {
        let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
        file.read_at(&mut bytes, copy.offset().0).ok()?;
        Superblock::verify_repairing(&bytes, false).ok()
    });
    let reason = pool::trouble_of_pm(path, &copies.next()?)?;
    Some(Failure::at(path, format!("resized tier 0: {reason}")))
}

/// The superblock in use, and a warning about the other copy. Accepts a pool half repaired as well.
fn superblock(pm: &dyn PmMedium) -> Result<(Superblock, Option<String>), Refused> {
    let refused = match terrace_engine::read_superblock(pm, false) {
        Err(Refused::Repairing) => Refused::Repairing,
        other => return other,
    };
    let copies = SUPERBLOCK_COPIES.iter().filter_map(|copy| {
        let mut bytes = vec![0; (SUPERBLOCK_BLOCKS * BLOCK_SIZE) as usize];
        pm.read(copy.offset(), &mut bytes).ok()?;
        Superblock::verify_repairing(&bytes, false).ok()
    });
    copies.into_iter().next().map(|superblock| (superblock, None)).ok_or(refused)
}

fn show_repair(args: &Check, result: &Repair, read_cold: bool) {
    for code in result.repaired() {
        let row = code.row();
        output::print(format!("repaired: {}: {}", row.name, row.repair));
    }
    for action in &result.actions {
        output::print(format!("  {action}"));
    }
    for lost in &result.lost {
        output::print(format!("CHANGED OR LOST: {lost}"));
    }
    if let Some(failure) = &result.failure {
        output::warn(format!("{}: not repaired: {failure}", args.pool.display()));
    }
    show(args, &result.left, read_cold);
}

fn show(args: &Check, report: &Report, read_cold: bool) {
    for finding in &report.findings {
        // The device may exist and be in use; the reason was printed when the open failed.
        let name = match finding.code {
            Code::DeviceAbsent => "could not be judged",
            code => code.row().name,
        };
        output::print(format!("{name}: {}", finding.detail));
    }
    for (code, count) in &report.unlisted {
        output::print(format!("{}: {count} more", code.row().name));
    }
    let summary = &report.summary;
    if let Some(text) = map_text(&summary.map) {
        output::print(text);
    }
    let verdict = verdict(report.exit_status() as u8, summary.clean_unmount);
    let data = if read_cold { "read" } else { "not read (--data reads it)" };
    output::print(format!(
        "{}: {verdict}; {}, {}, {} in files, {}; cold data {data}",
        args.pool.display(),
        output::count(summary.inodes, "inode", "inodes"),
        output::count(summary.dentries, "name", "names"),
        output::human(summary.bytes),
        output::count(summary.cold_blocks, "cold block", "cold blocks"),
    ));
}

/// The file map with its load, and the figures that it has; `None` of a pool that was not read so far.
fn map_text(map: &MapSummary) -> Option<String> {
    let figures = [
        ("longest distance", map.longest_distance),
        ("reach", map.reach),
        ("entries in the stash", map.stash_entries),
        ("in second buckets", map.second_bucket_entries),
    ];
    let told = figures.iter().filter_map(|(name, figure)| Some(format!(", {name} {}", (*figure)?)));
    let told: String = told.collect();
    (!map.name.is_empty()).then(|| format!("map {}  (load {} %{told})", map.name, map.load_percent))
}

/// The verdict that the bits of fsck(8) stand for. A pool that could not be judged may be sound.
fn verdict(bits: u8, clean_unmount: bool) -> String {
    let found = match (bits & status::FSCK_ERRORS != 0, bits & status::FSCK_OPERATIONAL != 0) {
        (false, false) if clean_unmount => "clean",
        (false, false) => "sound",
        (false, true) => "could not be judged",
        (true, false) => "NOT sound",
        (true, true) => "NOT sound, and not all could be judged",
    };
    let replayed =
        if clean_unmount { "" } else { "; was not unmounted: its records were replayed in memory" };
    format!("{found}{replayed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_named_with_its_figures() {
        let radix = MapSummary { name: "radix", load_percent: 7, ..MapSummary::default() };
        assert_eq!(map_text(&radix).as_deref(), Some("map radix  (load 7 %)"));
        let cuckoo =
            MapSummary { name: "cuckoo", stash_entries: Some(2), second_bucket_entries: Some(30), ..radix };
        let text = "map cuckoo  (load 7 %, entries in the stash 2, in second buckets 30)";
        assert_eq!(map_text(&cuckoo).as_deref(), Some(text));
        assert_eq!(map_text(&MapSummary::default()), None);
    }

    /// A pool was once called unsound because another process had a device open.
    #[test]
    fn an_unjudged_pool_is_not_called_unsound() {
        let found = [0, 4, 8, 12].map(|bits| verdict(bits, true));
        assert_eq!(
            found,
            ["clean", "NOT sound", "could not be judged", "NOT sound, and not all could be judged"]
        );
        let crashed = [0, 8].map(|bits| verdict(bits, false));
        assert!(crashed[0].starts_with("sound; was not unmounted"), "{crashed:?}");
        assert!(crashed[1].starts_with("could not be judged; was not unmounted"), "{crashed:?}");
    }
}
