//! Long requests, in turns: a request thread does one turn, the rest is queued, and users take turns
//! (docs/decisions/0025).
//!
//! Invariant: a long request is in one place at a time: in a thread, or in one queue. A turn that has to wait
//! for a device runs on a waiting thread; the next turn is queued for turns again.

use rustix::io::Errno;
use terrace_engine::{FsError, FsResult, Wait};
use terrace_runtime::thread::Queue;

/// The outcome of a turn.
pub(crate) enum Turn<T> {
    Ended(T),
    /// The request needs more turns.
    Left,
    /// The turn has to wait for a device.
    Waits,
}

impl<T> Turn<T> {
    /// The outcome of a turn, from the file system's result.
    pub(crate) fn of(result: FsResult<T>, wait: Wait) -> Result<Turn<T>, FsError> {
        match result {
            Ok(value) => Ok(Turn::Ended(value)),
            Err(FsError::Unfinished) => Ok(Turn::Left),
            Err(FsError::WouldBlock) if wait != Wait::Allowed => Ok(Turn::Waits),
            Err(error) => Err(error),
        }
    }
}

type Call<T> = Box<dyn FnMut(Wait) -> Result<Turn<T>, Errno> + Send>;
type End<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// A long request.
pub(crate) struct Long<T> {
    user: u32,
    call: Call<T>,
    end: End<T>,
}

/// Where long requests queue.
#[derive(Clone)]
pub(crate) struct LongQueues {
    /// For the next turn.
    pub(crate) turns: Queue,
    /// For a turn that has to wait.
    pub(crate) waits: Queue,
}

impl<T: 'static> Long<T> {
    /// A user's request: `call` does a turn of it, `end` gets the result.
    pub(crate) fn new(
        user: u32,
        call: impl FnMut(Wait) -> Result<Turn<T>, Errno> + Send + 'static,
        end: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) -> Long<T> {
        Long { user, call: Box::new(call), end: Box::new(end) }
    }

    /// Does the first turn here, or queues all of it behind others of the same user.
    pub(crate) fn begin(self, queues: LongQueues) {
        if queues.turns.has(self.user) {
            let (user, turns) = (self.user, queues.turns.clone());
            turns.submit(user, Box::new(move || self.go_on(queues, Wait::Never)));
        } else {
            self.go_on(queues, Wait::Never);
        }
    }

    /// Does a turn, and queues the rest. When the mount ends all turns are done here.
    fn go_on(mut self, queues: LongQueues, mut wait: Wait) {
        loop {
            let next = match (self.call)(wait) {
                Ok(Turn::Ended(value)) => return (self.end)(Ok(value)),
                Err(errno) => return (self.end)(Err(errno)),
                Ok(Turn::Left) => Wait::Never,
                Ok(Turn::Waits) => {
                    debug_assert_ne!(wait, Wait::Allowed, "a turn that may wait asks to wait");
                    Wait::Allowed
                }
            };
            let queue = if next == Wait::Never { queues.turns.clone() } else { queues.waits.clone() };
            if queue.is_ending() {
                wait = Wait::Allowed;
                continue;
            }
            return queue.submit(self.user, Box::new(move || self.go_on(queues, next)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use terrace_runtime::thread::Pool;

    /// A request of `turns` turns, each third of which has to wait; `did` gets the number of each turn.
    fn long(
        user: u32,
        turns: usize,
        did: impl Fn(usize) + Send + 'static,
        end: impl FnOnce(Result<usize, Errno>) + Send + 'static,
    ) -> Long<usize> {
        let mut done = 0;
        let call = move |wait| {
            if done % 3 == 2 && wait == Wait::Never {
                return Ok(Turn::Waits);
            }
            did(done);
            done += 1;
            Ok(if done == turns { Turn::Ended(done) } else { Turn::Left })
        };
        Long::new(user, call, end)
    }

    /// A long request once ran whole on its request thread: all requests behind it waited for its end.
    #[test]
    fn only_the_first_turn_runs_in_the_request_thread() {
        let (turns, waits) = (Pool::busy(1), Pool::new(2));
        let queues = || LongQueues { turns: turns.queue().clone(), waits: waits.queue().clone() };
        let (tell, told) = channel();
        let here = std::thread::current().id();
        for user in [1, 1, 2] {
            let (tell, ended) = (tell.clone(), tell.clone());
            let did = move |turn| {
                let _ = tell.send((user, turn, std::thread::current().id() == here));
            };
            long(user, 10, did, move |end| {
                let _ = ended.send((user, end.unwrap_or(0), false));
            })
            .begin(queues());
        }
        drop(tell);
        let all: Vec<(u32, usize, bool)> = told.iter().collect();
        assert_eq!(all.len(), 33);
        assert_eq!(all.iter().filter(|(_, turn, _)| *turn == 10).count(), 3, "all ended: {all:?}");
        // The second request of user 1 has its first turn here only if the user's first request has ended.
        let here = all.iter().filter(|(_, _, here)| *here).count();
        assert!((2..=3).contains(&here) && all.iter().all(|(_, turn, here)| !here || *turn == 0), "{all:?}");
    }

    #[test]
    fn at_the_end_of_the_mount_all_turns_are_done() {
        let (turns, waits) = (Pool::busy(1), Pool::new(2));
        let (tell, told) = channel();
        for user in 0..20 {
            let tell = tell.clone();
            let queues = LongQueues { turns: turns.queue().clone(), waits: waits.queue().clone() };
            long(
                user % 3,
                100,
                |_| (),
                move |end| {
                    let _ = tell.send(end.unwrap_or(0));
                },
            )
            .begin(queues);
        }
        drop((turns, waits, tell));
        assert_eq!(told.iter().collect::<Vec<usize>>(), [100; 20]);
    }
}
