//! `mount -o remount,…`: changes the flags of an existing mount.
//!
//! The kernel decides whether a mount takes changes, even if the daemon could write; so `ro`, and `rw` if the
//! daemon has the pool open for writing, are one call of mount(2). Options of the daemon do not change before
//! the next mount. mount(8) passes all options of the mount and of fstab too, so the last word of each kind
//! counts.

use crate::args::Mount as Asked;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use terrace_daemon::control::{Located, Request, locate};
use terrace_daemon::failure::{Failure, Outcome, plain, status};
use terrace_daemon::mounts::{self, Mount};
use terrace_daemon::options::{FLAGS, IGNORED, Options};
use terrace_daemon::output;

/// Words of /proc/mounts that mount(8) gives back.
const OF_THE_KERNEL: [&str; 8] =
    ["user_id", "group_id", "default_permissions", "allow_other", "max_read", "blksize", "rootmode", "fd"];

/// Whether the options ask for a remount.
pub fn is_asked(lists: &[OsString]) -> bool {
    words(lists).any(|word| word == "remount")
}

fn words(lists: &[OsString]) -> impl Iterator<Item = &str> {
    let all = lists.iter().flat_map(|list| list.as_bytes().split(|&byte| byte == b','));
    // Words that are not UTF-8 can only be paths of options for the daemon.
    all.map(|word| std::str::from_utf8(word).unwrap_or("log=")).filter(|word| !word.is_empty())
}

/// The changes that a remount asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    read_only: bool,
    /// Only `rw` makes a read-only mount writable again. mount(8) always passes `ro` or `rw`.
    writable: bool,
    noatime: Option<bool>,
    flags: Vec<String>,
    /// Options of the daemon.
    later: Vec<String>,
}

impl Change {
    fn parse(lists: &[OsString], sloppy: bool) -> Outcome<Change> {
        let mut change = Change::default();
        for word in words(lists) {
            let name = word.split('=').next().unwrap_or(word);
            match word {
                "remount" => {}
                "ro" | "rw" => (change.read_only, change.writable) = (word == "ro", word == "rw"),
                "noatime" => change.noatime = Some(true),
                "atime" | "relatime" | "strictatime" => change.noatime = Some(false),
                flag if FLAGS.contains(&flag) => change.flags.push(flag.to_string()),
                _ if IGNORED.contains(&word) || OF_THE_KERNEL.contains(&name) => {}
                _ if name.starts_with("x-") || name.starts_with("X-") => {}
                _ => {
                    Options::parse_words(&[OsString::from(word)], true, sloppy)?;
                    change.later.push(word.to_string());
                }
            }
        }
        Ok(change)
    }
}

pub fn run(args: &Asked, lists: &[OsString]) -> Outcome<u8> {
    let failed = |failure: Failure| failure.with_status(status::MOUNT_FAILED);
    let mut change = Change::parse(lists, args.sloppy)?;
    change.read_only |= args.read_only;
    let dir = mounts::absolute(&args.dir).map_err(failed)?;
    let mount = mounts::at(&dir)?.filter(Mount::is_ours);
    let mount = mount.ok_or_else(|| failed(Failure::at(&args.dir, "no Terrace pool is mounted there")))?;
    apply(args, &mount, change).map_err(failed)?;
    Ok(0)
}

fn apply(args: &Asked, mount: &Mount, mut change: Change) -> Outcome<()> {
    change.read_only |= mount.is_read_only() && !change.writable;
    let refused = |what: &str| Failure::at(&args.dir, format!("{what}; unmount it and mount it again"));
    let has = |flag: &str| mount.options.iter().any(|option| option == flag);
    if change.noatime.is_some_and(|noatime| noatime != has("noatime")) {
        return Err(refused("access times are recorded, or not, as the daemon was told when it was mounted"));
    }
    if !change.read_only && mount.is_read_only() {
        match locate(&args.dir)? {
            Located::Mounted(daemon) if daemon.ask(&Request::Status, |_| {})?["read_only"] == true => {
                return Err(refused("mounted with -o ro, and its daemon takes no changes"));
            }
            Located::Mounted(_) => {}
            _ => return Err(Failure::at(&args.dir, "its daemon has ended; unmount it and mount it again")),
        }
    }
    // Flags of the mount stay: for a pool that other users may change, nosuid and nodev are a condition of
    // the mount.
    let kept = FLAGS.iter().chain(&["noatime"]).filter(|flag| has(flag)).map(ToString::to_string);
    let mut flags: Vec<String> = kept.chain(change.flags).collect();
    if change.read_only {
        flags.push("ro".to_string());
    }
    if args.fake {
        return Ok(());
    }
    terrace_fuse::remount(&mount.mountpoint, &flags).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Failure::at(&args.dir, "busy: files are open for writing; close them first"),
        Some(libc::EPERM) => {
            Failure::at(&args.dir, "only root may change a mount; unmount it and mount it again")
        }
        _ => Failure::at(&args.dir, plain(&error)),
    })?;
    if !change.later.is_empty() {
        let later = change.later.join(",");
        output::warn(format!("{}: as before until the next mount: {later}", args.dir.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mount(8) passes the words of /proc/mounts and fstab before the words of the user.
    #[test]
    fn the_last_word_of_each_kind_counts() {
        let parse = |text: &str| Change::parse(&[OsString::from(text)], false);
        let all = "rw,nosuid,noatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro,nofail,cache=1G";
        let expected = Change {
            read_only: true,
            writable: false,
            noatime: Some(true),
            flags: vec!["nosuid".to_string()],
            later: vec!["cache=1G".to_string()],
        };
        assert_eq!(parse(all), Ok(expected));
        assert_eq!(parse("ro,noatime,remount,rw,relatime").map(|change| change.read_only), Ok(false));
        assert!(parse("remount,bogus").is_err_and(|failure| failure.text.contains("unknown option")));
        assert!(is_asked(&["ro".into(), "nosuid,remount".into()]) && !is_asked(&["log=remount".into()]));
    }
}
