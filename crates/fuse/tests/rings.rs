//! Sessions by io_uring and by the FUSE device with a server of this test: held requests beside clients, failed rings, the
//! end of a session. Without root, /dev/fuse or the kernel's parameter the tests are skipped with a message.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;
use terrace_fuse::protocol::init::Capability;
use terrace_fuse::protocol::layout::{Attributes, InHeader};
use terrace_fuse::protocol::reply::Entry;
use terrace_fuse::protocol::{Operation, Reply};
use terrace_fuse::{Running, Server, SessionOptions, Transport, Unmount};
use terrace_runtime::affinity::{allowed_processors, stay_on};
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

const BLOCK: u64 = 4096;
/// Blocks of the file; reads of blocks from `HELD_FROM` on are held.
const BLOCKS: u64 = 4096;
const HELD_FROM: u64 = 2048;
/// Longer than the slowest machine takes.
const LONG: Duration = Duration::from_secs(60);

/// Held requests: the test ends their wait.
#[derive(Default)]
struct Held {
    reads: Mutex<Vec<(u64, u32, Reply)>>,
    /// Set before the last held reads are taken from the list: no read is held from then on.
    is_over: AtomicBool,
    count: AtomicUsize,
}

/// A file, `file`. Each block reads as its number; a write is checked against it.
#[derive(Clone)]
struct Blocks {
    held: Arc<Held>,
    wrong: Arc<AtomicU64>,
}

fn block(number: u64) -> Vec<u8> {
    number.to_ne_bytes().repeat(BLOCK as usize / 8)
}

/// Bytes of the file; offset and size are those of whole blocks.
fn content(offset: u64, size: u32) -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    let file = FILE.get_or_init(|| (0..BLOCKS).flat_map(block).collect());
    let end = (offset + u64::from(size)).min(BLOCKS * BLOCK);
    &file[offset as usize..end as usize]
}

fn now() -> Duration {
    static CLOCK: OnceLock<SystemClock> = OnceLock::new();
    Duration::from_nanos(CLOCK.get_or_init(SystemClock::default).monotonic_ns())
}

/// Repeats a call after the kernel has cancelled its request, `cancels` times at most.
fn unless_cancelled<T>(call: impl FnMut() -> std::io::Result<T>, cancels: usize) -> T {
    let results = std::iter::repeat_with(call).take(1 + cancels);
    let is_cancelled = |result: &std::io::Result<T>| {
        result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ECANCELED))
    };
    results.into_iter().find(|result| !is_cancelled(result)).expect("cancelled again and again").unwrap()
}

impl Blocks {
    fn attributes(node: u64) -> Attributes {
        let mode = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
        let size = if node == 1 { 0 } else { BLOCKS * BLOCK };
        Attributes { ino: node, size, mode, nlink: 1, blksize: 4096, ..Attributes::default() }
    }
}

impl Server for Blocks {
    fn wanted(&self) -> &'static [Capability] {
        &[]
    }

    fn serve(&self, asker: &InHeader, operation: Operation<'_>, mut reply: Reply) {
        let valid = Duration::from_secs(60);
        match operation {
            Operation::Lookup { name: b"file" } => {
                let attributes = Self::attributes(2);
                reply.entry(&Entry { generation: 1, attributes, attributes_valid: valid, name_valid: valid });
            }
            Operation::Lookup { .. } => reply.absent(valid),
            Operation::GetAttributes => reply.attributes(&Self::attributes(asker.node), valid),
            // Direct I/O, no flush, writes side by side.
            Operation::Open { .. } => reply.opened(0, 1 | 1 << 5 | 1 << 6),
            Operation::Read(part) if part.offset >= HELD_FROM * BLOCK => {
                let mut held = self.held.reads.lock();
                if self.held.is_over.load(Ordering::SeqCst) {
                    return reply.data(content(part.offset, part.size));
                }
                held.push((part.offset, part.size, reply));
                self.held.count.fetch_add(1, Ordering::SeqCst);
            }
            Operation::Read(part) => {
                let bytes = content(part.offset, part.size);
                match reply.room() {
                    Some(room) => {
                        room[..bytes.len()].copy_from_slice(bytes);
                        reply.data_in_room(bytes.len());
                    }
                    None => reply.data(bytes),
                }
            }
            Operation::Write(part, data) => {
                if data != content(part.offset, part.size) {
                    self.wrong.fetch_add(1, Ordering::SeqCst);
                }
                reply.written(part.size);
            }
            Operation::Release { .. } | Operation::Fsync { .. } => reply.done(),
            _ => reply.error(rustix::io::Errno::NOSYS),
        }
    }

    fn forget(&self, _node: u64, _lookups: u64) {}
}

impl Blocks {
    /// Answers held requests, now and later.
    fn let_go(&self) {
        self.held.is_over.store(true, Ordering::SeqCst);
        self.answer_held();
    }

