//! Part `clients`: threads side by side that read and write blocks of their own files: operations per second, and the
//! processor time of the server for an operation.

use super::contestant::{Contestant, Kind, Room, rounds};
use super::ground::{Ground, ROW};
use crate::smoke::grid::Grid;
use crate::smoke::report::Report;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use terrace_bench::failure::Outcome;
use terrace_runtime::Clock;
use terrace_runtime::thread::spawn;

const ROOM: Room = Room { pm: 512 << 20, disk: 1 << 30 };
const COUNTS: [usize; 5] = [1, 2, 4, 16, 64];
const LINES: [&str; 5] = ["1 client", "2 clients", "4 clients", "16 clients", "64 clients"];
const BLOCK_BYTES: u64 = 4096;
const FILE_BLOCKS: u64 = 256;
/// Time between the start of the first thread and the first operation.
const START_NS: u64 = 20_000_000;

pub(super) fn run(ground: &Ground<'_>, report: &mut Report) -> Outcome<()> {
    ground.scratch.need(ROOM.pm + (64 << 20), ROOM.disk)?;
    let kinds = Kind::present(ground, &Kind::TERRACE);
    let columns: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let (mut rates, mut costs) = (Grid::new(&LINES, &columns), Grid::new(&LINES, &columns));
    rounds(ground, report, "clients", (&kinds, ROOM), |column, contestant| {
        make_files(&contestant.root)?;
        for (line, clients) in COUNTS.into_iter().enumerate() {
            let load = side_by_side(ground, contestant, clients)?;
            rates.push(line, column, load.operations as f64 / load.seconds);
            costs.push(line, column, load.server_us / load.operations as f64);
        }
        Ok(())
    })?;
    report.grid(ROW, "clients, pread and pwrite of 4 KiB by turns", "operations/s", &rates);
    report.grid(ROW, "clients, processor time of the daemon for an operation", "µs", &costs);
    Ok(())
}

fn make_files(root: &Path) -> Outcome<()> {
    for client in 0..COUNTS[COUNTS.len() - 1] {
        fs::write(root.join(format!("{client}")), vec![1; (FILE_BLOCKS * BLOCK_BYTES) as usize])?;
    }
    Ok(())
}

/// The work of all clients.
struct Load {
    operations: u64,
    seconds: f64,
    /// Processor time of the server.
    server_us: f64,
}

fn side_by_side(ground: &Ground<'_>, contestant: &Contestant, clients: usize) -> Outcome<Load> {
    let clock = &ground.scratch.clock;
    let server = contestant.pid().ok_or("no server")?;
    let begin = clock.monotonic_ns() + START_NS;
    let end = begin + ground.either(1_000_000_000, 100_000_000);
    let before = processor_us(server)?;
    let mut threads = Vec::new();
    for client in 0..clients {
        let file = File::options().read(true).write(true).open(contestant.root.join(format!("{client}")))?;
        let clock = Arc::clone(clock);
        threads.push(spawn("client", move || work(&*clock, &file, (begin, end), client as u64))?);
    }
    let mut operations = 0;
    for thread in threads {
        operations += thread.join().map_err(|_| "a client panicked")??;
    }
    let seconds = (clock.monotonic_ns() - begin) as f64 / 1e9;
    if operations == 0 {
        return Err(format!("{clients} clients did nothing").into());
    }
    Ok(Load { operations, seconds, server_us: processor_us(server)? - before })
}

/// Reads and writes blocks by turns until the end; gives the number of operations.
fn work(clock: &dyn Clock, file: &File, (begin, end): (u64, u64), seed: u64) -> std::io::Result<u64> {
    let mut buffer = vec![seed as u8; BLOCK_BYTES as usize];
    let (mut operations, mut place) = (0, seed);
    clock.sleep(Duration::from_nanos(begin.saturating_sub(clock.monotonic_ns())));
    while clock.monotonic_ns() < end {
        for _ in 0..8 {
            // A stride prime to the number of blocks visits all of them.
            place = (place + 101) % FILE_BLOCKS;
            file.write_all_at(&buffer, place * BLOCK_BYTES)?;
            place = (place + 101) % FILE_BLOCKS;
            file.read_exact_at(&mut buffer, place * BLOCK_BYTES)?;
            operations += 2;
        }
    }
    Ok(operations)
}

/// User and system time of a process (fields 14 and 15 of /proc/PID/stat), in steps of a clock tick.
fn processor_us(pid: u32) -> Outcome<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = ticks_of(&text).ok_or("/proc/PID/stat cannot be read")?;
    Ok(ticks as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}

fn ticks_of(stat: &str) -> Option<u64> {
    // The second field, the name in parentheses, may have spaces and parentheses itself.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_fields_14_and_15() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 21 13 0 0 20 0 9 0 1000 1 1";
        assert_eq!(ticks_of(stat), Some(34));
        assert_eq!(ticks_of("7 (a"), None);
        assert!(processor_us(std::process::id()).unwrap() >= 0.0);
    }
}
