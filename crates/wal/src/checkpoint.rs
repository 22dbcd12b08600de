//! Moving the checkpoint (design T5).

use crate::checkpoint_state::CheckpointState;
use crate::dirty_lines::LINE;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::wal::Wal;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::record::{HEADER_SIZE, header_lsn, padded, plausible_length};
use terrace_format::{Corrupt, Lsn, PmOffset};
use terrace_runtime::pause;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;

impl Wal {
    /// Moves the checkpoint over everything applied so far. Waits for no transaction; takes no lock
    /// of a caller's.
    ///
    /// # Errors
    /// The medium's.
    pub fn checkpoint(&self) -> Result<()> {
        let mut state = self.checkpoint.lock();
        self.advance(&mut state, false)
    }

    /// Moves the checkpoint unless another thread is doing so.
    ///
    /// # Errors
    /// The medium's.
    pub fn checkpoint_if_idle(&self) -> Result<()> {
        match self.checkpoint.try_lock() {
            Some(mut state) => self.advance(&mut state, false),
            None => Ok(()),
        }
    }

    /// Moves the checkpoint for the sake of what waits for it, when nothing is short of space.
    ///
    /// # Errors
    /// The medium's.
    pub fn checkpoint_at_leisure(&self) -> Result<()> {
        if self.due_above.load(Ordering::Relaxed) == u64::MAX { Ok(()) } else { self.checkpoint_if_idle() }
    }

    /// The last checkpoint of an orderly unmount: it passes all records and marks the pool clean, and is
    /// durable when this returns. No transaction may follow.
    ///
    /// # Errors
    /// The medium's.
    pub fn close(&self) -> Result<()> {
        let mut state = self.checkpoint.lock();
        if !self.is_stopped() {
            // Checksums cover only pages whose changes are in place and written back: so the checkpoint moves
            // first.
            self.advance(&mut state, false)?;
            self.checksums.cover_all();
        }
        self.advance(&mut state, true)?;
        self.stopped.store(true, Ordering::SeqCst);
        // After an unmount the user may turn the machine off.
        self.persist()
    }

    /// Covers some metadata pages that were not changed for a while, for a background step; true when all have had their
    /// turn. Waits for no transaction.
    pub fn cover_some(&self) -> bool {
        match self.checkpoint.try_lock() {
            Some(_state) if !self.is_stopped() => self.checksums.cover_some(),
            _ => true,
        }
    }

    /// The fences of a checkpoint only order. It frees PM alone, and a crash that undoes the checkpoint also
    /// undoes the later stores to the freed PM. Before device space is used again a persist is issued (T6).
    fn advance(&self, state: &mut CheckpointState, clean: bool) -> Result<()> {
        if self.is_stopped() {
            // A record may be half applied: the next mount needs the log unchanged.
            return Err(Error::Stopped);
        }
        // The counter first, then the bounds: a transaction that drew an LSN below the counter had
        // published its bound before it drew.
        let mut lsn = Lsn(self.next_lsn.load(Ordering::SeqCst));
        for lane in &self.lanes {
            lsn = lsn.min(Lsn(lane.pending.load(Ordering::SeqCst)));
        }
        if lsn <= state.current.lsn && clean == state.current.clean {
            return Ok(());
        }
        let mut tails = Vec::with_capacity(self.lanes.len());
        for lane in &self.lanes {
            tails.push(self.settle(lane, lsn, &mut state.lines)?);
        }
        self.checksums.expect_open()?;
        self.pm.order();
        pause::at("checkpoint:settled");
        let sequence = state.current.sequence + 1;
        let next = Checkpoint { lsn, epoch: self.epoch, sequence, clean, tails };
        self.write_checkpoint(&next, 0)?;
        for (lane, tail) in self.lanes.iter().zip(&next.tails) {
            lane.state.lock().tail = *tail;
        }
        state.current = next;
        self.checkpoint_lsn.store(lsn.0, Ordering::Release);
        self.space_freed.1.notify_all();
        Ok(())
    }

    /// Writes both copies, copy `first` first. While one is being written the other must be sound: a
    /// running log's copies both are, recovery may have only the one it started from.
    pub(crate) fn write_checkpoint(&self, next: &Checkpoint, first: usize) -> Result<()> {
        let bytes = next.encode(&self.pool_uuid);
        let [a, b] = CHECKPOINT_COPIES;
        let [one, other] = if first == 0 { [a, b] } else { [b, a] };
        self.pm.write(one.offset(), &bytes)?;
        if !planted(Mistake::CheckpointCopiesAtOnce) {
            self.pm.order();
        }
        pause::at("checkpoint:copy");
        self.pm.write(other.offset(), &bytes)?;
        // Lane space that the older copy needs is overwritten only after this copy is ordered, too.
        self.pm.order();
        Ok(())
    }