    fn answer_held(&self) {
        for (offset, size, reply) in self.held.reads.lock().drain(..) {
            reply.data(content(offset, size));
        }
    }

    fn wait_for_held(&self, count: usize) {
        let begin = now();
        while self.held.count.load(Ordering::SeqCst) < count {
            let come = self.held.count.load(Ordering::SeqCst);
            assert!(now() - begin < LONG, "{come} of {count} reads have come");
            SystemClock::default().sleep(Duration::from_millis(1));
        }
    }
}

/// A mounted session.
struct Mounted {
    blocks: Blocks,
    running: Option<Running>,
    dir: PathBuf,
    /// The lock of tests and programs that set the kernel's parameter.
    _turn: File,
    was_offered: bool,
}

fn mounted(name: &str, transport: Transport, entries: Option<usize>) -> Option<Mounted> {
    if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
        println!("skipped: not root, or no /dev/fuse");
        return None;
    }
    let lock = OpenOptions::new().create(true).append(true).open("/tmp/terrace-enable-uring.lock").unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let was_offered = terrace_fuse::is_uring_offered();
    if transport == Transport::Uring
        && let Err(error) = terrace_fuse::offer_uring()
    {
        println!("skipped: {error}");
        return None;
    }
    let dir = std::env::temp_dir().join(format!("terrace-rings-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let blocks = Blocks { held: Arc::default(), wrong: Arc::default() };
    let options = SessionOptions { transport, entries, ..SessionOptions::new("rings", &dir) };
    let running = terrace_fuse::start(blocks.clone(), &options, |_| ()).unwrap();
    assert_eq!(running.transport(), transport);
    Some(Mounted { blocks, running: Some(running), dir, _turn: lock, was_offered })
}

impl Mounted {
    fn file(&self) -> File {
        let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).to_owned();
        // A ring that fails may have its request cancelled.
        unless_cancelled(|| options.open(self.dir.join("file")), 2)
    }

    /// Begins held reads.
    fn hold(&self, count: usize) -> Vec<std::thread::JoinHandle<()>> {
        // All at once, and no request afterwards: none comes whose answer would fetch requests that wait in the kernel.
        let begin = Arc::new(Barrier::new(count));
        let files: Vec<File> = (0..count).map(|_| self.file()).collect();
        let reader = |(number, file): (u64, File)| {
            let begin = Arc::clone(&begin);
            let read = move || {
                begin.wait();
                let mut bytes = vec![0; BLOCK as usize];
                file.read_exact_at(&mut bytes, (HELD_FROM + number) * BLOCK).unwrap();
                assert_eq!(bytes, block(HELD_FROM + number));
            };
            spawn("held", read).unwrap()
        };
        (0..).zip(files).map(reader).collect()
    }

    /// Reads and writes with `clients` threads; gives the longest time of a call. `cancels`: requests of each client that
    /// the kernel may cancel, as it does while a ring fails.
    fn work(&self, clients: u64, rounds: u64, cancels: usize) -> Duration {
        let client = |client: u64| {
            let file = self.file();
            spawn("client", move || {
                let mut longest = Duration::ZERO;
                for round in 0..rounds {
                    let number = (client * 31 + round * 7) % HELD_FROM;
                    let mut bytes = vec![0; BLOCK as usize];
                    let begin = now();
                    unless_cancelled(|| file.read_exact_at(&mut bytes, number * BLOCK), cancels);
                    unless_cancelled(|| file.write_all_at(&block(number), number * BLOCK), cancels);
                    longest = longest.max(now() - begin);
                    assert_eq!(bytes, block(number), "bytes of another request");
                }
                longest
            })
            .unwrap()
        };
        let clients: Vec<_> = (0..clients).map(client).collect();
        let longest = clients.into_iter().map(|client| client.join().unwrap()).max().unwrap();
        assert_eq!(self.blocks.wrong.load(Ordering::SeqCst), 0, "bytes of another request were written");
        longest
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.blocks.let_go();
        let _ = terrace_fuse::unmount(&self.dir, Unmount::Detach);
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
        if !self.was_offered {
            let _ = std::fs::write("/sys/module/fuse/parameters/enable_uring", "N");
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}

#[test]
fn sixteen_clients_read_and_write_right_bytes_on_both_transports() {
    for transport in [Transport::Classic, Transport::Uring] {
        let Some(mounted) = mounted("clients", transport, None) else { return };
        mounted.work(16, 300, 0);
    }
}

/// A queue with two entries runs dry at once.
#[test]
fn clients_go_on_beside_two_hundred_held_reads() {
    for entries in [Some(2), None] {
        let Some(mounted) = mounted("held", Transport::Uring, entries) else { return };
        let held = mounted.hold(200);
        mounted.blocks.wait_for_held(200);
        let longest = mounted.work(64, 100, 0);
        let figures = mounted.running.as_ref().unwrap().ring_figures()().unwrap();
        println!("longest call {longest:?}, {figures:?}");
        assert!(figures.away >= 200 && figures.entries > figures.away, "{figures:?}");
        assert!(longest < LONG);
        mounted.blocks.let_go();
        held.into_iter().for_each(|reader| reader.join().unwrap());
    }
}

#[test]
fn a_session_ends_beside_a_held_read() {
    for transport in [Transport::Classic, Transport::Uring] {
        let Some(mut mounted) = mounted("end", transport, Some(2)) else { return };
        let file = mounted.file();
        let read = move || file.read_exact_at(&mut [0; 4096], HELD_FROM * BLOCK).is_err();
        let reader = spawn("held", read).unwrap();
        mounted.blocks.wait_for_held(1);
        terrace_fuse::unmount(&mounted.dir, Unmount::Abort).unwrap();
        assert!(reader.join().unwrap(), "the program is told that the session is over");
        mounted.blocks.let_go();
        mounted.running.take().unwrap().join().unwrap();
    }
}

#[test]
fn requests_go_on_when_a_ring_fails() {
    let Some(mounted) = mounted("fails", Transport::Uring, Some(4)) else { return };
    let held = mounted.hold(6);
    mounted.blocks.wait_for_held(6);
    let null = File::open("/dev/null").unwrap();
    let rings = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_ring = std::fs::read_link(&path).ok()?.to_string_lossy().contains("io_uring");
        is_ring.then(|| path.file_name()?.to_str()?.parse::<i32>().ok()).flatten()
    });
    let rings: Vec<i32> = rings.collect();
    for &ring in &rings {
        // SAFETY: the descriptor belongs to a ring of the session; the session sees a failed ring.
        #[allow(unsafe_code)]
        let replaced = unsafe { libc::dup2(null.as_raw_fd(), ring) };
        assert_eq!(replaced, ring);
    }
    mounted.work(4, 50, 2);
    // Each ring is used, and so is seen to have failed.
    for processor in allowed_processors() {
        let file = mounted.file();
        let read = move || {
            stay_on(processor).unwrap();
            unless_cancelled(|| file.read_exact_at(&mut [0; 4096], 0), 2);
        };
        spawn("client", read).unwrap().join().unwrap();
    }
    let figures = mounted.running.as_ref().unwrap().ring_figures();
    assert_eq!(figures().unwrap().replaced, rings.len());
    mounted.blocks.let_go();
    held.into_iter().for_each(|reader| reader.join().unwrap());
    mounted.work(4, 50, 0);
    // The closes of the clients' files are requests that nobody waits for.
    let begin = now();
    while figures().unwrap().away > 0 && now() - begin < LONG {
        SystemClock::default().sleep(Duration::from_millis(1));
    }
    let figures = figures().unwrap();
    println!("{figures:?}");
    assert_eq!(figures.away, 0, "{figures:?}");
}

