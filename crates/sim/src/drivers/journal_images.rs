//! Images of a journal device that a crash may leave, judged.

use crate::drivers::effort::{Effort, Explored};
use crate::journal::Journal;
use crate::media::{Media, Moment};
use crate::subsets::Random;
use crate::world::Shared;
use std::collections::HashSet;
use terrace_media::block::DeviceSnapshot;
use terrace_reference::CrashState;

/// A commit and a whole home round of a journaled tier 0: few operations ask its device for anything.
pub(crate) fn settle_journal(world: &Shared) {
    let medium = world.borrow().pool.media.journal.as_ref().map(Journal::medium);
    if let Some(medium) = medium.filter(|medium| !medium.is_closed()) {
        let _ = medium.persist().and_then(|()| medium.advance(usize::MAX));
    }
}

/// Judges images of the journal device of a moment, each with the devices below in one state, each distinct image once.
pub(crate) fn judge_journal(
    world: &Shared,
    (journal, moment): (&DeviceSnapshot, &Moment),
    states: &[CrashState],
    effort: Effort,
    seed: u64,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) -> Result<(), String> {
    let mut random = Random(seed);
    let mut images = vec![journal.image_none(), journal.image_all()];
    let undecided =
        journal.unflushed_count() + moment.devices.iter().map(DeviceSnapshot::unflushed_count).sum::<usize>();
    if undecided > 0 {
        images.extend((0..effort.samples as u64).map(|turn| journal.image_random(seed + turn)));
    }
    for (turn, image) in images.into_iter().enumerate() {
        let devices = moment.device_images(|device| match random.below(3) {
            0 => device.image_none(),
            1 => device.image_all(),
            _ => device.image_random(seed + turn as u64),
        });
        let of_devices = devices.iter().fold(0, |all: u64, image| all.rotate_left(17) ^ image.hash());
        if !seen.insert(image.hash() ^ of_devices.rotate_left(17)) {
            continue;
        }
        explored.states += 1;
        let setup = world.borrow().pool.media.setup().clone();
        let fork = world.borrow().fork(Media::from_journal(image, devices, &setup));
        let judged = crate::findings::caught(|| fork.borrow_mut().look_and_leave(states));
        judged.map_err(|error| format!("journal image {turn}, {undecided} blocks undecided: {error}"))?;
    }
    Ok(())
}
