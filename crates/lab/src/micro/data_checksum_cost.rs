//! The time that checksums of data in PM cost (docs/decisions/0026): requests to pools with and without them,
//! in this process, on one thread, PM on /dev/shm. Several pools of each kind take turns, because the
//! addresses of memory alone make a difference; a result is the median of all batches of a kind.

use super::fixture::{CALLER, ROOT, format_options, mount, number, pm_in};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    Engine, FormatOptions, MountOptions, PolicyKind, PoolMedia, SetAttributes, Simulation, Wait, WriteFlags,
    format,
};
use terrace_format::Ino;
use terrace_media::block::SimulatedDevice;
use terrace_runtime::{Clock, Next, SystemClock};

const BATCH: u64 = 500;
/// Blocks of the overwritten file: 4 MiB, as in row a of the benchmarks.
const BLOCKS: u64 = 1024;
/// Blocks of the file that is read. It is small because streaming stores evict their lines from the
/// processor's cache.
const READ_BLOCKS: u64 = 256;
const PM_BYTES: u64 = 64 << 20;
const POOLS: usize = 4;
const W: Wait = Wait::Allowed;

/// A mounted pool with a file for each kind of request.
struct ThreeFiles {
    fs: Arc<Engine>,
    overwritten: Ino,
    read: Ino,
    appended: Ino,
}

fn make(data_checksums: bool, clock: &Arc<dyn Clock>) -> Outcome<ThreeFiles> {
    let pm = pm_in("/dev/shm", PM_BYTES)?;
    let media = PoolMedia { pm, block: vec![Arc::new(SimulatedDevice::new(4096))] };
    let options = FormatOptions { data_checksums, ..format_options(PolicyKind::PREDICTIVE, 16) };
    format(&media, &options)?;
    let fs = mount(&media, MountOptions::default(), Arc::clone(clock))?;
    let file = |name: &str, blocks: u64| {
        let ino = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino;
        for block in 0..blocks {
            fs.write(ino, block * 4096, &[1; 4096], WriteFlags::default(), W).unwrap();
        }
        ino
    };
    let (overwritten, read, appended) =
        (file("overwritten", BLOCKS), file("read", READ_BLOCKS), file("appended", 0));
    Ok(ThreeFiles { fs, overwritten, read, appended })
}

#[derive(Clone, Copy)]
enum Request {
    Overwrite,
    OverwriteMany,
    OverwritePart,
    Append,
    Read,
    ReadPart,
    ReadMany,
}

const REQUESTS: [(&str, Request); 7] = [
    ("4 KiB overwrite", Request::Overwrite),
    ("64 KiB overwrite", Request::OverwriteMany),
    ("512 B overwrite", Request::OverwritePart),
    ("100 B append", Request::Append),
    ("4 KiB read", Request::Read),
    ("512 B read", Request::ReadPart),
    ("64 KiB read", Request::ReadMany),
];

impl ThreeFiles {
    /// Nanoseconds per request of a batch.
    fn batch(&self, request: Request, picks: &mut u64, clock: &dyn Clock) -> f64 {
        let mut content = vec![5; 65_536];
        let (many, flags) = (BATCH / 10, WriteFlags::default());
        let times = if matches!(request, Request::OverwriteMany | Request::ReadMany) { many } else { BATCH };
        if matches!(request, Request::Append) {
            let empty = SetAttributes { size: Some(0), ..Default::default() };
            self.fs.setattr(self.appended, &empty, W).unwrap();
        }
        let begin = clock.monotonic_ns();
        for turn in 0..times {
            *picks = picks.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = *picks >> 40;
            let (overwritten, read) = (pick % BLOCKS * 4096, pick % READ_BLOCKS * 4096);
            let done = match request {
                Request::Overwrite => {
                    self.fs.write(self.overwritten, overwritten, &content[..4096], flags, W)
                }
                Request::OverwriteMany => {
                    self.fs.write(self.overwritten, overwritten / 65_536 * 65_536, &content, flags, W)
                }
                Request::OverwritePart => {
                    self.fs.write(self.overwritten, overwritten + 1024, &content[..512], flags, W)
                }
                Request::Append => self.fs.write(self.appended, turn * 100, &content[..100], flags, W),
                Request::Read => self.fs.read(self.read, read, &mut content[..4096], W),
                Request::ReadPart => self.fs.read(self.read, read + 1024, &mut content[..512], W),
                Request::ReadMany => self.fs.read(self.read, read / 65_536 * 65_536, &mut content, W),
            };
            assert!(done.unwrap() > 0);
        }
        (clock.monotonic_ns() - begin) as f64 / times as f64
    }
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let rounds = number(args, 0, 200);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    // The two kinds are made in turns, so that neither has the better memory.
    let pools: Vec<(bool, ThreeFiles)> = (0..2 * POOLS)
        .map(|index| Ok((index % 2 == 1, make(index % 2 == 1, &clock)?)))
        .collect::<Outcome<_>>()?;
    println!("| request | without, ns | with, ns | more |");
    println!("|---|---|---|---|");
    for (name, request) in REQUESTS {
        let mut taken: [Vec<f64>; 2] = Default::default();
        for round in 0..rounds {
            for (has, pool) in &pools {
                taken[usize::from(*has)].push(pool.batch(request, &mut (round + 1), &*clock));
                // Removed files are reclaimed outside the measured time.
                for (step, _) in &mut pool.fs.background_steps() {
                    (0..1000).take_while(|_| step.step() == Next::Again).count();
                }
            }
        }
        taken.iter_mut().for_each(|of_kind| of_kind.sort_by(f64::total_cmp));
        let [without, with] = taken.map(|of_kind| of_kind[of_kind.len() / 2]);
        println!("| {name} | {without:.0} | {with:.0} | {:+.1} % |", 100.0 * (with / without - 1.0));
    }
    Ok(())
}
