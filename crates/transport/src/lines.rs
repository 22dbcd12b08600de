//! Waiting writes, file by file: a bounded number of writes to a file run at the same time, the rest stand in
//! the file's line and take no thread. Without lines all writes to a file would queue for its lock in
//! threads, and each request thread that needs the lock would wait behind them.
//!
//! Invariant: a file has an entry while jobs of it run or wait; the thread that ends a job begins the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::Queue;
use terrace_runtime::turns::Turns;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Line {
    running: usize,
    waiting: Turns<Job>,
}

/// The lines of all files before one pool.
pub(crate) struct Lines {
    queue: Queue,
    /// Jobs of one file that run at the same time.
    most: usize,
    files: Mutex<HashMap<u64, Line>>,
    /// Entries of `files`.
    count: AtomicUsize,
}

/// A running job of a file. When the job ends, even by a panic, the next job begins.
struct Runs {
    lines: Arc<Lines>,
    file: u64,
}

impl Lines {
    pub(crate) fn new(queue: Queue, most: usize) -> Arc<Lines> {
        assert!(most > 0, "a line that runs no job has no end");
        Arc::new(Lines { queue, most, files: Mutex::default(), count: AtomicUsize::new(0) })
    }

    /// Whether a job of this file would have to stand in line.
    pub(crate) fn is_full(&self, file: u64) -> bool {
        self.count.load(Ordering::Relaxed) > 0
            && self.files.lock().get(&file).is_some_and(|line| line.running >= self.most)
    }

    /// Runs a user's job when its turn has come.
    pub(crate) fn submit(self: &Arc<Self>, user: u32, file: u64, job: impl FnOnce() + Send + 'static) {
        let mut files = self.files.lock();
        let line = files.entry(file).or_default();
        if line.running >= self.most {
            line.waiting.push(user, Box::new(job));
            return;
        }
        line.running += 1;
        self.count.store(files.len(), Ordering::Relaxed);
        drop(files);
        self.start(user, file, Box::new(job));
    }

    fn start(self: &Arc<Self>, user: u32, file: u64, job: Job) {
        let runs = Runs { lines: Arc::clone(self), file };
        let run = move || {
            let _runs = runs;
            job();
        };
        self.queue.submit(user, Box::new(run));
    }

    /// The next job of a file, after a job has ended; `None`: the line is empty, and one more job may run.
    fn next(&self, file: u64) -> Option<(u32, Job)> {
        let mut files = self.files.lock();
        let line = files.get_mut(&file)?;
        assert!((1..=self.most).contains(&line.running), "{} jobs of file {file} run", line.running);
        let next = line.waiting.pop();
        match &next {
            Some((user, _)) => line.waiting.ran(*user, Duration::ZERO),
            None => line.running -= 1,
        }
        if line.running == 0 {
            files.remove(&file);
        }
        self.count.store(files.len(), Ordering::Relaxed);
        next
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        while let Some((user, job)) = self.lines.next(self.file) {
            // When the mount ends, a pool runs a submitted job in the submitting thread: a loop here avoids
            // deep recursion.
            if !self.lines.queue.is_ending() {
                return self.lines.start(user, self.file, job);
            }
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use terrace_runtime::thread::Pool;

    /// Writes to one file once took all threads for slowed writes, and queued for the file's lock there.
    #[test]
    fn two_writes_of_a_file_run_and_another_file_has_its_turn() {
        let pool = Pool::new(4);
        let lines = Lines::new(pool.queue().clone(), 2);
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (tell, told) = channel();
        for number in 0..40 {
            let (held, tell) = (Arc::clone(&held), tell.clone());
            lines.submit(number % 2, 7, move || {
                let _ = held.lock().recv();
                let _ = tell.send("one");
            });
        }
        assert!(lines.is_full(7) && !lines.is_full(8));
        let other = tell.clone();
        lines.submit(3, 8, move || {
            let _ = other.send("another");
        });
        assert_eq!(told.recv(), Ok("another"));
        drop((hold, tell));
        assert_eq!(told.iter().collect::<Vec<_>>(), ["one"; 40]);
        // The last job may still be about to leave its line.
        drop(pool);
        assert!(!lines.is_full(7) && lines.files.lock().is_empty());
    }

    #[test]
    fn waiting_jobs_of_a_line_run_when_the_pool_ends() {
        let pool = Pool::new(1);
        let lines = Lines::new(pool.queue().clone(), 1);
        let (tell, told) = channel();
        for _ in 0..10_000 {
            let tell = tell.clone();
            lines.submit(0, 7, move || {
                let _ = tell.send(());
            });
        }
        drop((pool, tell));
        assert_eq!(told.iter().count(), 10_000);
    }
}
