//! A trace in the form of the cost machine and the optimum: steps over numbered blocks.
//!
//! A block is 4 KiB of one life of a file (an inode number is used again after its `Unlink`). A block exists
//! from its first write on: a read of a hole, or past the end, has no blocks and no cost. Partly written
//! blocks count whole.

use std::collections::HashMap;
use std::ops::Range;
use terrace_bench::trace::{Event, Kind};
use terrace_format::BLOCK_SIZE;

/// The operation of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    /// `sync`: durable on return.
    Write {
        sync: bool,
    },
    Fsync,
    /// The blocks cease to exist.
    Drop,
    /// A pause of this number of nanoseconds.
    Rest(u64),
}

/// An operation of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub act: Act,
    pub file: u32,
    /// The blocks that the request names: the first, and the end behind the last.
    pub range: Range<u64>,
    /// The existing blocks of the request: a range of [`Steps::ids`], in the order of the file.
    ids: Range<usize>,
    /// Size of the file before the step, in bytes.
    pub size: u64,
}

/// A trace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    pub list: Vec<Step>,
    ids: Vec<u32>,
    /// File and block of each number.
    pub places: Vec<(u32, u64)>,
    /// Numbers of each file's blocks.
    pub files: Vec<Vec<u32>>,
    /// Number of the first measured step.
    pub measured_from: usize,
}

/// A file while the trace is read.
#[derive(Default)]
struct Life {
    file: u32,
    size: u64,
    /// Number of each block, and whether it exists.
    blocks: Vec<Option<(u32, bool)>>,
}

impl Steps {
    /// The steps of a recorded trace. The first `populated` events are not measured; a rest of `rest_ns`
    /// follows them.
    pub fn of(events: &[Event], populated: usize, rest_ns: u64) -> Steps {
        let mut steps = Steps::default();
        let mut lives: HashMap<u32, Life> = HashMap::new();
        for (index, event) in events.iter().enumerate() {
            if index == populated {
                steps.begin_measuring(rest_ns);
            }
            let life = lives.entry(event.ino).or_insert_with(|| {
                steps.files.push(Vec::new());
                Life { file: steps.files.len() as u32 - 1, ..Life::default() }
            });
            steps.push(event, life);
            if event.kind == Kind::Unlink {
                lives.remove(&event.ino);
            }
        }
        if populated >= events.len() {
            steps.begin_measuring(0);
        }
        steps
    }

    fn begin_measuring(&mut self, rest_ns: u64) {
        if rest_ns > 0 {
            let at = self.ids.len();
            let rest = Step { act: Act::Rest(rest_ns), file: 0, range: 0..0, ids: at..at, size: 0 };
            self.list.push(rest);
        }
        self.measured_from = self.list.len();
    }

    fn push(&mut self, event: &Event, life: &mut Life) {
        let (from, until) = (event.offset, event.offset + u64::from(event.length));
        let mut range = from / BLOCK_SIZE..until.div_ceil(BLOCK_SIZE);
        let size = life.size;
        let act = match event.kind {
            Kind::Create | Kind::Open | Kind::Close => return,
            Kind::Read => Act::Read,
            Kind::Write if event.length == 0 => return,
            Kind::Write => {
                life.size = life.size.max(until);
                Act::Write { sync: event.sync }
            }
            Kind::Fsync => Act::Fsync,
            Kind::Truncate | Kind::Unlink => {
                life.size = if event.kind == Kind::Unlink { 0 } else { event.offset };
                range = life.size.div_ceil(BLOCK_SIZE)..life.blocks.len() as u64;
                Act::Drop
            }
        };
        let begin = self.ids.len();
        match act {
            Act::Write { .. } => self.write(life, range.clone()),
            Act::Read | Act::Drop => {
                let end = (range.end as usize).min(life.blocks.len());
                let there = life.blocks.get_mut(range.start as usize..end).unwrap_or_default();
                for (id, exists) in there.iter_mut().flatten() {
                    if *exists {
                        self.ids.push(*id);
                        *exists = act == Act::Read;
                    }
                }
            }
            Act::Fsync | Act::Rest(_) => {}
        }
        let ids = begin..self.ids.len();
        self.list.push(Step { act, file: life.file, range, ids, size });
    }

    fn write(&mut self, life: &mut Life, range: Range<u64>) {
        if life.blocks.len() < range.end as usize {
            life.blocks.resize(range.end as usize, None);
        }
        for block in range {
            let (id, exists) = life.blocks[block as usize].get_or_insert_with(|| {
                self.places.push((life.file, block));
                let id = self.places.len() as u32 - 1;
                self.files[life.file as usize].push(id);
                (id, true)
            });
            *exists = true;
            self.ids.push(*id);
        }
    }

    /// The existing blocks of a step.
    pub fn ids(&self, step: &Step) -> &[u32] {
        &self.ids[step.ids.clone()]
    }

    /// Number of all blocks.
    pub fn blocks(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::Ino;

    #[test]
    fn blocks_are_numbered_by_life_and_exist_once_written() {
        let event = |kind, ino, offset: u64, length| Event { offset, length, ..Event::bare(kind, Ino(ino)) };
        let events = [
            event(Kind::Create, 7, 0, 0),
            event(Kind::Write, 7, 0, 8192),
            event(Kind::Write, 7, 20_000, 10),
            event(Kind::Read, 7, 0, 1 << 20),
            event(Kind::Truncate, 7, 4096, 0),
            event(Kind::Read, 7, 0, 1 << 20),
            event(Kind::Unlink, 7, 0, 0),
            event(Kind::Write, 7, 0, 1),
        ];
        let steps = Steps::of(&events, 1, 5);
        let seen: Vec<(Act, &[u32])> = steps.list.iter().map(|step| (step.act, steps.ids(step))).collect();
        let write = Act::Write { sync: false };
        let wanted: [(Act, &[u32]); 8] = [
            (Act::Rest(5), &[]),
            (write, &[0, 1]),
            (write, &[2]),
            (Act::Read, &[0, 1, 2]),
            (Act::Drop, &[1, 2]),
            (Act::Read, &[0]),
            (Act::Drop, &[0]),
            (write, &[3]),
        ];
        assert_eq!(seen, wanted);
        assert_eq!((steps.measured_from, steps.blocks(), steps.files.len()), (1, 4, 2));
        assert_eq!(steps.places[2], (0, 4));
    }
}
