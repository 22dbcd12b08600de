//! `terrace umount`
//!
//! A directory is unmounted as by umount(8), and the pool ends with its last mount. A pool named by its path
//! ends wherever it is mounted: the command unmounts the mounts of its own mount namespace, and the daemon
//! ends the session for mounts elsewhere.

use crate::args::Umount;
use std::io;
use std::path::Path;
use std::time::Duration;
use terrace_daemon::control::{self, Behind, Daemon, Pending, Request, ends_within, state};
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::mounts::{self, Mount};
use terrace_daemon::outside;
use terrace_daemon::{output, pool, processes};
use terrace_fuse::Unmount;

/// Longest wait for the end of a mount that is still in use.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the end of the process after the end of the pool.
const LONG: Duration = Duration::from_secs(60);
/// Time that an ordinary end takes.
const SOON: Duration = Duration::from_millis(300);
/// Longest time of an end when no process is seen that uses the mount.
const STUCK_AFTER: Duration = Duration::from_secs(2);

pub fn run(args: &Umount) -> Outcome<u8> {
    let result = end(args);
    state::remove_dead();
    result.map(|()| 0)
}

fn end(args: &Umount) -> Outcome<()> {
    let absolute = mounts::absolute(&args.dir)?;
    // This process's working directory must not keep the mount busy.
    let _ = std::env::set_current_dir("/");
    match mounts::at(&absolute)? {
        Some(mount) if mount.is_ours() => end_directory(args, &mount),
        Some(_) => Err(Failure::at(&args.dir, "is mounted, but not by Terrace; use umount(8)")),
        None => end_pool(args, &absolute),
    }
}

/// Unmounts one directory.
fn end_directory(args: &Umount, mount: &Mount) -> Outcome<()> {
    let shown = &args.dir;
    match control::behind(mount, &mount.mountpoint) {
        Behind::Daemon(daemon) if args.force => end_everywhere(args, &daemon, &of_device(&mount.device)?),
        Behind::Daemon(daemon) => {
            // The request is sent before the unmount; its answer comes when the pool is marked clean.
            let mut end = daemon.begin(&Request::End)?;
            unmount(shown, mount, Unmount::Plain)?;
            let others = of_device(&mount.device)?;
            if !others.is_empty() {
                let what = format!("unmounted here; the pool is still mounted at {}", places(&others));
                output::warn(format!("{}: {what}", shown.display()));
                return Ok(());
            }
            wait_for_end(shown, mount, &daemon, &end)?;
            finish(shown, &mount.source, &mut end)
        }
        Behind::Dead => {
            control::clear(mount).map_err(|error| Failure::at(shown, plain(&error)))?;
            let what = "removed the mount of a daemon that was killed; the next mount recovers the pool";
            output::warn(format!("{}: {what}", shown.display()));
            Ok(())
        }
        Behind::Nobody => Err(Failure::at(shown, control::NOBODY)),
        Behind::Unreachable(process, failure) => {
            let is_stopped = process.is_some_and(processes::is_stopped);
            if is_stopped && !args.force {
                return Err(failure);
            }
            // The daemon cannot be asked: its socket is gone, or it is stopped. So the command waits for the
            // end of its process.
            let process = process.and_then(processes::handle);
            unmount(shown, mount, if args.force { Unmount::Abort } else { Unmount::Plain })?;
            if is_stopped {
                let text = format!("unmounted, but its daemon still has the pool: {}", failure.text);
                return Err(Failure::at(shown, text));
            }
            let has_ended = process.is_none_or(|process| ends_within(&process, LONG));
            judge(shown, &mount.source, has_ended, &failure)
        }
    }
}

