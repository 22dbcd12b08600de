//! Programs that the suites in scripts/tests run on a mounted pool, where no program of the distribution
//! serves. For them the mount is a plain directory: no crate of the file system is linked.

mod content;
mod fair;
mod journal;
mod mail;
mod model;
mod outcome;
mod programs;
mod set_id;
mod space;
mod stall;
mod stress;
mod system;
mod verify;
mod writer;

use crate::outcome::{Outcome, number};
use crate::programs::processes;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage:
  terrace-suites writer DIR JOURNAL SEED     write and fsync until the mount fails, keeping JOURNAL
  terrace-suites verify DIR JOURNAL [lazy]   compare DIR with what JOURNAL says was acknowledged; lazy: a write may be torn
  terrace-suites mail DIR JOURNAL SEED       deliver and remove mail by threads until the mount fails, keeping JOURNAL-*
  terrace-suites mail-verify DIR JOURNAL     compare DIR with what JOURNAL-* say was acknowledged
  terrace-suites programs DIR                system calls that programs rely on, checked one by one
  terrace-suites set-id DIR                  an unprivileged user changes set-id programs and runs them (root)
  terrace-suites set-id-attack FILE CHANGE   changes a program and runs it at once
  terrace-suites set-id-writer FILE          writes to a program as soon as nobody runs it
  terrace-suites set-id-runner FILE          runs a program until it has become longer
  terrace-suites effective-user              say with whose rights this runs
  terrace-suites append FILE COUNT LETTER    append COUNT lines with O_APPEND
  terrace-suites hold FILE KIND              hold a lock (flock, fcntl, ofd) until standard input ends
  terrace-suites stall-fill DIR              make the files of the stall test: hot and cold
  terrace-suites stall-run DIR SECONDS READERS   measure writes to hot files beside readers of cold ones
  terrace-suites fair-attack DIR KIND SECONDS    keep the daemon busy: allocate, seek, attributes or write
  terrace-suites fair-victim DIR SECONDS     write 4 KiB and fsync again and again; print how long that took
  terrace-suites space-mixed DIR SEED        fill DIR's file system by writes of all lengths; sync and read what it took
  terrace-suites space-promised DIR LARGEST  fill DIR's file system and write into what was laid out and over what is there
  terrace-suites space-removed DIR           write what removals give back on a full file system
  terrace-suites space-shown DIR SPARE       fallocate what statfs shows, less SPARE bytes, of an empty file system
  terrace-suites stress DIR MODEL SECONDS SEED   16 threads change and verify files, whose end is kept in MODEL
  terrace-suites stress-check DIR MODEL      compare DIR with MODEL";

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["writer", dir, journal, seed] => writer::run(Path::new(dir), Path::new(journal), number(seed)?),
        ["verify", dir, journal] => verify::run(Path::new(dir), Path::new(journal), false),
        ["verify", dir, journal, "lazy"] => verify::run(Path::new(dir), Path::new(journal), true),
        ["mail", dir, journal, seed] => mail::run(Path::new(dir), Path::new(journal), number(seed)?),
        ["mail-verify", dir, journal] => mail::verify(Path::new(dir), Path::new(journal)),
        ["programs", dir] => programs::run(Path::new(dir)),
        ["set-id", dir] => set_id::run(Path::new(dir)),
        ["set-id-attack", file, how] => set_id::attack(Path::new(file), how),
        ["set-id-writer", file] => set_id::write_between(Path::new(file)),
        ["set-id-runner", file] => set_id::run_until_longer(Path::new(file)),
        ["effective-user"] => set_id::say_effective_user(),
        ["append", file, count, letter] => processes::append(Path::new(file), number(count)?, letter),
        ["hold", file, kind] => processes::hold(Path::new(file), kind),
        ["stall-fill", dir] => stall::fill(Path::new(dir)),
        ["stall-run", dir, seconds, readers] => {
            stall::run(Path::new(dir), number(seconds)?, number(readers)?)
        }
        ["fair-attack", dir, kind, seconds] => fair::attack(Path::new(dir), kind, number(seconds)?),
        ["fair-victim", dir, seconds] => fair::victim(Path::new(dir), number(seconds)?),
        ["space-mixed", dir, seed] => space::mixed(Path::new(dir), number(seed)?),
        ["space-promised", dir, largest] => space::promised(Path::new(dir), number(largest)?),
        ["space-removed", dir] => space::removed(Path::new(dir)),
        ["space-shown", dir, spare] => space::shown(Path::new(dir), number(spare)?),
        ["stress", dir, model, seconds, seed] => {
            stress::run(Path::new(dir), Path::new(model), number(seconds)?, number(seed)?)
        }
        ["stress-check", dir, model] => stress::check(Path::new(dir), Path::new(model)),
        _ => Err(USAGE.to_string()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
