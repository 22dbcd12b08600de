//! filebench's personalities with the parameters of [TPFS table 4] and [Ziggurat table 4], as flows of our own.
//!
//! Sizes of files lie evenly between half and one and a half of the mean (filebench draws them from a gamma
//! distribution). The set of files stays what it was, so that rounds can be compared: what a flow deletes it makes
//! again (filebench's fileserver), flows that make small files (webproxy, varmail) have names of their own for
//! these, and a file that appends have doubled is cut back to its first size. Each thread works
//! on files of its own. Flow operations are counted as filebench counts them: open, read of a whole file,
//! append, fsync, close, … one each.

use super::load::{Tally, Worker};
use super::numbers::Picks;
use super::target::{FileTarget, OpenedFile};
use serde::{Deserialize, Serialize};
use std::io;

/// Whose flow it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Personality {
    /// Delete, create whole, append, read whole, stat; reads to writes 1 : 2, requests of 16 KiB.
    Fileserver,
    /// Ten files read whole by 1 MiB, then 16 KiB appended to a log.
    Webserver,
    /// Delete, create with one append, five files read whole by 1 MiB, an append to a log.
    Webproxy,
    /// Delete; create, two appends, fsync; read whole, two appends, fsync; read whole.
    Varmail,
}

impl Personality {
    #[cfg(test)]
    pub const ALL: [Personality; 4] =
        [Personality::Fileserver, Personality::Webserver, Personality::Webproxy, Personality::Varmail];

    pub fn name(self) -> &'static str {
        match self {
            Personality::Fileserver => "fileserver",
            Personality::Webserver => "webserver",
            Personality::Webproxy => "webproxy",
            Personality::Varmail => "varmail",
        }
    }

    /// Bytes of a read request.
    fn read_bytes(self) -> usize {
        if self == Personality::Fileserver { 16 << 10 } else { 1 << 20 }
    }
}

/// The set of files of a run.
pub(crate) struct Files {
    pub count: u64,
    pub mean_bytes: u64,
    /// [AC-BPFS 4.3]: "to issue an fsync after writes".
    pub sync_every_write: bool,
}

const APPEND: usize = 16 << 10;
const PER_DIRECTORY: u64 = 20;
/// Small files of a thread that are deleted and made again.
const YOUNG: u64 = 16;
/// A log is begun again at this size.
const LOG_BYTES: u64 = 4 << 20;

fn name(file: u64) -> String {
    format!("d{}/f{file}", file / PER_DIRECTORY)
}

/// First size of a file: from half to one and a half of the mean.
fn first_size(file: u64, mean: u64) -> u64 {
    mean / 2 + Picks::new(file).below(mean + 1)
}

/// Makes the files; those that are large enough are left alone.
pub(crate) fn populate(which: Personality, target: &dyn FileTarget, count: u64, mean: u64) -> io::Result<()> {
    for directory in 0..count.div_ceil(PER_DIRECTORY) {
        target.make_directory(&format!("d{directory}"))?;
    }
    target.make_directory("young")?;
    let piece = vec![0x33; which.read_bytes()];
    for number in 0..count {
        let mut file = target.open(&name(number), true)?;
        let wanted = first_size(number, mean);
        let have = file.size()?;
        write_whole(&mut *file, &piece, have, wanted)?;
    }
    Ok(())
}

fn write_whole(file: &mut dyn OpenedFile, piece: &[u8], from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let bytes = (to - at).min(piece.len() as u64);
        file.write_at(&piece[..bytes as usize], at, false)?;
        at += bytes;
    }
    Ok(())
}

/// One thread's flow.
struct Flow<'a> {
    which: Personality,
    set: &'a Files,
    target: &'a dyn FileTarget,
    worker: Worker,
    picks: Picks,
    buffer: Vec<u8>,
    append: Vec<u8>,
    log: Option<(Box<dyn OpenedFile>, u64)>,
}

