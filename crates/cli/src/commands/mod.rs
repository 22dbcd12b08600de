//! Commands, a file for each. A new command is a row in `args::Command`, a file here and a line in `run`.

mod bench;
mod bench_device;
mod check;
mod iostat;
mod migrate;
mod mkfs;
mod mount;
mod moves;
mod pin;
mod remount;
mod status;
mod sync;
mod tier;
mod umount;
mod whereabouts;

use crate::args::{Command, OutsideTask};
use std::process::ExitCode;
use terrace_daemon::failure::Outcome;

/// Runs a command; the result is its exit status.
pub fn run(command: Command) -> Outcome<ExitCode> {
    let status = match command {
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Where(args) => whereabouts::run(&args),
        Command::Sync(args) => sync::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions { shell } => {
            terrace_daemon::output::print_raw(crate::completion::script(shell)?.trim_end());
            Ok(0)
        }
        Command::Bench { what } => return bench::run(what),
        Command::Iostat(args) => iostat::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Pin(args) => pin::pin(&args),
        Command::Unpin(args) => pin::unpin(&args),
        Command::Tier(args) => tier::run(&args),
        Command::Outside(args) => outside(args.task),
        Command::Version => {
            terrace_daemon::output::print(format!("terrace {}", crate::args::version()));
            Ok(0)
        }
        Command::ManPages { dir } => crate::manual::write(&dir).map(|()| 0),
        Command::Inspect(later) => Err(later.refuse("inspect")),
    };
    status.map(ExitCode::from)
}

/// A task that the daemon has done in a process of its own.
fn outside(task: OutsideTask) -> Outcome<u8> {
    match task {
        OutsideTask::Pages { device } => terrace_daemon::outside::pages(&device).map(|()| 0),
        OutsideTask::Unmount { dir } => terrace_daemon::outside::unmount_here(&dir),
    }
}
