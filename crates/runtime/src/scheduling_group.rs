//! The scheduling group of this process: the kernel shares a processor among groups first, then among the threads of a
//! group. A group is a control group with the cpu controller, or below the root a session (autogroup; sched(7)).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Whether all threads of this process's scheduling group are threads of this process or of its children. False when that
/// cannot be told.
pub fn is_own() -> bool {
    static LEADS: OnceLock<bool> = OnceLock::new();
    // Later others come into the session as children alone.
    let leads = LEADS.get_or_init(|| leads_alone(Path::new("/"), std::process::id()).unwrap_or(false));
    is_own_of(Path::new("/"), std::process::id(), *leads).unwrap_or(false)
}

/// Whether a process leads a session without processes beside its children.
fn leads_alone(root: &Path, process: u32) -> Option<bool> {
    let mut leads = false;
    for entry in fs::read_dir(root.join("proc")).ok()?.flatten() {
        let Some(member) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that has ended meanwhile is no member.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(1);
        let (parent, session) = (fields.next()?, fields.nth(1)?);
        if session.parse() == Ok(process) {
            leads |= member == process;
            if member != process && parent.parse() != Ok(process) {
                return Some(false);
            }
        }
    }
    Some(leads)
}

/// As [`is_own`], with the files of the system below `root`. `None` when a file is missing.
fn is_own_of(root: &Path, process: u32, leads_alone: bool) -> Option<bool> {
    match group_directory(root)? {
        Group::Directory(directory) => has_no_other(root, &directory, process),
        Group::Shared => Some(false),
        Group::Root => {
            let enabled = fs::read_to_string(root.join("proc/sys/kernel/sched_autogroup_enabled")).ok()?;
            Some(leads_alone && enabled.trim() == "1")
        }
    }
}

enum Group {
    /// The control group of this process is a scheduling group.
    Directory(PathBuf),
    /// A control group above it is.
    Shared,
    /// None is.
    Root,
}

fn group_directory(root: &Path) -> Option<Group> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let fields = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let own: Vec<(&str, &str)> = fields.collect();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    if let Some((_, path)) = own.iter().find(|(names, _)| names.split(',').any(|name| name == "cpu")) {
        let directory = directory_of(root, &mounts, "cgroup", path)?;
        let is_root = *path == "/" && directory.join("release_agent").exists();
        return Some(if is_root { Group::Root } else { Group::Directory(directory) });
    }
    let (_, path) = own.iter().find(|(names, _)| names.is_empty())?;
    let directory = directory_of(root, &mounts, "cgroup2", path)?;
    let top = directory_of(root, &mounts, "cgroup2", "/")?;
    if directory.join("cpu.weight").exists() {
        return Some(Group::Directory(directory));
    }
    // The root of a container is not the machine's.
    if top.join("cgroup.type").exists() {
        return None;
    }
    let above = directory.ancestors().skip(1).take_while(|above| above.starts_with(&top));
    Some(if above.into_iter().any(|above| above.join("cpu.weight").exists()) {
        Group::Shared
    } else {
        Group::Root
    })
}

/// The directory of a control group, in the hierarchy of the second version or of the cpu controller of the first.
fn directory_of(root: &Path, mounts: &str, kind: &str, path: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let is_kind = after.next()? == kind;
        let has_cpu = kind == "cgroup2" || after.nth(1)?.split(',').any(|option| option == "cpu");
        let mut before = before.split(' ').skip(3);
        let (shown, point) = (before.next()?, before.next()?);
        (is_kind && has_cpu && shown == "/").then_some(point)
    })?;
    let directory = root.join(mount.trim_start_matches('/')).join(path.trim_start_matches('/'));
    directory.join("cgroup.procs").exists().then_some(directory)
}

