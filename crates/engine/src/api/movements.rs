//! Movements that a user requests: `terrace migrate`, `pin`, `unpin` and `sync --to`.
use crate::engine::Engine;
use terrace_format::Ino;
use terrace_migration::requested::progress::MovePlan;
use terrace_migration::requested::progress::MoveRequest;
use terrace_migration::requested::progress::RequestReport;
use terrace_migration::requested::sync_to::SyncPlan;
use terrace_store::error::FsResult;

/// Movements that a user requests: `terrace migrate`, `pin`, `unpin` and `sync --to`.
pub trait Movements {
    /// Requests a movement of a file, or of a directory with everything in it, in the background. Gives the
    /// number of the request.
    ///
    /// # Errors
    /// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
    fn request_move(&self, ino: Ino, action: MoveRequest) -> FsResult<u64>;

    /// The files and bytes that a requested movement would move, without moving them. Looks at all files
    /// below the path first.
    ///
    /// # Errors
    /// As [`Self::request_move`]; EIO.
    fn plan_move(&self, ino: Ino, action: MoveRequest) -> FsResult<MovePlan>;

    /// The report of a requested movement; `None` for an unknown number, or one that ended too long ago.
    fn request_report(&self, id: u64) -> Option<RequestReport>;

    /// The requested movements that wait, are under way, or ended lately.
    fn request_reports(&self) -> Vec<RequestReport>;

    /// Moves all blocks that are above `tier` now to `tier` or below, and waits. `progress` gets the number
    /// of blocks left. Gives the bytes of blocks in PM that were written meanwhile: such a block stays in PM
    /// whole, with its older bytes.
    ///
    /// # Errors
    /// EINVAL when there is no such tier, EROFS, ENOSPC when it cannot take all, EIO; EAGAIN when files
    /// changed faster than blocks moved, again and again.
    fn sync_to(&self, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<u64>;

    /// The bytes that [`Self::sync_to`] would move now, or [`Self::sync`] for tier 0. Looks at all files
    /// first if a lower tier lies above `tier`.
    ///
    /// # Errors
    /// As [`Self::sync_to`]; EIO.
    fn plan_sync_to(&self, tier: u8) -> FsResult<SyncPlan>;
}

impl Movements for Engine {
    fn request_move(&self, ino: Ino, action: MoveRequest) -> FsResult<u64> {
        crate::requests::request_move(self, ino, action)
    }

    fn plan_move(&self, ino: Ino, action: MoveRequest) -> FsResult<MovePlan> {
        crate::requests::plan_move(self, ino, action)
    }

    fn request_report(&self, id: u64) -> Option<RequestReport> {
        crate::requests::request_report(self, id)
    }

    fn request_reports(&self) -> Vec<RequestReport> {
        crate::requests::request_reports(self)
    }

    fn sync_to(&self, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<u64> {
        terrace_migration::requested::sync_to::sync_to(&self.migration, tier, progress)
    }

    fn plan_sync_to(&self, tier: u8) -> FsResult<SyncPlan> {
        terrace_migration::requested::sync_to::plan_sync_to(&self.migration, tier)
    }
}
