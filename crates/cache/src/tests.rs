#![allow(clippy::unwrap_used)]

use crate::header::{Header, List};
use crate::shard::Shard;
use crate::{BlockCache, Dropped, Installed, LEAST_ADJUSTABLE_BYTES, Lines, Page, PageKey};
use std::sync::Arc;
use terrace_format::{FileBlock, Ino};
use terrace_media::block::AlignedBlock;
use terrace_placement::Home;

const END: FileBlock = FileBlock(1 << 32);

fn key(block: u64) -> PageKey {
    PageKey { ino: Ino(2), generation: 1, block: FileBlock(block) }
}

fn page(byte: u8) -> Page {
    let mut page = Page::zeroed();
    page.bytes_mut().fill(byte);
    page
}

#[test]
fn a_clean_page_is_found_by_version_until_its_lifetime_or_the_budget_ends() {
    let cache = BlockCache::new(4096 * 4, 100);
    cache.insert(key(1), 7, page(1), true, 0);
    cache.insert(key(2), 7, page(2), false, 0);
    assert_eq!(cache.get(key(1), 7, 1000).map(|f| (f.touches, f.page.bytes()[0])), Some((2, 1)));
    assert!(cache.get(key(2), 7, 1000).is_none(), "prefetched page outlived its lifetime");
    assert!(cache.get(key(1), 8, 0).is_none(), "older version was used");
    for block in 0..1000 {
        cache.insert(key(block * 32), 1, page(0), true, 0);
    }
    assert!(cache.bytes() <= 4096 * 4);
}

#[test]
fn a_scan_leaves_pages_touched_twice_in_the_cache() {
    let cache = BlockCache::new(4096 * 8, 100);
    // Blocks 0..32 are of one shard.
    cache.insert(key(0), 1, page(9), true, 0);
    assert!(cache.get(key(0), 1, 0).is_some());
    for block in 1..32 {
        cache.insert(key(block), 1, page(0), true, 0);
    }
    assert!(cache.get(key(0), 1, 0).is_some());
    assert_eq!((1..32).filter(|block| cache.get(key(*block), 1, 0).is_some()).count(), 7);
}

/// A list by last use hits nothing of a loop that is longer than it: each page goes just before its turn.
#[test]
fn a_part_of_a_loop_longer_than_the_cache_stays_cached() {
    let cache = BlockCache::new(4096 * 16, 100);
    let ask = |block| {
        let found = cache.get(key(block), 1, 0).is_some();
        if !found {
            cache.insert(key(block), 1, page(0), true, 0);
        }
        found
    };
    let round = || (0..32).filter(|block| ask(*block)).count();
    assert_eq!(round(), 0);
    for turn in 0..50 {
        let hits = round();
        assert!((10..=16).contains(&hits), "round {turn}: {hits} of 16 that fit");
    }
    // Pages asked for more often displace them.
    for block in (0..8).flat_map(|_| 20..32) {
        ask(block);
    }
    assert!((20..32).filter(|block| ask(*block)).count() >= 10);
}

#[test]
fn touched_lines_cover_the_range_of_bytes() {
    assert_eq!(Lines::touched(0, 4096), Lines::ALL);
    assert_eq!(Lines::touched(63, 65), Lines(0b11));
    assert_eq!(Lines::touched(4095, 4096), Lines(1 << 63));
    assert_eq!(Lines::touched(64, 64), Lines(0));
}

#[test]
fn dirty_pages_are_found_in_the_order_of_blocks_and_of_writes() {
    let cache = BlockCache::new(64 << 20, 100);
    for block in [70, 3, 40, 4] {
        cache.add_dirty(key(block), Home::Block, (Lines::ALL, Lines::ALL), page(block as u8), block);
    }
    let blocks: Vec<u64> = cache.dirty_blocks(Ino(2), FileBlock(0), END, 9).iter().map(|b| b.0).collect();
    assert_eq!(blocks, [3, 4, 40, 70]);
    assert_eq!(cache.least_recently_written(Home::Block, |_| true), Some(key(3)));
    let before = cache.change_dirty(key(3), (Lines(1), Lines(1)), false, 100, |bytes| bytes[0] = 1);
    assert_eq!(before, Some(Lines::ALL), "the dirty lines before");
    assert_eq!(cache.least_recently_written(Home::Block, |_| true), Some(key(4)));
    assert_eq!(cache.dirty_bytes(), 4 * 4096);
    let dropped = Dropped { home: Home::Block, dirty: Lines::ALL };
    assert_eq!((cache.drop_dirty(key(4)), cache.drop_dirty(key(4))), (Some(dropped), None));
    assert_eq!(cache.next_dirty(Ino(2), FileBlock(4), END), Some(FileBlock(40)));
    assert_eq!(cache.count_dirty(Ino(2)), 3);
}

