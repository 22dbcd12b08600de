//! Mail delivery by several threads, and changes of names whose order has to survive: writers beside the recording writer for
//! losses of power.
//!
//! A delivery makes a file in `tmp`, syncs it, renames it into `new` and syncs that directory; messages are moved to `cur` and
//! removed. Each thread keeps a journal on another file system: `B id` before a delivery, `A id` when it was acknowledged,
//! `R id` before a removal, `D id` after it. The verification decides steps under way, and adds the answer.
//!
//! The other writer makes files with rising numbers and removes the file a window behind, and syncs now and then: what is
//! found later has to be a state of that sequence at or after the last sync, because a loss of power takes a suffix (C6).

use crate::content::{Numbers, bytes, difference};
use crate::outcome::{Outcome, number};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use terrace_runtime::thread::spawn;

/// Threads that deliver.
const THREADS: u64 = 4;
/// Messages of a thread above which it mostly removes.
const MESSAGES: usize = 60;
/// Files of the sequence at a time.
const WINDOW: u64 = 40;

/// Length of a message.
fn length(id: u64) -> usize {
    (id.wrapping_mul(7919) % 20_000) as usize
}

/// A journal of steps: a letter and a number in each line, each line one write(2).
struct Steps {
    file: File,
}

impl Steps {
    fn open(path: &Path) -> Outcome<Steps> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Steps { file: file.map_err(|error| format!("{}: {error}", path.display()))? })
    }

    fn add(&mut self, step: char, id: u64) -> io::Result<()> {
        self.file.write_all(format!("{step} {id}\n").as_bytes())
    }

    fn read(path: &Path) -> Outcome<Vec<(char, u64)>> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(|error| format!("{}: {error}", path.display()))?,
        };
        let parse = |line: &str| {
            let (step, id) = line.split_once(' ')?;
            Some((step.chars().next()?, number(id).ok()?))
        };
        let bad = |line: &str| format!("{}: bad line '{line}'", path.display());
        text.lines().map(|line| parse(line).ok_or_else(|| bad(line))).collect()
    }
}

fn of_thread(journal: &Path, thread: u64) -> PathBuf {
    PathBuf::from(format!("{}-{thread}", journal.display()))
}

/// The messages of a thread after its steps, and its step under way.
#[derive(Default, Debug, PartialEq, Eq)]
struct Mailbox {
    there: BTreeSet<u64>,
    delivering: Option<u64>,
    removing: Option<u64>,
    next: u64,
}

impl Mailbox {
    fn after(steps: &[(char, u64)]) -> Outcome<Mailbox> {
        let mut messages = Mailbox::default();
        for &(step, id) in steps {
            messages.next = messages.next.max(id + 1);
            match step {
                'B' => messages.delivering = Some(id),
                'R' => {
                    messages.there.remove(&id);
                    messages.removing = Some(id);
                }
                // A removal that was undone gives the message back.
                'A' => {
                    messages.there.insert(id);
                    (messages.delivering, messages.removing) = (None, None);
                }
                'D' | 'U' => (messages.delivering, messages.removing) = (None, None),
                _ => return Err(format!("unknown step '{step} {id}'")),
            }
        }
        Ok(messages)
    }
}

struct Deliverer {
    dir: PathBuf,
    new: File,
    cur: File,
    steps: Steps,
    messages: Mailbox,
    thread: u64,
}

impl Deliverer {
    fn open(dir: &Path, journal: &Path, thread: u64) -> Outcome<Deliverer> {
        let path = of_thread(journal, thread);
        let messages = Mailbox::after(&Steps::read(&path)?)?;
        if messages.delivering.is_some() || messages.removing.is_some() {
            return Err(format!("{}: verify first", path.display()));
        }
        let open = |name: &str| {
            let path = dir.join(name);
            fs::create_dir_all(&path)
                .and_then(|()| File::open(&path))
                .map_err(|error| format!("{name}: {error}"))
        };
        open("tmp")?;
        let (new, cur, steps) = (open("new")?, open("cur")?, Steps::open(&path)?);
        let synced = File::open(dir).and_then(|parent| parent.sync_all());
        synced.map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Deliverer { dir: dir.to_path_buf(), new, cur, steps, messages, thread })
    }

    fn path(&self, place: &str, id: u64) -> PathBuf {
        self.dir.join(place).join(format!("m{}.{id}", self.thread))
    }

    fn deliver(&mut self) -> io::Result<()> {
        let id = self.messages.next;
        self.messages.next += 1;
        self.steps.add('B', id)?;
        let made = self.path("tmp", id);
        let mut file = File::create(&made)?;
        file.write_all(&bytes(id * THREADS + self.thread, length(id)))?;
        file.sync_all()?;
        fs::rename(made, self.path("new", id))?;
        self.new.sync_all()?;
        self.steps.add('A', id)?;
        self.messages.there.insert(id);
        Ok(())
    }

    fn remove(&mut self, id: u64) -> io::Result<()> {
        self.steps.add('R', id)?;
        let (new, cur) = (self.path("new", id), self.path("cur", id));
        match fs::remove_file(&new) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_file(cur)?,
            removed => removed?,
        }
        self.new.sync_all()?;
        self.cur.sync_all()?;
        self.steps.add('D', id)?;
        self.messages.there.remove(&id);
        Ok(())
    }

    fn deliver_for_ever(&mut self, numbers: &mut Numbers) -> io::Error {
        loop {
            let count = self.messages.there.len();
            let some = self.messages.there.iter().nth(numbers.below(count as u64) as usize).copied();
            let removes = if count < MESSAGES { 10 } else { 60 };
            let done = match (numbers.below(100), some) {
                (choice, Some(id)) if choice < removes => self.remove(id),
                (choice, Some(id)) if choice < removes + 20 => {
                    let moved = fs::rename(self.path("new", id), self.path("cur", id));
                    // A message that was moved before.
                    moved.or_else(
                        |error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) },
                    )
                }
                _ => self.deliver(),
            };
            if let Err(error) = done {
                return error;
            }
        }
    }
}

