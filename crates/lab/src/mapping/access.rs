//! Operations of a file map, one after the other: their counts, and their times hot and cold.

use super::contestant::Contestant;
use super::files::{Files, Layout};
use super::pool::Opening;
use super::stopwatch::{Stopwatch, processor_ns};
use std::hint::black_box;
use std::path::Path;
use terrace_bench::failure::Outcome;
use terrace_format::FileBlock;
use terrace_media::pm::LineCounts;
use terrace_wal::{Error, NoSpace};

/// An operation, and the way in which its place is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads of neighbours.
    ReadSequential,
    /// Reads of any blocks.
    ReadRandom,
    /// Look-ups of holes.
    ReadAbsent,
    /// Insertions at the end of a file.
    Append,
    /// Insertions into holes.
    Insert,
}

impl Access {
    /// Its name in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Access::ReadSequential => "sequential read",
            Access::ReadRandom => "random read",
            Access::ReadAbsent => "absent",
            Access::Append => "append",
            Access::Insert => "insert",
        }
    }

    fn is_insertion(self) -> bool {
        matches!(self, Access::Append | Access::Insert)
    }
}

/// Mean counts of an operation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) read: f64,
    pub(crate) rounds: f64,
    pub(crate) in_place: f64,
    pub(crate) in_record: f64,
    pub(crate) fences: f64,
}

impl Counts {
    pub(crate) fn written(&self) -> f64 {
        self.in_place + self.in_record
    }
}

#[derive(Default)]
struct Sum {
    lines: LineCounts,
    operations: u64,
}

impl Sum {
    fn add(&mut self, one: LineCounts) {
        self.lines.read += one.read;
        self.lines.rounds += one.rounds;
        self.lines.in_place += one.in_place;
        self.lines.in_record += one.in_record;
        self.lines.fences += one.fences;
        self.operations += 1;
    }

    fn mean(&self, access: Access) -> Outcome<Counts> {
        if self.operations == 0 {
            return Err(format!("{}: no operation is possible", access.name()).into());
        }
        let mean = |count: u64| count as f64 / self.operations as f64;
        Ok(Counts {
            read: mean(self.lines.read),
            rounds: mean(self.lines.rounds),
            in_place: mean(self.lines.in_place),
            in_record: mean(self.lines.in_record),
            fences: mean(self.lines.fences),
        })
    }
}

/// The mean of the middle half.
pub(crate) fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let quarter = times.len() / 4;
    let middle = &times[quarter..times.len() - quarter];
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

/// Sequential reads before they go on at another place: blocks of a part of a file came at one load of the pool.
const NEIGHBOURS: u64 = 64;
/// Blocks of the operations of a batch: shorter than the time that the processor gives to other work.
const BATCH: u64 = 256;

/// Two pools with the same files. An operation is done in the first, whose medium tells its lines; they leave the caches
/// in the second, and there the operation is timed. Code and stack are warm, and so are page tables.
pub(crate) struct Twins {
    counted: Files,
    pub(crate) timed: Files,
}

impl Twins {
    /// Makes the pools in two new files.
    ///
    /// # Errors
    /// The pools'.
    pub(crate) fn create(
        [first, second]: [&Path; 2],
        map: &Contestant,
        layout: Layout,
        seed: u64,
    ) -> Outcome<Twins> {
        Ok(Twins {
            counted: Files::create(first, map, layout, seed, Opening::Counted)?,
            timed: Files::create(second, map, layout, seed, Opening::Bare)?,
        })
    }

    /// Mean counts of up to `operations` operations, and their nanoseconds with none of their lines in a cache: the mean of
    /// the middle half. The timed pool must not have done other operations that draw places.
    ///
    /// # Errors
    /// The pools'; no operation was possible; the pools differ.
    pub(crate) fn cold(
        &mut self,
        access: Access,
        width: u64,
        watch: &Stopwatch,
        operations: u64,
    ) -> Outcome<(Counts, f64)> {
        let mut accesses = [Accesses::new(access, width), Accesses::new(access, width)];
        let (mut found, mut again) = (vec![None; width as usize], vec![None; width as usize]);
        let (mut sum, mut times) = (Sum::default(), Vec::new());
        let [of_counted, of_timed] = &mut accesses;
        while sum.operations < operations {
            let Some(place) = of_counted.place(&mut self.counted)? else { break };
            let twin = of_timed.place(&mut self.timed)?;
            if twin != Some(place) {
                return Err("the two pools differ".into());
            }
            let counted = self.counted.pool.counted().ok_or("a medium that does not count")?;
            counted.begin();
            of_counted.perform(&self.counted, place, &mut found)?;
            sum.add(counted.end());
            for line in counted.touched() {
                self.timed.pool.drop_from_caches(line);
            }
            let (ns, done) = watch.time(|| of_timed.perform(&self.timed, place, &mut again));
            done?;
            if found != again {
                return Err("the two pools differ".into());
            }
            times.push(ns);
        }
        Ok((sum.mean(access)?, middle(times)))
    }
}

