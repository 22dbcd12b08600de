//! The memory on which the daemon may count: the memory of the machine, and the memory that limited control
//! groups have left.

use crate::mounts;
use std::fs;
use std::path::{Path, PathBuf};
use terrace_engine::{Memory, MemorySource};

/// A hierarchy of control groups that limits memory.
#[derive(Debug)]
struct Hierarchy {
    root: PathBuf,
    files: &'static Files,
}

/// The file names of a version of control groups.
#[derive(Debug)]
struct Files {
    limits: &'static [&'static str],
    used: &'static str,
    /// Lines of memory.stat: memory that the kernel would drop.
    dropped: [&'static str; 2],
    /// Tests the field between the number and the path in a line of /proc/self/cgroup.
    controllers: fn(&str) -> bool,
}

const VERSION_1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    dropped: ["total_inactive_file", "total_active_file"],
    controllers: |names| names.split(',').any(|name| name == "memory"),
};
const VERSION_2: Files = Files {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    dropped: ["inactive_file", "active_file"],
    controllers: str::is_empty,
};

/// /proc and the mounted hierarchies.
#[derive(Debug)]
pub struct SystemMemory {
    proc: PathBuf,
    hierarchies: Vec<Hierarchy>,
}

impl SystemMemory {
    /// As this process sees it now; groups may change later, where they are mounted does not.
    pub fn read() -> SystemMemory {
        let mounts = mounts::all().unwrap_or_default();
        let hierarchies = mounts.into_iter().filter_map(|mount| {
            let files = match mount.fs_type.as_str() {
                "cgroup2" => &VERSION_2,
                "cgroup" if mount.mountpoint.join(VERSION_1.limits[0]).exists() => &VERSION_1,
                _ => return None,
            };
            Some(Hierarchy { root: mount.mountpoint, files })
        });
        SystemMemory { proc: PathBuf::from("/proc"), hierarchies: hierarchies.collect() }
    }

    /// The memory left in each limited group of this process, up to the root.
    fn groups(&self, most_bytes: u64) -> Vec<Memory> {
        let Ok(mine) = fs::read_to_string(self.proc.join("self/cgroup")) else { return Vec::new() };
        let mut found = Vec::new();
        for Hierarchy { root, files } in &self.hierarchies {
            let path = mine.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (names, path) = rest.split_once(':')?;
                (files.controllers)(names).then_some(path)
            });
            let Some(path) = path else { continue };
            // In a container the path may be the path outside of the container: then the mount's root is the
            // container's own group.
            let inside = Path::new(path.trim_start_matches('/'));
            found.extend(inside.ancestors().filter_map(|group| files.left(&root.join(group), most_bytes)));
        }
        found
    }
}

impl Files {
    /// The memory left in a group, if its limit is below `most_bytes`.
    fn left(&self, group: &Path, most_bytes: u64) -> Option<Memory> {
        let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let limit = self.limits.iter().filter_map(|name| number(name)).min()?;
        if limit >= most_bytes {
            return None;
        }
        let used = number(self.used)?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let dropped: u64 = self.dropped.iter().filter_map(|name| field(&stat, name)).sum();
        let available_bytes = limit.saturating_sub(used.saturating_sub(dropped));
        Some(Memory { total_bytes: limit, available_bytes })
    }
}

impl MemorySource for SystemMemory {
    fn look(&self) -> Vec<Memory> {
        let Some(machine) =
            fs::read_to_string(self.proc.join("meminfo")).ok().and_then(|text| machine(&text))
        else {
            return Vec::new();
        };
        let mut found = self.groups(machine.total_bytes);
        found.push(machine);
        found
    }
}

/// The value of a line that begins with a name.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([':', ' ']))?;
    line.split_whitespace().next()?.parse().ok()
}

fn machine(meminfo: &str) -> Option<Memory> {
    let bytes = |name| field(meminfo, name)?.checked_mul(1024);
    Some(Memory { total_bytes: bytes("MemTotal")?, available_bytes: bytes("MemAvailable")? })
}

/// Asks the kernel to end other processes before this one when memory runs out: its cache makes the daemon
/// large, but it shrinks by itself, and its death would break all open files of the mount. The kernel may
/// refuse this to a user.
pub fn spare_daemon() {
    const SPARED: &str = "-900";
    let path = "/proc/self/oom_score_adj";
    // A value that was set before the start stays.
    if fs::read_to_string(path).is_ok_and(|now| now.trim() == "0")
        && let Err(error) = fs::write(path, SPARED)
    {
        tracing::debug!("{path}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = root.join(name);
            path.parent().map(fs::create_dir_all).transpose().unwrap_or_else(|error| unreachable!("{error}"));
            fs::write(path, content).unwrap_or_else(|error| unreachable!("{error}"));
        }
    }

    fn source(root: &Path, files: &'static Files) -> SystemMemory {
        let hierarchies = vec![Hierarchy { root: root.join("cgroup"), files }];
        SystemMemory { proc: root.join("proc"), hierarchies }
    }

    fn looks(source: &SystemMemory) -> Vec<(u64, u64)> {
        let found = source.look().into_iter();
        found.map(|memory| (memory.total_bytes / MIB, memory.available_bytes / MIB)).collect()
    }

    #[test]
    fn the_machine_and_each_group_with_a_limit_count() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let root = directory.path();
        put(
            root,
            &[
                ("proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n"),
                ("proc/self/cgroup", "4:memory:/a/b\n1:name=systemd:/x\n0::/c/d\n"),
                ("cgroup/memory.stat", "inactive_file 0\n"),
                ("cgroup/c/memory.max", "1073741824\n"),
                ("cgroup/c/memory.high", "536870912\n"),
                ("cgroup/c/memory.current", "419430400\n"),
                ("cgroup/c/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 52428800\n"),
                ("cgroup/c/d/memory.max", "max\n"),
                ("cgroup/c/d/memory.current", "1\n"),
                ("cgroup/a/memory.limit_in_bytes", "104857600"),
                ("cgroup/a/memory.usage_in_bytes", "209715200"),
                ("cgroup/a/b/memory.limit_in_bytes", "9223372036854771712"),
                ("cgroup/a/b/memory.usage_in_bytes", "0"),
            ],
        );
        assert_eq!(looks(&source(root, &VERSION_2)), [(512, 512 - (400 - 150)), (8192, 4096)]);
        assert_eq!(looks(&source(root, &VERSION_1)), [(100, 0), (8192, 4096)]);
        // A container that sees its group's outer path, and its own group as the root.
        put(
            root,
            &[
                ("proc/self/cgroup", "0::/elsewhere\n"),
                ("cgroup/memory.max", "209715200\n"),
                ("cgroup/memory.current", "104857600\n"),
            ],
        );
        assert_eq!(looks(&source(root, &VERSION_2)), [(200, 100), (8192, 4096)]);
        fs::remove_file(root.join("proc/meminfo"))?;
        assert_eq!(looks(&source(root, &VERSION_2)), []);
        Ok(())
    }

    #[test]
    fn this_machine_has_memory() {
        let found = SystemMemory::read().look();
        assert!(found.last().is_some_and(|machine| machine.total_bytes > machine.available_bytes));
        assert!(found.iter().all(|memory| memory.total_bytes >= memory.available_bytes));
    }
}