fn sequence_path(dir: &Path, number: u64) -> PathBuf {
    dir.join("sequence").join(format!("s{number}"))
}

/// Numbers of the files of the sequence.
fn sequence(dir: &Path) -> Outcome<BTreeSet<u64>> {
    let entries = fs::read_dir(dir.join("sequence")).map_err(|error| format!("sequence: {error}"))?;
    let number_of = |entry: io::Result<fs::DirEntry>| {
        let name = entry.map_err(|error| format!("sequence: {error}"))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix('s')).and_then(|n| n.parse().ok());
        number.ok_or_else(|| format!("sequence: unknown entry {name:?}"))
    };
    entries.map(number_of).collect()
}

fn continue_sequence(dir: &Path, journal: &Path, numbers: &mut Numbers) -> Outcome<io::Error> {
    let path = of_thread(journal, THREADS);
    let mut steps = Steps::open(&path)?;
    let folder = dir.join("sequence");
    let opened = fs::create_dir_all(&folder).and_then(|()| File::open(&folder));
    let directory = opened.map_err(|error| format!("sequence: {error}"))?;
    let found = sequence(dir)?;
    let mut next = found.last().map_or(0, |last| last + 1);
    // The removal that the last loss of power took.
    for number in found.range(..next.saturating_sub(WINDOW)) {
        if let Err(error) = fs::remove_file(sequence_path(dir, *number)) {
            return Ok(error);
        }
    }
    let mut step = |next: &mut u64| -> io::Result<()> {
        for _ in 0..numbers.below(60) {
            File::create_new(sequence_path(dir, *next))?;
            if *next >= WINDOW {
                fs::remove_file(sequence_path(dir, *next - WINDOW))?;
            }
            *next += 1;
        }
        directory.sync_all()?;
        steps.add('A', *next)
    };
    loop {
        if let Err(error) = step(&mut next) {
            return Ok(error);
        }
    }
}

/// Delivers until the mount fails.
pub(crate) fn run(dir: &Path, journal: &Path, seed: u64) -> Outcome<()> {
    let mut deliverers = Vec::new();
    for thread in 0..THREADS {
        deliverers.push(Deliverer::open(dir, journal, thread)?);
    }
    let (tell, told) = channel();
    for mut deliverer in deliverers {
        let tell = tell.clone();
        let body = move || {
            let thread = deliverer.thread;
            let mut numbers = Numbers::new(seed.wrapping_mul(THREADS) + thread);
            let _ = tell.send(Ok((thread, deliverer.deliver_for_ever(&mut numbers))));
        };
        spawn("mail", body).map_err(|error| format!("thread: {error}"))?;
    }
    let (dir, journal) = (dir.to_path_buf(), journal.to_path_buf());
    let body = move || {
        let ended = continue_sequence(&dir, &journal, &mut Numbers::new(!seed));
        let _ = tell.send(ended.map(|error| (THREADS, error)));
    };
    spawn("sequence", body).map_err(|error| format!("thread: {error}"))?;
    for ended in told {
        let (thread, error) = ended?;
        println!("thread {thread}: {error}");
    }
    Ok(())
}

/// Messages in a directory, by thread and number.
fn messages(dir: &Path, place: &str) -> Outcome<BTreeMap<(u64, u64), PathBuf>> {
    let entries = fs::read_dir(dir.join(place)).map_err(|error| format!("{place}: {error}"))?;
    let parse = |entry: io::Result<fs::DirEntry>| {
        let path = entry.map_err(|error| format!("{place}: {error}"))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix('m'));
        let parts = name.and_then(|name| name.split_once('.'));
        match parts.map(|(thread, id)| (thread.parse(), id.parse())) {
            Some((Ok(thread), Ok(id))) => Ok(((thread, id), path)),
            _ => Err(format!("{place}: unknown entry {}", path.display())),
        }
    };
    entries.map(parse).collect()
}