/// A place of an operation: file and first block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    file: usize,
    block: u64,
}

/// Operations of a kind on `width` blocks each.
pub(crate) struct Accesses {
    access: Access,
    width: u64,
    /// Where the next sequential read begins, and reads before the next jump.
    next: Place,
    left: u64,
    /// The next hole that is looked up.
    hole: usize,
}

impl Accesses {
    pub(crate) fn new(access: Access, width: u64) -> Accesses {
        Accesses { access, width, next: Place { file: 0, block: 0 }, left: 0, hole: 0 }
    }

    /// The place of the next operation; blocks of the other file are put before an insertion as the layout wants. `None`
    /// when the holes are used up.
    fn place(&mut self, files: &mut Files) -> Outcome<Option<Place>> {
        let (count, width) = (files.inodes.len(), self.width.min(files.layout.blocks));
        let last = files.layout.blocks - width;
        Ok(match self.access {
            Access::ReadSequential => {
                if self.left == 0 {
                    let file = files.picks.below(count as u64) as usize;
                    self.next = Place { file, block: files.picks.below(last / width + 1) * width };
                    self.left = NEIGHBOURS;
                }
                self.left -= 1;
                let place = self.next;
                self.next.block += width;
                if self.next.block > last {
                    self.next = Place { file: (place.file + 1) % count, block: 0 };
                }
                Some(place)
            }
            Access::ReadRandom => loop {
                let place = Place {
                    file: files.picks.below(count as u64) as usize,
                    block: files.picks.below(last / width + 1) * width,
                };
                if width > 1 || !files.is_hole(place.file, place.block) {
                    break Some(place);
                }
            },
            Access::ReadAbsent => {
                self.hole += 1;
                let holes = files.holes.len().max(1);
                files.holes.get(self.hole % holes).map(|(file, block)| Place { file: *file, block: *block })
            }
            Access::Append => {
                let file = files.picks.below(count as u64) as usize;
                let block = files.ends[file];
                files.ends[file] += self.width;
                files.part()?;
                Some(Place { file, block })
            }
            Access::Insert => {
                let hole = files.holes.pop();
                if hole.is_some() {
                    files.part()?;
                }
                hole.map(|(file, block)| Place { file, block })
            }
        })
    }

    #[inline]
    fn perform(
        &self,
        files: &Files,
        place: Place,
        found: &mut [Option<terrace_map::Mapping>],
    ) -> Outcome<()> {
        let inode = &files.inodes[place.file];
        let block = FileBlock(place.block);
        if self.access.is_insertion() {
            files.pool.insert(inode, block, self.width as usize)?;
        } else if self.width == 1 {
            black_box(files.pool.map().lookup_with(&files.cursor, inode, block)?);
        } else {
            files.pool.map().lookup_run_with(&files.cursor, inode, block, found)?;
            black_box(&found);
        }
        Ok(())
    }

    /// Mean counts of up to `operations` operations. Every operation begins with an empty cache.
    ///
    /// # Errors
    /// The pool's; no medium that counts; no operation was possible.
    pub(crate) fn count(&mut self, files: &mut Files, operations: u64) -> Outcome<Counts> {
        let mut found = vec![None; self.width as usize];
        let mut sum = Sum::default();
        while sum.operations < operations {
            let Some(place) = self.place(files)? else { break };
            let counted = files.pool.counted().ok_or("a medium that does not count")?;
            counted.begin();
            self.perform(files, place, &mut found)?;
            sum.add(counted.end());
        }
        sum.mean(self.access)
    }

    /// Mean nanoseconds of `operations` operations, one after the other: of their times in short batches the middle half,
    /// which other work on the machine disturbs least.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn time_hot(&mut self, files: &mut Files, watch: &Stopwatch, operations: u64) -> Outcome<f64> {
        let mut found = vec![None; self.width as usize];
        let batch = (BATCH / self.width).max(1).min(operations);
        let mut times = Vec::new();
        for _ in 0..operations / batch {
            let mut sum_ns = 0.0;
            if self.access.is_insertion() {
                for _ in 0..batch {
                    let Some(place) = self.place(files)? else { return Ok(middle(times)) };
                    let (ns, inserted) = watch.time(|| self.perform(files, place, &mut found));
                    inserted?;
                    sum_ns += ns;
                }
            } else {
                let mut places = Vec::new();
                for _ in 0..batch {
                    places.extend(self.place(files)?);
                }
                let (ns, read) = watch
                    .time(|| places.iter().try_for_each(|place| self.perform(files, *place, &mut found)));
                read?;
                sum_ns = ns;
            }
            times.push(sum_ns / batch as f64);
        }
        Ok(middle(times))
    }

    /// Does insertions until the pool has no block for another; gives the processor time of each, in nanoseconds. An
    /// insertion waits for nothing, and the time that the processor does other work in is not the map's.
    ///
    /// # Errors
    /// The pool's, but for want of blocks.
    pub(crate) fn fill(&mut self, files: &mut Files) -> Outcome<Vec<f64>> {
        let mut times = Vec::new();
        loop {
            let end = files.ends[0];
            let begin_ns = processor_ns();
            let done = files.pool.insert(&files.inodes[0], FileBlock(end), self.width as usize);
            let taken_ns = processor_ns().saturating_sub(begin_ns);
            match done {
                Ok(()) => times.push(taken_ns as f64),
                Err(Error::NoSpace(NoSpace::Pm)) => return Ok(times),
                Err(error) => return Err(error.into()),
            }
            files.ends[0] += self.width;
        }
    }
}

