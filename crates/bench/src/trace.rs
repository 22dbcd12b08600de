//! Recorded streams of file operations at the interface of `Engine`, and their replay.
//!
//! A trace file is 16 bytes of header (magic, version, bytes of a record; little endian) and records of 32
//! bytes: time in ns since the recording began (8), offset (8), length in bytes (4), inode (4), operation
//! (1), flags (1: bit 0 O_SYNC or O_DSYNC), thread (2), zeros (4). A placement policy sees no more of an
//! access, so policies can be replayed without data, and the trace has none. A record is added when its
//! operation begins; records of different threads stand in the order in which they were added. An inode
//! number is used again only after its `Unlink` and a new `Create`. A trace is untrusted input: an impossible
//! record is an error, and replay begins after all records were judged.

use crate::workload::target::{FileTarget, OpenedFile};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use terrace_format::Ino;
use terrace_runtime::Clock;
use terrace_runtime::sync::Mutex;

const MAGIC: [u8; 8] = *b"TERRTRC\0";
const VERSION: u32 = 1;
const RECORD_BYTES: usize = 32;
/// Longest request. The kernel's longest request is 1 MiB; loads in process may send longer requests.
const MAX_LENGTH_BYTES: u32 = 64 << 20;
/// The largest file of Terrace.
const MAX_END_BYTES: u64 = 16 << 40;

/// The kind of an operation. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file is created.
    Create = 1,
    /// A file is opened.
    Open = 2,
    /// An open file is closed.
    Close = 3,
    /// A range is read.
    Read = 4,
    /// A range is written.
    Write = 5,
    /// A file is made durable.
    Fsync = 6,
    /// The offset is the new size.
    Truncate = 7,
    /// The last name of a file is removed.
    Unlink = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Create,
        Kind::Open,
        Kind::Close,
        Kind::Read,
        Kind::Write,
        Kind::Fsync,
        Kind::Truncate,
        Kind::Unlink,
    ];
}

/// A recorded operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Since the recording began.
    pub time_ns: u64,
    /// The inode number.
    pub ino: u32,
    /// The kind of the operation.
    pub kind: Kind,
    /// First byte of the range, or the new size.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// O_SYNC or O_DSYNC.
    pub sync: bool,
    /// Identifies the thread.
    pub thread: u16,
}

impl Event {
    /// An event of an inode, without a range; the recorder fills in time and thread.
    pub fn bare(kind: Kind, ino: Ino) -> Event {
        // Inode numbers have 31 bits.
        let ino = ino.0 as u32;
        Event { time_ns: 0, ino, kind, offset: 0, length: 0, sync: false, thread: 0 }
    }

    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.ino.to_le_bytes());
        bytes[24] = self.kind as u8;
        bytes[25] = u8::from(self.sync);
        bytes[26..28].copy_from_slice(&self.thread.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Event, String> {
        let (time, rest) = bytes.split_at(8);
        let (offset, rest) = rest.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[24]);
        let event = Event {
            time_ns: number(time),
            offset: number(offset),
            length: number(&rest[0..4]) as u32,
            ino: number(&rest[4..8]) as u32,
            kind: kind.ok_or_else(|| format!("unknown operation {}", bytes[24]))?,
            sync: bytes[25] & 1 == 1,
            thread: number(&bytes[26..28]) as u16,
        };
        if bytes[25] > 1 || bytes[28..] != [0; 4] {
            return Err("unknown flags".into());
        }
        if event.length > MAX_LENGTH_BYTES
            || event.offset.saturating_add(u64::from(event.length)) > MAX_END_BYTES
        {
            return Err(format!("range {}+{} is beyond any file", event.offset, event.length));
        }
        Ok(event)
    }
}

/// Writes operations to a trace file.
pub struct Recorder {
    clock: Arc<dyn Clock>,
    begin_ns: u64,
    out: Mutex<Out>,
}

struct Out {
    file: BufWriter<File>,
    events: u64,
    /// The first failure; nothing is written after it.
    error: Option<io::Error>,
}

impl Recorder {
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path, clock: Arc<dyn Clock>) -> io::Result<Recorder> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        file.write_all(&(RECORD_BYTES as u32).to_le_bytes())?;
        let begin_ns = clock.monotonic_ns();
        Ok(Recorder { clock, begin_ns, out: Mutex::new(Out { file, events: 0, error: None }) })
    }

    /// Notes an operation that begins now.
    pub fn note(&self, event: Event) {
        let mut out = self.out.lock();
        // Under the lock, so that times do not go back.
        let time_ns = self.clock.monotonic_ns().saturating_sub(self.begin_ns);
        let thread = terrace_runtime::thread::index() as u16;
        if out.error.is_none() {
            let bytes = Event { time_ns, thread, ..event }.encode();
            out.error = out.file.write_all(&bytes).err();
            out.events += 1;
        }
    }

    /// Events until now.
    pub fn count(&self) -> u64 {
        self.out.lock().events
    }

    /// Writes the buffered rest and gives the number of events.
    ///
    /// # Errors
    /// The first failed write since the beginning.
    pub fn finish(&self) -> io::Result<u64> {
        let mut out = self.out.lock();
        match out.error.take() {
            Some(error) => Err(error),
            None => {
                out.file.flush()?;
                Ok(out.events)
            }
        }
    }
}

