//! Commit: record, fence, stores in place (T1 to T4).
//!
//! Invariants: a record is ordered (`PmMedium::order`) before any of its writes is stored in place; the LSN of a lane is
//! drawn under the lane's lock, after its bound was published (T5). Lock order: the caller's locks, then one lane.

use crate::dirty_lines::DirtyLines;
use crate::error::{Error, Result};
use crate::lane::{self, EMPTY_HEADER, Lane, LaneState};
use crate::transaction::Tx;
use crate::wal::{Reservation, Wal};
use std::borrow::Cow;
use terrace_format::record::{HEADER_SIZE, RECORD_ALIGN, Witness, padded, seal};
use terrace_format::{Lsn, PmOffset};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::RankedGuard;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::thread;

const _: () = assert!(HEADER_SIZE as u64 <= RECORD_ALIGN);

impl Wal {
    /// Commits: record, fence, stores in place. When it returns the transaction survives what the medium's
    /// `order` survives. The caller still holds every lock under which it read what the transaction depends on
    /// (design T2). The stores in place are written back by the checkpoint, each line once however often it was stored to.
    ///
    /// # Errors
    /// `Stopped`; `RecordTooLarge`; `Corrupt` for a damaged page that the transaction changes. An error of PM in the
    /// record or in the stores in place stops the log, because a record may be half visible.
    pub fn commit(&self, reservation: Reservation<'_>, tx: &Tx) -> Result<Lsn> {
        self.commit_with_data(reservation, tx, &[])
    }

    /// As [`Self::commit`], streaming `data` just before the record, so that data and record share a fence: a
    /// locked instruction between the two would wait for the stream as a fence does. The transaction names
    /// the data (T4), and no other thread can see these bytes yet.
    ///
    /// # Errors
    /// As [`Self::commit`]; an error of the data alone does not stop the log.
    pub fn commit_with_data(
        &self,
        reservation: Reservation<'_>,
        tx: &Tx,
        data: &[(PmOffset, Cow<'_, [u8]>)],
    ) -> Result<Lsn> {
        let open = self.begin(reservation)?;
        open.announce(tx);
        data.iter().try_for_each(|(at, bytes)| open.stream(*at, bytes))?;
        open.commit(tx)
    }

    /// Takes the lane and draws the LSN, so that data can be streamed while the transaction is still being
    /// written: the processor then stores the data while it computes the record. Call it with every lock held
    /// (lanes come last, L1). Until the commit take no lock and execute no locked instruction, which would
    /// wait for the stream. Dropping the result gives the transaction up; the LSN stays unused.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn begin<'a>(&'a self, mut reservation: Reservation<'a>) -> Result<Open<'a>> {
        let lane = &self.lanes[reservation.lane];
        let mut state = lane.state.lock();
        // Under the lane's lock: after a failure in this lane its bound must not be replaced.
        if self.is_stopped() {
            drop(state);
            return Err(Error::Stopped);
        }
        let need = std::mem::take(&mut reservation.need);
        assert!(
            state.reserved >= need,
            "{need} bytes of {} reserved in a lane are used (T7)",
            state.reserved
        );
        state.reserved -= need;
        Ok(Open { wal: self, lane, lsn: self.draw(lane), state, need, failed: false })
    }

    /// Reserves room and begins in one, without waiting: `None` when the calling thread's lane is taken or has no
    /// room, and the caller then gives up and reserves before its locks (T7). When [`Open::is_due`], the caller
    /// runs a checkpoint once it has let go of its locks.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn try_begin(&self, bytes: usize) -> Result<Option<Open<'_>>> {
        let lane = &self.lanes[thread::index() % self.lanes.len()];
        let Some(mut state) = lane.state.try_lock() else {
            return Ok(None);
        };
        // Under the lane's lock, as in `begin`.
        if self.is_stopped() {
            drop(state);
            return Err(Error::Stopped);
        }
        let need = Lane::need(bytes);
        if bytes > self.max_record() || !lane.try_reserve(&mut state, need) {
            return Ok(None);
        }
        state.reserved -= need;
        Ok(Some(Open { wal: self, lane, lsn: self.draw(lane), state, need, failed: false }))
    }

    /// Draws an LSN for a lane that is held. The bound is published before: whoever reads the counter past this
    /// LSN has synchronised with the draw and sees the bound, or that the record is applied (T5).
    fn draw(&self, lane: &Lane) -> Lsn {
        lane.pending.store(self.next_lsn.load(Ordering::Relaxed), Ordering::Release);
        Lsn(self.next_lsn.fetch_add(1, Ordering::AcqRel))
    }

    /// Call before storing in place to bytes outside a transaction: if a lane's last record names them
    /// by checksum, a confirming record is made durable in that lane first (design T4).
    ///
    /// # Errors
    /// The medium's.
    pub fn confirm_named(&self, offset: PmOffset, length: u64) -> Result<()> {
        for lane in &self.lanes {
            if lane.names(offset, length) {
                self.confirm_lane(lane, offset, length)?;
            }
        }
        Ok(())
    }

    fn confirm_lane(&self, lane: &Lane, offset: PmOffset, length: u64) -> Result<()> {
        let state = lane.state.lock();
        if !lane.names(offset, length) {
            return Ok(());
        }
        if self.is_stopped() {
            return Err(Error::Stopped);
        }
        assert!(
            state.head - state.tail + RECORD_ALIGN <= self.geometry.lane_size,
            "lane {} has no room for a confirming record",
            lane.index
        );
        let need = RECORD_ALIGN * 2;
        let open = Open { wal: self, lane, lsn: self.draw(lane), state, need, failed: false };
        open.finish(&Tx::new()).map(|_| ())
    }
}

