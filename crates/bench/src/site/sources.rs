//! Generated C sources with a Makefile, in place of the tree of a kernel: for grep and make.

use crate::failure::Outcome;
use crate::workload::numbers::Picks;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Directory of the sources, and the one of what make makes of them.
const TREE: &str = "sources";
const BUILT: &str = "sources/built";
/// Functions of a file: about 20 KiB.
const FUNCTIONS: u64 = 80;

/// Objects of all files, and an archive of them.
const MAKEFILE: &str = "\
objects := $(patsubst %.c,built/%.o,$(wildcard *.c))
built/all.a: $(objects)
\tar rc $@ $^
built/%.o: %.c
\tcc -c -O0 -o $@ $<
";

/// Makes the sources in a directory that has none, and removes what make has made.
pub(super) fn prepare(directory: &Path, files: u64) -> Outcome<()> {
    let tree = directory.join(TREE);
    if !tree.exists() {
        fs::create_dir(&tree)?;
        fs::write(tree.join("Makefile"), MAKEFILE)?;
        let mut picks = Picks::new(7);
        for number in 0..files {
            fs::write(tree.join(format!("part{number}.c")), source(number, &mut picks))?;
        }
    }
    let built = directory.join(BUILT);
    if built.exists() {
        fs::remove_dir_all(&built)?;
    }
    Ok(fs::create_dir(&built)?)
}

fn source(number: u64, picks: &mut Picks) -> String {
    let function = |index: u64| {
        let (first, second) = (picks.below(1 << 16), picks.below(1 << 16));
        format!(
            "/* Adds up what lies before the limit of part {number}. */\n\
             int part{number}_sum{index}(const int *values, int count)\n{{\n\tint sum = {first};\n\
             \tfor (int at = 0; at < count && sum != {second}; at++)\n\t\tsum += values[at] ^ at;\n\
             \treturn sum;\n}}\n"
        )
    };
    (0..FUNCTIONS).map(function).collect()
}

/// Looks for a word that no source has.
pub(super) fn grep(directory: &Path) -> (PathBuf, Vec<OsString>) {
    // Without a line grep ends with 1.
    let script = "grep -r nowhere_to_be_found \"$1\" && exit 1; test $? = 1";
    let args = ["-c", script, "sh"].map(OsString::from).into_iter().chain([directory.join(TREE).into()]);
    (PathBuf::from("/bin/sh"), args.collect())
}

/// The arguments of make.
pub(super) fn make(directory: &Path) -> Vec<OsString> {
    ["-s".into(), "-C".into(), directory.join(TREE).into()].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn make_and_grep_work_on_the_sources() {
        let scratch = tempfile::tempdir().unwrap();
        prepare(scratch.path(), 2).unwrap();
        let (shell, args) = grep(scratch.path());
        assert!(Command::new(shell).args(args).status().unwrap().success());
        for _ in 0..2 {
            assert!(Command::new("make").args(make(scratch.path())).status().unwrap().success());
            assert!(scratch.path().join(BUILT).join("all.a").exists());
            prepare(scratch.path(), 2).unwrap();
            assert!(!scratch.path().join(BUILT).join("all.a").exists());
        }
    }
}
