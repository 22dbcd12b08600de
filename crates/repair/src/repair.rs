//! `repair`: check, finish an interrupted repair, mend headers, rebuild, check again.

use crate::device_headers;
use crate::journal;
use crate::lost;
use crate::media::Media;
use crate::outcome::Repair;
use crate::rounds::rebuild;
use crate::state::actions::{Actions, Stuck};
use terrace_check::report::Findings;
use terrace_check::{Code, Options, check, superblock};
use terrace_media::MediaError;

/// Repairs a pool that is not in use. Never panics and always ends, whatever the media hold.
pub fn repair(media: &Media, options: &Options<'_>) -> Repair {
    let mut actions = Actions::default();
    let mut result = Repair::default();
    let mut mended = Vec::new();
    if let Err(Stuck(why)) = run(media, options, &mut actions, &mut result, &mut mended) {
        result.left = result.found.clone();
        result.failure = Some(why);
    }
    // Persists also the stores of a killed repair, which this repair found to be in place.
    let persisted = media.pm.persist();
    if let Err(error) = persisted.and_then(|()| device_headers::flush(media, &mended)) {
        result.failure.get_or_insert_with(|| format!("{error}; run the repair again"));
    }
    result.actions = actions.into_list();
    result
}

fn run(
    media: &Media,
    options: &Options<'_>,
    actions: &mut Actions,
    result: &mut Repair,
    mended: &mut Vec<device_headers::Before>,
) -> Result<(), Stuck> {
    let failed = |error: MediaError| Stuck(error.to_string());
    let (pm, view) = (&*media.pm, media.view());
    let read = || superblock::read_repairing(&view.pm, &mut Findings::default());
    result.found = check(&view, options);
    if result.found.has(Code::SuperblockLost) {
        return Err(Stuck("both superblock copies are damaged: nothing says where things lie".into()));
    }
    let interrupted = result.found.has(Code::RepairInterrupted);
    if let Some(superblock) = read().filter(|_| interrupted) {
        let whole = journal::finish(pm, &superblock).map_err(failed)?;
        result.written = true;
        actions.add(match whole {
            true => "an interrupted repair is finished".into(),
            false => "an interrupted repair's journal is damaged; repaired from what is there".into(),
        });
        let rest = check(&view, options);
        result.found.findings.extend(rest.findings.iter().cloned());
        result.left = rest;
    } else {
        result.left = result.found.clone();
    }
    let Some(superblock) = read().filter(|_| result.left.exit_status() & 4 != 0) else {
        return Ok(());
    };
    let proven = device_headers::mend(media, (&superblock, options.given), actions, mended)?;
    result.written |= !mended.is_empty();
    if rebuild(&proven, superblock, actions, &result.left)? {
        result.written = true;
        result.lost = lost::by_path(&proven.view(), &superblock, actions);
    }
    if journal::mend_superblocks(pm, &superblock).map_err(failed)? {
        actions.add("the superblock copies are made equal".into());
        result.written = true;
    }
    result.left = check(&view, options);
    Ok(())
}
