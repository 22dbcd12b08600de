//! Cold blocks that were read again and are to come into PM: a bounded queue.

use std::collections::VecDeque;
use terrace_cache::{Page, PageKey};
use terrace_runtime::sync::Mutex;

/// Promotions that wait; more are dropped: the block will be read again if it matters.
const QUEUE: usize = 1024;

/// A block to bring into PM.
pub struct Promotion {
    /// The block.
    pub key: PageKey,
    /// Its version when the page was read (S6).
    pub version: u64,
    /// Its content.
    pub page: Page,
}

/// Blocks that are to come into PM.
#[derive(Default)]
pub struct Promotions {
    queue: Mutex<VecDeque<Promotion>>,
}

impl Promotions {
    /// Asks for a block to come into PM; `version` is its own when the page was read.
    pub fn want(&self, key: PageKey, version: u64, page: &Page) {
        let mut queue = self.queue.lock();
        if queue.len() < QUEUE {
            // The page alone, or the queue would hold the whole read that fetched it.
            queue.push_back(Promotion { key, version, page: page.alone() });
        }
    }

    /// The next promotion.
    pub fn pop(&self) -> Option<Promotion> {
        self.queue.lock().pop_front()
    }

    /// Forgets all promotions.
    pub fn clear(&self) {
        self.queue.lock().clear();
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}
