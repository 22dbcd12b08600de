//! The time of a 4 KiB write over the same block again and again, and over 16 blocks in turn, by file map. Each moves its
//! block, and the old ones wait for the checkpoint.

use super::fixture::{CALLER, ROOT, format_options, mount, number, prepared_pm};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    Engine, FormatOptions, MAPS, MountOptions, PolicyKind, PoolMedia, Simulation, Wait, WriteFlags, format,
};
use terrace_format::Ino;
use terrace_map::MapRow;
use terrace_runtime::{Clock, SystemClock};

const PM_BYTES: u64 = 256 << 20;
const WRITES: u64 = 4_000;
const ROUNDS: usize = 60;
const W: Wait = Wait::Allowed;

/// A mounted pool and its file.
fn pool(row: &MapRow, percent: u64) -> Outcome<(Arc<Engine>, Ino)> {
    let media = PoolMedia { pm: prepared_pm(PM_BYTES)?, block: Vec::new() };
    let options =
        FormatOptions { map: row.kind, devices: Vec::new(), ..format_options(PolicyKind::STATIC, 4096) };
    format(&media, &options)?;
    let fs = mount(&media, MountOptions::default(), Arc::new(SystemClock::default()))?;
    fs.run_background(1000);
    let create = |name: &[u8]| fs.mknod(ROOT, name, 0o100644, 0, CALLER, W).map(|made| made.ino);
    let (other, file) = (create(b"other")?, create(b"file")?);
    for piece in 0..(PM_BYTES >> 20) * percent / 100 {
        fs.write(other, piece << 20, &vec![1; 1 << 20], WriteFlags::default(), W)?;
    }
    Ok((fs, file))
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let percent = number(args, 0, 0);
    let is_wanted = |row: &&MapRow| args.get(1).is_none_or(|only| row.name == only);
    let rows: Vec<&MapRow> = MAPS.iter().filter(is_wanted).collect();
    let reference = *rows.first().ok_or("no such map")?;
    let pools = rows.iter().map(|row| pool(row, percent)).collect::<Outcome<Vec<_>>>()?;
    let clock = SystemClock::default();
    for blocks in [1, 16] {
        let mut best = vec![f64::INFINITY; rows.len()];
        for _ in 0..ROUNDS {
            for ((fs, file), best) in pools.iter().zip(&mut best) {
                let start = clock.monotonic_ns();
                for turn in 0..WRITES {
                    fs.write(*file, turn % blocks * 4096, &[turn as u8; 4096], WriteFlags::default(), W)?;
                }
                *best = best.min((clock.monotonic_ns() - start) as f64 / WRITES as f64);
            }
        }
        for (row, time) in rows.iter().zip(&best) {
            let first = best.first().ok_or("no map")?;
            println!(
                "{blocks:>2} blocks, {:<14} {time:>8.1} ns, {:.2} of {}",
                row.name,
                time / first,
                reference.name
            );
        }
    }
    pools.iter().try_for_each(|(fs, _)| Ok(fs.unmount()?))
}
