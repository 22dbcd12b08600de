//! `terrace tier`: the order of the lower tiers, changed after mkfs.

use crate::args::Tier;
use terrace_daemon::failure::{Failure, Outcome};
use terrace_daemon::pool::Tier0;
use terrace_daemon::{output, places, pool};
use terrace_engine::{class_name, speed_of, tiers_of};
use terrace_format::superblock::Superblock;

pub fn run(args: &Tier) -> Outcome<u8> {
    let path = pool::canonical(&args.pool)?;
    // A file that is no pool is refused for that reason, before its size is looked at.
    pool::peek(&path)?;
    let Tier0 { pm, .. } = pool::open_tier0_or_say(&path, args.dry_run)?;
    pool::refuse_resized(&path, &*pm)?;
    let (superblock, _) =
        terrace_engine::read_superblock(&*pm, true).map_err(|refused| pool::refusal(&path, &refused))?;
    pool::refuse_older(&path, &*pm, &superblock)?;
    let device = pool::canonical(&args.device)?;
    let is_it = |index: &usize| {
        let row = &superblock.device_rows()[*index];
        pool::canonical(&places::locate(&path, &superblock, row)).is_ok_and(|found| found == device)
    };
    let index = (0..superblock.device_rows().len()).find(is_it).ok_or_else(|| {
        Failure::at(&device, format!("no device of {}; see 'terrace status'", path.display()))
    })?;
    // The device must still be the pool's: a path may meanwhile lead to a foreign device.
    let opened = pool::open_tier(&path, &superblock, index, true)?;
    let mut changed = superblock;
    changed.devices[index].tier = args.to;
    if !args.dry_run {
        changed = terrace_engine::set_device_tier(&*pm, &superblock, index, args.to)
            .and_then(|changed| pm.close().map(|()| changed))
            .map_err(|error| Failure::at(&path, error))?;
    }
    drop(opened);
    report(&path, &changed);
    let gone = tiers_of(superblock.device_rows()).difference(&tiers_of(changed.device_rows())).count() > 0;
    if gone {
        let was = superblock.device_rows()[index].tier;
        output::print(format!("no device is tier {was} any more; pins to it mean the next slower tier"));
    }
    if args.dry_run {
        output::print("nothing was changed");
    }
    Ok(0)
}

fn report(path: &std::path::Path, superblock: &Superblock) {
    let mut rows: Vec<_> = superblock.device_rows().iter().collect();
    rows.sort_by_key(|row| row.tier);
    for row in rows {
        let figures = speed_of(row).map(|speed| format!(", {speed}")).unwrap_or_default();
        let device = places::locate(path, superblock, row);
        output::print(format!("tier {}: {}: {}{figures}", row.tier, device.display(), class_name(row)));
    }
}