/// Fills a pool with blocks that are 16 apart in their file, until no block is free. Gives the times of the processor from a
/// load on.
///
/// # Errors
/// The pool's, but for want of blocks.
pub(crate) fn fill_with_pieces(files: &mut Files, load: f64) -> Outcome<Vec<f64>> {
    const APART: u64 = 16;
    let mut times = Vec::new();
    for number in 1.. {
        let begin_ns = processor_ns();
        let done = files.pool.insert(&files.inodes[0], FileBlock(number * APART), 1);
        let taken_ns = processor_ns().saturating_sub(begin_ns);
        match done {
            Ok(()) if files.pool.load() >= load => times.push(taken_ns as f64),
            Ok(()) => {}
            Err(Error::NoSpace(NoSpace::Pm)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::contestant::registered;
    use crate::mapping::files::Layout;
    use crate::mapping::pool::Opening;
    use terrace_runtime::SystemClock;

    fn files(name: &str, opening: Opening) -> (Files, tempfile::TempDir) {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let map = registered().find(|map| map.name == name).unwrap();
        let layout = Layout { holes: 100, later: 500, load: 0.3, ..Layout::new(1, 3000) };
        let made = Files::create(&directory.path().join("pm"), &map, layout, 1, opening).unwrap();
        (made, directory)
    }

    /// A file of 3000 blocks is a radix tree of two levels: the slot's word, a word of each node.
    #[test]
    fn a_look_up_of_the_radix_tree_reads_a_line_of_each_level() {
        let (mut files, _directory) = files("radix", Opening::Counted);
        let counts = Accesses::new(Access::ReadRandom, 1).count(&mut files, 200).unwrap();
        // Eight blocks of 3000 are pointers in the slot.
        assert!(counts.read > 2.95 && counts.read <= 3.0, "{counts:?}");
        assert_eq!((counts.rounds, counts.written()), (counts.read, 0.0));
        let counts = Accesses::new(Access::Append, 1).count(&mut files, 200).unwrap();
        assert!(counts.in_place >= 2.0 && counts.in_record >= 1.0 && counts.fences >= 1.0, "{counts:?}");
    }

    #[test]
    fn a_table_map_stores_a_line_fewer_than_the_radix_tree() {
        let written = |name| {
            let (mut files, _directory) = files(name, Opening::Counted);
            Accesses::new(Access::Append, 1).count(&mut files, 200).unwrap().in_place
        };
        let (table, radix) = (written("hashfs-linear"), written("radix"));
        assert!(radix - table >= 1.0, "{radix} and {table}");
    }

    /// Pools with the same seed are the same, after insertions as well, and every access has its times.
    #[test]
    fn twins_of_every_map_do_the_same() {
        let watch = Stopwatch::new(&SystemClock::default());
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for map in registered() {
            let (first, second) = (directory.path().join("one"), directory.path().join("two"));
            let layout = Layout { holes: 100, later: 500, load: 0.3, ..Layout::new(1, 3000) };
            let mut twins = Twins::create([&first, &second], &map, layout, 5).unwrap();
            for (access, width) in [
                (Access::Append, 1),
                (Access::Insert, 1),
                (Access::ReadSequential, 1),
                (Access::ReadRandom, 16),
                (Access::ReadAbsent, 1),
            ] {
                let (counts, cold) = twins.cold(access, width, &watch, 40).unwrap();
                let lines = counts.read + counts.written();
                assert!(cold > 0.0 && lines > 0.9, "{} {}: {counts:?}", map.name, access.name());
            }
            for block in 0..3040 {
                let look =
                    |files: &Files| files.pool.map().lookup(&files.inodes[0], FileBlock(block)).unwrap();
                assert_eq!(look(&twins.counted), look(&twins.timed), "{}: block {block}", map.name);
            }
            for access in [Access::ReadSequential, Access::Append] {
                let hot = Accesses::new(access, 1).time_hot(&mut twins.timed, &watch, 40).unwrap();
                assert!(hot > 0.0, "{} {}", map.name, access.name());
            }
            [first, second].iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }
}