#[test]
fn a_copy_stays_as_it_was_and_an_old_one_leaves_the_page_dirty() {
    let cache = BlockCache::new(1 << 20, 100);
    cache.add_dirty(key(1), Home::Block, (Lines::ALL, Lines::ALL), page(1), 0);
    let old = cache.dirty(key(1)).map(|old| (old.page.bytes()[0], old));
    assert!(cache.change_dirty(key(1), (Lines(1), Lines(1)), false, 1, |bytes| bytes.fill(2)).is_some());
    let Some((1, old)) = old else { unreachable!() };
    assert_eq!(old.page.bytes()[0], 1);
    assert_eq!(cache.installed(&old, 5, 2), Installed::Dirty);
    let new = cache.dirty(key(1));
    assert_eq!(new.map(|new| cache.installed(&new, 5, 2)), Some(Installed::Clean));
    assert_eq!(cache.get(key(1), 5, 3).map(|found| found.page.bytes()[7]), Some(2));
    assert_eq!(cache.dirty_pages(), 0);
}

/// A copy that was taken before one that is below already would bring older content back.
#[test]
fn a_copy_older_than_the_installed_one_is_not_installed() {
    let cache = BlockCache::new(1 << 20, 100);
    cache.add_dirty(key(1), Home::Block, (Lines::ALL, Lines::ALL), page(1), 0);
    let first = cache.dirty(key(1));
    assert!(cache.change_dirty(key(1), (Lines(1), Lines(1)), false, 1, |bytes| bytes.fill(2)).is_some());
    let second = cache.dirty(key(1));
    assert!(cache.change_dirty(key(1), (Lines(1), Lines(1)), false, 1, |bytes| bytes.fill(3)).is_some());
    let (Some(first), Some(second)) = (first, second) else { unreachable!() };
    assert_eq!(cache.installed(&second, 5, 2), Installed::Dirty);
    let birth = cache.state_of(key(1)).map(|(birth, _)| birth);
    assert!(birth.is_some() && birth != Some(first.birth));
}

/// A page kept the whole buffer of the read that brought it, up to 2 MiB: random reads of a lower tier took thirty times
/// the DRAM that `cache=` allows, and more; later until a second had passed, or as long as half of the buffer was in use.
#[test]
fn a_cached_page_does_not_hold_the_buffer_of_its_read() {
    let cache = BlockCache::new(4096 * 64, 100);
    let mut buffers = Vec::new();
    for read in 0..256 {
        let buffer = Arc::new(vec![AlignedBlock::zeroed(); 32]);
        buffers.push(Arc::downgrade(&buffer));
        for index in 0..32 {
            let page = Page::new(Arc::clone(&buffer), index).unwrap();
            cache.insert(key(read * 32 + index as u64), 1, page, index == 7, 0);
        }
    }
    assert!(buffers.iter().all(|buffer| buffer.strong_count() == 0));
    assert!(cache.get(key(255 * 32 + 7), 1, 0).is_some());
}

/// The budget was fixed when the cache was made.
#[test]
fn a_lower_budget_drops_clean_pages_by_pieces_and_no_dirty_page() {
    const PAGES: u64 = 3 * LEAST_ADJUSTABLE_BYTES / 4096;
    let cache = BlockCache::new(LEAST_ADJUSTABLE_BYTES, 100);
    cache.set_budget(4 * LEAST_ADJUSTABLE_BYTES);
    for block in 0..PAGES {
        cache.insert(key(block), 1, page(0), true, 0);
    }
    // Shards do not get quite alike much.
    assert!(cache.bytes() > 2 * LEAST_ADJUSTABLE_BYTES, "{} of a larger budget", cache.bytes());
    for block in PAGES..PAGES + 5000 {
        cache.add_dirty(key(block), Home::Block, (Lines::ALL, Lines::ALL), page(7), 0);
    }
    cache.set_budget(LEAST_ADJUSTABLE_BYTES);
    let mut pieces = 1;
    let mut before = cache.bytes();
    while cache.give_back(0) {
        let dropped = (before - cache.bytes()) / 4096;
        assert!(dropped <= 16 * 1024, "{dropped} pages at once");
        (before, pieces) = (cache.bytes(), pieces + 1);
    }
    assert!(pieces > 2 && cache.bytes() <= LEAST_ADJUSTABLE_BYTES && cache.bytes() > 0);
    // Even a budget of zero leaves dirty pages alone: no other copy has their bytes.
    cache.set_budget(0);
    while cache.give_back(0) {}
    assert_eq!((cache.bytes(), cache.dirty_pages()), (0, 5000));
    let content = |block| cache.dirty(key(block)).map(|dirty| dirty.page.bytes()[9]);
    assert!((PAGES..PAGES + 5000).all(|block| content(block) == Some(7)));
    assert_eq!(cache.least_recently_written(Home::Block, |_| true), Some(key(PAGES)));
    // An insertion drops only a few pages under its lock, for which other threads wait.
    cache.set_budget(4 * LEAST_ADJUSTABLE_BYTES);
    (0..1000).for_each(|block| cache.insert(key(block), 1, page(0), true, 0));
    cache.set_budget(LEAST_ADJUSTABLE_BYTES / 256);
    let before = cache.bytes();
    cache.insert(key(2000), 1, page(0), true, 0);
    assert!(before - cache.bytes() <= 32 * 4096);
}

