//! `terrace-lab smoke …`, `terrace-lab paper …` and `terrace-lab micro …`; `terrace-lab run …` is `terrace bench run …`, which its
//! children need.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    match command.to_str() {
        Some("smoke") => terrace_lab::smoke::main(&rest),
        Some("paper") => terrace_lab::paper::main(&rest),
        Some("micro") => terrace_lab::micro::main(&rest),
        Some("run") => terrace_bench::run::main(&rest),
        _ => {
            eprintln!("usage: terrace-lab smoke|paper|micro|run [--help]");
            ExitCode::FAILURE
        }
    }
}
