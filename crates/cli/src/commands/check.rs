//! `terrace check`, fsck.terrace

use crate::args::Check;
use crate::failure::{Failure, Outcome, status};
use crate::{output, pool};
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::cell::Cell;
use std::sync::Arc;
use terrace_check::{Devices, Options, Repair, Report};
use terrace_format::BLOCK_SIZE;
use terrace_format::geometry::{SUPERBLOCK_BLOCKS, SUPERBLOCK_COPIES};
use terrace_format::superblock::{Refused, Superblock};
use terrace_media::pm::RamPm;
use terrace_media::{BlockMedium, PmMedium};

pub fn run(args: &Check) -> Outcome<u8> {
    let operational = |failure: Failure| failure.with_status(status::FSCK_OPERATIONAL);
    let repair = (args.repair || args.automatic || args.preen || args.yes) && !args.no;
    let devices = open(args, repair).map_err(operational)?;
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let length = Cell::new(0);
    let progress = |done: u64, all: u64| {
        if length.replace(all) != all {
            bar.set_length(all);
        }
        bar.set_position(done);
    };
    let read_cold = args.data || args.full;
    let options = Options { read_cold, progress: Some(&progress) };
    if repair {
        let result = terrace_check::repair(&devices, &options);
        bar.finish_and_clear();
        if args.json {
            output::print_json(&result);
        } else {
            show_repair(args, &result, read_cold);
        }
        return Ok(result.exit_status() as u8);
    }
    let report = terrace_check::check(&devices, &options);
    bar.finish_and_clear();
    if args.json {
        output::print_json(&report);
    } else {
        show(args, &report, read_cold);
    }
    Ok(report.exit_status() as u8)
}

/// Opens what there is; the check reports what is missing.
fn open(args: &Check, repair: bool) -> Outcome<Devices> {
    let path = pool::canonical(&args.pool)?;
    let pm = RamPm::open(&path, !repair).map_err(|error| match &error {
        terrace_media::OpenError::InvalidSize { .. } => Failure::at(&path, "no Terrace pool"),
        _ => pool::open_failure(&error),
    })?;
    let mut block: Vec<Option<Arc<dyn BlockMedium>>> = Vec::new();
    match superblock(&pm) {
        Ok((superblock, warning)) => {
            if let Some(warning) = warning {
                output::warn(format!("{}: {warning}", path.display()));
            }
            pool::refuse_older(&path, &superblock)?;
            for index in 0..superblock.device_rows().len() {
                let opened = pool::open_tier(&path, &superblock, index, !repair).or_else(|failure| {
                    pool::open_damaged_tier(&path, &superblock, index, !repair).ok_or(failure)
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
    Ok(Devices { pm: Arc::new(pm), block })
}

/// The superblock in use and a warning about the other copy; also that of a pool half repaired.
fn superblock(pm: &RamPm) -> Result<(Superblock, Option<String>), Refused> {
    let refused = match terrace_fs::read_superblock(pm, false) {
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
    if let Some(failure) = &result.failure {
        output::warn(format!("{}: not repaired: {failure}", args.pool.display()));
    }
    show(args, &result.left, read_cold);
}

fn show(args: &Check, report: &Report, read_cold: bool) {
    for finding in &report.findings {
        let row = finding.code.row();
        output::print(format!("{}: {}", row.name, finding.detail));
    }
    for (code, count) in &report.unlisted {
        output::print(format!("{}: {count} more", code.row().name));
    }
    let summary = &report.summary;
    let verdict = match (report.is_clean(), summary.clean_unmount) {
        (true, true) => "clean",
        (true, false) => "sound; was not unmounted: its records were replayed in memory",
        (false, true) => "NOT sound",
        (false, false) => "NOT sound; was not unmounted: its records were replayed in memory",
    };
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
