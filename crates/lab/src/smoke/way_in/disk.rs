//! File systems of the kernel beside the mounts: ext4 on the disk, XFS on a loop device over a file of the disk, tmpfs.

use super::ground::Ground;
use crate::smoke::peers::is_ext4;
use rustix::fs::FallocateFlags;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::PathBuf;
use terrace_bench::failure::Outcome;
use terrace_bench::process::run;
use terrace_bench::site::teardown::{Held, Resource};

/// mkfs.xfs refuses less than 300 MiB.
const LEAST_BYTES: u64 = 512 << 20;
/// mkfs.ext4 writes all inode tables and the journal, so the mount does not do it later in the background.
const EAGER: &str = "lazy_itable_init=0,lazy_journal_init=0";

/// A directory with its mount, loop device and file, released from the last to the first.
pub(super) struct Disk {
    pub root: PathBuf,
    held: Vec<Held>,
}

impl Disk {
    /// ext4 on the disk: a directory of an ext4 disk, else a loop device over a file of the disk.
    pub fn ext4(ground: &Ground<'_>, bytes: u64) -> Outcome<Disk> {
        let root = ground.scratch.disk.join("ext4-files");
        if !is_ext4(&ground.scratch.disk) {
            return Disk::on_loop(ground, "ext4", &["-q", "-F", "-b", "4096", "-E", EAGER], bytes);
        }
        fs::create_dir(&root)?;
        let held = vec![ground.teardown.hold(Resource::Directory(root.clone()))?];
        Ok(Disk { root, held })
    }

    /// XFS on a loop device over a file of the disk.
    pub fn xfs(ground: &Ground<'_>, bytes: u64) -> Outcome<Disk> {
        Disk::on_loop(ground, "xfs", &["-q", "-f"], bytes)
    }

    /// tmpfs of its own.
    pub fn tmpfs(ground: &Ground<'_>, bytes: u64) -> Outcome<Disk> {
        let mut disk = Disk { root: ground.scratch.mount_point("tmpfs")?, held: Vec::new() };
        disk.mount(ground, "tmpfs", &["-o", &format!("size={bytes}"), "none"])?;
        Ok(disk)
    }

    fn on_loop(ground: &Ground<'_>, kind: &str, options: &[&str], bytes: u64) -> Outcome<Disk> {
        let image = ground.scratch.disk.join(format!("{kind}.img"));
        let mut disk = Disk { root: ground.scratch.mount_point(kind)?, held: Vec::new() };
        let file = File::create(&image)?;
        disk.held.push(ground.teardown.hold(Resource::File(image.clone()))?);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(LEAST_BYTES))?;
        let words = ["--find", "--show", "--direct-io=on"].map(OsStr::new);
        let device = run("losetup", words.into_iter().chain([image.as_os_str()]))?.trim().to_string();
        disk.held.push(ground.teardown.hold(Resource::Loop(device.clone()))?);
        run(format!("mkfs.{kind}"), options.iter().copied().chain([device.as_str()]))?;
        disk.mount(ground, kind, &[&device])?;
        Ok(disk)
    }

    fn mount(&mut self, ground: &Ground<'_>, kind: &str, words: &[&str]) -> Outcome<()> {
        let words = ["-t", kind].into_iter().chain(words.iter().copied()).map(OsStr::new);
        run("mount", words.chain([self.root.as_os_str()]))?;
        self.held.push(ground.teardown.hold(Resource::Mount(self.root.clone()))?);
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        while let Some(held) = self.held.pop() {
            drop(held);
        }
    }
}
