//! Leaks: between two actions of a history no operation is under way, so the engine may hold in memory only
//! the resources that the files imply. Histories run for a long time without a mount, because a mount would
//! hide a resource that was never given back.
//!
//! Judged are claims of PM blocks and of device blocks, space reservations, I/O pins, page pins, references,
//! inode numbers and lane reservations. A stopped pool is not judged: a record that failed on the way may be
//! valid, and the blocks that it names stay claimed. Nor is a pool that may be damaged. Claims of PM blocks
//! and inode numbers are not judged after a failure of PM in this mount: a block that refused a store stays
//! claimed, or the next claim would get it again, and an unreadable inode page gives no numbers.

use crate::world::World;
use terrace_engine::{Accounts, Referenced, Simulation};

/// Actions from one judgement to the next: each judgement reads the block table and all chunk bitmaps.
const EVERY: u64 = 24;

impl World {
    /// Judges leaks after every so many actions.
    pub fn judge_leaks_at_times(&mut self) {
        self.quiet_moments += 1;
        if self.quiet_moments.is_multiple_of(EVERY) {
            self.judge_leaks();
        }
    }

    /// Judges that the engine holds only the resources that the files imply.
    pub fn judge_leaks(&mut self) {
        let Some(fs) = self.pool.fs.clone().filter(|fs| !fs.is_stopped()) else { return };
        if self.amid.depth > 0 || self.power.crash.is_taken() || self.pool.may_be_damaged {
            return;
        }
        self.counts.judged += 1;
        let mut accounts = fs.accounts().unwrap_or_else(|error| panic!("what is held: {error}"));
        if fs.status().is_ok_and(|status| status.tiers[0].devices[0].health != "ok") {
            accounts.blocks.claimed.clear();
            accounts.numbers.clear();
        }
        let found = leaks(&accounts, &self.known.expected_references());
        assert!(found.is_empty(), "held although nothing is under way: {}", found.join("; "));
    }
}

/// Descriptions of the resources that are held without need.
fn leaks(accounts: &Accounts, references: &[Referenced]) -> Vec<String> {
    let Accounts { blocks, below, .. } = accounts;
    let mut found = Vec::new();
    let mut none = |what: &str, is_none: bool, text: String| {
        if !is_none {
            found.push(format!("{what}: {text:.300}"));
        }
    };
    none("claims of PM blocks", blocks.claimed.is_empty(), format!("{:?}", blocks.claimed));
    none("owned PM blocks that are free", blocks.given.is_empty(), format!("{:?}", blocks.given));
    none("PM blocks that never become free", blocks.lost.is_empty(), format!("{:?}", blocks.lost));
    none("pins of PM blocks", blocks.pinned.is_empty(), format!("{:?}", blocks.pinned));
    none("free PM blocks told", blocks.miscounted.is_none(), format!("{:?}", blocks.miscounted));
    none("claims of blocks below", below.claimed.is_empty(), format!("{:?}", below.claimed));
    none("owned blocks below that are free", below.given.is_empty(), format!("{:?}", below.given));
    none("free blocks below told", below.miscounted.is_empty(), format!("{:?}", below.miscounted));
    let pins = below.pins.len() as u64;
    none("pins of blocks below", pins == accounts.kept_copies, format!("{:?}", below.pins));
    let (reserved, dirty) = (below.reserved, accounts.dirty_pages as i64);
    none("promises", reserved == dirty, format!("{reserved} blocks for {dirty} dirty pages"));
    let (promised, lazy) = (accounts.promised_blocks, accounts.lazy_pages);
    none("promised PM blocks", promised == lazy, format!("{promised} for {lazy} dirty pages"));
    let counters = [
        ("pages on their way below", accounts.in_flight_pages),
        ("pages that writers may make dirty", accounts.admitted_pages),
        ("blocks on their way below", accounts.in_flight_victims),
        ("pins of metadata pages", accounts.page_pins),
        ("bytes of lanes", accounts.reserved_bytes),
    ];
    for (what, count) in counters {
        none(what, count == 0, count.to_string());
    }
    none("inode numbers", accounts.numbers.is_empty(), format!("{:?}", accounts.numbers));
    let extra: Vec<_> = accounts.referenced.iter().filter(|held| !references.contains(held)).collect();
    let lacking: Vec<_> = references.iter().filter(|held| !accounts.referenced.contains(held)).collect();
    let text = format!("{extra:?}, expected {lacking:?}");
    none("references", extra.is_empty() && lacking.is_empty(), text);
    found
}
