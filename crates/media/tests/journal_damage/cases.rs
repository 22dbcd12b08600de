//! Damage of single structures.

use super::states::*;
use std::sync::Arc;
use terrace_format::checkpoint::FAR;
use terrace_format::journal::{ANCHOR_COPIES, Anchor};
use terrace_format::{BLOCK_SIZE, DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, DeviceSnapshot, Operation, SimulatedDevice, Times};
use terrace_media::pm::{JournaledPm, OpenedJournal};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;
use terrace_runtime::sync::Mutex;

fn with_block(image: &DeviceImage, block: u64, content: AlignedBlock) -> DeviceImage {
    let mut image = image.clone();
    image.set_block(DeviceBlock(block), content);
    image
}

fn open_image(image: DeviceImage) -> OpenedJournal {
    open(Arc::new(SimulatedDevice::from_image(image)))
}

fn refusal(image: DeviceImage) -> String {
    let device = Arc::new(SimulatedDevice::from_image(image));
    let refused =
        JournaledPm::open(device as Arc<dyn BlockMedium>, OPTIONS, Arc::new(ManualClock::new(1))).err();
    refused.map_or(String::new(), |error| error.to_string())
}

/// Whether all pages of the histories have their newest content.
fn is_newest(pm: &JournaledPm, versions: &Versions) -> bool {
    USED.into_iter().all(|page| {
        let mut bytes = [0; BLOCK_SIZE as usize];
        pm.read(PmOffset(page * BLOCK_SIZE), &mut bytes).is_ok() && bytes == *versions.at(page, u64::MAX)
    })
}

/// The opening's anchor was once in one copy alone: a bad block there refused the pool.
#[test]
fn each_copy_of_the_openings_anchor_serves_alone() {
    let mut history = History::new(1);
    history.commit(5);
    history.pm.close().unwrap();
    history.reopen();
    history.commit(5);
    let image = history.left();
    for copy in ANCHOR_COPIES {
        for content in [AlignedBlock::zeroed(), AlignedBlock([7; 4096])] {
            let opened = open_image(with_block(&image, copy.0, content));
            assert!(
                is_newest(&opened.pm, &history.versions) && opened.condemned == 0,
                "without copy {}",
                copy.0
            );
        }
    }
    let garbage = ANCHOR_COPIES.iter().fold(image, |image, copy| {
        let mut block = image.block(*copy);
        block.0[100] ^= 1;
        with_block(&image, copy.0, block)
    });
    assert!(refusal(garbage).contains("journal anchor"), "both copies damaged");
}

#[test]
fn a_crash_at_any_moment_of_an_opening_keeps_the_newest_state() {
    let mut history = History::new(2);
    history.commit(5);
    history.round();
    history.commit(5);
    let device = Arc::new(SimulatedDevice::from_image(history.left()));
    let kept: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::default();
    let (sender, weak) = (kept.clone(), Arc::downgrade(&device));
    device.clock().on_event(Some(Box::new(move |_| {
        if let Some(device) = weak.upgrade() {
            sender.lock().push(device.snapshot());
        }
    })));
    drop(open(device.clone()));
    device.clock().on_event(None);
    let moments = std::mem::take(&mut *kept.lock());
    assert!(moments.len() >= 4, "{} moments", moments.len());
    for (moment, seed) in moments.iter().flat_map(|moment| (0..6).map(move |seed| (moment, seed))) {
        let opened = open_image(moment.image_random(seed));
        assert!(is_newest(&opened.pm, &history.versions) && opened.condemned == 0);
        opened.pm.write(PmOffset(0), &[1]).unwrap();
        opened.pm.persist().unwrap();
    }
}

#[test]
fn a_thousand_damaged_pages_fail_and_all_other_pages_are_read() {
    let device = new_device();
    let pm = open(device.clone()).pm;
    for page in 0..PAGES {
        pm.write(PmOffset(page * BLOCK_SIZE), &[(page as u8).wrapping_add(1); 64]).unwrap();
    }
    pm.close().unwrap();
    let mut image = device.snapshot().image_none();
    let is_damaged = |page: u64| !page.is_multiple_of(11);
    for page in (0..PAGES).filter(|page| is_damaged(*page)) {
        image = with_block(&image, layout().home().0 + page, AlignedBlock([9; 4096]));
    }
    let opened = open_image(image);
    assert_eq!(opened.condemned, 1000);
    for page in 0..PAGES {
        let mut bytes = [0; 64];
        let read = opened.pm.read(PmOffset(page * BLOCK_SIZE), &mut bytes);
        assert_eq!(read.is_err(), is_damaged(page), "page {page}");
        assert!(read.is_err() || bytes == [(page as u8).wrapping_add(1); 64], "page {page}");
        assert_eq!(opened.pm.load_u64(PmOffset(page * BLOCK_SIZE + 4088)).is_err(), is_damaged(page));
    }
    assert!(opened.pm.read(PmOffset(0), &mut [0; 8192]).is_err(), "a read over a sound and a damaged page");
}

