//! The needs of attempts, and the errors that become needs.

use crate::error::FsError;
use crate::types::BlockRange;
use terrace_catalog::{Edit, Shortage};
use terrace_format::Ino;
use terrace_format::keys::Key;
use terrace_wal::{Error, MapRoom, NoSpace, PageBelow};

/// The thing that an attempt lacks. It is provided without locks; then a new attempt starts.
#[derive(Debug)]
pub enum Need {
    /// Room in the map of a file.
    MapRoom(Box<MapRoom>),
    /// The rest of the block table, which is the file map.
    TableScan,
    /// A judgement whether a file may have blocks in unreadable entries of the block table.
    Hidden(Ino),
    /// Room in a catalog page.
    CatalogRoom(Shortage),
    /// Room in catalog pages for several keys (with value lengths) at once.
    CatalogRooms(Vec<(Key, usize)>),
    /// A metadata page that lies below PM.
    MetadataPage(Box<PageBelow>),
    /// A page of the inode file below, for its free slots.
    FreeNumbers(u64),
    /// Content of cold blocks.
    Cold {
        /// The file.
        ino: Ino,
        /// The blocks.
        range: BlockRange,
    },
    /// An intent overlaps a range that is to be used again.
    ClearIntent {
        /// The file.
        ino: Ino,
        /// The range that is to be used again.
        range: BlockRange,
    },
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
    /// The need in words.
    pub fn name(&self) -> &'static str {
        match self {
            Need::TableScan => "the block table",
            Need::Hidden(_) => "a count of the blocks",
            Need::MapRoom(_) => "map room",
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
pub enum Fail {
    /// The operation fails.
    Error(FsError),
    /// The attempt lacks something and is to run again.
    Need(Need),
}

/// The result of one attempt.
pub type Attempt<T> = Result<T, Fail>;

impl From<FsError> for Fail {
    fn from(error: FsError) -> Fail {
        match error {
            FsError::Engine(Error::NoSpace(NoSpace::Pm)) => Fail::Need(Need::PmSpace),
            FsError::Engine(Error::PageBelow(page)) => Fail::Need(Need::MetadataPage(page)),
            FsError::Engine(Error::TableUnread) => Fail::Need(Need::TableScan),
            FsError::Engine(Error::Hidden(ino)) => Fail::Need(Need::Hidden(ino)),
            FsError::Engine(Error::MapRoom(room)) => Fail::Need(Need::MapRoom(room)),
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
