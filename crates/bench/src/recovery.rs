//! Row e: how long a mount takes after the daemon was killed in the middle of creates, with an unlinked
//! open file of 1 GiB, depending on the number of files.

use crate::Outcome;
use crate::args::Args;
use crate::in_process::Local;
use crate::process::{Pool, Server};
use crate::report::{Must, Report};
use crate::scratch::Scratch;
use crate::series::Series;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PM_BYTES: u64 = 1 << 30;
const TIER_BYTES: u64 = 4 << 30;
const MUST_MS: f64 = 200.0;
/// Files made at once by each of two threads; older ones are unlinked, so that their number stays.
const ALIVE: usize = 500;

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    scratch.need(3 * PM_BYTES, 3 * TIER_BYTES)?;
    let mut pools = Vec::new();
    for files in [10_000, 100_000, 1_000_000] {
        let pool = Pool::make(args, scratch, &format!("recovery-{files}"), PM_BYTES, TIER_BYTES)?;
        let local = Local::mount(scratch, &pool)?;
        local.populate(files)?;
        local.fs.unmount()?;
        pools.push((files, pool, Series::default()));
    }
    let mount = scratch.mount_point("ours")?;
    for _ in 0..args.rounds {
        for (_, pool, samples) in &mut pools {
            let mut server = pool.mount(scratch, &mount)?;
            disturb(scratch, &mut server)?;
            let begin = scratch.now_ns();
            let server = pool.mount(scratch, &mount)?;
            fs::metadata(mount.join("d0").join("f0"))?;
            samples.push((scratch.now_ns() - begin) as f64 / 1e6);
            if recovered(scratch, pool, &mount)?.contains("\"clean\":true") {
                return Err("the pool counts as unmounted in order".into());
            }
            server.stop(scratch)?;
        }
    }
    for (files, _, samples) in &pools {
        let what = format!("kill -9 during creates, {files} files: mount until it answers");
        report.figure('e', what, "ms", samples, Must::AtMost(MUST_MS));
    }
    Ok(())
}

/// Status, once the control socket is there: it comes after the mount.
fn recovered(scratch: &Scratch, pool: &Pool, mount: &Path) -> Outcome<String> {
    let mut tries = 100;
    loop {
        match pool.terrace(&["status".as_ref(), "--json".as_ref(), mount.as_os_str()]) {
            Err(_) if tries > 0 => tries -= 1,
            answer => return answer,
        }
        scratch.clock.sleep(Duration::from_millis(20));
    }
}

/// Unlinks an open file of 1 GiB, then kills the daemon while two threads make files.
fn disturb(scratch: &Scratch, server: &mut Server) -> Outcome<()> {
    let large = server.mount.join("large");
    let mut open = File::create(&large)?;
    let chunk = vec![3; 1 << 20];
    for _ in 0..1024 {
        open.write_all(&chunk)?;
    }
    fs::remove_file(&large)?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut makers = Vec::new();
    for maker in 0..2 {
        let directory = server.mount.join(format!("made-{maker}"));
        let _ = fs::create_dir(&directory);
        let stop = stop.clone();
        makers.push(terrace_runtime::thread::spawn("maker", move || make_files(&directory, &stop))?);
    }
    scratch.clock.sleep(Duration::from_millis(400));
    server.kill();
    stop.store(true, Ordering::Relaxed);
    drop(open);
    for maker in makers {
        let _ = maker.join();
    }
    Ok(())
}

fn make_files(directory: &Path, stop: &AtomicBool) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        if File::create(directory.join(format!("{number}"))).is_err() {
            return;
        }
        if number >= ALIVE {
            let _ = fs::remove_file(directory.join(format!("{}", number - ALIVE)));
        }
        number += 1;
    }
}
