//! Cuckoo map: the short way of the commonest change, of one block that is new or a run of its own.
//!
//! The short way has the result of `change`, with a hash and two lines, and leaves all other cases to `change`.

use super::table::{CuckooMap, Found, hit};
use crate::file_map::{MapGuard, Mapping, PresenceChange};
use terrace_blocks::pool::Known;
use terrace_format::cuckoo_map::{Entry, Slot, Words, is_free};
use terrace_format::{FileBlock, Ino};
use terrace_wal::{Result, Tx};
use zerocopy::little_endian::U64;

impl CuckooMap {
    /// Gives a block a new mapping. `None`, without a change, where the block is part of a longer run, a line cannot be read,
    /// the stash may have the block, or a place for it has to be made.
    pub(super) fn exchange_alone<'s>(
        &'s self,
        tx: &mut Tx,
        ino: Ino,
        (block, new): (FileBlock, Mapping),
        guard: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        let key = self.key(ino, block);
        // The second line is on its way while the first is searched.
        key.pair.iter().for_each(|line| self.pages.pm.expect_load(self.buckets.line(*line)));
        let mut held = self.stripes.lock_pair(key.pair);
        let (mut found, mut free) = (None, None);
        for line in key.pair {
            let Ok(entries) = self.read_line(line) else { return Ok(None) };
            match hit(line, &entries, &key) {
                Ok(None) => {}
                Ok(Some(Found { slot, entry })) => {
                    found = Some((slot, entry));
                    break;
                }
                Err(_) => return Ok(None),
            }
            free = free.or_else(|| entries.iter().position(is_free).map(|slot| (line, slot)));
        }
        let (slot, old) = match (found, free) {
            (Some((slot, old)), _) if old.before == 0 && old.behind == 0 => (slot, Some(old)),
            (None, Some(slot)) if !self.is_stash_used() => (slot, None),
            _ => return Ok(None),
        };
        let is_all_known = self.hashed()?.known() == Known::All;
        if old.is_none() && !is_all_known {
            self.judge_missing(&key, None)?;
        }
        let earlier = old.map(|old| self.mapping(&old, block)).transpose()?;
        let mut presence = PresenceChange::new(self);
        // Before the end of the scan the block may not be known yet, and the scan may pass both of its places.
        let is_to_add = old.is_none() || !is_all_known;
        if is_to_add && !presence.add(ino, block) && old.is_none() {
            // Its entry is lost, or the scan was faster.
            return Ok(None);
        }
        let entry = Entry { ino, block, place: new.block, unwritten: new.unwritten, before: 0, behind: 0 };
        self.log_slot(tx, slot, old.map_or([0; 2], |old| old.encode()), entry.encode());
        held.begin_stores([slot.0].into_iter());
        *guard = MapGuard::stripes(held, Some(presence));
        Ok(Some(earlier))
    }

    fn log_slot(&self, tx: &mut Tx, (line, slot): Slot, old: Words, new: Words) {
        let at = self.buckets.line(line).plus(16 * slot as u64);
        let ([old_owner, old_run], [owner, run]) = (old, new);
        match (old_owner != owner, old_run != run) {
            (true, true) => tx.write_words(at, new.map(U64::new)),
            (true, false) => tx.write_u64(at, owner),
            (false, true) => tx.write_u64(at.plus(8), run),
            (false, false) => {}
        }
    }
}
