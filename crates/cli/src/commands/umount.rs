//! `terrace umount`

use crate::args::Umount;
use crate::control::{Located, Request, locate};
use crate::failure::{Failure, Outcome, plain};
use crate::mounts::{self, Mount};
use crate::output;
use std::path::Path;
use std::time::Duration;
use terrace_fuse::Unmount;

pub fn run(args: &Umount) -> Outcome<u8> {
    let dir = mounts::absolute(&args.dir)?;
    let mount = match mounts::at(&dir)? {
        Some(mount) if mount.fs_type == mounts::FS_TYPE => mount,
        Some(_) => return Err(Failure::at(&args.dir, "is mounted, but not by Terrace; use umount(8)")),
        None => return Err(Failure::at(&args.dir, "not mounted")),
    };
    match locate(&dir) {
        Ok(Located::Mounted(daemon)) => {
            let device = rustix::fs::stat(&dir).map(|found| found.st_dev).unwrap_or_default();
            // Asked before, answered when the pool is marked clean.
            let mut end = daemon.begin(&Request::End)?;
            detach(&args.dir, &mount, device)?;
            if !end.wait(Duration::from_secs(10)) {
                let hint =
                    "unmounted here, but still in use: a copy of the mount in another mount namespace?";
                let pid =
                    end.pid.map_or_else(String::new, |pid| format!(" (daemon {})", pid.as_raw_nonzero()));
                output::warn(format!("{}: {hint}{pid}; waiting", args.dir.display()));
            }
            let clean = end.finish(|_| {});
            end.wait_for_exit(Duration::from_secs(60));
            clean.map_err(|failure| Failure::at(&args.dir, format!("not clean: {}", failure.text)))?;
        }
        Ok(Located::Dead) => {
            terrace_fuse::unmount(&dir, Unmount::Detach)
                .map_err(|error| Failure::at(&args.dir, plain(&error)))?;
            let what = "removed the mount of a daemon that was killed; the next mount recovers the pool";
            output::warn(format!("{}: {what}", args.dir.display()));
        }
        Ok(Located::NotMounted) => return Err(Failure::at(&args.dir, "not a Terrace mount")),
        Err(_) => {
            // Somebody else's daemon: unmounting may still be allowed, waiting is not.
            let device = rustix::fs::stat(&dir).map(|found| found.st_dev).unwrap_or_default();
            detach(&args.dir, &mount, device)?;
        }
    }
    Ok(0)
}

fn detach(shown: &Path, mount: &Mount, device: u64) -> Outcome<()> {
    match terrace_fuse::unmount(&mount.mountpoint, Unmount::Plain) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let mut holders = mounts::holders(mount, device);
            let more = holders.len().saturating_sub(8);
            holders.truncate(8);
            let mut text = match holders.is_empty() {
                true => "by a process that cannot be seen from here".to_string(),
                false => holders.join(", "),
            };
            if more > 0 {
                text.push_str(&format!(" and {more} more"));
            }
            Err(Failure::at(shown, format!("busy: {text}; end its use and try again")))
        }
        Err(error) => Err(Failure::at(shown, plain(&error))),
    }
}
