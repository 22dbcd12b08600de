//! A demoted file read from its beginning to its end, against the bandwidth of its device: emulated devices
//! of each class over memory, in process, by requests of 128 KiB and 1 MiB (as a kernel makes them).

use super::fixture::{CALLER, MemoryDevice, ROOT, format_options, mount, number, prepared_pm};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    Background, Engine, MountOptions, Movements, PolicyKind, PoolMedia, Wait, WriteFlags, format,
};
use terrace_format::Ino;
use terrace_media::BlockMedium;
use terrace_media::block::EmulatedBlock;
use terrace_media::speed::{Speed, named};
use terrace_runtime::{Clock, SystemClock};

const W: Wait = Wait::Allowed;

/// A mounted pool over a device with the reads of a class.
struct DemotedFile {
    fs: Arc<Engine>,
    file: Ino,
    _background: Background,
}

impl DemotedFile {
    fn new(speed: Speed, mib: u64, clock: &Arc<SystemClock>) -> Outcome<DemotedFile> {
        let memory = Arc::new(MemoryDevice::new((mib + 64) << 8));
        // Writes take no time, because demotion is not measured.
        let speed = Speed { write_latency_ns: 0, write_bytes_per_s: 1 << 40, ..speed };
        let device: Arc<dyn BlockMedium> = Arc::new(EmulatedBlock::new(memory, speed, clock.clone()));
        let media = PoolMedia { pm: prepared_pm(64 << 20)?, block: vec![device] };
        format(&media, &format_options(PolicyKind::PREDICTIVE, 4096))?;
        let fs = mount(&media, MountOptions::default(), clock.clone())?;
        let file = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
        let background = fs.start_background()?;
        for piece in 0..mib {
            fs.write(file, piece << 20, &vec![piece as u8; 1 << 20], WriteFlags::default(), W)?;
        }
        fs.sync_to(1, &mut |_| {})?;
        drop(background);
        fs.unmount()?;
        drop(fs);
        // A second mount, with no page of the file in DRAM.
        let fs = mount(&media, MountOptions::default(), clock.clone())?;
        Ok(DemotedFile { _background: fs.start_background()?, fs, file })
    }

    /// Bytes per second of the whole file read once.
    fn read(&self, mib: u64, request: usize, clock: &SystemClock) -> f64 {
        let mut into = vec![0; request];
        let begin = clock.monotonic_ns();
        let mut at = 0;
        while at < mib << 20 {
            let count = self.fs.read(self.file, at, &mut into, W).unwrap();
            assert!(count == request && into[0] == (at >> 20) as u8 && into[count - 1] == into[0]);
            at += count as u64;
        }
        at as f64 * 1e9 / (clock.monotonic_ns() - begin) as f64
    }
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let (mib, rounds) = (number(args, 0, 1024), number(args, 1, 3));
    let mut classes: Vec<&str> = args.iter().skip(2).map(String::as_str).collect();
    if classes.is_empty() {
        classes = vec!["disk", "sata", "nvme", "optane"];
    }
    let clock = Arc::new(SystemClock::default());
    println!("{mib} MiB, demoted, read from its beginning to its end: share of the device's bandwidth");
    for name in classes {
        let speed = named(name).ok_or_else(|| format!("no class {name}"))?.speed;
        let demoted = DemotedFile::new(speed, mib, &clock)?;
        for request in [128 << 10, 1 << 20] {
            let share = |_| demoted.read(mib, request, &clock) / speed.read_bytes_per_s as f64;
            let mut shares: Vec<f64> = (0..rounds).map(share).collect();
            shares.sort_by(f64::total_cmp);
            println!(
                "{name:6} {:4} KiB: {:.2} ({:.2} to {:.2})",
                request >> 10,
                shares[shares.len() / 2],
                shares[0],
                shares[shares.len() - 1]
            );
        }
    }
    Ok(())
}