/// Each page of the last home round once counted as torn by a crash: damage became content.
#[test]
fn damaged_pages_of_a_finished_round_fail_after_a_crash() {
    let mut history = History::new(3);
    history.commit(20);
    history.round();
    let image = history.left();
    for page in USED {
        let block = layout().home().0 + page;
        let mut content = image.block(DeviceBlock(block));
        if content.0 == [0; BLOCK_SIZE as usize] {
            continue;
        }
        content.0[4095] ^= 1;
        let opened = open_image(with_block(&image, block, content));
        assert_eq!((opened.healed, opened.condemned), (0, 1), "page {page}");
        assert!(opened.pm.read(PmOffset(page * BLOCK_SIZE), &mut [0; 8]).is_err());
    }
}

/// A block of the table that is lost costs no page: the log names all pages that the other table has older.
#[test]
fn a_lost_block_of_the_table_costs_no_page_of_the_last_round() {
    let mut history = History::new(4);
    history.commit(200);
    history.round();
    history.commit(3);
    history.round();
    let image = history.left();
    let anchor = newest_anchor(&image).unwrap();
    let block = layout().table(anchor.table).plus(0);
    let opened = open_image(with_block(&image, block.0, AlignedBlock::zeroed()));
    assert_eq!((opened.healed > 0, opened.condemned), (true, 0));
    assert!(is_newest(&opened.pm, &history.versions));
}

/// A round that failed has named its pages before the boundary of the next round: they once could not be read although home had
/// them whole.
#[test]
fn a_lost_block_of_the_table_costs_no_page_after_a_failed_round() {
    for opens_between in [false, true] {
        let mut history = History::new(8);
        history.commit(200);
        history.round();
        history.commit(3);
        // The commit of the names passes.
        history.device.fail_next(Operation::Flush, 0..u64::MAX, 5, Times::OnceAfter(1));
        assert!(history.pm.advance(usize::MAX).is_err());
        let opened = opens_between.then(|| {
            let device = Arc::new(SimulatedDevice::from_image(history.left()));
            (open(device.clone()).pm, device)
        });
        let (pm, device) =
            opened.as_ref().map_or((&history.pm, &history.device), |(pm, device)| (pm, device));
        assert!(pm.advance(usize::MAX).unwrap());
        let image = device.snapshot().image_none();
        let block = layout().table(newest_anchor(&image).unwrap().table).plus(0);
        let opened = open_image(with_block(&image, block.0, AlignedBlock::zeroed()));
        assert_eq!(opened.condemned, 0, "after an opening: {opens_between}");
        assert!(is_newest(&opened.pm, &history.versions));
    }
}

/// Anchors of an earlier time, put back after the log went over its start twice, once opened an old image without a word.
#[test]
fn anchors_of_earlier_laps_refuse_the_journal() {
    let mut history = History::new(5);
    history.commit(2);
    let old = history.left();
    for laps in 1..4 {
        while history.pm.point().place() < laps * layout().log_bytes() + (1 << 20) {
            history.write(100);
            history.pm.persist().unwrap();
        }
        let image = history.left();
        let anchors =
            ANCHOR_COPIES.iter().fold(image, |image, copy| with_block(&image, copy.0, old.block(*copy)));
        assert!(refusal(anchors).contains("although the log went on"), "after {laps} laps");
    }
}

/// The last batch was once read and written again block by block.
#[test]
fn an_opening_reads_and_writes_in_large_pieces() {
    let history = History::new(6);
    history.pm.write(PmOffset(0), &[3; 15 << 17]).unwrap();
    history.pm.persist().unwrap();
    let device = Arc::new(SimulatedDevice::from_image(history.left()));
    assert_eq!(open(device.clone()).batches, 1);
    let counters = device.counters();
    assert!(counters.reads < 60 && counters.writes < 10, "{counters:?}");
    // All blocks of a piece are tried where the piece cannot be read, and no block twice.
    let device = Arc::new(SimulatedDevice::from_image(history.left()));
    let behind = layout().log().0 + 1500;
    device.fail_next(Operation::Read, behind..behind + 1, 5, Times::Forever);
    assert_eq!(open(device.clone()).batches, 1);
    assert!(device.counters().reads < 60 + 256, "{:?}", device.counters());
}

/// An opening would go over the newer of two copies that lie in each other's place. From a number next to the largest, the next
/// anchor would count as damage: the journal would be lost with the first store.
#[test]
fn misplaced_anchors_and_largest_numbers_are_refused() {
    let image = History::new(7).left();
    let [first, second] = ANCHOR_COPIES;
    let swapped = with_block(&image, first.0, image.block(second));
    let swapped = with_block(&swapped, second.0, image.block(first));
    assert!(refusal(swapped).contains("an anchor of this copy"));
    let newest = newest_anchor(&image).unwrap();
    let with_anchors = |anchor: Anchor| {
        ANCHOR_COPIES.iter().enumerate().fold(image.clone(), |image, (index, copy)| {
            let anchor = Anchor { number: anchor.number & !1 | index as u64, ..anchor };
            with_block(&image, copy.0, anchor.encode().try_into().map(AlignedBlock).unwrap())
        })
    };
    open_image(with_anchors(newest));
    let far = FAR - 2;
    for anchor in [
        Anchor { number: far, ..newest },
        Anchor { epoch: far, ..newest },
        Anchor { sequence: far, ..newest },
    ] {
        assert!(refusal(with_anchors(anchor)).contains("numbers that a journal can reach"), "{anchor:?}");
    }
}
