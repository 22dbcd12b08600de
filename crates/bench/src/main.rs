//! `terrace-bench smoke …`: the same as `terrace bench smoke …`.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|command| command != "smoke") {
        eprintln!("usage: terrace-bench smoke [--help]");
        return ExitCode::FAILURE;
    }
    let rest: Vec<OsString> = args.collect();
    terrace_bench::main_smoke(&rest)
}
