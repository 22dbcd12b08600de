//! Bounds the bytes of users' data that waiting requests hold in memory.
//!
//! A user may hold as many bytes as are still free for all users, so that a user with many waiting requests
//! leaves room for other users (dynamic thresholds; Choudhury and Hahne, IEEE/ACM Transactions on Networking
//! 6(2), 1998). A write beyond that bound waits with its first [`SHARE_BYTES`] bytes only, and is answered with
//! their number: the caller writes the rest next. [`SHARE_BYTES`] is as much as the kernel's stack of the waiting
//! thread, so the system's limit of threads bounds these bytes as well. The kernel hands over the whole
//! request again although only a part is taken, so only one such write is answered in each [`PACE`]:
//! otherwise these copies would keep all request threads busy.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::sync::Mutex;

/// Bytes held for all users, beside the [`SHARE_BYTES`] of cut writes: as many as `buffer=` says, within these
/// bounds.
const MOST_BYTES: (u64, u64) = (4 << 20, 32 << 20);
/// A request of this size is always held whole: no page of a database is larger.
pub(crate) const SHARE_BYTES: usize = 16 << 10;

/// Time between the answers to two writes that were taken in part.
pub(crate) const PACE: Duration = Duration::from_millis(10);

/// The bytes that the requests of each user hold.
pub(crate) struct Held {
    most: usize,
    users: Mutex<HashMap<u32, usize>>,
}

/// A copy of a request's bytes; not counted any more when it is dropped.
pub(crate) struct Holds {
    held: Arc<Held>,
    user: u32,
    bytes: Vec<u8>,
    /// Bytes that count towards the bound.
    counted: usize,
    /// Whether only a part of the request was taken.
    is_cut: bool,
}

impl Held {
    /// For about `most` bytes.
    pub(crate) fn new(most: u64) -> Arc<Held> {
        Arc::new(Held { most: most.clamp(MOST_BYTES.0, MOST_BYTES.1) as usize, users: Mutex::default() })
    }

    /// Copies a user's bytes, or the first `least` and [`SHARE_BYTES`] more if there is no room for all of them.
    pub(crate) fn hold(self: &Arc<Self>, user: u32, bytes: &[u8], least: usize) -> Holds {
        let whole = bytes.len();
        let (taken, counted) = {
            let mut users = self.users.lock();
            let free = self.most.saturating_sub(users.values().sum());
            let own = users.entry(user).or_insert(0);
            let fits = *own + bytes.len() <= free;
            let taken = if fits { bytes.len() } else { bytes.len().min(least.saturating_add(SHARE_BYTES)) };
            // A cut request holds no more than its thread costs anyway. If these bytes counted, a user with
            // enough threads would leave no room for other users.
            let counted = if fits { taken } else { 0 };
            *own += counted;
            if *own == 0 {
                users.remove(&user);
            }
            (taken, counted)
        };
        let bytes = bytes.get(..taken).unwrap_or_default().to_vec();
        let is_cut = taken < whole;
        Holds { held: Arc::clone(self), user, bytes, counted, is_cut }
    }
}

impl Holds {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the bytes are only a part of the request.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        let mut users = self.held.users.lock();
        if let Some(own) = users.get_mut(&self.user) {
            debug_assert!(*own >= self.counted, "{} of {own} held bytes are given back", self.counted);
            *own = own.saturating_sub(self.counted);
            if *own == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// 350 waiting threads of one process once had the daemon hold 1 MiB for each.
    #[test]
    fn waiting_data_is_bounded_and_leaves_room_to_other_users() {
        let (held, data) = (Held::new(u64::MAX), vec![7; MIB]);
        let mut first: Vec<Holds> = (0..350).map(|_| held.hold(1, &data, 0)).collect();
        let sum = |of: &[Holds]| of.iter().map(|holds| holds.bytes().len()).sum::<usize>();
        assert_eq!(first.iter().filter(|holds| holds.bytes().len() == MIB).count(), 16);
        assert_eq!(sum(&first), 16 * MIB + 334 * SHARE_BYTES);
        assert!(first.iter().all(|holds| holds.bytes().len() >= SHARE_BYTES));
        let second = held.hold(2, &data, 0);
        assert_eq!(second.bytes().len(), MIB, "another user has room");
        let more: Vec<Holds> = (0..3000).map(|_| held.hold(1, &data, 0)).collect();
        assert_eq!(held.hold(2, &data, 0).bytes().len(), MIB, "however many threads the first has");
        drop(more);
        // Bytes that were written already are held with the rest.
        assert_eq!(held.hold(1, &data, 5 * SHARE_BYTES).bytes().len(), 6 * SHARE_BYTES);
        assert_eq!(held.hold(1, &data, usize::MAX).bytes().len(), MIB, "that cannot be cut");
        assert_eq!(held.hold(1, &data[..SHARE_BYTES], 0).bytes(), &data[..SHARE_BYTES]);
        first.clear();
        assert_eq!(held.hold(1, &data, 0).bytes().len(), MIB);
        drop(second);
        assert!(held.users.lock().is_empty());
    }
}
