//! Attempts: how an operation gets what it needs without waiting under locks (design T7, L2, P1).

use crate::cold::Fetched;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::pages::PagePins;
use crate::types::{BlockRange, Wait};
use terrace_blocks::Purpose;
use terrace_catalog::{Edit, Shortage};
use terrace_format::keys::Key;
use terrace_format::{Corrupt, FileBlock, Ino};
use terrace_runtime::interleave;
use terrace_wal::{Error, NoSpace, PageBelow, Reservation};

/// One operation under way.
pub(crate) struct Op {
    pub wait: Wait,
    pub purpose: Purpose,
    /// Cold blocks that were read for it.
    pub fetched: Fetched,
    /// Metadata pages that were fetched for it.
    pub pages: PagePins,
    /// PM blocks to claim beyond the usual number.
    pub extra: usize,
    /// How often its pieces were halved because a record would have been too large.
    pub halved: u32,
    /// [`terrace_blocks::BlockPool::freed_so_far`] when it last found no space, and how often it found none.
    pub freed_seen: u64,
    pub starved: u32,
    /// Damage that was met in the search for space: the reason when none is found.
    pub damage: Option<Error>,
    /// Bytes that the present attempt served from copies of lower tiers in DRAM.
    pub dram_bytes: u64,
    /// Record room that it was found to need, when that is more than usual.
    pub record: usize,
    /// It changes nothing, and takes metadata from copies in DRAM where PM has no room for it.
    pub only_reads: bool,
    /// It may turn out to write only what has its blocks already ([`Purpose::Overwrite`]).
    pub may_overwrite: bool,
    /// Why it found no space, before it tried whether it does.
    pub refused: Option<FsError>,
    /// Its caller asks again after [`FsError::Unfinished`].
    pub in_turns: bool,
}

impl Op {
    pub fn new(wait: Wait) -> Op {
        Op {
            wait,
            purpose: Purpose::User,
            fetched: Fetched::default(),
            pages: PagePins::default(),
            extra: 0,
            halved: 0,
            freed_seen: 0,
            starved: 0,
            damage: None,
            dram_bytes: 0,
            record: 0,
            only_reads: false,
            may_overwrite: false,
            refused: None,
            in_turns: false,
        }
    }
    /// An operation that changes nothing, and so never lacks space (P1).
    pub fn reading(wait: Wait) -> Op {
        Op { only_reads: true, ..Op::new(wait) }
    }
    /// An operation that gives space back and may therefore use the reserve.
    pub fn reclaiming(wait: Wait) -> Op {
        Op { purpose: Purpose::Reclaim, ..Op::new(wait) }
    }
    /// The same, of a turn of a long request.
    pub fn in_turns(self) -> Op {
        Op { in_turns: true, ..self }
    }
}

/// What an attempt lacks.
#[derive(Debug)]
pub(crate) enum Need {
    /// Map nodes below a range of a file.
    MapNodes { ino: Ino, first: FileBlock, count: u64 },
    /// Room in a catalog page.
    CatalogRoom(Shortage),
    /// Room in catalog pages for several keys (with value lengths) at once.
    CatalogRooms(Vec<(Key, usize)>),
    /// A metadata page that lies below PM.
    MetadataPage(Box<PageBelow>),
    /// A page of the inode file below, for its free slots.
    FreeNumbers(u64),
    /// Content of cold blocks.
    Cold { ino: Ino, range: BlockRange },
    /// An intent overlaps a range that is to be used again.
    ClearIntent { ino: Ino, range: BlockRange },
    /// The end of a file's capabilities.
    RemoveCapability(Ino),
    /// A new page of the inode file.
    InodePage,
    /// Free PM blocks.
    PmSpace,
    /// A claim of one block more.
    LargerClaim,
    /// Something changed between two looks; start again.
    Again,
}

impl Need {
    fn name(&self) -> &'static str {
        match self {
            Need::MapNodes { .. } => "map nodes",
            Need::CatalogRoom(_) => "room in a catalog page",
            Need::CatalogRooms(_) => "room in several catalog pages",
            Need::MetadataPage(_) => "metadata pages below",
            Need::FreeNumbers(_) => "free inode numbers",
            Need::Cold { .. } => "cold blocks",
            Need::ClearIntent { .. } => "the end of an intent",
            Need::RemoveCapability(_) => "the end of file capabilities",
            Need::InodePage => "an inode page",
            Need::PmSpace => "PM blocks",
            Need::LargerClaim => "a larger claim",
            Need::Again => "another look",
        }
    }
}

/// Why an attempt ended without a result.
#[derive(Debug)]
pub(crate) enum Fail {
    Error(FsError),
    Need(Need),
}

pub(crate) type Attempt<T> = Result<T, Fail>;

impl From<FsError> for Fail {
    fn from(error: FsError) -> Fail {
        match error {
            FsError::Engine(Error::NoSpace(NoSpace::Pm)) => Fail::Need(Need::PmSpace),
            FsError::Engine(Error::PageBelow(page)) => Fail::Need(Need::MetadataPage(page)),
            error => Fail::Error(error),
        }
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        FsError::from(error).into()
    }
}

