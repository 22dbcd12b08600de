//! The daemon's log: standard error in the foreground, `log=PATH`, else syslog, else a file in the state
//! directory.

use crate::failure::{Failure, Outcome, plain};
use crate::output;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

const SYSLOG: &str = "/dev/log";
/// Facility "daemon" of syslog(3).
const DAEMON: u8 = 3 << 3;

/// A sink for log lines.
enum Sink {
    Syslog(UnixDatagram),
    File(File),
}

/// Starts logging for the whole process.
pub fn start(log: Option<&Path>, foreground: bool, state: &Path) -> Outcome<()> {
    let builder = tracing_subscriber::fmt()
        .with_target(false)
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .log_internal_errors(false);
    let sink = match log {
        Some(path) => {
            let file = open(path)?;
            let line = format!("terrace {}, process {}\n", env!("CARGO_PKG_VERSION"), std::process::id());
            if let Err(error) = (&file).write_all(line.as_bytes()) {
                // A full disk under the log must not prevent the mount.
                output::warn(format!("{}: log: cannot be written: {}", path.display(), plain(&error)));
            }
            Sink::File(file)
        }
        None if foreground => {
            builder.with_writer(io::stderr).init();
            return Ok(());
        }
        None => match syslog() {
            Ok(socket) => Sink::Syslog(socket),
            Err(_) => Sink::File(open(&state.join("log"))?),
        },
    };
    match sink {
        Sink::Syslog(_) => builder.without_time().with_level(false).with_writer(sink).init(),
        Sink::File(_) => builder.with_writer(sink).init(),
    }
    Ok(())
}

/// Opens or makes a log. A link could lead root to a file of an attacker's choice, a FIFO waits for a reader,
/// and an open of a device may have effects: all three are refused.
fn open(path: &Path) -> Outcome<File> {
    let failed = |text: &str| Failure::at(path, format!("log: {text}"));
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(flags).open(path);
    let is_file = |file: &File| file.metadata().is_ok_and(|found| found.is_file());
    match file {
        Ok(file) if is_file(&file) => Ok(file),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            Err(failed("a link; name the file that it leads to"))
        }
        Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(failed(&plain(&error))),
        _ => Err(failed("not a regular file")),
    }
}

fn syslog() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SYSLOG)?;
    socket.set_nonblocking(true)?; // a stuck logger must not stop the file system
    Ok(socket)
}

/// Writes one event.
struct Line<'a> {
    sink: &'a Sink,
    severity: u8,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.sink {
            Sink::File(file) => (&mut &*file).write_all(bytes)?,
            Sink::Syslog(socket) => {
                let text = String::from_utf8_lossy(bytes);
                let (priority, pid) = (DAEMON | self.severity, std::process::id());
                let message = format!("<{priority}>terrace[{pid}]: {}", text.trim_end());
                if socket.send(message.as_bytes()).is_err() {
                    // The logger was restarted: once more with a new connection, then let the line go.
                    if let Ok(fresh) = syslog() {
                        let _ = fresh.send(message.as_bytes());
                    }
                }
            }
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Line<'a>;
    fn make_writer(&'a self) -> Line<'a> {
        Line { sink: self, severity: 6 }
    }
    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        let severity = match *metadata.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        Line { sink: self, severity }
    }
}
