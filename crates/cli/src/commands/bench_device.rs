//! `terrace bench device`: exports a file with the speed of a device class.
//!
//! The server ends when its directory is unmounted, by umount(8) or by a signal; by then every request has
//! its answer. SIGUSR1 takes the power of a volatile device for a moment.

use crate::args::BenchDevice;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::launch;
use terrace_daemon::{output, pool};
use terrace_fuse::device::{DEVICE_NAME, Flush, Power};
use terrace_fuse::{Connection, DeviceOptions, DeviceServer, SessionOptions, Unmount};
use terrace_media::speed::ClassedSpeed;
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

pub fn run(args: &BenchDevice) -> Outcome<u8> {
    let class =
        ClassedSpeed::parse(&args.class).map_err(|error| Failure::new(format!("--class: {error}")))?;
    let backing = pool::canonical(&args.backing)?;
    let dir = pool::canonical(&args.dir)?;
    if !dir.is_dir() {
        return Err(Failure::at(&args.dir, "not a directory"));
    }
    if !args.foreground && !args.daemon {
        let mut words = words_of(args);
        words.extend(["--".into(), backing.into(), dir.into()]);
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        launch::start(&words)?;
        return Ok(0);
    }
    if args.daemon {
        launch::detach()?;
    }
    let clock = SystemClock::default();
    let options = DeviceOptions {
        speed: class.speed,
        flush: if args.no_sync { Flush::Class } else { Flush::Backing },
        flush_ns: u64::from(args.flush_us.unwrap_or(0)) * 1000,
        awake: if args.awake { AWAKE } else { Duration::ZERO },
        volatile_seed: args.volatile.then(|| args.seed.unwrap_or_else(|| clock.wall_ns() as u64)),
    };
    serve(&backing, &dir, &options, Arc::new(clock), args.daemon)?;
    Ok(0)
}

/// The words that start the server itself, without its file and directory.
fn words_of(args: &BenchDevice) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["bench", "device", "--daemon", "--class"].map(OsString::from).into();
    words.push(OsString::from(&args.class));
    let flags = [(args.no_sync, "--no-sync"), (args.awake, "--awake"), (args.volatile, "--volatile")];
    words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word.into()));
    words.extend(args.flush_us.map(|us| format!("--flush-us={us}").into()));
    words.extend(args.seed.map(|seed| format!("--seed={seed}").into()));
    words
}

/// The time that `--awake` stands for.
const AWAKE: Duration = Duration::from_millis(2);

fn serve(
    backing: &Path,
    dir: &Path,
    device: &DeviceOptions,
    clock: Arc<dyn Clock>,
    daemon: bool,
) -> Outcome<()> {
    let server = DeviceServer::open(backing, device, clock);
    let server = server.map_err(|error| match error.raw_os_error() {
        Some(libc::EWOULDBLOCK) => Failure::at(backing, "in use by another process"),
        _ => Failure::at(backing, plain(&error)),
    })?;
    // Signals are caught before the first request can be under way.
    let power = server.power();
    let signals = [SIGTERM, SIGINT, SIGHUP].into_iter().chain(power.is_some().then_some(SIGUSR1));
    let signals = Signals::new(signals).map_err(|error| Failure::new(plain(&error)))?;
    terrace_fuse::become_io_flusher();
    let mut options = SessionOptions::new(backing, dir);
    options.subtype = "terrace-device";
    let running =
        terrace_fuse::start(server, &options, |_| {}).map_err(|error| Failure::new(error.to_string()))?;
    obey_signals(signals, dir, running.connection(), power)?;
    if daemon {
        launch::ready();
    } else {
        let seed = device.volatile_seed.map_or(String::new(), |seed| format!(", volatile, seed {seed}"));
        output::print(format!("{}: {}{seed}", dir.join(DEVICE_NAME).display(), device.speed));
    }
    running.join().map_err(|error| Failure::at(dir, plain(&error)))
}

/// A signal unmounts; processes that still use the device get ENOTCONN. SIGUSR1 takes the power for a moment.
fn obey_signals(
    mut signals: Signals,
    dir: &Path,
    connection: Connection,
    power: Option<Power>,
) -> Outcome<()> {
    let dir = dir.to_path_buf();
    let wait = move || {
        for signal in signals.forever() {
            if let (SIGUSR1, Some(power)) = (signal, &power) {
                match power.lose() {
                    Ok(loss) => output::print(loss.to_string()),
                    Err(error) => output::warn(format!("power lost: backing file: {}", plain(&error))),
                }
            } else if terrace_fuse::unmount(&dir, Unmount::Plain).is_err() {
                let _ = terrace_fuse::unmount(&dir, Unmount::Abort);
                let _ = connection.abort();
            }
        }
    };
    spawn("terrace-signals", wait).map_err(|error| Failure::new(plain(&error)))?;
    Ok(())
}
