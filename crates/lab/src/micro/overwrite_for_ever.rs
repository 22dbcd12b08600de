//! The time of a 4 KiB write over the same block again and again, and over 16 blocks in turn, by file map. Each moves its
//! block, and the old ones wait for the checkpoint.

use super::fixture::{CALLER, ROOT, format_options, mount, number, prepared_pm};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    FormatOptions, MAPS, MountOptions, PolicyKind, PoolMedia, Simulation, Wait, WriteFlags, format,
};
use terrace_runtime::{Clock, SystemClock};

const WRITES: u64 = 100_000;
const ROUNDS: usize = 7;
const W: Wait = Wait::Allowed;

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let percent = number(args, 0, 0);
    for blocks in [1, 16] {
        let mut first = None;
        for row in MAPS {
            let clock = Arc::new(SystemClock::default());
            let media = PoolMedia { pm: prepared_pm(256 << 20)?, block: Vec::new() };
            let options = FormatOptions {
                map: row.kind,
                devices: Vec::new(),
                ..format_options(PolicyKind::STATIC, 4096)
            };
            format(&media, &options)?;
            let fs = mount(&media, MountOptions::default(), clock.clone())?;
            fs.run_background(1000);
            let create = |name: &str| {
                Ok::<_, terrace_engine::FsError>(fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino)
            };
            let (other, file) = (create("other")?, create("file")?);
            for piece in 0..256 * percent / 100 {
                fs.write(other, piece << 20, &vec![1; 1 << 20], WriteFlags::default(), W)?;
            }
            let mut best = f64::INFINITY;
            for _ in 0..ROUNDS {
                let start = clock.monotonic_ns();
                for turn in 0..WRITES {
                    fs.write(file, turn % blocks * 4096, &[turn as u8; 4096], WriteFlags::default(), W)?;
                }
                best = best.min((clock.monotonic_ns() - start) as f64 / WRITES as f64);
            }
            let first = *first.get_or_insert(best);
            println!(
                "{blocks:>2} blocks, {:<14} {best:>8.1} ns, {:.2} of {}",
                row.name,
                best / first,
                MAPS[0].name
            );
            fs.unmount()?;
        }
    }
    Ok(())
}
