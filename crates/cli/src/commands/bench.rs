//! `terrace bench`: `run` and `device` are in this program; `smoke` and `paper` are started as `terrace-lab`, which is
//! installed beside it or not at all.

use super::bench_device;
use crate::args::Bench;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use terrace_daemon::failure::{Failure, Outcome};

pub(super) fn run(bench: Bench) -> Outcome<ExitCode> {
    match bench {
        Bench::Device(args) => bench_device::run(&args).map(ExitCode::from),
        Bench::Run { options } => Ok(terrace_bench::run::main(&options)),
        Bench::Smoke { options } => Err(become_laboratory("smoke", &options)),
        Bench::Paper { options } => Err(become_laboratory("paper", &options)),
    }
}

/// Becomes the laboratory; returns only when that fails. The process stays the same, so signals and its exit status
/// need no forwarding.
fn become_laboratory(command: &str, options: &[OsString]) -> Failure {
    let laboratory = match std::env::current_exe() {
        Ok(own) => own.with_file_name("terrace-lab"),
        Err(error) => return Failure::new(format!("bench {command}: {error}")),
    };
    let error = Command::new(&laboratory).arg(command).args(options).exec();
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format!(
            "bench {command}: {} is not installed; `make lab` builds it",
            laboratory.display()
        )),
        _ => Failure::at(&laboratory, error),
    }
}
