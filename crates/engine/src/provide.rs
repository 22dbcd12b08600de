//! Provides the need of an attempt: one row for each kind of need.

use std::sync::{Arc, Weak};
use terrace_format::Corrupt;
use terrace_fs::content::intents::{clear_intent, clear_intent_turn};
use terrace_fs::names::xattr::remove_capability;
use terrace_migration::migration::Migration;
use terrace_migration::space::make_pm_space;
use terrace_runtime::interleave;
use terrace_store::change::map_room::{make_map_room, scan_table};
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::hidden::judge_hidden;
use terrace_store::inode::numbers::add_inode_page;
use terrace_store::lookup::cold_read::fetch_cold;
use terrace_store::metadata::fetch::{fetch_numbers, fetch_page};
use terrace_store::operation::need::Need;
use terrace_store::operation::op::Op;
use terrace_store::operation::provide::Provide;
use terrace_store::types::Wait;
use terrace_wal::{Error, NoSpace};

/// The provider: it uses the store, the rules of the file system, and migration.
pub struct Provider {
    migration: Weak<Migration>,
}

impl Provider {
    pub fn new(migration: &Arc<Migration>) -> Provider {
        Provider { migration: Arc::downgrade(migration) }
    }
}

impl Provide for Provider {
    fn provide(&self, op: &mut Op, need: Need, provided: &mut u32) -> FsResult<()> {
        let migration = self.migration.upgrade().ok_or(FsError::Ending)?;
        provide(&migration, op, need, provided)
    }
}

/// Most needs that are provided to one operation: in a damaged pool a need may come back for ever.
const MOST_PROVIDED: u32 = 1000;

/// Provides the need of an attempt. Holds no lock when called and when it returns. Counts in `provided`, and
/// refuses a need that comes back for ever; making or waiting for space does not count.
fn provide(migration: &Migration, op: &mut Op, need: Need, provided: &mut u32) -> FsResult<()> {
    interleave::point("op:between-attempts");
    *provided += 1;
    if *provided > MOST_PROVIDED {
        return Err(Corrupt::new("what an operation lacks", "an end of it", need.name()).into());
    }
    let done = match need {
        Need::MapRoom(room) => make_map_room(&migration.store, op, &room).map(|is_made| {
            // The map has as much room as a change gets at once: a smaller piece is to fit.
            if !is_made {
                op.piece_halvings = (op.piece_halvings + 1).min(9);
            }
        }),
        // The scan takes 4 ms for each GiB of PM.
        Need::TableScan if op.wait == Wait::Never => Err(FsError::WouldBlock),
        Need::TableScan => scan_table(&migration.store),
        // All cold extents of the file are looked at.
        Need::Hidden(_) if op.wait == Wait::Never => Err(FsError::WouldBlock),
        Need::Hidden(ino) => judge_hidden(&migration.store, ino),
        Need::CatalogRoom(shortage) => {
            migration.store.persistent.catalog().make_room_for(&shortage, op.purpose).map_err(FsError::from)
        }
        Need::CatalogRooms(puts) => {
            migration.store.persistent.catalog().make_room_many(&puts, op.purpose).map_err(FsError::from)
        }
        Need::MetadataPage(page) => fetch_page(&migration.store, op, &page),
        Need::FreeNumbers(index) => fetch_numbers(&migration.store, op, index),
        Need::Cold { ino, range } => fetch_cold(&migration.store, op, ino, range),
        Need::ClearIntent { ino, range } if op.in_turns => {
            clear_intent_turn(&migration.store, op.wait, ino, range)
        }
        Need::ClearIntent { ino, range } if op.wait == Wait::Allowed => {
            clear_intent(&migration.store, op.wait, ino, range)
        }
        // A caller that may not wait removes one turn of the range, and leaves the others to a waiting
        // thread.
        Need::ClearIntent { ino, range } => match clear_intent_turn(&migration.store, op.wait, ino, range) {
            Err(FsError::Unfinished) => Err(FsError::WouldBlock),
            done => done,
        },
        Need::RemoveCapability(ino) => remove_capability(&migration.store, ino, op.wait),
        Need::InodePage => add_inode_page(&migration.store, op.purpose),
        Need::PmSpace => Err(NoSpace::Pm.into()),
        Need::LargerClaim => {
            op.extra_blocks += 1;
            Ok(())
        }
        Need::Again => Ok(()),
    };
    match done {
        Err(FsError::Engine(Error::NoSpace(NoSpace::Pm))) => {
            *provided -= 1;
            make_pm_space(migration, op)
        }
        // Providing the need met a metadata page on a lower tier. After the page is fetched, the next attempt
        // lacks the same need again, or no more.
        Err(FsError::Engine(Error::PageBelow(page))) => {
            provide(migration, op, Need::MetadataPage(page), provided)
        }
        other => other,
    }
}