    /// Writes back the lines that a lane's records stored in place; the caller's fence settles them. Gives the
    /// position of the first record that is not below `lsn`.
    fn settle(&self, lane: &Lane, lsn: Lsn, lines: &mut Vec<PmOffset>) -> Result<u64> {
        let (mut position, head, last_lsn) = {
            let mut state = lane.state.lock();
            state.dirty.take(lines);
            (state.tail, state.head, state.last_lsn)
        };
        // No error may come before these lines are written back: they are in no other list any more.
        lines.iter().for_each(|line| self.pm.write_back(*line, LINE));
        lines.iter().for_each(|line| self.checksums.changed(*line));
        if last_lsn < lsn {
            return Ok(head);
        }
        while position < head {
            let mut header = [0; HEADER_SIZE];
            lane.read(&*self.pm, position, &mut header)?;
            // A damaged length may lead past the head; as a tail it would free what no record is known to fill.
            let fits = |length: &usize| position + padded(*length) <= head;
            let length =
                plausible_length(&header, self.geometry.max_record()).filter(fits).ok_or_else(|| {
                    let site = format!("lane {} at position {position}", lane.index);
                    Corrupt::new(site, "a record written by this mount", "something else")
                })?;
            if header_lsn(&header) >= lsn {
                break;
            }
            position += padded(length);
        }
        Ok(position)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Tx;
    use std::sync::Arc;
    use terrace_format::Geometry;
    use terrace_media::PmMedium;
    use terrace_media::pm::RecordedPm;

    const UUID: [u8; 16] = [3; 16];

    fn opened() -> (Arc<RecordedPm>, Wal) {
        let geometry = Geometry::choose(2 << 20, 16).unwrap();
        let pm = Arc::new(RecordedPm::new(2 << 20));
        Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry).unwrap();
        let wal = Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry).unwrap().0;
        (pm, wal)
    }

    /// Records of one and of five words, in turns, which take 64 and 128 bytes of the ring.
    fn store(wal: &Wal, number: u64) -> Lsn {
        let mut tx = Tx::new();
        let at = wal.geometry.first_pool_block().offset();
        (0..1 + number % 2 * 4).for_each(|word| tx.write_u64(at.plus(8 * word), number));
        wal.commit(wal.reserve(tx.record_size()).unwrap(), &tx).unwrap()
    }

    #[test]
    fn a_lane_is_written_back_up_to_the_first_record_not_passed() {
        let (_pm, wal) = opened();
        let ends: Vec<(Lsn, u64)> = (0..6).map(|number| (store(&wal, number), wal.used_bytes())).collect();
        let is_used = |lane: &&Lane| {
            let state = lane.state.lock();
            state.head != state.tail
        };
        let lane = wal.lanes.iter().find(is_used).unwrap();
        let settled = |lsn| wal.settle(lane, lsn, &mut Vec::new()).unwrap() - lane.state.lock().tail;
        let mut before = 0;
        for (lsn, end) in &ends {
            assert_eq!(settled(*lsn), before, "at the record itself");
            assert_eq!(settled(Lsn(lsn.0 + 1)), *end, "behind it");
            before = *end;
        }
        assert_eq!((settled(Lsn(0)), settled(Lsn(u64::MAX))), (0, before));
    }

    /// The length of the last record was believed, and the tail of the lane went past its head.
    #[test]
    fn a_damaged_length_does_not_lead_past_the_head() {
        let (pm, wal) = opened();
        let last = (0..3).map(|number| store(&wal, number)).last().unwrap();
        let (lane, head) =
            wal.lanes.iter().map(|lane| (lane, lane.state.lock().head)).max_by_key(|at| at.1).unwrap();
        // The last record takes a line; its length is the second word of its header.
        lane.append(&*pm, head - 60, &1000u32.to_le_bytes()).unwrap();
        assert!(matches!(wal.settle(lane, Lsn(last.0 + 1), &mut Vec::new()), Ok(end) if end == head));
        store(&wal, 3);
        let next = Lsn(last.0 + 1);
        assert!(matches!(wal.settle(lane, next, &mut Vec::new()), Err(crate::Error::Corrupt(_))));
    }

    #[test]
    fn each_checkpoint_has_the_next_number() {
        let (_pm, wal) = opened();
        let first = wal.checkpoint.lock().current.sequence;
        for number in 1..4 {
            store(&wal, number);
            wal.checkpoint().unwrap();
            let state = wal.checkpoint.lock();
            assert_eq!((state.current.sequence, state.current.lsn), (first + number, wal.next_lsn()));
        }
    }
}
