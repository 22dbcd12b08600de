//! Row journal-mount: the mount of a journal after a loss of power and after an orderly end, beside a read of its bytes.

use crate::paper::rows::maps::sheet::{MapRow, Sheet};
use std::path::Path;
use std::sync::Arc;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::process::run;
use terrace_bench::site::Site;
use terrace_bench::workload::numbers::Picks;
use terrace_engine::{Caller, Engine, MountOptions, PoolMedia, Wait, WriteFlags, read_superblock};
use terrace_format::journal::Layout;
use terrace_format::{BLOCK_SIZE, DeviceBlock, Ino};
use terrace_media::block::{AlignedBlock, FileDevice};
use terrace_media::pm::{JournalOptions, JournaledPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::SystemClock;

const ROOT: Ino = Ino(1);
const PIECE_BLOCKS: u64 = 256;
/// The claim allows a mount this time more than the read.
const MORE_S: f64 = 0.2;
const TIMES: f64 = 1.3;

/// An image, and its log of the same size.
struct Size {
    at: &'static str,
    bytes: u64,
}

const SIZES: [Size; 2] = [Size { at: "1 GiB", bytes: 1 << 30 }, Size { at: "8 GiB", bytes: 8 << 30 }];
const QUICK: [Size; 1] = [Size { at: "64 MiB", bytes: 64 << 20 }];

fn open(path: &Path) -> Outcome<(Arc<Engine>, Arc<JournaledPm>)> {
    let device = FileDevice::open(path, true, false)?;
    let pm = Arc::new(
        JournaledPm::open(Arc::new(device), JournalOptions::default(), Arc::new(SystemClock::default()))?.pm,
    );
    let (superblock, _) = read_superblock(&*pm, true)?;
    let media = PoolMedia { pm: pm.clone(), block: Vec::new() };
    let clock = Arc::new(terrace_runtime::SystemClock::default());
    Ok((Engine::mount(media, superblock, MountOptions::default(), clock)?, pm))
}

/// Writes files in half of the image, without steps that bring pages home, until three quarters of the log are in use.
fn fill(fs: &Engine, pm: &JournaledPm, size: &Size) -> Outcome<()> {
    let caller = Caller { uid: 0, gid: 0 };
    let made = fs.mknod(ROOT, b"file", 0o644, 0, caller, Wait::Allowed)?;
    fs.open(made.ino, false, true, Wait::Allowed)?;
    let piece = vec![0x3d; 1 << 20];
    let pieces = size.bytes / 2 / piece.len() as u64;
    let mut picks = Picks::new(3);
    let mut turn = 0;
    while pm.journal_status().is_some_and(|found| found.log_used_bytes < found.log_bytes / 4 * 3) {
        let place = if turn < pieces { turn } else { picks.below(pieces) };
        turn += 1;
        let flags = WriteFlags { sync: true, ..Default::default() };
        let mut done = 0;
        while done < piece.len() {
            let at = place * piece.len() as u64 + done as u64;
            done += fs.write(made.ino, at, &piece[done..], flags, Wait::Allowed)?;
        }
    }
    fs.sync()?;
    fs.release(made.ino);
    fs.forget(made.ino, 1);
    Ok(())
}

/// Seconds of a read of so many bytes from the begin of a journal, by 1 MiB with O_DIRECT.
fn read(site: &Site, path: &Path, bytes: u64) -> Outcome<f64> {
    let device = FileDevice::open(path, false, true)?;
    let mut piece: Vec<AlignedBlock> = Vec::new();
    piece.resize_with(PIECE_BLOCKS as usize, AlignedBlock::zeroed);
    let begin_ns = site.scratch.now_ns();
    let blocks = bytes.div_ceil(BLOCK_SIZE).min(device.blocks());
    for first in (0..blocks).step_by(PIECE_BLOCKS as usize) {
        let count = (blocks - first).min(PIECE_BLOCKS) as usize;
        device.read(DeviceBlock(first), &mut piece[..count])?;
    }
    Ok((site.scratch.now_ns() - begin_ns) as f64 / 1e9)
}

fn measure((site, terrace): (&Site, &Path), size: &Size, round: usize, sheet: &mut Sheet) -> Outcome<()> {
    let path = site.scratch.disk.join("journal");
    let layout = Layout::new(size.bytes, size.bytes).ok_or("no such journal")?;
    let _held = site.allocated(&path, layout.total_blocks() * BLOCK_SIZE)?;
    let mut words = path.clone().into_os_string();
    words.push(format!(",memory={0},log={0}", size.bytes));
    run(terrace, ["mkfs".as_ref(), "--force".as_ref(), "--journal".as_ref(), words.as_os_str()])?;
    let (fs, pm) = open(&path)?;
    fill(&fs, &pm, size)?;
    let used = pm.journal_status().map_or(0, |found| found.log_used_bytes);
    // Without a close the next opening finds the log as a loss of power leaves the log.
    drop((fs, pm));
    let mut add = |state: &str, bytes: u64| -> Outcome<Arc<Engine>> {
        let read_s = read(site, &path, bytes)?;
        let begin_ns = site.scratch.now_ns();
        let (fs, _) = open(&path)?;
        let mount_s = (site.scratch.now_ns() - begin_ns) as f64 / 1e9;
        for (name, value) in [("mount", mount_s), ("read", read_s), ("bound", TIMES * read_s + MORE_S)] {
            sheet.add(round, (name, state), Metric::Seconds, size.at, value);
        }
        Ok(fs)
    };
    add("after a loss of power", size.bytes + used)?.unmount()?;
    add("after an orderly end", size.bytes)?.unmount()?;
    Ok(())
}

/// Row journal-mount.
pub(crate) fn mount(row: &Row, options: &Options) -> Outcome<()> {
    let sizes = if options.quick { QUICK.iter().collect() } else { sizes_for(options) };
    let claims = |sheet: &mut Sheet| {
        for state in ["after a loss of power", "after an orderly end"] {
            for size in SIZES.iter().chain(&QUICK) {
                let [ours, bound] = ["mount", "bound"].map(|name| format!("{name} {state}"));
                sheet.claim("1.3 times the read, and 200 ms", &ours, &bound, size.at, Must::AtMost(1.0));
            }
        }
    };
    let notes = vec![
        "In this process: the journal is opened and the pool mounted. The log is as long as the image, and three quarters of it are \
         in use after the loss of power. Read: the same bytes by 1 MiB with O_DIRECT, one request at a time; after an orderly end \
         the image alone. The bound is 1.3 times the read and 200 ms. 8 GiB only with --dataset 8G."
            .into(),
    ];
    let mounts = MapRow {
        axis: "tier 0",
        metric: Metric::Seconds,
        maps: sizes,
        data_bytes: options.dataset_bytes,
        notes,
        measure: &|site: &Site, size: &&Size, round, sheet: &mut Sheet| {
            measure((site, &options.site.terrace), size, round, sheet)
        },
        claims: &claims,
    };
    mounts.run(row, options)
}

/// The sizes that `--dataset` allows; always the smaller.
fn sizes_for(options: &Options) -> Vec<&'static Size> {
    SIZES
        .iter()
        .enumerate()
        .filter(|(number, size)| *number == 0 || size.bytes <= options.dataset_bytes)
        .map(|(_, size)| size)
        .collect()
}
