//! A shard: headers in a slab, an index by key, and the lists through them.
//!
//! Invariant: a header is in the index, in one list, and has its page, if it has one, at the same place of `pages`; or it
//! is spare.

use crate::frequency::Frequency;
use crate::header::{ALL, Header, LISTS, List, NONE, PageKey};
use crate::page::Page;
use std::collections::HashMap;

/// The lists of clean pages.
const CLEAN: [List; 3] = [List::Ahead, List::Late, List::Stays];
/// A shard of fewer places keeps them.
const WORTH_COMPACTING: usize = 1024;

#[derive(Clone, Copy)]
struct Ends {
    /// Came last.
    front: u32,
    /// Came first.
    back: u32,
    length: usize,
}

/// Part of the cache, under one lock.
pub(crate) struct Shard {
    index: HashMap<PageKey, u32>,
    headers: Vec<Header>,
    pages: Vec<Option<Page>>,
    spare: Vec<u32>,
    lists: [Ends; LISTS],
    /// Of blocks that were asked for.
    pub frequency: Frequency,
}

impl Shard {
    /// A shard for `pages` clean pages.
    pub fn new(pages: usize) -> Shard {
        Shard {
            index: HashMap::new(),
            headers: Vec::new(),
            pages: Vec::new(),
            spare: Vec::new(),
            lists: [Ends { front: NONE, back: NONE, length: 0 }; LISTS],
            frequency: Frequency::new(pages),
        }
    }

    /// The place of a block.
    pub fn find(&self, key: PageKey) -> Option<u32> {
        self.index.get(&key).copied()
    }

    pub fn header(&self, at: u32) -> &Header {
        &self.headers[at as usize]
    }

    pub fn header_mut(&mut self, at: u32) -> &mut Header {
        &mut self.headers[at as usize]
    }

    pub fn page(&self, at: u32) -> Option<&Page> {
        self.pages[at as usize].as_ref()
    }

    pub fn page_mut(&mut self, at: u32) -> Option<&mut Page> {
        self.pages[at as usize].as_mut()
    }

    pub fn length(&self, list: List) -> usize {
        self.lists[list as usize].length
    }

    /// The page that has been in a list the longest.
    pub fn oldest(&self, list: List) -> Option<u32> {
        let back = self.lists[list as usize].back;
        (back != NONE).then_some(back)
    }

    /// The page that entered the same list after the page at `at`.
    pub fn younger(&self, at: u32) -> Option<u32> {
        let previous = self.headers[at as usize].previous;
        (previous != NONE).then_some(previous)
    }

    /// Adds a block that is not here, at the front of its list; without a page it is only remembered.
    pub fn add(&mut self, header: Header, page: Option<Page>) -> u32 {
        let at = match self.spare.pop() {
            Some(at) => {
                self.headers[at as usize] = header;
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.headers.push(header);
                self.pages.push(page);
                self.headers.len() as u32 - 1
            }
        };
        let before = self.index.insert(header.key(), at);
        assert!(before.is_none(), "a block has one header");
        self.link(at, header.list);
        at
    }

    /// Takes a block out.
    pub fn remove(&mut self, at: u32) {
        self.unlink(at);
        let key = self.headers[at as usize].key();
        self.index.remove(&key);
        self.pages[at as usize] = None;
        self.spare.push(at);
    }

    /// The number of blocks for which there is room in the tables.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.headers.len()
    }

    /// Gives back the places of blocks that have gone, where those are three of four: a cache that was large kept a thirtieth
    /// of its size for the headers of what it no longer had.
    /// True when there were.
    pub fn compact(&mut self) -> bool {
        if self.headers.len() < WORTH_COMPACTING || self.spare.len() < self.headers.len() / 4 * 3 {
            return false;
        }
        let mut small = Shard::new(0);
        for list in ALL {
            let mut at = self.oldest(list);
            while let Some(place) = at {
                at = self.younger(place);
                small.add(self.headers[place as usize], self.pages[place as usize].take());
            }
        }
        std::mem::swap(&mut small.frequency, &mut self.frequency);
        small.frequency.shrink_to(small.clean());
        *self = small;
        true
    }

    /// The number of clean pages.
    pub(crate) fn clean(&self) -> usize {
        CLEAN.iter().map(|list| self.length(*list)).sum()
    }

    /// Puts a block at the front of a list.
    pub fn move_to(&mut self, at: u32, list: List) {
        self.unlink(at);
        self.headers[at as usize].list = list;
        self.link(at, list);
    }

    fn link(&mut self, at: u32, list: List) {
        let ends = &mut self.lists[list as usize];
        let front = std::mem::replace(&mut ends.front, at);
        ends.length += 1;
        if front == NONE {
            ends.back = at;
        } else {
            self.headers[front as usize].previous = at;
        }
        let header = &mut self.headers[at as usize];
        (header.next, header.previous) = (front, NONE);
    }

    fn unlink(&mut self, at: u32) {
        let Header { next, previous, list, .. } = self.headers[at as usize];
        let ends = &mut self.lists[list as usize];
        ends.length -= 1;
        if next == NONE {
            ends.back = previous;
        }
        if previous == NONE {
            ends.front = next;
        }
        if next != NONE {
            self.headers[next as usize].previous = previous;
        }
        if previous != NONE {
            self.headers[previous as usize].next = next;
        }
    }

    /// Keys of all blocks.
    pub fn headers(&self) -> impl Iterator<Item = &Header> {
        self.index.values().map(|at| &self.headers[*at as usize])
    }
}
