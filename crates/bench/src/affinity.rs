//! The cores on which processes run.

use crate::failure::Outcome;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;

/// Cores that this process may use.
pub fn all() -> Outcome<CpuSet> {
    Ok(sched_getaffinity(None)?)
}

/// Only the last of these cores: the first serves more interrupts.
pub fn last(cores: &CpuSet) -> CpuSet {
    let mut one = CpuSet::new();
    if let Some(core) = (0..CpuSet::MAX_CPU).rev().find(|core| cores.is_set(*core)) {
        one.set(core);
    }
    one
}

/// All but the last of these cores; `None` when there is no other.
pub fn without_last(cores: &CpuSet) -> Option<CpuSet> {
    let mut others = *cores;
    if let Some(core) = (0..CpuSet::MAX_CPU).rev().find(|core| cores.is_set(*core)) {
        others.unset(core);
    }
    (others.count() > 0).then_some(others)
}

/// Ties all threads of a process to cores.
pub fn pin_process(pid: u32, cores: &CpuSet) -> Outcome<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let number: i32 = task?.file_name().to_string_lossy().parse()?;
        // A thread may have ended since it was listed.
        let _ = sched_setaffinity(Pid::from_raw(number), cores);
    }
    Ok(())
}

/// Ties the calling thread to cores.
pub fn pin_self(cores: &CpuSet) -> Outcome<()> {
    Ok(sched_setaffinity(None, cores)?)
}
