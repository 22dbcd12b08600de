//! `terrace check`, fsck.terrace

use crate::args::Check;
use crate::failure::{Failure, Outcome, status};
use crate::{output, pool};
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::cell::Cell;
use std::sync::Arc;
use terrace_check::{Devices, Options, Report};
use terrace_media::BlockMedium;
use terrace_media::pm::RamPm;

pub fn run(args: &Check) -> Outcome<u8> {
    let operational = |failure: Failure| failure.with_status(status::FSCK_OPERATIONAL);
    if args.repair {
        return Err(operational(Failure::not_built("check --repair")));
    }
    if (args.automatic || args.preen || args.yes) && !args.no {
        output::warn("repair is not built yet; only checking");
    }
    let devices = open(args).map_err(operational)?;
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let length = Cell::new(0);
    let progress = |done: u64, all: u64| {
        if length.replace(all) != all {
            bar.set_length(all);
        }
        bar.set_position(done);
    };
    let read_cold = args.data || args.full;
    let report = terrace_check::check(&devices, &Options { read_cold, progress: Some(&progress) });
    bar.finish_and_clear();
    if args.json {
        output::print_json(&report);
    } else {
        show(args, &report, read_cold);
    }
    Ok(report.exit_status() as u8)
}

/// Opens what there is; the check reports what is missing.
fn open(args: &Check) -> Outcome<Devices> {
    let path = pool::canonical(&args.pool)?;
    let pm = RamPm::open(&path, true).map_err(|error| match &error {
        terrace_media::OpenError::InvalidSize { .. } => Failure::at(&path, "no Terrace pool"),
        _ => pool::open_failure(&error),
    })?;
    let mut block: Vec<Option<Arc<dyn BlockMedium>>> = Vec::new();
    match terrace_fs::read_superblock(&pm, false) {
        Ok((superblock, warning)) => {
            if let Some(warning) = warning {
                output::warn(format!("{}: {warning}", path.display()));
            }
            for index in 0..superblock.device_rows().len() {
                match pool::open_tier(&path, &superblock, index, true) {
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
        "{}: {verdict}; {} inodes, {} names, {} in files, {} cold blocks; cold data {data}",
        args.pool.display(),
        summary.inodes,
        summary.dentries,
        output::human(summary.bytes),
        summary.cold_blocks,
    ));
}
