//! Whose job is next: users take turns by the time that their jobs take (deficit round robin; Shreedhar and Varghese,
//! "Efficient Fair Queueing Using Deficit Round Robin", SIGCOMM 1995). Jobs of one user keep their order.
//!
//! Invariants: a user with a job is in the row, once; a job is taken after at most two rounds of the row, however many
//! jobs others have and however long those took.

use std::collections::VecDeque;
use std::time::Duration;

/// The time that a user gets in each round.
const QUANTUM_NS: i64 = 2_000_000;
/// The largest debt of a user. A job that waits for a device holds nobody up, so its full time is not
/// charged.
const MOST_OWED_NS: i64 = -QUANTUM_NS;

struct User<T> {
    id: u32,
    jobs: VecDeque<T>,
    /// Jobs taken that have not ended.
    running: usize,
    credit_ns: i64,
}

/// Jobs of any number of users.
pub struct Turns<T> {
    users: VecDeque<User<T>>,
    waiting: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns { users: VecDeque::new(), waiting: 0 }
    }
}

impl<T> Turns<T> {
    /// Jobs that wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether a user has a job that waits or runs.
    pub fn has(&self, user: u32) -> bool {
        self.users.iter().any(|known| known.id == user)
    }

    /// The first job of each user.
    pub fn firsts(&self) -> impl Iterator<Item = &T> {
        self.users.iter().filter_map(|user| user.jobs.front())
    }

    /// Queues a job.
    pub fn push(&mut self, user: u32, job: T) {
        self.waiting += 1;
        match self.users.iter_mut().find(|known| known.id == user) {
            Some(known) => known.jobs.push_back(job),
            None => self.users.push_back(User {
                id: user,
                jobs: VecDeque::from([job]),
                running: 0,
                credit_ns: QUANTUM_NS,
            }),
        }
    }

    /// Takes the next job; call [`Self::ran`] when it has ended.
    pub fn pop(&mut self) -> Option<(u32, T)> {
        if self.waiting == 0 {
            return None;
        }
        loop {
            let user = self.users.front_mut()?;
            if user.credit_ns > 0
                && let Some(job) = user.jobs.pop_front()
            {
                user.running += 1;
                self.waiting -= 1;
                return Some((user.id, job));
            }
            // The user's turn is over, or it has no job left: time not used in a turn is lost.
            user.credit_ns = (user.credit_ns.min(0) + QUANTUM_NS).min(QUANTUM_NS);
            self.users.rotate_left(1);
        }
    }

    /// A job that was taken has ended after the time `took`.
    pub fn ran(&mut self, user: u32, took: Duration) {
        let Some(place) = self.users.iter().position(|known| known.id == user) else { return };
        let Some(known) = self.users.get_mut(place) else { return };
        known.running = known.running.saturating_sub(1);
        let took_ns = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX).max(1);
        known.credit_ns = known.credit_ns.saturating_sub(took_ns).max(MOST_OWED_NS);
        if known.jobs.is_empty() && known.running == 0 {
            self.users.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Takes and runs a job for its time; gives its user.
    fn one(turns: &mut Turns<Duration>) -> u32 {
        let Some((user, took)) = turns.pop() else { unreachable!("a job waits") };
        turns.ran(user, took);
        user
    }

    /// The jobs of one user used to stand in front: a user that came later waited for the last of these jobs.
    #[test]
    fn a_user_with_one_job_does_not_wait_for_all_of_another() {
        let mut turns = Turns::default();
        for _ in 0..1000 {
            turns.push(1, MS);
        }
        turns.push(2, MS);
        let order: Vec<u32> = (0..10).map(|_| one(&mut turns)).collect();
        assert_eq!(order, [1, 1, 2, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(turns.len(), 991);
    }

    /// Users share the time, not the number of jobs: long jobs of a user delay short jobs of another by a
    /// fair share only.
    #[test]
    fn users_share_time() {
        let (mut turns, mut used) = (Turns::default(), [Duration::ZERO; 3]);
        for _ in 0..1000 {
            turns.push(0, 3 * MS);
            turns.push(1, MS);
            turns.push(2, MS / 10);
        }
        for _ in 0..1000 {
            let took = [3 * MS, MS, MS / 10];
            let user = one(&mut turns) as usize;
            used[user] += took[user];
        }
        let (least, most) = (used.iter().min(), used.iter().max());
        let (Some(least), Some(most)) = (least, most) else { unreachable!("three users") };
        assert!(*most < *least + 10 * MS, "{used:?}");
    }

    /// A job that comes back while it counts as running keeps what its user has used.
    #[test]
    fn a_returning_job_keeps_the_debt_of_its_user() {
        let mut turns = Turns::default();
        turns.push(1, ());
        let mut runs = [0; 3];
        for round in 0..300 {
            if round == 10 {
                turns.push(2, ());
            }
            let Some((user, ())) = turns.pop() else { unreachable!("a job waits") };
            runs[user as usize] += 1;
            turns.push(user, ());
            turns.ran(user, if user == 1 { 2 * MS } else { MS });
        }
        assert!(runs[2] > runs[1], "{runs:?}: each has half of the time");
        assert!(turns.has(1) && turns.has(2) && turns.len() == 2);
        while let Some((user, ())) = turns.pop() {
            turns.ran(user, MS);
        }
        assert!(!turns.has(1) && !turns.has(2) && turns.is_empty());
    }
}
