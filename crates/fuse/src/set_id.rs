//! Set-id bits: a change of content by a caller without CAP_FSETID removes them.
//!
//! The kernel decides by a file's remembered mode with which rights a program runs. So the kernel must not
//! remember the mode of a file with set-id bits: it asks each time, and after a write has returned it can
//! only learn the new mode. A notification would come too late, or would have to overtake answers that are
//! under way.
//!
//! A race is left: a program that is started while its file is changed. The kernel asks for the mode, opens
//! the file, keeps writers away from then on, reads the file, and takes the rights from the mode of the first
//! step, which may be old. [`Changes`] makes such a start begin again (ESTALE: the kernel asks for the mode
//! and opens the file once more) or fail (ETXTBSY, as with a writer that came first).
//!
//! With a write the kernel says whether the caller has CAP_FSETID. Of a setattr it says it only for open files, and of a
//! fallocate never: for these two /proc tells, while the caller waits for its answer. In doubt a caller has no privilege.

use crate::protocol::layout::InHeader;
use crate::validity::VALID;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_engine::{Attributes, Engine};
use terrace_runtime::sync::Mutex;

/// Number of CAP_FSETID.
const CAP_FSETID: u32 = 4;
/// The initial user namespace, in which the kernel asks for capabilities: its number is part of Linux's
/// interface.
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";
/// The kernel opens a file with this flag to run it, and keeps it in the flags of the open file.
const TO_RUN: u32 = 0x20;

/// Whether an inode is a file with set-id bits.
pub(crate) fn has_set_id(attributes: &Attributes) -> bool {
    let is_regular = attributes.mode & libc::S_IFMT == libc::S_IFREG;
    is_regular && attributes.mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

/// Time for which the kernel may remember these attributes.
pub(crate) fn valid(attributes: &Attributes) -> Duration {
    if has_set_id(attributes) { Duration::ZERO } else { VALID }
}

/// Whether a file was opened to run it.
pub(crate) fn is_to_run(flags: u32) -> bool {
    flags & TO_RUN != 0
}

/// A set-id program whose content a caller without CAP_FSETID has changed.
#[derive(Default)]
struct Change {
    /// Requests under way that change the content.
    under_way: u32,
    /// The newest handle number at the end of the last change.
    ended: u64,
    /// Whether the kernel has asked for the mode after the last change.
    is_known: bool,
    /// Threads that got ESTALE and begin again.
    asked: Vec<u32>,
}

/// Set-id programs whose content was changed, until the kernel forgets them.
#[derive(Default)]
pub(crate) struct Changes {
    of: Mutex<HashMap<u64, Change>>,
    any: AtomicBool,
}

/// A change under way. It is dropped, and so ended, before the request is answered.
pub(crate) struct Changing {
    fs: Arc<Engine>,
    changes: Arc<Changes>,
    node: u64,
}

impl Changes {
    /// A change begins.
    pub fn begin(self: &Arc<Self>, fs: &Arc<Engine>, node: u64) -> Changing {
        self.of.lock().entry(node).or_default().under_way += 1;
        self.any.store(true, Ordering::Release);
        Changing { fs: Arc::clone(fs), changes: Arc::clone(self), node }
    }

    fn end(&self, node: u64, handle: u64) {
        let mut changes = self.of.lock();
        let change = changes.entry(node).or_default();
        debug_assert!(change.under_way > 0, "a change of inode {node} ends that did not begin");
        change.under_way = change.under_way.saturating_sub(1);
        (change.ended, change.is_known) = (handle, false);
        change.asked.clear();
    }

    /// Whether a thread that opens a program to run it has to begin again, because it may have asked for the
    /// mode before the last change. When the thread comes back it has asked after the change, so from then on
    /// the kernel knows the mode.
    pub fn restarts(&self, node: u64, thread: u32) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut changes = self.of.lock();
        let Some(change) = changes.get_mut(&node).filter(|change| !change.is_known) else { return false };
        // While a change is under way the open succeeds: `overtook` finds the start later by its handle.
        if change.under_way > 0 {
            return false;
        }
        change.is_known = change.asked.contains(&thread);
        if !change.is_known {
            change.asked.push(thread);
        }
        !change.is_known
    }

    /// Whether a program was changed after it was opened to be run.
    pub fn overtook(&self, node: u64, handle: u64) -> bool {
        self.any.load(Ordering::Acquire)
            && self.of.lock().get(&node).is_some_and(|change| change.under_way > 0 || handle < change.ended)
    }

    /// Forgets a file that the kernel has closed.
    pub fn forget(&self, node: u64) {
        if self.any.load(Ordering::Acquire) {
            let mut changes = self.of.lock();
            if changes.get(&node).is_some_and(|change| change.under_way == 0) {
                changes.remove(&node);
            }
            self.any.store(!changes.is_empty(), Ordering::Release);
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.changes.end(self.node, self.fs.new_handle());
    }
}

/// The rights of a caller that matter for set-id bits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// The caller has CAP_FSETID: set-id bits stay.
    pub keeps_set_id: bool,
    /// The caller's groups.
    groups: Vec<u32>,
}

