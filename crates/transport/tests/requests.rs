//! Requests on a mounted pool: first in the request thread, then in a waiting thread; each has one end.

use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{ThreadId, current};
use terrace_engine::{FsError, FsResult, MountOptions, Progress, Wait};
use terrace_testkit::SimulatedPool;
use terrace_transport::requests::Asked;
use terrace_transport::{KernelCache, Requests, Served};

const ASKED: Asked = Asked { user: 7, operation: "test" };

fn requests(pool: &SimulatedPool) -> Requests {
    let fs = pool.mount_with(MountOptions::default());
    Requests::new(Arc::new(Served::new(fs, KernelCache::new(0))))
}

/// The result of a request, and the thread that had it.
type End<T> = (Result<T, Errno>, ThreadId);

/// Sends the results of a request, with the thread that had them.
fn ends<T: Send + 'static>() -> (impl FnOnce(Result<T, Errno>) + Send + 'static, Receiver<End<T>>) {
    let (tell, told) = channel();
    (move |result| tell.send((result, current().id())).unwrap_or(()), told)
}

/// A call that waits on its first attempt, and gives the bytes of its payload on the second.
fn bytes_after_a_wait(_served: &Served, payload: &[u8], wait: Wait) -> FsResult<Vec<u8>> {
    if wait == Wait::Allowed { Ok(payload.to_vec()) } else { Err(FsError::WouldBlock) }
}

#[test]
fn a_waiting_request_ends_in_another_thread_with_its_payload() {
    let pool = SimulatedPool::new(8 << 20, 64);
    let requests = requests(&pool);
    let (end, told) = ends();
    requests.attempt(ASKED, b"name", bytes_after_a_wait, end);
    let all: Vec<_> = told.iter().collect();
    assert_eq!(all.len(), 1);
    assert!(all[0].0 == Ok(b"name".to_vec()) && all[0].1 != current().id());
    let (end, told) = ends();
    requests.attempt(ASKED, b"name", |_, payload, _| Ok(payload.len()), end);
    assert_eq!(told.iter().collect::<Vec<_>>(), [(Ok(4), current().id())]);
}

#[test]
fn a_panic_ends_its_request_alone() {
    let pool = SimulatedPool::new(8 << 20, 64);
    let requests = requests(&pool);
    for panics_at in [Wait::Never, Wait::Allowed] {
        let (end, told) = ends::<()>();
        let call = move |_: &Served, _: &[u8], wait| {
            assert!(wait != panics_at, "on purpose");
            Err(FsError::WouldBlock)
        };
        requests.attempt(ASKED, &[], call, end);
        assert_eq!(told.iter().map(|(result, _)| result).collect::<Vec<_>>(), [Err(Errno::IO)]);
    }
    let (end, told) = ends();
    requests.in_turns(ASKED, |_: &Served, _: &mut Progress, _| Ok(3), end);
    assert_eq!(told.iter().map(|(result, _)| result).collect::<Vec<_>>(), [Ok(3)]);
}

#[test]
fn waiting_requests_are_answered_before_the_end() {
    let pool = SimulatedPool::new(8 << 20, 64);
    let mut requests = requests(&pool);
    let told: Vec<_> = (0..200)
        .map(|_| {
            let (end, told) = ends();
            requests.attempt(ASKED, b"x", bytes_after_a_wait, end);
            told
        })
        .collect();
    requests.end();
    assert!(told.iter().all(|told| told.try_recv().is_ok_and(|(result, _)| result == Ok(b"x".to_vec()))));
    let (end, told) = ends();
    requests.attempt(ASKED, b"x", bytes_after_a_wait, end);
    assert_eq!(told.iter().map(|(result, _)| result).collect::<Vec<_>>(), [Err(Errno::IO)]);
}
