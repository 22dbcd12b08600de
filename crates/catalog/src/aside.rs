//! Copies in DRAM of metadata pages on lower tiers, for readers when PM has no free block (design P1): a read
//! needs no space.
//!
//! A page on a lower tier never changes in place, so its location is its version (S6). A reader that finds a
//! location in the parent, under the page's lock, may use the copy of that location. The I/O pin of a copy
//! keeps its device block from being used again, so no other page gets the same location while the copy
//! lives. Changes never start from a copy. Readers hold the copies; the table only finds them. Lock order:
//! the table's lock is the last one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use terrace_format::below::Identity;
use terrace_format::page::PAGE_SIZE;
use terrace_runtime::sync::Mutex;

/// An I/O pin of a device block: no claim takes the block while the I/O pin lives. The crate of the free space of lower
/// tiers has its own; a copy needs no more than to hold one.
pub trait IoPin: Send + Sync {}

/// A copy of a page of a lower tier, with its seal checked and taken off.
pub struct PageCopy {
    /// The identity of the page.
    pub identity: Identity,
    /// The location of the page.
    pub location: u64,
    /// The page.
    pub bytes: [u8; PAGE_SIZE],
    /// The I/O pin of its device block.
    pub pin: Box<dyn IoPin>,
}

/// Finds the copies of a pool.
#[derive(Default)]
pub struct Aside(Mutex<HashMap<(Identity, u64), Weak<PageCopy>>>);

impl Aside {
    /// The copy of the page that lies at `location`, if a reader holds one.
    pub fn get(&self, identity: Identity, location: u64) -> Option<Arc<PageCopy>> {
        self.0.lock().get(&(identity, location))?.upgrade()
    }

    /// Lets others find a copy while it lives. The caller looks afterwards, under the page's lock, whether the page still
    /// lies there, and else calls [`Self::forget`].
    pub fn put(&self, copy: &Arc<PageCopy>) {
        let mut copies = self.0.lock();
        copies.retain(|_, copy| copy.strong_count() > 0);
        copies.insert((copy.identity, copy.location), Arc::downgrade(copy));
    }

    /// Nobody finds a copy any more: its page has moved to PM.
    pub fn forget(&self, identity: Identity, location: u64) {
        self.0.lock().remove(&(identity, location));
    }
}
