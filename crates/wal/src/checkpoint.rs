//! Moving the checkpoint (design T5).

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::wal::Wal;
use std::sync::atomic::Ordering;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::record::{DATA_CHECK_SIZE, HEADER_SIZE, padded, plausible_length};
use terrace_format::{Corrupt, Lsn, PmOffset};

/// The checkpoint as last written.
pub(crate) struct CheckpointState {
    pub current: Checkpoint,
}

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

    /// The last checkpoint of an orderly unmount: all records passed, the pool marked clean. No
    /// transaction may follow.
    ///
    /// # Errors
    /// The medium's.
    pub fn close(&self) -> Result<()> {
        let mut state = self.checkpoint.lock();
        self.advance(&mut state, true)?;
        self.stopped.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn advance(&self, state: &mut CheckpointState, clean: bool) -> Result<()> {
        if self.is_stopped() {
            // A record may be half applied: the log as it is on the medium is what the next mount needs.
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
            tails.push(self.settle(lane, lsn)?);
        }
        self.pm.persist();
        let sequence = state.current.sequence + 1;
        let next = Checkpoint { lsn, epoch: self.epoch, sequence, clean, tails };
        self.write_checkpoint(&next, 0)?;
        for (lane, tail) in self.lanes.iter().zip(&next.tails) {
            let mut state = lane.state.lock();
            state.tail = *tail;
            if state.settled < *tail {
                state.settled = *tail;
                state.settled_lsn = Lsn(lsn.0 - 1);
            }
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
        for copy in if first == 0 { [a, b] } else { [b, a] } {
            self.pm.write(copy.offset(), &bytes)?;
            self.pm.persist();
        }
        Ok(())
    }

    /// Writes back the in-place lines of a lane's records below `lsn` that no fence is known to have
    /// covered, and returns the position of the first record that is not below it.
    fn settle(&self, lane: &Lane, lsn: Lsn) -> Result<u64> {
        let (mut position, settled, settled_lsn, head) = {
            let state = lane.state.lock();
            (state.tail, state.settled, state.settled_lsn, state.head)
        };
        if settled > position && settled_lsn < lsn {
            position = settled;
        }
        let mut record = Vec::new();
        while position < head {
            let mut header = [0; HEADER_SIZE];
            lane.read(&*self.pm, position, &mut header)?;
            let length = plausible_length(&header, self.geometry.max_record()).ok_or_else(|| {
                let site = format!("lane {} at position {position}", lane.index);
                Corrupt::new(site, "a record written by this mount", "something else")
            })?;
            record.resize(length, 0);
            lane.read(&*self.pm, position, &mut record)?;
            let (found, checks) = (word(&record, 8), word(&record, 16) >> 48);
            if found >= lsn.0 {
                break;
            }
            let mut at = HEADER_SIZE + DATA_CHECK_SIZE * checks as usize;
            while at < length {
                let place = word(&record, at);
                let (offset, bytes) = (place & ((1 << 48) - 1), place >> 48);
                self.pm.write_back(PmOffset(offset), bytes);
                at += 8 + (bytes as usize).next_multiple_of(8);
            }
            position += padded(length);
        }
        Ok(position)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|s| s.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b))
}
