//! filebench's personalities with the parameters of [TPFS table 4] and [Ziggurat table 4], as flows in this
//! crate.
//!
//! Files are as in filebench: a set of names, four fifths of which have a file at first; a flow deletes an
//! existing file and creates a missing file, picked by [`Order`]. New files of varmail and webproxy get
//! appends only, so small files replace the first files. Therefore their first files have the mean size that
//! the flow leaves (`file_bytes`); else figures would change during the run. Row tpfs-13 has the published
//! sizes. Appends have any length up to 16 KiB (`appendfilerand`). First sizes lie evenly between half and
//! one and a half of the mean (filebench: a gamma distribution). Each thread has names of its own. Flow
//! operations are counted as in filebench: open, read of a whole file, append, fsync, close and so on count 1
//! each.

use super::numbers::Picks;
use super::target::{FileTarget, OpenedFile};
use super::worker::{Tally, Worker};
use serde::{Deserialize, Serialize};
use std::io;

/// The personality of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Personality {
    /// Delete, create whole, append, read whole, stat; reads to writes 1 : 2, requests of 16 KiB.
    Fileserver,
    /// As `Fileserver`, with reads of 1 MiB ([HashFS table 2]).
    FileserverWhole,
    /// Ten files read whole by 1 MiB, then 16 KiB appended to a log.
    Webserver,
    /// Delete, create with one append, five files read whole by 1 MiB, an append to a log.
    Webproxy,
    /// Delete; create, two appends, fsync; read whole, two appends, fsync; read whole.
    Varmail,
}

impl Personality {
    /// Every personality of filebench.
    pub const ALL: [Personality; 4] =
        [Personality::Fileserver, Personality::Webserver, Personality::Webproxy, Personality::Varmail];

    /// The name of the personality.
    pub fn name(self) -> &'static str {
        match self {
            Personality::Fileserver | Personality::FileserverWhole => "fileserver",
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

/// The order in which a flow takes files of its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Order {
    /// A random file, each with the same probability.
    #[default]
    Even,
    /// The next file by number, in a circle: `fileset_pick` of filebench without an index. Existing and
    /// missing files have a rotor each.
    Rotation,
}

/// The set of files of a run.
pub(crate) struct Files {
    /// For each name whether it has a file when the run begins.
    pub exists: Vec<bool>,
    pub mean_bytes: u64,
    pub order: Order,
    /// [AC-BPFS 4.3]: "to issue an fsync after writes".
    pub sync_every_write: bool,
}

const APPEND_BYTES: usize = 16 << 10;
/// A log is truncated at this size.
const LOG_BYTES: u64 = 4 << 20;
/// Every `ABSENT`-th name has no file at first ("prealloc=80").
const ABSENT: u64 = 5;

impl Personality {
    /// Files per directory: filebench's `meandirwidth`; a width of a million means a single directory.
    fn per_directory(self) -> u64 {
        match self {
            Personality::Fileserver | Personality::FileserverWhole | Personality::Webserver => 20,
            Personality::Webproxy | Personality::Varmail => u64::MAX,
        }
    }

    fn directory(self, file: u64) -> String {
        format!("d{}", file / self.per_directory())
    }

