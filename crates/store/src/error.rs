//! The file system's errors and the one place that maps them to errno.

use terrace_media::MediaError;
use terrace_wal::{Error, NoSpace};

/// Result of a file-system operation.
pub type FsResult<T> = Result<T, FsError>;

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FsError {
    /// No such name or inode.
    #[error("no such file or directory")]
    NotFound,
    /// The inode number was reused or freed.
    #[error("stale file handle")]
    Stale,
    /// The name exists.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory was given.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A name over 255 bytes, a target over 4095.
    #[error("name too long")]
    NameTooLong,
    /// A size over 16 TiB.
    #[error("file too large")]
    TooLarge,
    /// An argument that makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// Not allowed at all.
    #[error("operation not permitted")]
    NotPermitted,
    /// Too many links.
    #[error("too many links")]
    TooManyLinks,
    /// No such attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// A buffer that is too small, or a value too large for one.
    #[error("result too large")]
    Range,
    /// Seek past the last data.
    #[error("no data at or after this offset")]
    NoDataThere,
    /// Not supported for this kind of file or not built.
    #[error("operation not supported")]
    NotSupported,
    /// Mounted read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// Would wait, and the caller said not to.
    #[error("would wait for a lower tier or for space")]
    WouldBlock,
    /// A turn of a long request is over, and more of it is left: its caller asks again with the same [`Progress`](crate::operation::progress::Progress).
    #[error("not finished: asked again")]
    Unfinished,
    /// The mount ends, and with it what may take long.
    #[error("the mount is ending")]
    Ending,
    /// PM has failed, so no call can promise durability. Not EROFS, which programs take from fsync for "need
    /// not be synced".
    #[error("persistent memory failed: what was written last may not be durable")]
    NotDurable,
    /// PM has no space, as far as damage lets it be found: EIO to users, and as a full PM to what may go on in DRAM.
    #[error("no space is found in persistent memory: {0}")]
    SpaceHidden(Error),
    /// Everything below.
    #[error(transparent)]
    Engine(#[from] Error),
}

impl From<NoSpace> for FsError {
    fn from(error: NoSpace) -> FsError {
        FsError::Engine(error.into())
    }
}

impl From<terrace_media::MediaError> for FsError {
    fn from(error: terrace_media::MediaError) -> FsError {
        FsError::Engine(error.into())
    }
}

impl From<terrace_format::Corrupt> for FsError {
    fn from(error: terrace_format::Corrupt) -> FsError {
        FsError::Engine(error.into())
    }
}

impl FsError {
    /// Whether this is damage of one file or block, which holds back only what it concerns (I8); EIO of PM or a checksum.
    pub fn concerns_one_file(&self) -> bool {
        matches!(
            self,
            FsError::Engine(Error::Corrupt(_) | Error::Media(MediaError::Pm { .. }))
                | FsError::SpaceHidden(Error::Corrupt(_) | Error::Media(MediaError::Pm { .. }))
        )
    }

    /// Whether the same attempt may succeed later: a medium failed, and not for lack of space.
    pub fn is_transient(&self) -> bool {
        matches!(self, FsError::Engine(Error::Media(_)) | FsError::SpaceHidden(Error::Media(_)))
            && self.errno() != libc::ENOSPC
    }

    /// Whether a write that no lower tier took may go to PM instead: the tier is full or failed.
    pub fn can_fall_back_to_pm(&self) -> bool {
        matches!(self, FsError::Engine(Error::NoSpace(_) | Error::Media(_)) | FsError::SpaceHidden(_))
    }

    /// The errno a caller of the operating system sees.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotFound => libc::ENOENT,
            FsError::Stale => libc::ESTALE,
            FsError::Exists => libc::EEXIST,
            FsError::NotDirectory => libc::ENOTDIR,
            FsError::IsDirectory => libc::EISDIR,
            FsError::NotEmpty => libc::ENOTEMPTY,
            FsError::NameTooLong => libc::ENAMETOOLONG,
            FsError::TooLarge => libc::EFBIG,
            FsError::Invalid => libc::EINVAL,
            FsError::NotPermitted => libc::EPERM,
            FsError::TooManyLinks => libc::EMLINK,
            FsError::NoAttribute => libc::ENODATA,
            FsError::Range => libc::ERANGE,
            FsError::NoDataThere => libc::ENXIO,
            FsError::NotSupported => libc::EOPNOTSUPP,
            FsError::ReadOnly => libc::EROFS,
            FsError::WouldBlock | FsError::Unfinished => libc::EAGAIN,
            FsError::Ending => libc::ECANCELED,
            FsError::NotDurable | FsError::SpaceHidden(_) => libc::EIO,
            FsError::Engine(Error::NoSpace(_)) => libc::ENOSPC,
            FsError::Engine(Error::Stopped) => libc::EROFS,
            // The file system that a tier's file lies on is full: the data stays where it was. A read needs
            // no space, even if the device answers ENOSPC.
            FsError::Engine(Error::Media(MediaError::Device(error)))
                if error.errno == libc::ENOSPC && error.operation != "read" =>
            {
                libc::ENOSPC
            }
            FsError::Engine(
                Error::Media(_)
                | Error::Corrupt(_)
                | Error::RecordTooLarge { .. }
                | Error::PageBelow(_)
                | Error::MapRoom(_)
                | Error::TableUnread
                | Error::Hidden(_)
                | Error::Refused(_),
            ) => libc::EIO,
        }
    }
}

/// ENOSPC that is final: `provide` would take `NoSpace::Pm` as a reason to try once more.
pub fn final_no_space() -> FsError {
    NoSpace::Tier.into()
}
