//! Row f: a file larger than PM written sequentially, until all of it is on the tier, against the tier file
//! written directly. Both begin with a sparse file without a block.

use super::args::Args;
use super::pool::Pool;
use super::report::{Must, Report};
use super::series::{Series, paired};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use terrace_bench::failure::Outcome;
use terrace_bench::scratch::Scratch;

const PM_BYTES: u64 = 256 << 20;
const TIER_BYTES: u64 = 4 << 30;
const FILE_BYTES: u64 = 1 << 30;
const PIECE_BYTES: usize = 1 << 20;

/// A pass over the file: bytes per second until all bytes are durable on the tier, and the longest write in
/// ms.
struct Pass {
    rate: f64,
    longest_ms: f64,
}

fn write_all(
    scratch: &Scratch,
    file: &File,
    piece: &[u8],
    begin: u64,
    last: impl FnOnce() -> Outcome<()>,
) -> Outcome<Pass> {
    let mut longest = 0;
    for index in 0..FILE_BYTES / PIECE_BYTES as u64 {
        let before = scratch.now_ns();
        file.write_all_at(piece, begin + index * PIECE_BYTES as u64)?;
        longest = longest.max(scratch.now_ns() - before);
    }
    last()?;
    Ok(Pass { rate: 0.0, longest_ms: longest as f64 / 1e6 })
}

fn timed(scratch: &Scratch, body: impl FnOnce() -> Outcome<Pass>) -> Outcome<Pass> {
    let begin = scratch.now_ns();
    let pass = body()?;
    Ok(Pass { rate: FILE_BYTES as f64 / (scratch.now_ns() - begin) as f64 * 1e9, ..pass })
}

fn bare(scratch: &Scratch, path: &Path) -> Outcome<Pass> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    file.set_len(TIER_BYTES)?;
    // O_DIRECT wants aligned memory.
    let mut room = vec![5; PIECE_BYTES + 4096];
    let skip = room.as_ptr().align_offset(4096);
    let piece = &mut room[skip..skip + PIECE_BYTES];
    let done = timed(scratch, || write_all(scratch, &file, piece, 4096, || Ok(file.sync_all()?)));
    let _ = std::fs::remove_file(path);
    done
}

fn ours(args: &Args, scratch: &Scratch) -> Outcome<Pass> {
    let pool = Pool::make(args, scratch, "throughput", PM_BYTES, TIER_BYTES)?;
    let server = pool.mount(scratch, &scratch.mount_point("ours")?)?;
    let file = File::create(server.mount.join("file"))?;
    let piece = vec![5; PIECE_BYTES];
    let barrier = || {
        let args = ["sync".as_ref(), "--to".as_ref(), "1".as_ref(), server.mount.as_os_str()];
        pool.terrace(&args).map(|_| ())
    };
    let pass = timed(scratch, || write_all(scratch, &file, &piece, 0, barrier))?;
    drop(file);
    server.stop(scratch)?;
    Ok(pass)
}

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    scratch.need(PM_BYTES, 2 * FILE_BYTES)?;
    let (mut our_rate, mut bare_rate) = (Series::default(), Series::default());
    let (mut our_longest, mut bare_longest) = (Series::default(), Series::default());
    for _ in 0..args.rounds {
        let pass = bare(scratch, &scratch.disk.join("bare"))?;
        bare_rate.push(pass.rate / 1e6);
        bare_longest.push(pass.longest_ms);
        let pass = ours(args, scratch)?;
        our_rate.push(pass.rate / 1e6);
        our_longest.push(pass.longest_ms);
    }
    report.figure('f', "1 GiB in 1 MiB writes, O_DIRECT, until flushed", "MB/s", &bare_rate, Must::Nothing);
    report.figure(
        'f',
        "the same through 256 MiB of PM, until synced to tier 1",
        "MB/s",
        &our_rate,
        Must::Nothing,
    );
    let ratio = paired(&our_rate, &bare_rate, |ours, bare| ours / bare);
    report.figure('f', "terrace ÷ O_DIRECT", "×", &ratio, Must::AtLeast(0.6));
    report.figure('f', "longest write, O_DIRECT", "ms", &bare_longest, Must::Nothing);
    let limit = (2.0 * bare_longest.max()).max(500.0);
    report.figure('f', "longest write, terrace", "ms", &our_longest, Must::AtMost(limit.round()));
    Ok(())
}