/// A commit under way: the lane is held, the LSN drawn. See [`Wal::begin`].
#[must_use]
pub struct Open<'a> {
    wal: &'a Wal,
    lane: &'a Lane,
    state: RankedGuard<'a, LaneState>,
    lsn: Lsn,
    need: u64,
    /// The record may be valid in its lane and half applied.
    failed: bool,
}

impl Open<'_> {
    /// Whether the lane holds so much that a checkpoint should run soon (T5).
    pub fn is_due(&self) -> bool {
        self.state.head - self.state.tail > self.wal.due_above.load(Ordering::Relaxed)
    }

    /// Streams data that the transaction will name (T4), to bytes that nobody can see yet.
    ///
    /// # Errors
    /// The medium's; give up then.
    pub fn stream(&self, offset: PmOffset, bytes: &[u8]) -> Result<()> {
        Ok(self.wal.pm.write_streaming(offset, bytes)?)
    }

    /// As [`Self::stream`], and names the data in the transaction; returns its CRC32C.
    ///
    /// # Errors
    /// As [`Self::stream`].
    pub fn stream_named(&self, tx: &mut Tx, offset: PmOffset, bytes: &[u8]) -> Result<u32> {
        self.announce(tx);
        let crc = self.wal.pm.write_streaming_checked(offset, bytes)?;
        tx.name_data(offset, bytes.len() as u32, crc);
        Ok(crc)
    }

    /// Has the lines fetched that the stores in place will need, while data and record are on their way.
    fn announce(&self, tx: &Tx) {
        tx.writes().for_each(|(place, _)| self.wal.pm.expect_store(place));
    }

    /// Record, fence, stores in place; see [`Wal::commit`].
    ///
    /// # Errors
    /// As [`Wal::commit`].
    pub fn commit(self, tx: &Tx) -> Result<Lsn> {
        self.finish(tx)
    }

    /// As [`Self::commit`]. A recorded medium names the caller as the place of the fence.
    #[track_caller]
    fn finish(mut self, tx: &Tx) -> Result<Lsn> {
        let size = tx.record_size();
        if Lane::need(size) > self.need {
            return Err(Error::RecordTooLarge { bytes: size, limit: self.need as usize });
        }
        // Behind a change nobody could tell any more that the page had been damaged before.
        tx.writes()
            .try_for_each(|(offset, content)| self.wal.checksums.ensure_range(offset, content.len()))?;
        let appended = self.append_record(tx);
        let done = appended.and_then(|()| {
            // Readers would find some of the new words beside old ones (I8). The next mount replays all.
            let condemn =
                |(offset, content): (PmOffset, &[u8])| self.wal.pm.condemn(offset, content.len() as u64);
            self.apply(tx).inspect_err(|_| tx.writes().for_each(condemn))
        });
        if let Err(error) = done {
            self.failed = true;
            self.wal.stopped.store(true, Ordering::SeqCst);
            return Err(error);
        }
        Ok(self.lsn)
    }

    /// Streams the record and fences.
    #[track_caller]
    fn append_record(&mut self, tx: &Tx) -> Result<()> {
        let (wal, lane, state) = (self.wal, self.lane, &mut *self.state);
        let (writes, checks) = tx.counts();
        let mut record = std::mem::take(&mut state.scratch);
        record.clear();
        record.extend_from_slice(&EMPTY_HEADER);
        tx.encode(&mut record);
        let seed = lane::seed(&wal.pool_uuid, lane.index, state.head, wal.epoch);
        // Acquire: behind the fence of the record that it names.
        let witness = wal.last_durable.load(Ordering::Acquire);
        seal(&mut record, self.lsn, writes, checks, seed, witness);
        let ring_bytes = padded(record.len());
        record.resize(ring_bytes as usize, 0);
        let streamed = match planted(Mistake::CommitMarkFirst) {
            true => wrong::append_mark_first(wal, lane, state.head, &record),
            false => lane.append(&*wal.pm, state.head, &record),
        };
        state.scratch = record;
        streamed?;
        if !planted(Mistake::NoFenceInCommit) && !planted(Mistake::CommitMarkFirst) {
            wal.pm.order();
        }
        state.head += ring_bytes;
        let durable = Witness { lane: lane.index, position: state.head };
        wal.last_durable.store(durable.encode(), Ordering::Release);
        state.last_lsn = self.lsn;
        lane.set_named(tx.checks());
        Ok(())
    }

    fn apply(&mut self, tx: &Tx) -> Result<()> {
        if planted(Mistake::RangeToSyncReplaced) {
            self.state.dirty = DirtyLines::default();
        }
        for (offset, content) in tx.writes() {
            self.wal.pm.store(offset, content)?;
            self.state.dirty.note(offset, content.len());
        }
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // The lane no longer holds the checkpoint back. A thread that sees this store also sees the in-place
        // stores. After a failure the bound stays, so no checkpoint ever passes the record, and the next
        // mount replays it whole or not at all.
        if !self.failed {
            self.lane.pending.store(u64::MAX, Ordering::Release);
        }
    }
}

/// Planted mistakes of this file.
mod wrong {
    use super::{Lane, RECORD_ALIGN, Result, Wal};

    /// [`Mistake::CommitMarkFirst`](super::Mistake::CommitMarkFirst): the commit mark is durable before the record.
    #[track_caller]
    pub(super) fn append_mark_first(wal: &Wal, lane: &Lane, head: u64, record: &[u8]) -> Result<()> {
        let (mark, rest) = record.split_at(RECORD_ALIGN as usize);
        lane.append(&*wal.pm, head, mark)?;
        wal.pm.order();
        lane.append(&*wal.pm, head + RECORD_ALIGN, rest)
    }
}
