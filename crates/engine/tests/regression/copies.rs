//! Copies of the bytes of a request: one, between its buffer and PM.

use std::sync::Arc;
use terrace_engine::{Engine, MountOptions, PoolMedia, Wait, WriteFlags, format, read_superblock};
use terrace_format::PmOffset;
use terrace_media::pm::RecordedPm;
use terrace_media::{MediaError, PmMedium, Promise};
use terrace_runtime::sync::Mutex;
use terrace_testkit::{ROOT, create, format_options};

const BLOCK: usize = 4096;

/// PM that notes the addresses in memory of all bytes that it takes from a caller by streaming stores, or hands out.
struct Watched {
    pm: RecordedPm,
    /// Address and length.
    taken: Mutex<Vec<(usize, usize)>>,
    handed_out: Mutex<Vec<(usize, usize)>>,
}

impl PmMedium for Watched {
    fn size(&self) -> u64 {
        self.pm.size()
    }
    fn promise(&self) -> Promise {
        self.pm.promise()
    }
    fn describe(&self) -> String {
        self.pm.describe()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        self.handed_out.lock().push((into.as_ptr().addr(), into.len()));
        self.pm.read(offset, into)
    }
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        self.pm.load_u64(offset)
    }
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.pm.write(offset, bytes)
    }
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.taken.lock().push((bytes.as_ptr().addr(), bytes.len()));
        self.pm.write_streaming(offset, bytes)
    }
    fn write_back(&self, offset: PmOffset, length: u64) {
        self.pm.write_back(offset, length);
    }
    fn order_at(&self, at: &'static std::panic::Location<'static>) {
        self.pm.order_at(at);
    }
    fn persist_at(&self, at: &'static std::panic::Location<'static>) -> Result<(), MediaError> {
        self.pm.persist_at(at)
    }
}

/// Bytes of a buffer among noted addresses.
fn bytes_of(buffer: &[u8], noted: &Mutex<Vec<(usize, usize)>>) -> usize {
    let range = buffer.as_ptr_range();
    let range = range.start.addr()..range.end.addr();
    let noted = std::mem::take(&mut *noted.lock());
    noted.into_iter().filter(|(address, _)| range.contains(address)).map(|(_, length)| length).sum()
}

/// A front end hands out the payload of a request (`fuse/src/uring/ticket.rs`): written bytes go from there to PM, and
/// bytes that are read go there from PM.
#[test]
fn bytes_of_a_request_are_copied_once() {
    let taken = Mutex::default();
    let pm = Arc::new(Watched { pm: RecordedPm::new(8 << 20), taken, handed_out: Mutex::default() });
    let media = PoolMedia { pm: Arc::clone(&pm) as Arc<dyn PmMedium>, block: Vec::new() };
    format(&media, &format_options(0)).unwrap();
    let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
    let clock = Arc::new(terrace_runtime::SystemClock::default());
    let fs = Engine::mount(media, superblock, MountOptions::default(), clock).unwrap();
    let ino = create(&fs, ROOT, "a");
    // The first write past the direct pointers is begun again when the file has a map node.
    fs.write(ino, 63 * BLOCK as u64, &[1; BLOCK], WriteFlags::default(), Wait::Allowed).unwrap();
    for blocks in [1, 2, 16, 64] {
        let bytes = vec![7; blocks * BLOCK];
        pm.taken.lock().clear();
        fs.write(ino, 0, &bytes, WriteFlags::default(), Wait::Allowed).unwrap();
        assert_eq!(bytes_of(&bytes, &pm.taken), bytes.len(), "bytes written of {blocks} blocks");
        let mut buffer = vec![0; blocks * BLOCK];
        pm.handed_out.lock().clear();
        assert_eq!(fs.read(ino, 0, &mut buffer, Wait::Allowed).unwrap(), buffer.len());
        assert_eq!(bytes_of(&buffer, &pm.handed_out), buffer.len(), "bytes read of {blocks} blocks");
        assert_eq!(buffer, bytes);
    }
}
