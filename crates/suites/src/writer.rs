//! The recording writer: makes and syncs one change after the other, and records each acknowledged change in
//! a journal on another file system before the next change. The end of the daemon is its success.

use crate::content::{Numbers, bytes};
use crate::journal::{Journal, Operation, Step};
use crate::model::{FILES, Model, NAMES, named_length};
use crate::outcome::Outcome;
use crate::{journal, system};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A named file of the writer.
pub(crate) fn name_path(dir: &Path, name: u64) -> PathBuf {
    dir.join("names").join(format!("n{name}"))
}

pub(crate) fn file_path(dir: &Path, file: usize) -> PathBuf {
    dir.join(format!("slots-{file}"))
}

pub(crate) fn records_path(dir: &Path) -> PathBuf {
    dir.join("records")
}

struct Files {
    dir: PathBuf,
    slots: Vec<File>,
    records: File,
    names: File,
}

impl Files {
    fn open(dir: &Path) -> io::Result<Files> {
        fs::create_dir_all(dir.join("names"))?;
        let open = |path: PathBuf, flags: i32| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(path)
        };
        // The last file is synchronous by its open flag instead of by fsync.
        let sync = |file: usize| if file + 1 == FILES.len() { libc::O_DSYNC } else { 0 };
        let slots = (0..FILES.len()).map(|file| open(file_path(dir, file), sync(file)));
        let files = Files {
            slots: slots.collect::<io::Result<_>>()?,
            records: OpenOptions::new().append(true).create(true).open(records_path(dir))?,
            names: File::open(dir.join("names"))?,
            dir: dir.to_path_buf(),
        };
        files.names.sync_all()?;
        File::open(dir)?.sync_all()?;
        Ok(files)
    }

    /// Does one operation and makes it durable.
    fn perform(&mut self, step: &Step) -> io::Result<()> {
        let number = step.number;
        match &step.operation {
            Operation::Write { file, slot } => {
                let size = FILES[*file].0;
                self.slots[*file].write_all_at(&bytes(number, size), slot * size as u64)?;
                if *file + 1 < FILES.len() {
                    self.slots[*file].sync_data()?;
                }
            }
            Operation::Truncate { file, slots } => {
                self.slots[*file].set_len(slots * FILES[*file].0 as u64)?;
                self.slots[*file].sync_all()?;
            }
            Operation::Punch { file, slot } => {
                let size = FILES[*file].0 as u64;
                system::punch(&self.slots[*file], slot * size, size)?;
                self.slots[*file].sync_all()?;
            }
            Operation::Append { length } => {
                self.records.write_all(&bytes(number, *length as usize))?;
                self.records.sync_data()?;
            }
            Operation::Create { name } => {
                // The content is synced before the rename: the name never shows an incomplete file.
                let (new, path) = (self.dir.join("new"), name_path(&self.dir, *name));
                let mut file = File::create(&new)?;
                file.write_all(&bytes(number, named_length(number)))?;
                file.sync_all()?;
                fs::rename(new, path)?;
                self.names.sync_all()?;
            }
            Operation::Rename { from, to } => {
                fs::rename(name_path(&self.dir, *from), name_path(&self.dir, *to))?;
                self.names.sync_all()?;
            }
            Operation::Unlink { name } => {
                fs::remove_file(name_path(&self.dir, *name))?;
                self.names.sync_all()?;
            }
        }
        Ok(())
    }
}

/// The next operation: first every slot once, then at random, mostly writes.
fn choose(model: &Model, numbers: &mut Numbers) -> Operation {
    let mut names = model.names.keys();
    for (file, (_, slots)) in FILES.iter().enumerate() {
        let filled = model.slots[file].len() as u64;
        if filled < *slots && model.next < FILES.iter().map(|(_, slots)| slots).sum() {
            return Operation::Write { file, slot: filled };
        }
    }
    let file = numbers.below(FILES.len() as u64) as usize;
    let slot = numbers.below(FILES[file].1);
    let name = numbers.below(NAMES);
    let some = names.nth(numbers.below(model.names.len() as u64) as usize).copied();
    match numbers.below(100) {
        0..60 => Operation::Write { file, slot },
        60..63 => Operation::Punch { file, slot },
        63 => Operation::Truncate { file, slots: FILES[file].1 - numbers.below(FILES[file].1 / 8) },
        64..75 => Operation::Append { length: 1 + numbers.below(3000) },
        75..88 => Operation::Create { name },
        88..94 => some.map_or(Operation::Create { name }, |from| Operation::Rename { from, to: name }),
        _ => some.map_or(Operation::Create { name }, |name| Operation::Unlink { name }),
    }
}

/// True when an error says that the daemon is gone. A request that is on its way to a ring when the daemon is killed ends
/// with ECANCELED (Linux 6.18).
fn daemon_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

/// Writes until the daemon is gone.
pub(crate) fn run(dir: &Path, path: &Path, seed: u64) -> Outcome<()> {
    let (steps, open) = journal::read(path)?;
    if open.is_some() {
        return Err(format!("{}: verify first", path.display()));
    }
    let mut model = Model::after(&steps);
    let mut journal = Journal::open(path)?;
    let mut numbers = Numbers::new(seed ^ model.next.wrapping_mul(31));
    let mut files = match Files::open(dir) {
        // The standard library turns ENOTCONN into another error while it creates directories.
        Err(error) if daemon_gone(&error) || fs::metadata(dir).is_err_and(|error| daemon_gone(&error)) => {
            return Ok(());
        }
        files => files.map_err(|error| format!("{}: {error}", dir.display()))?,
    };
    let first = model.next;
    loop {
        let step = Step { number: model.next, operation: choose(&model, &mut numbers) };
        journal.begin(&step)?;
        match files.perform(&step) {
            Ok(()) => {
                journal.acknowledged(step.number)?;
                model.apply(&step);
            }
            Err(error) if daemon_gone(&error) => {
                println!("{} operations acknowledged, {error}", step.number - first);
                return Ok(());
            }
            Err(error) => return Err(format!("operation {} ({:?}): {error}", step.number, step.operation)),
        }
    }
}
