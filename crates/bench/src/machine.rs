//! The machine that was measured.

use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::Path;

/// The facts about the machine that a reader needs to judge the figures.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    memory_bytes: u64,
    /// Load average of the last minute when the run began.
    load: String,
}

/// Describes this machine.
pub fn describe() -> Machine {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(": ")).map_or("?", |(_, value)| value).to_string()
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Machine {
        cpu: format!("{} (family {} model {})", field("model name"), field("cpu family"), field("model\t")),
        cores: std::thread::available_parallelism().map_or(1, |count| count.get()),
        kernel: release.trim().to_string(),
        memory_bytes: meminfo("MemTotal"),
        load: load.split(' ').next().unwrap_or("?").to_string(),
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        write!(
            f,
            "{}, {} cores, Linux {}, {gib:.0} GiB; load {} at the start",
            self.cpu, self.cores, self.kernel, self.load
        )
    }
}

fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    status_kib(&text, name)
}

/// A field in KiB of /proc/meminfo or /proc/PID/status, in bytes.
pub fn status_kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Memory that processes can allocate without swapping.
pub fn memory_available() -> u64 {
    meminfo("MemAvailable")
}

/// Free bytes of the file system of a directory.
pub fn disk_available(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |found| found.f_bavail * found.f_frsize)
}