/// Bytes of anonymous memory of this process.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn payloads_of_large_requests_are_given_back() {
    const MIB: usize = 1 << 20;
    // A single request, wherever the bytes begin in a page.
    const READ: usize = MIB / 4 - BLOCK as usize;
    const CLIENTS: usize = 64;
    let Some(mounted) = mounted("memory", Transport::Uring, None) else { return };
    // Nothing else grows: the clients' buffers are there before and afterwards.
    content(0, 0);
    let mut buffers = vec![vec![1; READ]; CLIENTS];
    let idle = anonymous_bytes();
    let (begin, mut busy) = (now(), 0);
    // A ring may give payloads back before they are counted here, and not again for a second.
    while busy < idle + 8 * MIB as u64 {
        assert!(now() - begin < LONG, "{idle} bytes before, {busy} after large requests");
        let before = mounted.blocks.held.count.load(Ordering::SeqCst);
        let reader = |mut bytes: Vec<u8>| {
            let file = mounted.file();
            let read = move || {
                file.read_exact_at(&mut bytes, HELD_FROM * BLOCK).unwrap();
                file.write_all_at(&bytes, HELD_FROM * BLOCK).unwrap();
                bytes
            };
            spawn("reader", read).unwrap()
        };
        let readers: Vec<_> = buffers.drain(..).map(reader).collect();
        mounted.blocks.wait_for_held(before + CLIENTS);
        mounted.blocks.answer_held();
        buffers.extend(readers.into_iter().map(|reader| reader.join().unwrap()));
        busy = anonymous_bytes();
    }
    assert_eq!(mounted.blocks.wrong.load(Ordering::SeqCst), 0);
    let begin = now();
    while anonymous_bytes() > idle + 6 * MIB as u64 {
        assert!(now() - begin < LONG, "{} of {busy} bytes stay", anonymous_bytes());
        SystemClock::default().sleep(Duration::from_millis(100));
    }
    println!("{idle} bytes idle, {busy} busy, {} after {:?}", anonymous_bytes(), now() - begin);
}
