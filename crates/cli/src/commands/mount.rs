//! `terrace mount`, mount.terrace

use super::remount;
use crate::args::Mount;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terrace_daemon::control::{self, Behind, state};
use terrace_daemon::failure::{Failure, Outcome, plain, status};
use terrace_daemon::launch;
use terrace_daemon::options::Options;
use terrace_daemon::plan::Plan;
use terrace_daemon::serve;
use terrace_daemon::{mounts, output, pool};

pub fn run(args: &Mount) -> Outcome<u8> {
    let failed = |failure: Failure| failure.with_status(status::MOUNT_FAILED);
    let mut lists = args.options.clone();
    if args.read_only {
        lists.push(OsString::from("ro"));
    }
    if remount::is_asked(&lists) {
        return remount::run(args, &lists);
    }
    let root = rustix::process::geteuid().is_root();
    let mut options = Options::parse(&lists, root, args.sloppy)?;
    if let Some(log) = &options.log {
        let absolute = std::path::absolute(log);
        options.log = Some(absolute.map_err(|error| Failure::at(log, plain(&error)))?);
    }
    for tier in &mut options.lenience.tiers {
        *tier = pool::canonical(tier).map_err(failed)?;
    }
    if !args.daemon {
        clear_dead(&args.dir).map_err(failed)?;
    }
    let pool = pool::canonical_pool(&args.pool).map_err(failed)?;
    let dir = directory(&args.dir).map_err(failed)?;
    if pool.starts_with(&dir) {
        let text = format!("lies inside the mount point {}; mount it elsewhere", dir.display());
        return Err(failed(Failure::at(&pool, text)));
    }
    if args.fake {
        return Ok(0);
    }
    if !args.daemon {
        state::remove_dead();
    }
    if args.foreground || args.daemon {
        let plan = Plan { pool, dir, options, foreground: args.foreground };
        serve::run(&plan)?;
    } else {
        if let Some(log) = options.log {
            lists.push([OsString::from("log="), log.into()].into_iter().collect());
        }
        if args.sloppy {
            lists = vec![known(&lists, root)];
        }
        launch::launch(&pool, &dir, &lists)?;
    }
    Ok(0)
}

/// The options of a sloppy mount that are known.
fn known(lists: &[OsString], root: bool) -> OsString {
    let mut known = OsString::new();
    for list in lists {
        for word in list.as_bytes().split(|&byte| byte == b',') {
            let word = OsStr::from_bytes(word);
            if Options::parse_words(&[OsString::from(word)], root, false).is_ok() {
                known.push(word);
                known.push(",");
            }
        }
    }
    known
}

fn directory(path: &Path) -> Outcome<PathBuf> {
    let dir = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::at(path, "mount point does not exist; make the directory"),
        _ => Failure::at(path, plain(&error)),
    })?;
    if !dir.is_dir() {
        return Err(Failure::at(path, "mount point is not a directory"));
    }
    Ok(dir)
}

/// Removes the mount that a killed daemon left at the directory.
fn clear_dead(path: &Path) -> Outcome<()> {
    // A missing directory is reported later, by the mount itself.
    let Ok((dir, mount)) = mounts::look(path) else { return Ok(()) };
    let Some(mount) = mount.filter(mounts::Mount::is_ours) else { return Ok(()) };
    match control::behind(&mount, path) {
        Behind::Dead if dir == mount.mountpoint => {
            control::clear(&mount).map_err(|error| Failure::at(path, plain(&error)))?;
            output::warn(format!("{}: removed the mount of a daemon that was killed", path.display()));
            Ok(())
        }
        Behind::Dead => Err(Failure::at(path, "lies in a mount whose daemon has ended; unmount that first")),
        Behind::Nobody => Err(Failure::at(path, control::NOBODY)),
        Behind::Unreachable(_, failure) => Err(failure),
        Behind::Daemon(_) => Ok(()),
    }
}