/// Whether a control group has no processes but this one and its children, and no group below it.
fn has_no_other(root: &Path, directory: &Path, process: u32) -> Option<bool> {
    let has_below = fs::read_dir(directory).ok()?.flatten().any(|entry| entry.path().is_dir());
    let members = fs::read_to_string(directory.join("cgroup.procs")).ok()?;
    let is_ours = |member: &str| {
        let status = || fs::read_to_string(root.join("proc").join(member).join("status")).ok();
        let parent =
            |status: String| status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        member.parse() == Ok(process) || status().and_then(parent) == Some(process)
    };
    Some(!has_below && members.lines().all(is_ours))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 23 0:27 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
                      32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";

    fn system(mounts: &str, group: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let usual = [
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", group),
            ("proc/sys/kernel/sched_autogroup_enabled", "1\n"),
            ("proc/8/status", "Name:\thelper\nPPid:\t7\n"),
            ("proc/9/status", "Name:\tother\nPPid:\t1\n"),
        ];
        for (path, text) in usual.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn is_own_in(root: &tempfile::TempDir, leads_alone: bool) -> Option<bool> {
        is_own_of(root.path(), 7, leads_alone)
    }

    #[test]
    fn a_session_is_own_while_its_other_processes_are_children() {
        let seven = ("proc/7/stat", "7 (terrace (a) b) S 1 7 7 0 -1\n");
        let child = ("proc/8/stat", "8 (helper) S 7 7 7 0 -1\n");
        let foreign = ("proc/9/stat", "9 (other) S 1 9 9 0 -1\n");
        let beside = ("proc/9/stat", "9 (other) S 1 7 7 0 -1\n");
        let leads = |files: &[(&str, &str)]| leads_alone(system(V2, "0::/\n", files).path(), 7);
        assert_eq!(leads(&[seven, child, foreign]), Some(true));
        assert_eq!(leads(&[seven, child, beside]), Some(false));
        assert_eq!(leads(&[("proc/7/stat", "7 (terrace) S 1 7 3 0 -1\n")]), Some(false), "another leads");
    }

    #[test]
    fn a_session_is_a_group_where_no_control_group_shares_processors() {
        let root = system(
            V2,
            "0::/user\n",
            &[("sys/fs/cgroup/cgroup.procs", ""), ("sys/fs/cgroup/user/cgroup.procs", "")],
        );
        assert_eq!([true, false].map(|leads_alone| is_own_in(&root, leads_alone)), [Some(true), Some(false)]);
        fs::write(root.path().join("proc/sys/kernel/sched_autogroup_enabled"), "0\n").unwrap();
        assert_eq!(is_own_in(&root, true), Some(false));
        let files = [("sys/fs/cgroup/cpu/cgroup.procs", ""), ("sys/fs/cgroup/cpu/release_agent", "")];
        assert_eq!(is_own_in(&system(V1, "4:cpu:/\n0::/\n", &files), true), Some(true));
        // The root of a container looks like the root of the machine, but for this file.
        assert_eq!(
            is_own_in(&system(V1, "4:cpu:/\n0::/\n", &files[..1]), true),
            Some(true),
            "an empty group"
        );
        let others = [("sys/fs/cgroup/cpu/cgroup.procs", "7\n9\n")];
        assert_eq!(is_own_in(&system(V1, "4:cpu:/\n0::/\n", &others), true), Some(false));
    }

    #[test]
    fn a_control_group_is_own_while_all_its_processes_are_ours() {
        let top = ("sys/fs/cgroup/cgroup.procs", "");
        let weight = ("sys/fs/cgroup/a/cpu.weight", "100\n");
        for (members, own) in [("7\n", true), ("7\n8\n", true), ("7\n9\n", false)] {
            let files = [top, weight, ("sys/fs/cgroup/a/cgroup.procs", members)];
            assert_eq!(is_own_in(&system(V2, "0::/a\n", &files), false), Some(own));
        }
        let files = [top, weight, ("sys/fs/cgroup/a/b/cgroup.procs", "7\n")];
        assert_eq!(
            is_own_in(&system(V2, "0::/a/b\n", &files), true),
            Some(false),
            "shared with others below a"
        );
    }

    #[test]
    fn a_group_outside_the_mounted_hierarchy_is_unknown() {
        assert_eq!(is_own_in(&system(V2, "0::/../a\n", &[]), true), None);
        let container = [("sys/fs/cgroup/cgroup.procs", "7\n"), ("sys/fs/cgroup/cgroup.type", "domain\n")];
        assert_eq!(is_own_in(&system(V2, "0::/\n", &container), true), None);
        assert_eq!(is_own_in(&system("", "0::/\n", &[]), true), None);
    }
}
