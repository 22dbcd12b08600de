//! `terrace bench device`: exports a file with the speed of a device class.
//!
//! The server ends when its directory is unmounted, by umount(8) or by a signal; by then every request has
//! its answer.

use crate::args::BenchDevice;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::launch;
use terrace_daemon::{output, pool};
use terrace_fuse::device::{DEVICE_NAME, Flush};
use terrace_fuse::{Connection, DeviceServer, SessionOptions, Unmount};
use terrace_media::speed::ClassedSpeed;
use terrace_runtime::SystemClock;
use terrace_runtime::thread::spawn;

pub fn run(args: &BenchDevice) -> Outcome<u8> {
    let class =
        ClassedSpeed::parse(&args.class).map_err(|error| Failure::new(format!("--class: {error}")))?;
    let backing = pool::canonical(&args.backing)?;
    let dir = pool::canonical(&args.dir)?;
    if !dir.is_dir() {
        return Err(Failure::at(&args.dir, "not a directory"));
    }
    if !args.foreground && !args.daemon {
        let words = ["bench", "device", "--daemon", "--class", &args.class].map(OsStr::new).into_iter();
        let words = words.chain(args.no_sync.then_some(OsStr::new("--no-sync")));
        let words = words.chain(args.awake.then_some(OsStr::new("--awake")));
        let words: Vec<&OsStr> =
            words.chain([OsStr::new("--"), backing.as_os_str(), dir.as_os_str()]).collect();
        launch::start(&words)?;
        return Ok(0);
    }
    if args.daemon {
        launch::detach()?;
    }
    let flush = if args.no_sync { Flush::Class } else { Flush::Backing };
    let awake = if args.awake { AWAKE } else { Duration::ZERO };
    serve(&backing, &dir, class, (flush, awake), args.daemon)?;
    Ok(0)
}

/// The time that `--awake` stands for.
const AWAKE: Duration = Duration::from_millis(2);

fn serve(
    backing: &Path,
    dir: &Path,
    class: ClassedSpeed,
    (flush, awake): (Flush, Duration),
    daemon: bool,
) -> Outcome<()> {
    let server = DeviceServer::open(backing, class.speed, flush, awake, Arc::new(SystemClock::default()));
    let server = server.map_err(|error| match error.raw_os_error() {
        Some(libc::EWOULDBLOCK) => Failure::at(backing, "in use by another process"),
        _ => Failure::at(backing, plain(&error)),
    })?;
    // Signals are caught before the first request can be under way.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| Failure::new(plain(&error)))?;
    terrace_fuse::become_io_flusher();
    let mut options = SessionOptions::new(backing, dir);
    options.subtype = "terrace-device";
    let running =
        terrace_fuse::start(server, &options, |_| {}).map_err(|error| Failure::new(error.to_string()))?;
    end_on_signal(signals, dir, running.connection())?;
    if daemon {
        launch::ready();
    } else {
        output::print(format!("{}: {}", dir.join(DEVICE_NAME).display(), class.speed));
    }
    running.join().map_err(|error| Failure::at(dir, plain(&error)))
}

/// A signal unmounts; processes that still use the device get ENOTCONN.
fn end_on_signal(mut signals: Signals, dir: &Path, connection: Connection) -> Outcome<()> {
    let dir = dir.to_path_buf();
    let wait = move || {
        for _ in signals.forever() {
            if terrace_fuse::unmount(&dir, Unmount::Plain).is_err() {
                let _ = terrace_fuse::unmount(&dir, Unmount::Abort);
                let _ = connection.abort();
            }
        }
    };
    spawn("terrace-signals", wait).map_err(|error| Failure::new(plain(&error)))?;
    Ok(())
}