/// Ends a pool, wherever it is mounted.
fn end_pool(args: &Umount, absolute: &Path) -> Outcome<()> {
    let shown = &args.dir;
    let (mut served, mut others) = (Vec::new(), Vec::new());
    let mut found = None;
    for mount in mounts::all_of_pool(absolute)? {
        // An unmount by directory would hit the mount on top of it.
        if mounts::at(&mount.mountpoint)?.is_some_and(|top| top != mount) {
            let dir = mount.mountpoint.display();
            let text = format!("mounted at {dir}, beneath another mount; unmount that first");
            return Err(Failure::at(shown, text));
        }
        match control::behind(&mount, &mount.mountpoint) {
            Behind::Daemon(daemon) => {
                found = Some(daemon);
                served.push(mount);
            }
            _ => others.push(mount),
        }
    }
    let nobody = others.is_empty();
    for mount in others {
        end_directory(args, &mount)?;
    }
    let by_its_files = || {
        let superblock = pool::peek(absolute).ok()?;
        control::of_pool(absolute, &pool::uuid_text(&superblock))
    };
    match found.or_else(by_its_files) {
        Some(daemon) => end_everywhere(args, &daemon, &served),
        None if !nobody => Ok(()),
        None => match mounts::around(absolute)? {
            Some(mount) if mount.is_ours() => {
                let dir = mount.mountpoint.display();
                Err(Failure::at(shown, format!("not a mount, but lies in that at {dir}; unmount {dir}")))
            }
            _ => Err(Failure::at(shown, "not mounted")),
        },
    }
}

/// Ends the pool of a daemon: `here` are the pool's mounts in this mount namespace. Users of the mounts are
/// cut off only with --force.
fn end_everywhere(args: &Umount, daemon: &Daemon, here: &[Mount]) -> Outcome<()> {
    let shown = &args.dir;
    let device = match here.first() {
        Some(mount) => Some(mount.device.clone()),
        None => daemon.connection().map(|connection| format!("0:{}", connection.number())),
    };
    if let Some(device) = &device {
        let users = mounts::users(device);
        if !users.is_empty() && !args.force {
            return Err(busy(shown, &users));
        }
        // Has the kernel write changed pages of shared mappings. Without a mount in this namespace the daemon
        // does so.
        let _ = outside::pages(device);
    }
    let source = here.first().map_or_else(|| shown.clone(), |mount| mount.source.clone());
    let mut end = daemon.begin(&Request::End)?;
    for mount in here.iter().rev().filter(|_| !args.force) {
        unmount(shown, mount, Unmount::Plain)?;
    }
    if args.force || !end.wait(SOON) {
        let stopped = daemon
            .ask(&Request::Stop, |_| {})
            .map_or_else(|failure| if end.wait(SOON) { Ok(()) } else { Err(failure) }, |_| Ok(()));
        if let Err(failure) = stopped {
            clear(args, here)?;
            return Err(failure);
        }
    }
    let result = finish(shown, &source, &mut end);
    clear(args, here)?;
    result
}

/// Removes mounts that a session left behind. A daemon may say that its session is over and still serve: with
/// --force its mount is cut off.
fn clear(args: &Umount, here: &[Mount]) -> Outcome<()> {
    for mount in here {
        let is_there = mounts::at(&mount.mountpoint)?.as_ref() == Some(mount);
        if is_there && matches!(control::behind(mount, &mount.mountpoint), Behind::Dead) {
            unmount(&args.dir, mount, Unmount::Detach)?;
        } else if is_there && args.force {
            unmount(&args.dir, mount, Unmount::Abort)?;
            let text = "its daemon left the mount as it was; it was cut off";
            return Err(Failure::at(&mount.mountpoint, text));
        }
    }
    Ok(())
}

/// Terrace mounts of a device in this namespace.
fn of_device(device: &str) -> Outcome<Vec<Mount>> {
    Ok(mounts::all()?.into_iter().filter(|mount| mount.is_ours() && mount.device == device).collect())
}

fn places(mounts: &[Mount]) -> String {
    list(mounts.iter().map(|mount| mount.mountpoint.display().to_string()).collect())
}

/// Waits for the daemon's verdict, and for its process.
fn finish(shown: &Path, source: &Path, end: &mut Pending) -> Outcome<()> {
    let answer = end.answer(|_| {});
    if let (Err(silent), Some(pid)) = (&answer, end.pid)
        && processes::is_stopped(pid)
    {
        return Err(Failure::at(
            shown,
            format!("unmounted, but its daemon still has the pool: {}", silent.text),
        ));
    }
    let has_ended = end.wait_for_exit(LONG);
    match answer {
        Ok(Ok(answer)) => match answer["lost"][0].as_str() {
            Some(lost) => Err(Failure::new(format!("{}: unmounted; {lost}", shown.display()))),
            None => Ok(()),
        },
        Ok(Err(text)) => Err(Failure::at(shown, format!("not clean: {text}"))),
        Err(silent) => judge(shown, source, has_ended, &silent),
    }
}