/// Headers, index and counters used to keep their largest size: a thirtieth of the memory of a formerly large
/// cache.
#[test]
fn compaction_shrinks_a_formerly_large_shard() {
    let mut shard = Shard::new(8);
    for block in 0..10_000 {
        let list = if block % 2 == 0 { List::Late } else { List::Stays };
        shard.add(Header::new(key(block), list, block, 0), Some(page(block as u8)));
        shard.frequency.grow_to(shard.clean());
    }
    (0..3).for_each(|_| shard.frequency.count(&key(9_990)));
    for block in 0..9_900 {
        let at = shard.find(key(block)).unwrap();
        shard.remove(at);
    }
    let before = shard.places();
    shard.compact();
    assert!(shard.places() <= 100 && before >= 10_000);
    assert!(shard.frequency.of(&key(9_990)) >= 3);
    // Index, headers and pages agree, and each list has kept its order.
    for (list, first) in [(List::Late, 9_900), (List::Stays, 9_901)] {
        assert_eq!(shard.length(list), 50);
        let mut at = shard.oldest(list);
        for block in (first..10_000).step_by(2) {
            let place = at.unwrap();
            assert_eq!(shard.find(key(block)), Some(place));
            assert_eq!(shard.header(place).version, block);
            assert_eq!(shard.page(place).map(|page| page.bytes()[0]), Some(block as u8));
            at = shard.younger(place);
        }
        assert_eq!(at, None);
    }
}

#[test]
fn a_dirty_page_keeps_its_home_whatever_is_done_with_it() {
    let cache = BlockCache::new(1 << 20, 100);
    cache.add_dirty(key(1), Home::Pm, (Lines::ALL, Lines(1)), page(1), 0);
    cache.add_dirty(key(2), Home::Block, (Lines::ALL, Lines(1)), page(2), 0);
    let homes = || [1, 2].map(|block| cache.dirty(key(block)).map(|found| (found.home, found.in_flight)));
    assert_eq!(homes(), [Some((Home::Pm, false)), Some((Home::Block, false))]);
    let copies: Vec<_> = [1, 2].iter().filter_map(|block| cache.dirty(key(*block))).collect();
    cache.mark_in_flight(&copies, true);
    assert_eq!(homes(), [Some((Home::Pm, true)), Some((Home::Block, true))]);
    assert_eq!(cache.least_recently_written(Home::Block, |_| true), None, "both are being written back");
    cache.mark_in_flight(&copies, false);
    assert!(cache.change_dirty(key(1), (Lines(2), Lines(2)), true, 5, |bytes| bytes.fill(3)).is_some());
    assert_eq!(homes(), [Some((Home::Pm, false)), Some((Home::Block, false))]);
}

#[test]
fn a_header_needs_no_page() {
    let mut shard = Shard::new(8);
    let with = shard.add(Header::new(key(1), List::Late, 1, 0), Some(page(1)));
    let without = shard.add(Header::new(key(2), List::Late, 1, 0), None);
    assert_eq!((shard.find(key(2)), shard.length(List::Late)), (Some(without), 2));
    assert!(shard.page(with).is_some() && shard.page(without).is_none());
    shard.compact();
    assert_eq!(shard.younger(with), Some(without));
    shard.remove(without);
    // The place of the ghost is taken again, by a header with a page.
    let next = shard.add(Header::new(key(3), List::Stays, 1, 0), Some(page(3)));
    assert_eq!((next, shard.page(next).map(|page| page.bytes()[0])), (without, Some(3)));
    assert_eq!((shard.find(key(2)), shard.length(List::Late), shard.length(List::Stays)), (None, 1, 1));
}

#[test]
fn a_shard_is_compacted_when_three_of_four_places_are_spare() {
    for (places, left, expected) in
        [(1023, 0, false), (1024, 256, true), (1024, 257, false), (1028, 257, true), (1028, 258, false)]
    {
        let mut shard = Shard::new(8);
        for block in 0..places {
            shard.add(Header::new(key(block), List::Late, 1, 0), Some(page(0)));
        }
        for block in left..places {
            let at = shard.find(key(block)).unwrap();
            shard.remove(at);
        }
        assert_eq!(shard.compact(), expected, "{left} of {places} left");
        assert_eq!(shard.places() as u64, if expected { left } else { places });
    }
}
