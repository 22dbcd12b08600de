//! System calls on which programs rely: each check compares a call with its definition in POSIX or Linux.
//! `steps` has the parts of a check.

mod mappings;
mod names;
pub(crate) mod processes;
mod space;
mod steps;

use self::steps::At;
use crate::outcome::{Failure, Outcome};
use std::fs;
use std::path::Path;

/// A check, in a directory of its own.
type Check = fn(&Path) -> Outcome<()>;

const CHECKS: [(&str, Check); 14] = [
    ("shared writable mmap", mappings::shared_mapping),
    ("a writer beside a reader", mappings::reader_and_writer),
    ("private mmap", mappings::private_mapping),
    ("O_APPEND from two processes", processes::two_appenders),
    ("O_DIRECT", mappings::direct),
    ("flock, fcntl and OFD locks", processes::locks),
    ("unlinked open file", space::unlinked_open),
    ("program that runs", processes::running_program),
    ("sparse file", space::sparse),
    ("names that are no text", names::strange_names),
    ("a directory that changes while it is read", names::changing_directory),
    ("statfs and st_blocks", space::agreeing_space),
    ("rename", names::renames),
    ("file handles", names::file_handles),
];

/// All checks, in a new directory below `dir`.
pub(crate) fn run(dir: &Path) -> Outcome<()> {
    let mut failures: Vec<Failure> = Vec::new();
    for (number, (name, check)) in CHECKS.iter().enumerate() {
        let own = dir.join(format!("check-{number}"));
        fs::create_dir(&own).at("mkdir")?;
        match check(&own) {
            Ok(()) => println!("ok      {name}"),
            Err(failure) => {
                println!("FAILED  {name}: {failure}");
                failures.push(format!("{name}: {failure}"));
            }
        }
    }
    println!("{} of {} system call checks passed", CHECKS.len() - failures.len(), CHECKS.len());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}