    fn path(self, file: u64) -> String {
        format!("{}/f{file}", self.directory(file))
    }
}

/// First size of a file: from half to one and a half of the mean.
fn first_size(file: u64, mean: u64) -> u64 {
    mean / 2 + Picks::new(file).below(mean + 1)
}

/// Makes the files; leaves a file that is large enough unchanged.
pub(crate) fn populate(which: Personality, target: &dyn FileTarget, count: u64, mean: u64) -> io::Result<()> {
    target.make_directory("logs")?;
    let piece = vec![0x33; which.read_bytes()];
    let mut made = None;
    for number in 0..count {
        let directory = which.directory(number);
        if made.as_ref() != Some(&directory) {
            target.make_directory(&directory)?;
            made = Some(directory);
        }
        if number % ABSENT != ABSENT - 1 {
            let mut file = target.open(&which.path(number), true)?;
            let have = file.size()?;
            write_whole(&mut *file, &piece, have, first_size(number, mean))?;
        }
    }
    Ok(())
}

/// For each name of the set whether it has a file. Directories may also hold files of another personality,
/// whose numbers are outside the set and do not count.
pub(crate) fn existing(which: Personality, target: &dyn FileTarget, count: u64) -> io::Result<Vec<bool>> {
    let mut exists = vec![false; count as usize];
    let each = which.per_directory().min(count.max(1));
    for first in (0..count).step_by(each as usize) {
        for name in target.list(&which.directory(first))? {
            let number = name.strip_prefix('f').and_then(|digits| digits.parse::<u64>().ok());
            let own = number.filter(|number| (first..first.saturating_add(each)).contains(number));
            if let Some(found) = own.and_then(|number| exists.get_mut(number as usize)) {
                *found = true;
            }
        }
    }
    Ok(exists)
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

/// The names of a thread with a file, or the names without a file.
struct Names {
    /// Ascending in a rotation.
    list: Vec<u64>,
    order: Order,
    /// In a rotation: the smallest name that may be next.
    rotor: u64,
}

impl Names {
    fn new(list: Vec<u64>, order: Order) -> Names {
        Names { list, order, rotor: 0 }
    }

    /// The index of the next name.
    fn next(&mut self, picks: &mut Picks) -> usize {
        match self.order {
            Order::Even => picks.below(self.list.len() as u64) as usize,
            Order::Rotation => {
                let at = self.list.partition_point(|name| *name < self.rotor) % self.list.len();
                self.rotor = self.list[at] + 1;
                at
            }
        }
    }

    fn pick(&mut self, picks: &mut Picks) -> u64 {
        let at = self.next(picks);
        self.list[at]
    }

    fn take(&mut self, picks: &mut Picks) -> u64 {
        let at = self.next(picks);
        match self.order {
            Order::Even => self.list.swap_remove(at),
            Order::Rotation => self.list.remove(at),
        }
    }

    fn put(&mut self, name: u64) {
        match self.order {
            Order::Even => self.list.push(name),
            Order::Rotation => self.list.insert(self.list.partition_point(|other| *other < name), name),
        }
    }
}

/// The flow of a thread.
struct Flow<'a> {
    which: Personality,
    set: &'a Files,
    target: &'a dyn FileTarget,
    worker: Worker,
    picks: Picks,
    /// This thread's names with a file, and its names without a file.
    present: Names,
    absent: Names,
    buffer: Vec<u8>,
    append: Vec<u8>,
    log: Option<(Box<dyn OpenedFile>, u64)>,
}

/// Runs a personality until the tally ends the run.
pub(crate) fn run(
    which: Personality,
    set: &Files,
    target: &dyn FileTarget,
    worker: Worker,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    let own = (worker.index..set.exists.len() as u64).step_by(worker.of as usize);
    let (present, absent): (Vec<u64>, Vec<u64>) = own.partition(|number| set.exists[*number as usize]);
    if present.is_empty() {
        let text = format!("{} files for {} threads", set.exists.len(), worker.of);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut flow = Flow {
        which,
        set,
        target,
        worker,
        picks: Picks::new(seed),
        present: Names::new(present, set.order),
        absent: Names::new(absent, set.order),
        buffer: vec![0; which.read_bytes()],
        append: vec![0x5c; APPEND_BYTES],
        log: None,
    };
    while tally.turn(|tally| flow.turn(tally))? {}
    Ok(())
}

impl Flow<'_> {
    fn turn(&mut self, tally: &mut Tally) -> io::Result<()> {
        match self.which {
            Personality::Fileserver | Personality::FileserverWhole => self.fileserver(tally),
            Personality::Webserver => {
                for _ in 0..10 {
                    self.read_one(tally)?;
                }
                self.append_to_log(tally)
            }
            Personality::Webproxy => {
                self.replace(tally, 1, false)?;
                for _ in 0..5 {
                    self.read_one(tally)?;
                }
                self.append_to_log(tally)
            }
            Personality::Varmail => {
                self.replace(tally, 2, true)?;
                let mut file = self.open_one(tally)?;
                self.read_whole(&mut *file, tally)?;
                let end = file.size()?;
                self.append(&mut *file, end, 2, tally)?;
                file.sync()?;
                tally.other();
                drop(file);
                tally.other();
                self.read_one(tally)
            }
        }
    }

    /// An existing file of this thread.
    fn pick(&mut self) -> u64 {
        self.present.pick(&mut self.picks)
    }

    fn open_one(&mut self, tally: &mut Tally) -> io::Result<Box<dyn OpenedFile>> {
        tally.other();
        let path = self.which.path(self.pick());
        self.target.open(&path, false)
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
        let mut file = self.open_one(tally)?;
        self.read_whole(&mut *file, tally)?;
        drop(file);
        tally.other();
        Ok(())
    }

    /// Appends `count` times, with random lengths up to 16 KiB.
    fn append(
        &mut self,
        file: &mut dyn OpenedFile,
        mut end: u64,
        count: u64,
        tally: &mut Tally,
    ) -> io::Result<()> {
        for _ in 0..count {
            let bytes = 1 + self.picks.below(APPEND_BYTES as u64);
            file.write_at(&self.append[..bytes as usize], end, false)?;
            tally.wrote(bytes);
            end += bytes;
        }
        Ok(())
    }

    /// Deletes an existing file, and creates and opens a missing file.
    fn delete_and_create(&mut self, tally: &mut Tally) -> io::Result<(u64, Box<dyn OpenedFile>)> {
        let victim = self.present.take(&mut self.picks);
        self.target.unlink(&self.which.path(victim))?;
        tally.other();
        self.absent.put(victim);
        let number = self.absent.take(&mut self.picks);
        let file = self.target.open(&self.which.path(number), true)?;
        tally.other();
        self.present.put(number);
        Ok((number, file))
    }

    /// Deletes a file and creates another with `appends` appends.
    fn replace(&mut self, tally: &mut Tally, appends: u64, sync: bool) -> io::Result<()> {
        let (_, mut file) = self.delete_and_create(tally)?;
        self.append(&mut *file, 0, appends, tally)?;
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
            None => (self.target.open(&format!("logs/{}", self.worker.index), true)?, LOG_BYTES),
        };
        if end >= LOG_BYTES {
            file.set_size(0)?;
            end = 0;
        }
        file.write_at(&self.append, end, false)?;
        tally.wrote(APPEND_BYTES as u64);
        self.log = Some((file, end + APPEND_BYTES as u64));
        Ok(())
    }

    fn fileserver(&mut self, tally: &mut Tally) -> io::Result<()> {
        // delete, create, write whole, close
        let (number, mut file) = self.delete_and_create(tally)?;
        let size = first_size(number, self.set.mean_bytes);
        write_whole(&mut *file, &self.append, 0, size)?;
        tally.wrote(size);
        self.sync_if_asked(&mut *file, tally)?;
        drop(file);
        tally.other();
        // open, append, close
        let mut file = self.open_one(tally)?;
        let end = file.size()?;
        self.append(&mut *file, end, 1, tally)?;
        self.sync_if_asked(&mut *file, tally)?;
        drop(file);
        tally.other();
        // open, read whole, close; stat
        self.read_one(tally)?;
        let path = self.which.path(self.pick());
        self.target.size(&path)?;
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