impl From<Edit> for Fail {
    fn from(edit: Edit) -> Fail {
        match edit {
            Edit::Full(shortage) => Fail::Need(Need::CatalogRoom(shortage)),
            Edit::Exists => FsError::Exists.into(),
            Edit::Missing => FsError::NotFound.into(),
            Edit::TooLarge => FsError::TooLarge.into(),
            Edit::Failed(error) => error.into(),
        }
    }
}

impl From<terrace_media::MediaError> for Fail {
    fn from(error: terrace_media::MediaError) -> Fail {
        FsError::from(error).into()
    }
}

impl From<Need> for Fail {
    fn from(need: Need) -> Fail {
        Fail::Need(need)
    }
}

/// Needs of one operation that are provided: in a damaged pool one may come back for ever.
const MOST_PROVIDED: u32 = 1000;

/// Record room for an operation on names or a few blocks.
pub(crate) const SMALL_RECORD: usize = 2048;

impl Fs {
    /// Record room for anything: a quarter lane.
    pub(crate) fn large_record(&self) -> usize {
        self.wal.max_record()
    }

    /// Runs attempts until one succeeds or fails for good.
    pub(crate) fn run<T>(
        &self,
        op: &mut Op,
        record: usize,
        mut attempt: impl FnMut(Reservation<'_>, &mut Op) -> Attempt<T>,
    ) -> FsResult<T> {
        if self.read_only {
            return Err(FsError::ReadOnly);
        }
        let mut provided = 0;
        loop {
            let reservation = self.wal.reserve(record.max(op.record).min(self.wal.max_record()))?;
            match attempt(reservation, op) {
                Ok(value) => return Ok(value),
                // Piece sizes are chosen for usual pages; the worst pages make larger records (T7).
                Err(Fail::Error(FsError::Engine(Error::RecordTooLarge { .. }))) if op.halved < 9 => {
                    op.halved += 1;
                }
                Err(Fail::Error(error)) => return Err(error),
                Err(Fail::Need(need)) => self.provide(op, need, &mut provided)?,
            }
        }
    }

    /// Provides what an attempt lacked. Holds no lock when called and when it returns. Counts in `provided`, and
    /// refuses what comes back for ever; making or waiting for space does not count.
    pub(crate) fn provide(&self, op: &mut Op, need: Need, provided: &mut u32) -> FsResult<()> {
        interleave::point("op:between-attempts");
        *provided += 1;
        if *provided > MOST_PROVIDED {
            return Err(Corrupt::new("what an operation lacks", "an end of it", need.name()).into());
        }
        let done = match need {
            Need::MapNodes { ino, first, count } => self.add_map_nodes(op, ino, first, count),
            Need::CatalogRoom(shortage) => {
                self.catalog.make_room_for(&shortage, op.purpose).map_err(FsError::from)
            }
            Need::CatalogRooms(puts) => self.catalog.make_room_many(&puts, op.purpose).map_err(FsError::from),
            Need::MetadataPage(page) => self.fetch_page(op, &page),
            Need::FreeNumbers(index) => self.fetch_numbers(op, index),
            Need::Cold { ino, range } => self.fetch_cold(op, ino, range),
            Need::ClearIntent { ino, range } if op.in_turns => self.clear_intent_turn(op.wait, ino, range),
            Need::ClearIntent { ino, range } if op.wait == Wait::Allowed => {
                self.clear_intent(op.wait, ino, range)
            }
            // Who may not wait does not do all of it either.
            Need::ClearIntent { ino, range } => match self.clear_intent_turn(op.wait, ino, range) {
                Err(FsError::Unfinished) => Err(FsError::WouldBlock),
                done => done,
            },
            Need::RemoveCapability(ino) => self.remove_capability(ino, op.wait),
            Need::InodePage => self.add_inode_page(op.purpose),
            Need::PmSpace => Err(NoSpace::Pm.into()),
            Need::LargerClaim => {
                op.extra += 1;
                Ok(())
            }
            Need::Again => Ok(()),
        };
        match done {
            Err(FsError::Engine(Error::NoSpace(NoSpace::Pm))) => {
                *provided -= 1;
                self.make_pm_space(op)
            }
            // Met on the way: then the attempt lacks what it lacked, or finds it.
            Err(FsError::Engine(Error::PageBelow(page))) => {
                self.provide(op, Need::MetadataPage(page), provided)
            }
            other => other,
        }
    }

    /// Adds the map nodes below a range, as transactions of their own.
    fn add_map_nodes(&self, op: &Op, ino: Ino, first: FileBlock, count: u64) -> FsResult<()> {
        loop {
            let reservation = self.wal.reserve(crate::op::SMALL_RECORD.min(self.wal.max_record()))?;
            let mut claim = self.blocks.claim(6, op.purpose)?;
            let _guard = self.locks.write(ino);
            let inode = self.load(ino)?;
            let missing = self.map.missing_nodes(&inode.map(), first, count as usize)?;
            if missing == 0 {
                return Ok(());
            }
            let mut tx = terrace_wal::Tx::new();
            if let Err(error) = self.map.add_nodes(&mut tx, &inode.map(), first, count as usize, &mut claim) {
                claim.give_back_all();
                return Err(error.into());
            }
            // After a failure the nodes stay taken: the record may be valid.
            self.wal.commit(reservation, &tx)?;
        }
    }
}
