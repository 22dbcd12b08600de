//! The pool of PM blocks: claims and their shares of the reserve, frees and the quarantine, pins, owners, the scan after a
//! mount, and blocks that the table and a map do not agree on.
#![allow(clippy::unwrap_used)]

mod accounts;
mod claims;
mod homes;
mod model;
mod table;

use std::sync::Arc;
use terrace_blocks::{BlockPool, Claim, Purpose, Target};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Geometry, Ino, Lsn, PmBlock};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, NoSpace, Tx, Wal};

const UUID: [u8; 16] = [5; 16];
const SMALL: u64 = 2 << 20;
/// More blocks than one step of the scan takes.
const LARGE: u64 = 40 << 20;
const PURPOSES: [Purpose; 5] =
    [Purpose::User, Purpose::Overwrite, Purpose::Fetch, Purpose::Demotion, Purpose::Reclaim];

fn formatted(size: u64) -> Arc<RecordedPm> {
    let pm = Arc::new(RecordedPm::new(size));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, Geometry::choose(size, 16).unwrap()).unwrap();
    pm
}

/// A pool as it is after a mount.
fn mounted(pm: &Arc<RecordedPm>) -> BlockPool {
    let geometry = Geometry::choose(pm.size(), 16).unwrap();
    BlockPool::new(Arc::new(Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry).unwrap().0))
}

fn scanned(pm: &Arc<RecordedPm>) -> BlockPool {
    let pool = mounted(pm);
    while pool.scan_step().unwrap() {}
    pool
}

fn commit(pool: &BlockPool, change: impl FnOnce(&mut Tx)) -> Lsn {
    let mut tx = Tx::new();
    change(&mut tx);
    pool.wal().commit(pool.wal().reserve(tx.record_size()).unwrap(), &tx).unwrap()
}

fn file(ino: u64, block: u64) -> Owner {
    Owner::File { ino: Ino(ino), block: FileBlock(block), unwritten: false }
}

/// Sets the owners of blocks in the table, as a run before the mount has left them.
fn table(pm: &RecordedPm, entries: &[(PmBlock, Owner, u64)]) {
    let geometry = Geometry::choose(pm.size(), 16).unwrap();
    for (block, owner, lines) in entries {
        let at = geometry.table_entry(*block);
        pm.write(at, &owner.encode().to_le_bytes()).unwrap();
        pm.write(at.plus(8), &lines.to_le_bytes()).unwrap();
    }
}

fn entry(pool: &BlockPool, block: PmBlock) -> (Owner, u64) {
    let at = pool.wal().geometry().table_entry(block);
    (pool.owner(block).unwrap(), pool.wal().pm().load_u64(at.plus(8)).unwrap())
}

fn is_full(error: Result<Claim<'_>, Error>) -> bool {
    matches!(error, Err(Error::NoSpace(NoSpace::Pm)))
}

fn taken(mut claim: Claim<'_>) -> Vec<PmBlock> {
    std::iter::from_fn(|| claim.take(Target::Page)).collect()
}

fn nth(pool: &BlockPool, index: u64) -> PmBlock {
    PmBlock(pool.first_block().0 + index)
}

fn kept(purpose: Purpose, reserve: u64) -> u64 {
    match purpose {
        Purpose::User => reserve,
        Purpose::Fetch => reserve * 3 / 4,
        Purpose::Overwrite => reserve * 5 / 8,
        Purpose::Demotion => reserve / 2,
        Purpose::Reclaim => 0,
    }
}
