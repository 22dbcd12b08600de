//! The choice of metadata pages that the background step covers with a checksum.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::page_checksum::ChecksumWord;
use terrace_format::table::{MASK_FULL, Owner, PageKind};
use terrace_format::{Geometry, PmBlock};
use terrace_media::PmMedium;
use terrace_media::block::Times;
use terrace_media::pm::{Access, RecordedPm};
use terrace_wal::{Error, Tx, Wal};
use zerocopy::little_endian::U64;

const UUID: [u8; 16] = [3; 16];
const SIZE: u64 = 64 << 20;

fn geometry() -> Geometry {
    Geometry::choose(SIZE, 16).unwrap()
}

fn formatted() -> (Arc<RecordedPm>, Wal) {
    let pm = Arc::new(RecordedPm::new(SIZE));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    let wal = Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap().0;
    (pm, wal)
}

fn page(index: u64) -> PmBlock {
    PmBlock(geometry().first_pool_block().0 + index)
}

/// Makes blocks pages of metadata.
fn make(wal: &Wal, indices: impl Iterator<Item = u64>) {
    for index in indices {
        wal.checksums().open(page(index));
        let owner = Owner::Page { kind: PageKind::MapNode, datum: 7 };
        let mut tx = Tx::new();
        tx.write_words(geometry().table_entry(page(index)), [owner.encode(), MASK_FULL].map(U64::new));
        wal.commit(wal.reserve(512).unwrap(), &tx).unwrap();
    }
    wal.checkpoint().unwrap();
}

fn change(wal: &Wal, page: PmBlock, at: u64) -> Result<(), Error> {
    let mut tx = Tx::new();
    tx.write_u64(page.offset().plus(at), 9);
    wal.commit(wal.reserve(512).unwrap(), &tx).map(drop)
}

fn is_covered(pm: &RecordedPm, index: u64) -> bool {
    let word = pm.load_u64(geometry().checksum_word(page(index))).unwrap();
    matches!(ChecksumWord::decode(word), ChecksumWord::Covers(_))
}

/// Steps until all pages have had their turn; gives the number of steps.
fn round(wal: &Wal) -> usize {
    (1..).find(|_| wal.cover_some()).unwrap()
}

#[test]
fn a_page_is_covered_in_the_second_round_after_its_change() {
    let (pm, wal) = formatted();
    make(&wal, 0..3);
    round(&wal);
    assert!((0..3).all(|index| !is_covered(&pm, index)), "changed in this round");
    // The second is changed once more.
    change(&wal, page(1), 0).unwrap();
    wal.checkpoint().unwrap();
    round(&wal);
    assert_eq!([0, 1, 2].map(|index| is_covered(&pm, index)), [true, false, true]);
    round(&wal);
    assert!(is_covered(&pm, 1) && !is_covered(&pm, 3), "a block that is no page stays as it is");
}

#[test]
fn a_stopped_log_covers_no_page() {
    let (pm, wal) = formatted();
    make(&wal, 0..1);
    round(&wal);
    pm.poison_for(page(9).offset().0..page(9).offset().0 + 8, Access::Stores, Times::Count(1));
    assert!(change(&wal, page(9), 0).is_err());
    assert!(wal.is_stopped() && wal.cover_some(), "nothing is left to do");
    assert!((0..50).all(|_| wal.cover_some()) && !is_covered(&pm, 0));
}

#[test]
fn a_step_covers_a_few_pages_and_the_next_goes_on_there() {
    let (pm, wal) = formatted();
    let pages = 300;
    make(&wal, 0..pages);
    round(&wal);
    let count = || (0..pages).filter(|index| is_covered(&pm, *index)).count();
    let (mut before, mut steps) = (0, 0);
    loop {
        let done = wal.cover_some();
        let now = count();
        assert!(now - before <= 32, "{} pages in one step", now - before);
        assert!((0..now as u64).all(|index| is_covered(&pm, index)), "in their order");
        (before, steps) = (now, steps + 1);
        if done {
            break;
        }
    }
    assert_eq!(before as u64, pages);
    assert!(steps >= 10, "{steps} steps");
}

