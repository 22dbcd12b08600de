//! A memory cgroup that limits the page cache of loads through the kernel, as the publications did (16 of 32
//! GB in [TPFS], 10 of 32 in [Ziggurat]). Cgroups of version 1 or 2, whichever has the memory controller.

use super::teardown::{Held, Resource, Teardown};
use crate::failure::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory that a confined program needs besides its page cache.
const LEAST_BYTES: u64 = 64 << 20;

/// A memory cgroup; removed when dropped.
pub struct MemoryGroup {
    path: PathBuf,
    pub version: u8,
    pub limit_bytes: u64,
    _held: Held,
}

/// The mount point of a hierarchy that has the memory controller.
fn hierarchy() -> Outcome<(PathBuf, u8)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(place) = before.split(' ').nth(4).map(Path::new) else { continue };
        let mut after = after.split(' ');
        match (after.next(), after.nth(1)) {
            (Some("cgroup"), Some(options)) if options.split(',').any(|option| option == "memory") => {
                return Ok((place.to_path_buf(), 1));
            }
            (Some("cgroup2"), _) => {
                let controllers = fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
                if controllers.split_whitespace().any(|name| name == "memory") {
                    return Ok((place.to_path_buf(), 2));
                }
            }
            _ => {}
        }
    }
    Err("no cgroup hierarchy has the memory controller".into())
}

impl MemoryGroup {
    /// Makes a group below the root of the hierarchy.
    ///
    /// # Errors
    /// Without a controller or the right to use it.
    pub fn new(teardown: &Arc<Teardown>, name: &str, limit_bytes: u64) -> Outcome<MemoryGroup> {
        let (root, version) = hierarchy()?;
        let path = root.join(name);
        let told = |error: std::io::Error| format!("memory cgroup {}: {error}", path.display());
        let _step = teardown.step();
        fs::create_dir(&path).map_err(told)?;
        let held = teardown.hold(Resource::Group(path.clone()))?;
        let limit_bytes = limit_bytes.max(LEAST_BYTES);
        let file = if version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
        if version == 2 && !path.join(file).exists() {
            fs::write(root.join("cgroup.subtree_control"), "+memory").map_err(told)?;
        }
        fs::write(path.join(file), limit_bytes.to_string()).map_err(told)?;
        Ok(MemoryGroup { path: path.clone(), version, limit_bytes, _held: held })
    }

    /// Puts a process into the group.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take(&self, pid: u32) -> Outcome<()> {
        Ok(fs::write(self.path.join("cgroup.procs"), pid.to_string())?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Version 1 keeps the pages of a removed group until they are dropped.
        if self.version == 1 {
            let _ = fs::write(self.path.join("memory.force_empty"), "0");
        }
    }
}