/// The verdict after an end without an answer: the daemon may have ended before it read the request, so the
/// state of the pool counts.
fn judge(shown: &Path, source: &Path, has_ended: bool, silent: &Failure) -> Outcome<()> {
    if !has_ended {
        let text = format!(
            "unmounted, but its daemon has not ended after {} s; see its log (log=PATH, else syslog)",
            LONG.as_secs()
        );
        return Err(Failure::at(shown, text));
    }
    match pool::peek(source).map(|superblock| pool::is_clean(source, &superblock)) {
        Ok(Some(true)) => Ok(()),
        Ok(_) => {
            Err(Failure::at(shown, "not clean: its daemon ended early; the next mount recovers the pool"))
        }
        // The pool's file cannot be read from here.
        Err(_) => Err(Failure::at(
            shown,
            format!("unmounted; whether its pool is clean is not known: {}", silent.text),
        )),
    }
}

/// Waits until the daemon ends the pool, without a limit while it flushes, but with a limit while the mount
/// is in use. A copy of the mount in another mount namespace is not cut off: the user named only this
/// directory, and files may be in use there.
fn wait_for_end(shown: &Path, mount: &Mount, daemon: &Daemon, end: &Pending) -> Outcome<()> {
    if end.wait(SOON) || is_ending(daemon) {
        return Ok(());
    }
    let source = mount.source.display();
    let advice = format!("'terrace umount {source}' ends it there too, with --force where it is in use");
    let copies = || {
        let copies = mounts::elsewhere(|found| found.device == mount.device, end.pid);
        list(copies.iter().map(mounts::Elsewhere::text).collect())
    };
    if copies().is_empty() {
        let wait = PATIENCE.as_secs();
        // On a busy machine the end may only be late.
        if mounts::users(&mount.device).is_empty() && (end.wait(STUCK_AFTER) || is_ending(daemon)) {
            return Ok(());
        }
        let users = || match mounts::users(&mount.device) {
            users if users.is_empty() => "a process that cannot be seen from here".to_string(),
            users => list(users),
        };
        output::warn(format!(
            "{}: unmounted, but still in use: {}; waiting {wait} s",
            shown.display(),
            users()
        ));
        if end.wait(PATIENCE) || is_ending(daemon) {
            return Ok(());
        }
        if copies().is_empty() {
            let text = format!("unmounted, but still in use: {}; {advice}", users());
            return Err(Failure::at(shown, text));
        }
    }
    let users = mounts::users(&mount.device);
    let used = if users.is_empty() { String::new() } else { format!(" (in use: {})", list(users)) };
    Err(Failure::at(shown, format!("unmounted here, but still mounted at {}{used}; {advice}", copies())))
}

/// Whether the session is over and the daemon flushes; it answers no more questions then.
fn is_ending(daemon: &Daemon) -> bool {
    let is_stopped = |end: &Pending| end.pid.is_some_and(processes::is_stopped);
    match daemon.begin(&Request::Ping) {
        Ok(mut ping) => ping.finish(|_| {}).is_err() && !is_stopped(&ping),
        Err(_) => true,
    }
}

/// At most eight names, with commas.
fn list(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(8);
    names.truncate(8);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn busy(shown: &Path, users: &[String]) -> Failure {
    let users = list(users.to_vec());
    Failure::at(shown, format!("busy: {users}; end its use and try again, or cut it off with --force"))
}

fn unmount(shown: &Path, mount: &Mount, how: Unmount) -> Outcome<()> {
    match terrace_fuse::unmount(&mount.mountpoint, how) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let mut holders = mounts::holders(mount);
            if holders.is_empty() {
                holders.push(match mounts::own_use(&mount.device) {
                    Some(what) => format!("this command itself {what}"),
                    None => "by a process that cannot be seen from here".to_string(),
                });
            }
            Err(busy(shown, &holders))
        }
        // The mount has ended with the daemon meanwhile.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && how != Unmount::Plain => Ok(()),
        Err(error) => Err(Failure::at(shown, plain(&error))),
    }
}