fn reopened(pm: &Arc<RecordedPm>) -> (Arc<RecordedPm>, Wal) {
    let pm = Arc::new(RecordedPm::from_image(pm.visible_image()));
    let wal = Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap().0;
    (pm, wal)
}

#[test]
fn pages_left_open_by_a_crash_are_covered_once_met() {
    let (pm, wal) = formatted();
    make(&wal, 0..4);
    (0..2).for_each(|_| _ = round(&wal));
    change(&wal, page(0), 8).unwrap();
    change(&wal, page(1), 8).unwrap();
    wal.checkpoint().unwrap();
    drop(wal);
    let (pm, wal) = reopened(&pm);
    assert_eq!([0, 1, 2].map(|index| is_covered(&pm, index)), [false, false, true]);
    wal.checksums().met(page(0));
    wal.checksums().met(page(2));
    (0..2).for_each(|_| _ = round(&wal));
    assert_eq!([0, 1, 2].map(|index| is_covered(&pm, index)), [true, false, true], "the second was not met");
    // A page that is met while it is known keeps its state.
    change(&wal, page(0), 16).unwrap();
    wal.checkpoint().unwrap();
    round(&wal);
    wal.checksums().met(page(0));
    round(&wal);
    assert!(is_covered(&pm, 0), "the first was quiet and is covered now");
}

#[test]
fn a_write_up_to_the_end_of_a_page_leaves_the_next_page_unchecked() {
    let (pm, wal) = formatted();
    make(&wal, 0..2);
    wal.close().unwrap();
    pm.write(page(1).offset().plus(77), &[0xff]).unwrap();
    let (_pm, wal) = reopened(&pm);
    change(&wal, page(0), 4088).unwrap();
    assert!(wal.checksums().ensure_range(page(0).offset(), 4096).is_ok());
    assert!(wal.checksums().ensure_range(page(0).offset(), 4097).is_err());
    assert!(wal.checksums().ensure_range(page(1).offset(), 0).is_err(), "no byte counts as one");
    assert!(matches!(change(&wal, page(1), 0), Err(Error::Corrupt(_))));
}

#[test]
fn a_replayed_write_opens_its_page_and_leaves_the_next_covered() {
    for at in [0, 4088] {
        let (pm, wal) = formatted();
        make(&wal, 0..3);
        (0..2).for_each(|_| _ = round(&wal));
        change(&wal, page(1), at).unwrap();
        drop(wal);
        let (pm, _wal) = reopened(&pm);
        assert_eq!([0, 1, 2].map(|index| is_covered(&pm, index)), [true, false, true], "at {at}");
    }
}

#[test]
fn a_page_with_a_once_failed_word_is_covered_again_later() {
    let (pm, wal) = formatted();
    make(&wal, 0..1);
    (0..2).for_each(|_| _ = round(&wal));
    assert!(is_covered(&pm, 0));
    let word = geometry().checksum_word(page(0)).0;
    pm.poison_for(word..word + 8, Access::Stores, Times::Count(1));
    change(&wal, page(0), 0).unwrap();
    wal.checkpoint().unwrap();
    assert!(!is_covered(&pm, 0), "the second attempt has opened it");
    (0..2).for_each(|_| _ = round(&wal));
    assert!(is_covered(&pm, 0));
}

#[test]
fn a_former_metadata_block_is_not_covered() {
    let (pm, wal) = formatted();
    make(&wal, 0..2);
    let mut tx = Tx::new();
    tx.write_words(geometry().table_entry(page(0)), [0, 0].map(U64::new));
    wal.commit(wal.reserve(512).unwrap(), &tx).unwrap();
    wal.checkpoint().unwrap();
    (0..3).for_each(|_| _ = round(&wal));
    assert_eq!([0, 1].map(|index| is_covered(&pm, index)), [false, true]);
}
