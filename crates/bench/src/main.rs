//! `terrace-bench smoke …`, `terrace-bench paper …`, `terrace-bench run …`: the same as `terrace bench …`.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    match command.to_str() {
        Some("smoke") => terrace_bench::main_smoke(&rest),
        Some("paper") => terrace_bench::main_paper(&rest),
        Some("run") => terrace_bench::main_run(&rest),
        _ => {
            eprintln!("usage: terrace-bench smoke|paper|run [--help]");
            ExitCode::FAILURE
        }
    }
}
