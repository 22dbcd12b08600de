//! Row d: pwrite + fsync beside ext4 on the same disk and ext4 on a loop device over memory. Unpinned, as
//! programs run. The disk of a virtual machine is 10 to 100 times faster than a SATA SSD or a hard disk.

use super::args::Args;
use super::io_loop::{Subject, Turn};
use super::pool::Pool;
use super::report::{Must, Report};
use super::series::{Series, paired};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_bench::failure::Outcome;
use terrace_bench::process::run as execute;
use terrace_bench::scratch::Scratch;

const BATCHES: usize = 4;
const TURNS: u64 = 500;
const IMAGE_BYTES: u64 = 512 << 20;

/// ext4 in a file, mounted through a loop device.
struct Ext4 {
    image: PathBuf,
    device: Option<String>,
    mount: PathBuf,
}

impl Ext4 {
    fn make(image: PathBuf, mount: PathBuf) -> Outcome<Ext4> {
        let file = std::fs::File::create(&image)?;
        file.set_len(IMAGE_BYTES)?;
        let mut made = Ext4 { image, device: None, mount };
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, IMAGE_BYTES)?;
        execute("mkfs.ext4", [OsStr::new("-q"), OsStr::new("-F"), made.image.as_os_str()])?;
        let device =
            execute("losetup", [OsStr::new("--find"), OsStr::new("--show"), made.image.as_os_str()])?;
        let device = device.trim().to_string();
        made.device = Some(device.clone());
        execute("mount", [OsStr::new("-t"), OsStr::new("ext4"), device.as_ref(), made.mount.as_os_str()])?;
        Ok(made)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::empty());
        if let Some(device) = &self.device {
            let _ = execute("losetup", ["--detach", device]);
        }
        let _ = std::fs::remove_file(&self.image);
    }
}

/// Whether a directory is on ext4.
pub(crate) fn is_ext4(directory: &Path) -> bool {
    const EXT4_MAGIC: u64 = 0xef53;
    rustix::fs::statfs(directory).is_ok_and(|found| found.f_type as u64 == EXT4_MAGIC)
}

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    scratch.need(1 << 30, 1 << 30)?;
    let pool = Pool::make(args, scratch, "peers", 512 << 20, 1 << 30)?;
    let ours = pool.mount(scratch, &scratch.mount_point("ours")?)?;
    let on_memory = Ext4::make(scratch.memory.join("ext4.img"), scratch.mount_point("ext4-memory")?)?;
    // The disk's own ext4 if it has one, else ext4 in a file on the disk.
    let on_disk = match is_ext4(&scratch.disk) {
        true => None,
        false => Some(Ext4::make(scratch.disk.join("ext4.img"), scratch.mount_point("ext4-disk")?)?),
    };
    let disk = on_disk.as_ref().map_or(scratch.disk.clone(), |ext4| ext4.mount.clone());
    let mut files = [
        ("terrace", Subject::make(&ours.mount.join("file"))?, Series::default()),
        ("ext4 on the same disk", Subject::make(&disk.join("file"))?, Series::default()),
        ("ext4 on a PM loop", Subject::make(&on_memory.mount.join("file"))?, Series::default()),
    ];
    for _ in 0..args.rounds * BATCHES {
        for (_, file, samples) in &mut files {
            let limit = Duration::from_millis(500);
            samples.push(file.batch(scratch, Turn::WriteSync, TURNS, limit)? / 1000.0);
        }
    }
    for (name, _, samples) in &files {
        let what = format!("{}: {name}", Turn::WriteSync.name());
        report.figure('d', what, "µs", samples, Must::Nothing);
    }
    let ratio = paired(&files[2].2, &files[0].2, |ext4, ours| ext4 / ours);
    report.figure('d', "ext4 on a PM loop ÷ terrace", "×", &ratio, Must::AtLeast(1.0));
    let ratio = paired(&files[1].2, &files[0].2, |ext4, ours| ext4 / ours);
    report.figure('d', "ext4 on the same disk ÷ terrace", "×", &ratio, Must::Nothing);
    drop(files);
    ours.stop(scratch)
}