/// Compares the messages of a thread with its journal, and decides steps under way.
fn verify_thread(found: &BTreeMap<(u64, u64), PathBuf>, journal: &Path, thread: u64) -> Outcome<()> {
    let path = of_thread(journal, thread);
    let messages = Mailbox::after(&Steps::read(&path)?)?;
    let mut expected = messages.there.clone();
    let under_way = messages.delivering.or(messages.removing);
    if let Some(id) = under_way {
        let is_there = found.contains_key(&(thread, id));
        if is_there {
            expected.insert(id);
        }
        let decided = Steps::open(&path)?.add(if is_there { 'A' } else { 'U' }, id);
        decided.map_err(|error| format!("journal: {error}"))?;
    }
    let ids: BTreeSet<u64> = found.range((thread, 0)..=(thread, u64::MAX)).map(|((_, id), _)| *id).collect();
    if let Some(id) = expected.difference(&ids).next() {
        return Err(format!("message {id} of thread {thread} is lost"));
    }
    if let Some(id) = ids.difference(&expected).next() {
        return Err(format!(
            "message {id} of thread {thread} was removed and is there, under way {under_way:?}"
        ));
    }
    for id in ids {
        let content = fs::read(&found[&(thread, id)]).map_err(|error| format!("message {id}: {error}"))?;
        if let Some(difference) = difference(&content, &bytes(id * THREADS + thread, length(id))) {
            return Err(format!("message {id} of thread {thread}: {difference}"));
        }
    }
    Ok(())
}

/// The names have to be a state of the sequence after `acknowledged` files were made.
fn judge_sequence(found: &BTreeSet<u64>, acknowledged: u64) -> Outcome<u64> {
    let (first, next) = (found.first().copied().unwrap_or(0), found.last().map_or(0, |last| last + 1));
    let count = found.len() as u64;
    let wanted = next.min(WINDOW);
    // Between the creation of a file and the removal a window behind there is one more.
    let is_window = count == wanted || (count == WINDOW + 1 && next > WINDOW);
    if next < acknowledged || !is_window || next - first != count {
        let text = format!("{count} files from {first} to before {next}, {acknowledged} were acknowledged");
        return Err(format!("sequence: {text}: {found:?}"));
    }
    Ok(next)
}

/// Compares a directory with the journals of [`run`].
pub(crate) fn verify(dir: &Path, journal: &Path) -> Outcome<()> {
    let (mut found, cur) = (messages(dir, "new")?, messages(dir, "cur")?);
    if let Some(id) = found.keys().find(|id| cur.contains_key(*id)) {
        return Err(format!("message {id:?} is in new and in cur"));
    }
    found.extend(cur);
    for thread in 0..THREADS {
        verify_thread(&found, journal, thread)?;
    }
    for path in messages(dir, "tmp")?.into_values() {
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let path = of_thread(journal, THREADS);
    let acknowledged = Steps::read(&path)?.last().map_or(0, |(_, next)| *next);
    let found = if dir.join("sequence").exists() { sequence(dir)? } else { BTreeSet::new() };
    // A mount makes durable what it found: from now on no less may be there.
    let next = judge_sequence(&found, acknowledged)?;
    Steps::open(&path)?.add('A', next).map_err(|error| format!("journal: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_after_its_steps_has_messages_and_the_step_under_way() {
        let steps =
            [('B', 0), ('A', 0), ('B', 1), ('A', 1), ('R', 0), ('D', 0), ('B', 2), ('U', 2), ('R', 1)];
        let after = Mailbox::after(&steps);
        let expected = Mailbox { there: BTreeSet::new(), delivering: None, removing: Some(1), next: 3 };
        assert_eq!(after, Ok(expected));
        let undone = Mailbox::after(&[&steps[..], &[('A', 1), ('B', 3)]].concat());
        let expected = Mailbox { there: [1].into(), delivering: Some(3), removing: None, next: 4 };
        assert_eq!(undone, Ok(expected));
    }

    #[test]
    fn a_sequence_is_a_window_without_holes_at_or_after_the_last_sync() {
        let of = |range: std::ops::Range<u64>| range.collect::<BTreeSet<u64>>();
        assert_eq!(judge_sequence(&of(0..0), 0), Ok(0));
        assert_eq!(judge_sequence(&of(0..7), 5), Ok(7));
        assert_eq!(judge_sequence(&of(60..100), 100), Ok(100));
        assert_eq!(judge_sequence(&of(59..100), 90), Ok(100), "made, and the last not yet removed");
        assert!(judge_sequence(&of(60..100), 101).is_err(), "lost");
        assert!(judge_sequence(&of(1..7), 5).is_err(), "removed too early");
        assert!(judge_sequence(&of(58..100), 90).is_err(), "a removal came after a later creation");
        let mut hole = of(60..101);
        hole.remove(&80);
        assert!(judge_sequence(&hole, 90).is_err(), "a hole");
    }
}
