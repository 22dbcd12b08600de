//! The process that has a pool, and whether this process is about to end.

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bit of SIGKILL in the signal masks of /proc.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// The process that has the lock of a pool's file, which each daemon has until its end. `None` also if the
/// process is in another PID namespace, where the kernel does not show it.
pub fn lock_owner(pool: &Path) -> Option<u32> {
    let found = fs::metadata(pool).ok()?;
    holder_in(&fs::read_to_string("/proc/locks").ok()?, (found.dev(), found.ino()))
}

/// The first owner of a lock of a file's inode number that has the file itself open.
fn holder_in(text: &str, file: (u64, u64)) -> Option<u32> {
    owner_in(text, file.1).find(|pid| may_have_open(*pid, file))
}

/// Whether a process has a file open, by device and inode; also if its descriptors are not shown.
fn may_have_open(pid: u32, file: (u64, u64)) -> bool {
    // The kernel's cached answer is enough: a file system's server may not answer.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return true };
    let stats = entries.flatten().filter_map(|entry| statx(CWD, entry.path(), flags, StatxFlags::INO).ok());
    let mut shown = stats.map(|s| (makedev(s.stx_dev_major, s.stx_dev_minor), s.stx_ino)).peekable();
    shown.peek().is_none() || shown.any(|open| open == file)
}

/// Whether a process has the lock of a pool's file.
pub fn has_lock(pid: u32, pool: &Path) -> bool {
    let Ok(found) = fs::metadata(pool) else { return false };
    let text = fs::read_to_string("/proc/locks").unwrap_or_default();
    owner_in(&text, found.ino()).any(|owner| owner == pid) && may_have_open(pid, (found.dev(), found.ino()))
}

/// The owners of whole-file locks of an inode. The device is left out: stacked file systems show another
/// device.
fn owner_in(text: &str, inode: u64) -> impl Iterator<Item = u32> + '_ {
    text.lines().filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let is_flock = words.next()? == "FLOCK";
        let (owner, file) = (words.nth(2)?, words.next()?);
        let is_it = file.rsplit(':').next()?.parse() == Ok(inode);
        (is_flock && is_it).then(|| owner.parse().ok()).flatten()
    })
}

/// The user of a process.
pub fn user_of(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// Whether a process is gone, has ended, or was killed and only has to leave a call of the kernel.
pub fn is_ending(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let threads = threads.flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    end_or_will(&texts.collect::<Vec<_>>())
}

/// The same by the status of each thread of a process.
fn end_or_will(threads: &[String]) -> bool {
    let field = |text: &str, name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_string()))
    };
    let has_ended = |text: &String| field(text, "State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    let was_killed = |text: &String| {
        let pending = field(text, "SigPnd:").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        pending.is_some_and(|mask| mask & KILLED != 0)
    };
    // A dead first thread alone is no end of the process, but a killed thread is: the daemon's main thread
    // waits for the session.
    threads.iter().all(has_ended) || threads.iter().any(was_killed)
}

/// Whether a process was stopped, by a signal or a debugger.
pub fn is_stopped(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| {
        text.lines()
            .any(|line| line.strip_prefix("State:").is_some_and(|state| state.trim().starts_with(['T', 't'])))
    })
}

/// A handle of a process, which a later process of the same number does not inherit.
pub fn handle(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    #[test]
    fn a_lock_is_found_by_its_inode() {
        let text = "1: POSIX  ADVISORY  WRITE 77 00:19:12345 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 1234 00:19:12345 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 99 00:19:2345 0 EOF\n\
            3: -> FLOCK  ADVISORY  WRITE 98 00:19:2345 0 EOF\n";
        let found = [12345, 2345, 1].map(|inode| owner_in(text, inode).collect::<Vec<_>>());
        assert_eq!(found, [vec![1234], vec![99], vec![]]);
    }

    /// Files of different file systems may have the same inode number.
    #[test]
    fn a_lock_of_another_file_of_the_same_number_is_not_the_pools() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let found = file.as_file().metadata().expect("metadata");
        let (device, inode) = (found.dev(), found.ino());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let (other, own) = (child.id(), std::process::id());
        let lock = |pid| format!("1: FLOCK  ADVISORY  WRITE {pid} 00:19:{inode} 0 EOF\n");
        let text = lock(other) + &lock(own);
        assert_eq!(holder_in(&text, (device, inode)), Some(own));
        assert_eq!(holder_in(&text, (device + 1, inode)), None);
        let _ = child.kill();
        let _ = child.wait();
        // The descriptors of an ended process are not shown.
        assert_eq!(holder_in(&text, (device, inode)), Some(other));
    }

    #[test]
    fn a_killed_process_is_ending_before_it_is_reaped() {
        assert!(!is_ending(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let pid = child.id();
        assert!(!is_ending(pid));
        child.kill().expect("kill");
        let id = WaitId::Pid(Pid::from_child(&child));
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("wait");
        assert!(is_ending(pid), "not reaped");
        let _ = child.wait();
        assert!(is_ending(pid), "reaped");
    }

    /// A killed daemon that its own mount held up was once waited for.
    #[test]
    fn a_killed_process_is_ending_while_the_kernel_holds_it() {
        let thread = |state: &str, pending: &str| format!("Name:\tx\nState:\t{state}\nSigPnd:\t{pending}\n");
        let (none, kill) = ("0000000000000000", "0000000000000100");
        let (sleeps, held, ended) =
            (thread("S (sleeping)", none), thread("D (disk sleep)", kill), thread("Z (zombie)", none));
        let ends = |threads: &[&String]| end_or_will(&threads.iter().copied().cloned().collect::<Vec<_>>());
        assert!(!ends(&[&sleeps]) && !ends(&[&ended, &sleeps]), "one goes on");
        assert!(ends(&[&ended]) && ends(&[&ended, &held]) && ends(&[&held, &sleeps]));
    }
}