/// Reads a whole trace.
///
/// # Errors
/// `InvalidData` with the number of the impossible record; errors of the file.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(at)?);
    let mut header = [0; 16];
    file.read_exact(&mut header).map_err(|_| invalid(path, "too short for a header"))?;
    if header[..8] != MAGIC {
        return Err(invalid(path, "not a trace"));
    }
    if header[8..12] != VERSION.to_le_bytes() || header[12..] != (RECORD_BYTES as u32).to_le_bytes() {
        return Err(invalid(path, "of another version"));
    }
    let mut events: Vec<Event> = Vec::new();
    let mut bytes = [0; RECORD_BYTES];
    loop {
        let mut have = 0;
        while have < RECORD_BYTES {
            match file.read(&mut bytes[have..]).map_err(at)? {
                0 => break,
                more => have += more,
            }
        }
        match have {
            0 if events.is_empty() => return Err(invalid(path, "no operations")),
            0 => return Ok(events),
            RECORD_BYTES => {}
            _ => return Err(invalid(path, &format!("record {} is cut short", events.len()))),
        }
        let event = Event::decode(&bytes)
            .map_err(|what| invalid(path, &format!("record {}: {what}", events.len())))?;
        if events.last().is_some_and(|last| last.time_ns > event.time_ns) {
            return Err(invalid(path, &format!("record {}: time goes back", events.len())));
        }
        events.push(event);
    }
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

/// Repeats the recorded operations, as fast as possible, in the order of the trace. Files are `trace/INODE`.
/// A file that the trace does not create is made at its first use; its old content is unknown and not
/// written. Gives the number of events done.
///
/// # Errors
/// Errors of the target.
pub fn replay(events: &[Event], target: &dyn FileTarget) -> io::Result<u64> {
    target.make_directory("trace")?;
    let mut open: HashMap<u32, Box<dyn OpenedFile>> = HashMap::new();
    let mut buffer = Vec::new();
    for event in events {
        let name = format!("trace/{}", event.ino);
        match event.kind {
            Kind::Unlink => {
                open.remove(&event.ino);
                match target.unlink(&name) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => continue,
                }
            }
            Kind::Close => {
                open.remove(&event.ino);
                continue;
            }
            _ => {}
        }
        let file = match open.entry(event.ino) {
            std::collections::hash_map::Entry::Occupied(file) => file.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(target.open(&name, true)?),
        };
        let length = event.length as usize;
        if buffer.len() < length {
            buffer.resize(length, 0x7e);
        }
        match event.kind {
            Kind::Read => drop(file.read_at(&mut buffer[..length], event.offset)?),
            Kind::Write => file.write_at(&buffer[..length], event.offset, event.sync)?,
            Kind::Fsync => file.sync()?,
            Kind::Truncate => file.set_size(event.offset)?,
            Kind::Create | Kind::Open | Kind::Close | Kind::Unlink => {}
        }
    }
    Ok(events.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::directory::Directory;
    use terrace_runtime::ManualClock;

    fn sample() -> Vec<Event> {
        let event = |kind, offset, length, sync| Event { offset, length, sync, ..Event::bare(kind, Ino(7)) };
        vec![
            event(Kind::Create, 0, 0, false),
            event(Kind::Write, 4096, 100, true),
            event(Kind::Fsync, 0, 0, false),
            event(Kind::Read, 4090, 20, false),
            event(Kind::Truncate, 5000, 0, false),
            event(Kind::Close, 0, 0, false),
        ]
    }

    #[test]
    fn a_trace_comes_back_as_it_was_noted() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("trace");
        let recorder = Recorder::create(&path, Arc::new(ManualClock::new(5))).unwrap();
        sample().into_iter().for_each(|event| recorder.note(event));
        assert_eq!(recorder.finish().unwrap(), 6);
        let same = |event: &Event| Event { thread: 0, time_ns: 0, ..*event };
        assert_eq!(read(&path).unwrap().iter().map(same).collect::<Vec<_>>(), sample());
    }

    #[test]
    fn replay_repeats_the_operations_of_the_trace() {
        let scratch = tempfile::tempdir().unwrap();
        let target = Directory::new(scratch.path());
        assert_eq!(replay(&sample(), &target).unwrap(), 6);
        let content = std::fs::read(scratch.path().join("trace/7")).unwrap();
        assert_eq!(content.len(), 5000);
        assert!(content[..4096].iter().all(|byte| *byte == 0) && content[4096..4196] == [0x7e; 100]);
        replay(&[Event::bare(Kind::Unlink, Ino(7)), Event::bare(Kind::Unlink, Ino(8))], &target).unwrap();
        assert!(!scratch.path().join("trace/7").exists());
    }

    /// A trace is untrusted: every impossible record is an error with the record's number.
    #[test]
    fn a_damaged_trace_is_refused_by_record() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("trace");
        let recorder = Recorder::create(&path, Arc::new(ManualClock::new(5))).unwrap();
        sample().into_iter().for_each(|event| recorder.note(event));
        recorder.finish().unwrap();
        let good = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8], expected: &str| {
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused(&good[..10], "too short");
        refused(&good[..16], "no operations");
        refused(&good[..good.len() - 1], "record 5 is cut short");
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        refused(&changed(0, b'X'), "not a trace");
        refused(&changed(8, 9), "another version");
        refused(&changed(16 + 24, 99), "record 0: unknown operation");
        refused(&changed(16 + 25, 2), "record 0: unknown flags");
        refused(&changed(16 + 32 + 15, 0xff), "record 1: range");
        refused(&changed(16, 9), "record 1: time goes back");
    }
}