impl Rights {
    /// The rights of a caller that waits for the answer to its request.
    pub fn of(asker: &InHeader) -> Rights {
        let fallback = Rights { keeps_set_id: false, groups: vec![asker.gid] };
        // PID 0 means a caller in another PID namespace; and /proc must belong to the daemon's own namespace.
        let is_ours = fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == &*own_id());
        if asker.pid == 0 || !is_ours {
            return fallback;
        }
        let read = || {
            let status = fs::read_to_string(format!("/proc/{}/status", asker.pid)).ok()?;
            let namespace = fs::read_link(format!("/proc/{}/ns/user", asker.pid)).ok()?;
            Rights::told(&status, namespace.to_str()?, asker.uid, asker.gid)
        };
        read().unwrap_or(fallback)
    }

    /// The rights from /proc/PID/status and the name of the user namespace. `None` when they differ from the
    /// rights of the request: kernel threads and some daemons act for another user.
    fn told(status: &str, user_namespace: &str, uid: u32, gid: u32) -> Option<Rights> {
        let words = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.split_whitespace().collect::<Vec<_>>())
        };
        // Real, effective, saved and file system id.
        let file_system_id = |name: &str| words(name)?.get(3)?.parse::<u32>().ok();
        if file_system_id("Uid")? != uid || file_system_id("Gid")? != gid {
            return None;
        }
        let effective = u64::from_str_radix(words("CapEff")?.first()?, 16).ok()?;
        let mut groups: Vec<u32> = words("Groups")?.iter().filter_map(|word| word.parse().ok()).collect();
        groups.push(gid);
        let keeps_set_id = effective & 1 << CAP_FSETID != 0 && user_namespace == INITIAL_USER_NAMESPACE;
        Some(Rights { keeps_set_id, groups })
    }

    /// Whether the caller belongs to a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.groups.contains(&group)
    }
}

fn own_id() -> String {
    std::process::id().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn status(uid: u32, gid: u32, capabilities: &str) -> String {
        format!(
            "Name:\tcat\nUid:\t7\t7\t7\t{uid}\nGid:\t8\t8\t8\t{gid}\nGroups:\t4 24 \nCapPrm:\t0\nCapEff:\t{capabilities}\n"
        )
    }

    /// The user id once decided: root without CAP_FSETID kept set-id bits, and a user with CAP_FSETID lost
    /// them.
    #[test]
    fn the_capability_decides_and_not_the_user() {
        let told = |uid, capabilities| {
            Rights::told(&status(uid, 3, capabilities), INITIAL_USER_NAMESPACE, uid, 3).unwrap().keeps_set_id
        };
        assert!(told(0, "000001ffffffffff") && told(1000, "0000000000000010"));
        assert!(!told(0, "000001ffffffffef") && !told(1000, "0000000000000000"));
    }

    /// A user has all capabilities in a user namespace of its own.
    #[test]
    fn a_capability_in_another_user_namespace_does_not_count() {
        let all = status(1000, 3, "000001ffffffffff");
        let told = Rights::told(&all, "user:[4026532193]", 1000, 3).unwrap();
        assert!(!told.keeps_set_id);
        assert!(told.is_in(3) && told.is_in(24) && !told.is_in(8));
    }

    #[test]
    fn rights_of_another_user_or_without_a_status_line_are_refused() {
        let all = status(0, 0, "000001ffffffffff");
        assert_eq!(Rights::told(&all, INITIAL_USER_NAMESPACE, 1000, 0), None);
        assert_eq!(Rights::told(&all, INITIAL_USER_NAMESPACE, 0, 1000), None);
        for line in ["Uid:", "Gid:", "Groups:", "CapEff:"] {
            let without: String =
                all.lines().filter(|text| !text.starts_with(line)).collect::<Vec<_>>().join("\n");
            assert_eq!(Rights::told(&without, INITIAL_USER_NAMESPACE, 0, 0), None, "{line}");
        }
    }

    /// The kernel once remembered the mode of a set-id file for a day, and the notification came after the
    /// answer.
    #[test]
    fn the_mode_of_a_set_id_file_is_not_remembered() {
        let of = |mode| valid(&Attributes { mode, ..attributes() });
        assert_eq!([of(0o104_755), of(0o102_755), of(0o106_666)], [Duration::ZERO; 3]);
        assert_eq!([of(0o100_755), of(0o042_755), of(0o101_755)], [VALID; 3]);
    }

    /// A program that was started during a write once ran the new content with the set-id rights of the old:
    /// the kernel had asked for the mode before the write.
    #[test]
    fn a_start_beside_a_change_begins_again_or_fails() {
        let changes = Changes::default();
        let change = |handle| {
            changes.of.lock().entry(7).or_default().under_way += 1;
            changes.any.store(true, Ordering::Release);
            assert!(changes.overtook(7, u64::MAX), "one is under way");
            changes.end(7, handle);
        };
        assert!(!changes.restarts(7, 1) && !changes.overtook(7, 1));
        change(10);
        assert!(changes.overtook(7, 9) && !changes.overtook(7, 11) && !changes.overtook(8, 9));
        // Two threads begin again; when the first comes back, the kernel has asked for the mode, which is
        // enough for both.
        assert_eq!([1, 2].map(|thread| changes.restarts(7, thread)), [true; 2]);
        assert!(!changes.restarts(8, 3));
        assert_eq!([2, 1, 3].map(|thread| changes.restarts(7, thread)), [false; 3]);
        // After the next change both have to begin again.
        change(20);
        assert_eq!([1, 1].map(|thread| changes.restarts(7, thread)), [true, false]);
        assert!(changes.overtook(7, 19));
        changes.forget(7);
        assert!(!changes.overtook(7, 1) && !changes.any.load(Ordering::Acquire));
    }

    fn attributes() -> Attributes {
        Attributes {
            ino: terrace_format::Ino(7),
            generation: 1,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        }
    }
}
