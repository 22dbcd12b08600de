//! `terrace mkfs --journal PATH --from POOL`: a new journal takes over the tier 0 of a pool, which keeps its identity and its
//! devices.
//!
//! Order: the whole content is durable in the new journal, whose anchors come last; then the mark stands in place of the old
//! superblocks. A crash before the anchors leaves the old pool alone. A crash between anchors and mark leaves both: devices of
//! lower tiers carry the stamp of each mount, so the first of the two that is mounted makes the other an older copy.

use super::old::Old;
use super::target::{Target, check_content, check_space};
use super::tier0::{Tier0, bar, whole_device};
use std::fs;
use std::path::{Path, PathBuf};
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::output::{self, human};
use terrace_daemon::pool;
use terrace_format::journal::Layout;
use terrace_media::PmMedium;
use terrace_media::found::is_in_memory;
use terrace_media::pm::JournaledPm;

/// Makes the journal and marks the old tier 0.
pub fn run(tier0: &Tier0, old: &Old, (force, dry_run): (bool, bool)) -> Outcome<u8> {
    let Tier0::Journal(target, layout) = tier0 else {
        return Err(Failure::new("--from: needs --journal"));
    };
    tier0.check_shape()?;
    old.refuse_own(target)?;
    check_content(target, force)?;
    // The memory of the old tier 0 is free afterwards.
    let held = if is_in_memory(&old.path) { old.bytes() } else { 0 };
    tier0.check_memory(held)?;
    check_space(target)?;
    // A refused takeover writes nothing: to open a journal for writing is a write.
    drop(old.open(true)?);
    if dry_run {
        output::print(format!(
            "tier 0: {}, {}, taken over from {}",
            target.path.display(),
            human(layout.image_bytes()),
            old.path.display()
        ));
        output::print("nothing was made");
        return Ok(0);
    }
    let opened = old.open(false)?;
    let mut made = Vec::new();
    let copied = copy(target, *layout, &*opened.pm, &mut made);
    if copied.is_err() {
        for path in &made {
            let _ = fs::remove_file(path);
        }
    }
    copied?;
    let marked = terrace_engine::mark_moved(&*opened.pm, &target.path).and_then(|()| opened.pm.close());
    let marked = marked.map_err(|error| error.to_string()).and_then(|()| sync(&old.path));
    marked.map_err(|why| {
        let new = target.path.display();
        let text = format!(
            "{new} has taken it over, but it could not be marked; do not mount it again, remove it ({why})"
        );
        Failure::at(&old.path, text)
    })?;
    report(tier0, old);
    Ok(0)
}

/// Writes the journal; the file that it made is in `made`.
fn copy(target: &Target, layout: Layout, content: &dyn PmMedium, made: &mut Vec<PathBuf>) -> Outcome<()> {
    let device = whole_device(target, made)?;
    let bar = bar(content.size());
    let uuid = uuid::Uuid::new_v4().into_bytes();
    JournaledPm::create_from(&device, layout, uuid, content, &mut |done| bar.set_position(done))
        .map_err(|error| pool::tier0_failure(&error))?;
    bar.finish_and_clear();
    Ok(())
}

/// Brings a mark in a page cache to the disk.
fn sync(path: &Path) -> Result<(), String> {
    let synced = fs::File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| plain(&error))
}

fn report(tier0: &Tier0, old: &Old) {
    let Tier0::Journal(target, layout) = tier0 else { return };
    let (path, old_path) = (target.path.display(), old.path.display());
    let uuid = old.uuid_text();
    output::print(format!("pool {path} has taken over {old_path}, uuid {uuid}"));
    output::print(format!(
        "tier 0: {path}, {}, and a log of {}; promise {}",
        human(layout.image_bytes()),
        human(layout.log_bytes()),
        tier0.promise().name(),
    ));
    output::print(format!("{old_path} is no pool any more and can be removed"));
}