/// Runs a personality until the tally says to end.
pub(crate) fn run(
    which: Personality,
    set: &Files,
    target: &dyn FileTarget,
    worker: Worker,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    if set.count < worker.of {
        let text = format!("{} files for {} threads", set.count, worker.of);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let (buffer, append) = (vec![0; which.read_bytes()], vec![0x5c; APPEND]);
    let mut flow = Flow { which, set, target, worker, picks: Picks::new(seed), buffer, append, log: None };
    while tally.turn(|tally| flow.turn(tally))? {}
    Ok(())
}

impl Flow<'_> {
    fn turn(&mut self, tally: &mut Tally) -> io::Result<()> {
        match self.which {
            Personality::Fileserver => self.fileserver(tally),
            Personality::Webserver => {
                for _ in 0..10 {
                    self.read_one(tally)?;
                }
                self.append_to_log(tally)
            }
            Personality::Webproxy => {
                self.make_young(tally, 1, false)?;
                for _ in 0..5 {
                    self.read_one(tally)?;
                }
                self.append_to_log(tally)
            }
            Personality::Varmail => {
                self.make_young(tally, 2, true)?;
                let number = self.pick();
                let mut file = self.open(number, tally)?;
                self.read_whole(&mut *file, tally)?;
                self.append_twice_and_sync(&mut *file, number, tally)?;
                drop(file);
                tally.other();
                self.read_one(tally)
            }
        }
    }

    /// A file of this thread.
    fn pick(&mut self) -> u64 {
        let own = (self.set.count - self.worker.index).div_ceil(self.worker.of);
        self.worker.index + self.picks.below(own) * self.worker.of
    }

    fn open(&mut self, number: u64, tally: &mut Tally) -> io::Result<Box<dyn OpenedFile>> {
        tally.other();
        self.target.open(&name(number), true)
    }

    fn read_whole(&mut self, file: &mut dyn OpenedFile, tally: &mut Tally) -> io::Result<()> {
        let mut at = 0;
        loop {
            let bytes = file.read_at(&mut self.buffer, at)?;
            at += bytes as u64;
            if bytes < self.buffer.len() {
                break;
            }
        }
        tally.read(at);
        Ok(())
    }

    /// open, read, close.
    fn read_one(&mut self, tally: &mut Tally) -> io::Result<()> {
        let number = self.pick();
        let mut file = self.open(number, tally)?;
        self.read_whole(&mut *file, tally)?;
        drop(file);
        tally.other();
        Ok(())
    }

    /// Where the next append goes; a file that has doubled is cut back.
    fn end(&self, file: &mut dyn OpenedFile, number: u64) -> io::Result<u64> {
        let (end, first) = (file.size()?, first_size(number, self.set.mean_bytes));
        if end < 2 * first.max(1) {
            return Ok(end);
        }
        file.set_size(first)?;
        Ok(first)
    }

    fn append_twice_and_sync(
        &mut self,
        file: &mut dyn OpenedFile,
        number: u64,
        tally: &mut Tally,
    ) -> io::Result<()> {
        let end = self.end(file, number)?;
        for turn in 0..2 {
            file.write_at(&self.append, end + turn * APPEND as u64, false)?;
            tally.wrote(APPEND as u64);
        }
        file.sync()?;
        tally.other();
        Ok(())
    }

    /// Deletes a small file and makes it again with so many appends.
    fn make_young(&mut self, tally: &mut Tally, appends: u64, sync: bool) -> io::Result<()> {
        let path = format!("young/{}-{}", self.worker.index, self.picks.below(YOUNG));
        match self.target.unlink(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => tally.other(),
        }
        let mut file = self.target.open(&path, true)?;
        tally.other();
        for turn in 0..appends {
            file.write_at(&self.append, turn * APPEND as u64, false)?;
            tally.wrote(APPEND as u64);
        }
        if sync {
            file.sync()?;
            tally.other();
        }
        drop(file);
        tally.other();
        Ok(())
    }

    fn append_to_log(&mut self, tally: &mut Tally) -> io::Result<()> {
        let (mut file, mut end) = match self.log.take() {
            Some(log) => log,
            None => (self.target.open(&format!("young/log-{}", self.worker.index), true)?, LOG_BYTES),
        };
        if end >= LOG_BYTES {
            file.set_size(0)?;
            end = 0;
        }
        file.write_at(&self.append, end, false)?;
        tally.wrote(APPEND as u64);
        self.log = Some((file, end + APPEND as u64));
        Ok(())
    }

    fn fileserver(&mut self, tally: &mut Tally) -> io::Result<()> {
        // delete, create, write whole, close
        let number = self.pick();
        self.target.unlink(&name(number))?;
        tally.other();
        let mut file = self.open(number, tally)?;
        let size = first_size(number, self.set.mean_bytes);
        write_whole(&mut *file, &self.append, 0, size)?;
        tally.wrote(size);
        self.sync_if_asked(&mut *file, tally)?;
        drop(file);
        tally.other();
        // open, append, close
        let number = self.pick();
        let mut file = self.open(number, tally)?;
        let end = self.end(&mut *file, number)?;
        file.write_at(&self.append, end, false)?;
        tally.wrote(APPEND as u64);
        self.sync_if_asked(&mut *file, tally)?;
        drop(file);
        tally.other();
        // open, read whole, close; stat
        self.read_one(tally)?;
        let number = self.pick();
        self.target.size(&name(number))?;
        tally.other();
        Ok(())
    }

    fn sync_if_asked(&mut self, file: &mut dyn OpenedFile, tally: &mut Tally) -> io::Result<()> {
        if self.set.sync_every_write {
            file.sync()?;
            tally.other();
        }
        Ok(())
    }
}
