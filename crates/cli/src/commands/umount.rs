//! `terrace umount`

use crate::args::Umount;
use crate::control::{Daemon, Located, Pending, Request, ends_within, locate, process_of, state};
use crate::failure::{Failure, Outcome, plain};
use crate::mounts::{self, Mount};
use crate::{output, pool};
use std::path::Path;
use std::time::Duration;
use terrace_fuse::Unmount;

/// How long the end of a mount that lives on elsewhere is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the process may take to end after the pool has.
const LONG: Duration = Duration::from_secs(60);
/// How long an ordinary end takes.
const SOON: Duration = Duration::from_millis(300);

pub fn run(args: &Umount) -> Outcome<u8> {
    let mount = meant(&args.dir)?;
    let dir = mount.mountpoint.clone();
    // Our own working directory must not keep it busy.
    let _ = std::env::set_current_dir("/");
    match locate(&dir) {
        Ok(Located::Mounted(daemon)) => {
            let device = rustix::fs::stat(&dir).map(|found| found.st_dev).unwrap_or_default();
            // Asked before, answered when the pool is marked clean.
            let mut end = daemon.begin(&Request::End)?;
            detach(&args.dir, &mount, device)?;
            wait_for_end(&args.dir, &mount, &daemon, &end)?;
            let answer = end.answer(|_| {});
            let has_ended = end.wait_for_exit(LONG);
            match answer {
                Ok(clean) => {
                    clean.map_err(|text| Failure::at(&args.dir, format!("not clean: {text}")))?;
                }
                Err(silent) => judge(&args.dir, &mount, has_ended, &silent)?,
            }
        }
        Ok(Located::Dead) => {
            terrace_fuse::unmount(&dir, Unmount::Detach)
                .map_err(|error| Failure::at(&args.dir, plain(&error)))?;
            let what = "removed the mount of a daemon that was killed; the next mount recovers the pool";
            output::warn(format!("{}: {what}", args.dir.display()));
        }
        Ok(Located::NotMounted) => return Err(Failure::at(&args.dir, "not a Terrace mount")),
        Err(unreachable) => {
            // It cannot be asked: somebody else's, or its socket is gone. Its end is what is left to wait for.
            let process = process_of(&dir);
            let device = rustix::fs::stat(&dir).map(|found| found.st_dev).unwrap_or_default();
            detach(&args.dir, &mount, device)?;
            let has_ended = process.is_none_or(|process| ends_within(&process, LONG));
            judge(&args.dir, &mount, has_ended, &unreachable)?;
        }
    }
    state::remove_dead();
    Ok(0)
}

/// The mount at a directory, or of a pool, as umount(8) takes both.
fn meant(path: &Path) -> Outcome<Mount> {
    let absolute = mounts::absolute(path)?;
    match mounts::at(&absolute)? {
        Some(mount) if mount.fs_type == mounts::FS_TYPE => return Ok(mount),
        Some(_) => return Err(Failure::at(path, "is mounted, but not by Terrace; use umount(8)")),
        None => {}
    }
    let mut found = mounts::all_of_pool(&absolute)?;
    match (found.pop(), found.is_empty()) {
        (Some(mount), true) => {
            // By its directory something else would go.
            if mounts::at(&mount.mountpoint)?.is_some_and(|top| top != mount) {
                let dir = mount.mountpoint.display();
                return Err(Failure::at(
                    path,
                    format!("mounted at {dir}, beneath another mount; unmount that first"),
                ));
            }
            return Ok(mount);
        }
        (Some(last), false) => {
            found.push(last);
            let places = found.iter().map(|mount| mount.mountpoint.display().to_string()).collect();
            return Err(Failure::at(path, format!("mounted at {}; name the one to unmount", list(places))));
        }
        (None, _) => {}
    }
    match mounts::around(&absolute)? {
        Some(mount) if mount.fs_type == mounts::FS_TYPE => {
            let dir = mount.mountpoint.display();
            Err(Failure::at(path, format!("not a mount, but lies in that at {dir}; unmount {dir}")))
        }
        _ => Err(Failure::at(path, "not mounted")),
    }
}

/// After an end without an answer: a daemon may be gone before it has taken up the request, and what counts is how it left
/// the pool.
fn judge(shown: &Path, mount: &Mount, has_ended: bool, silent: &Failure) -> Outcome<()> {
    if !has_ended {
        let text = format!("unmounted, but its daemon has not ended after {} s; see its log", LONG.as_secs());
        return Err(Failure::at(shown, text));
    }
    match pool::peek(&mount.source).map(|superblock| pool::is_clean(&mount.source, &superblock)) {
        Ok(Some(true)) => Ok(()),
        Ok(_) => {
            Err(Failure::at(shown, "not clean: its daemon ended early; the next mount recovers the pool"))
        }
        // Not to be seen from here.
        Err(_) => Err(Failure::at(
            shown,
            format!("unmounted; whether its pool is clean is not known: {}", silent.text),
        )),
    }
}

/// Waits while the daemon ends the pool, however long it flushes, but not for ever for a copy of the mount
/// in another mount namespace. Such a copy is not cut off: its files may be in use.
fn wait_for_end(shown: &Path, mount: &Mount, daemon: &Daemon, end: &Pending) -> Outcome<()> {
    if end.wait(SOON) || is_ending(daemon) {
        return Ok(());
    }
    let pid = end.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    let server = pid.map_or_else(|| "its daemon".to_string(), |pid| format!("daemon {pid}"));
    let holders = || match mounts::elsewhere(&mount.device, pid) {
        found if found.is_empty() => "a process that cannot be seen from here".to_string(),
        found => list(found),
    };
    let (shown, wait) = (shown.display(), PATIENCE.as_secs());
    output::warn(format!(
        "{shown}: unmounted here, but in use in another mount namespace by {}; waiting {wait} s",
        holders()
    ));
    if end.wait(PATIENCE) || is_ending(daemon) {
        return Ok(());
    }
    let kill = pid.map_or_else(String::new, |pid| format!(", or cut it off in order with 'kill {pid}'"));
    let what = format!("still in use there by {}, and {server} serves it", holders());
    Err(Failure::new(format!("{shown}: {what}; end that process{kill}")))
}

/// Whether the session is over and the daemon flushes; it answers no more questions then.
fn is_ending(daemon: &Daemon) -> bool {
    daemon.ask(&Request::Ping, |_| {}).is_err()
}

/// Names with commas, not too many.
fn list(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(8);
    names.truncate(8);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn detach(shown: &Path, mount: &Mount, device: u64) -> Outcome<()> {
    match terrace_fuse::unmount(&mount.mountpoint, Unmount::Plain) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let holders = mounts::holders(mount, device);
            let text = match (holders.is_empty(), mounts::own_use(mount, device)) {
                (false, _) => list(holders),
                (true, Some(what)) => format!("this command itself {what}"),
                (true, None) => "by a process that cannot be seen from here".to_string(),
            };
            Err(Failure::at(shown, format!("busy: {text}; end its use and try again")))
        }
        Err(error) => Err(Failure::at(shown, plain(&error))),
    }
}
