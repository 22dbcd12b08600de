//! The choice of the clean page to drop when the budget is exceeded: by the shares of pages read ahead, of
//! the late list and of the list of pages that stay, and by the uses of pages.

use terrace_cache::{BlockCache, Page, PageKey};
use terrace_format::{FileBlock, Ino};

/// Pages of the cache, all in one shard: an eighth for the late list, at most a quarter for pages read ahead.
const PAGES: u64 = 64;
const LATE_PAGES: u64 = PAGES / 8;
const AHEAD: u64 = PAGES / 4;
/// Numbers of blocks that were read ahead begin here.
const FIRST_AHEAD: u64 = 1000;

fn key(block: u64) -> PageKey {
    PageKey { ino: Ino(2), generation: 1, block: FileBlock(block) }
}

/// A full cache: first `ahead` pages read ahead, then pages 0 and on, asked for.
fn full(ahead: u64) -> BlockCache {
    let cache = BlockCache::new(PAGES * 4096, 1 << 40);
    (0..ahead).for_each(|number| read_ahead(&cache, number));
    (0..PAGES - ahead).for_each(|block| ask(&cache, block));
    assert_eq!(gone(&cache, ahead, PAGES - ahead), (vec![], vec![]));
    cache
}

fn ask(cache: &BlockCache, block: u64) {
    cache.insert(key(block), 1, Page::zeroed(), true, 0);
}

fn read_ahead(cache: &BlockCache, number: u64) {
    cache.insert(key(FIRST_AHEAD + number), 1, Page::zeroed(), false, 0);
}

/// The dropped pages among `ahead` pages read ahead and `asked` pages asked for.
fn gone(cache: &BlockCache, ahead: u64, asked: u64) -> (Vec<u64>, Vec<u64>) {
    let asked = (0..asked).filter(|block| !cache.holds(key(*block), 1)).collect();
    // A page read ahead must not be touched: a lookup with another version drops it without counting a use.
    let is_gone = |number: &u64| {
        let key = key(FIRST_AHEAD + number);
        let before = cache.bytes();
        // A page of another version is dropped when it is asked for.
        let found = cache.get(key, 2, 0).is_some();
        let was_there = cache.bytes() < before;
        if was_there {
            cache.insert(key, 1, Page::zeroed(), false, 0);
        }
        assert!(!found);
        !was_there
    };
    ((0..ahead).filter(is_gone).collect(), asked)
}

#[test]
fn the_oldest_late_page_is_dropped_when_the_stay_list_is_full() {
    let cache = full(0);
    ask(&cache, PAGES);
    assert_eq!(gone(&cache, 0, PAGES + 1), (vec![], vec![PAGES - LATE_PAGES]));
}

#[test]
fn pages_read_ahead_take_room_from_the_stay_list() {
    let ahead = 10;
    let cache = full(ahead);
    ask(&cache, PAGES - ahead);
    let stay = PAGES - LATE_PAGES - ahead;
    assert_eq!(gone(&cache, ahead, PAGES - ahead + 1), (vec![], vec![stay]));
}

#[test]
fn a_page_read_ahead_displaces_the_oldest_page_of_the_stay_list() {
    let cache = full(0);
    ask(&cache, PAGES);
    read_ahead(&cache, 0);
    assert_eq!(gone(&cache, 1, PAGES + 1), (vec![], vec![0, PAGES - LATE_PAGES]));
}

#[test]
fn pages_read_ahead_beyond_the_limit_are_dropped_first() {
    let cache = full(AHEAD + 1);
    ask(&cache, PAGES - AHEAD - 1);
    assert_eq!(gone(&cache, AHEAD + 1, PAGES - AHEAD), (vec![0], vec![]));
    // Exactly their share stays.
    let cache = full(AHEAD - 1);
    let asked = PAGES - AHEAD + 1;
    ask(&cache, asked);
    let stay = PAGES - LATE_PAGES - (AHEAD - 1);
    read_ahead(&cache, AHEAD - 1);
    assert_eq!(gone(&cache, AHEAD, asked + 1), (vec![], vec![0, stay]));
}

#[test]
fn a_late_page_stays_when_it_leads_by_more_than_one() {
    for (asked_again, expected) in [(1, PAGES - LATE_PAGES + 1), (2, 0)] {
        let cache = full(0);
        ask(&cache, PAGES);
        let late = PAGES - LATE_PAGES + 1;
        (0..asked_again).for_each(|_| assert!(cache.get(key(late), 1, 0).is_some()));
        // The older pages of the late list are dropped first, then `late` is the oldest.
        let last = PAGES + LATE_PAGES - 1;
        (PAGES + 1..=last).for_each(|block| ask(&cache, block));
        let before = gone(&cache, 0, last + 1).1;
        assert_eq!(before.len() as u64, LATE_PAGES, "{before:?}");
        assert!(cache.holds(key(late), 1) && cache.holds(key(0), 1));
        ask(&cache, last + 1);
        let after = gone(&cache, 0, last + 2).1;
        let new: Vec<u64> = after.into_iter().filter(|block| !before.contains(block)).collect();
        assert_eq!(new, [expected], "asked for {asked_again} times more");
    }
}
