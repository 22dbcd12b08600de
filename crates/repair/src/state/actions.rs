//! The changes that a repair makes, in sentences, and the reason why it cannot go on.

use std::collections::BTreeSet;

/// Actions that are listed one by one; the rest is counted.
const LISTED_ACTIONS: usize = 1000;

/// The reason why a repair cannot go on.
#[derive(Debug)]
pub(crate) struct Stuck(pub String);

/// The changes that the repair made, in sentences.
#[derive(Default)]
pub(crate) struct Actions {
    listed: Vec<String>,
    more: u64,
    lost: BTreeSet<(Option<u32>, String)>,
}

impl Actions {
    pub fn add(&mut self, text: String) {
        if self.listed.len() < LISTED_ACTIONS {
            self.listed.push(text);
        } else {
            self.more += 1;
        }
    }
    /// As [`Self::add`], for an inode whose content, name or attributes are changed or may be changed.
    pub fn lose(&mut self, ino: u32, text: String) {
        self.add(format!("inode {ino}: {text}"));
        self.note_lost(Some(ino), text);
    }
    /// As [`Self::lose`] where no inode is known.
    pub fn lose_some(&mut self, text: String) {
        self.add(text.clone());
        self.note_lost(None, text);
    }
    fn note_lost(&mut self, ino: Option<u32>, text: String) {
        if self.lost.len() < LISTED_ACTIONS {
            self.lost.insert((ino, text));
        }
    }
    pub fn take_lost(&mut self) -> BTreeSet<(Option<u32>, String)> {
        std::mem::take(&mut self.lost)
    }
    pub fn into_list(mut self) -> Vec<String> {
        if self.more > 0 {
            self.listed.push(format!("{} more", self.more));
        }
        self.listed
    }
}
