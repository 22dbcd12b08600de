//! Part `trees`: programs that make, read and remove a tree of files: the time of the program, and its time with a
//! `sync -f` of the directory afterwards. No page is dirty when a program begins. On a shared disk ext4 writes out the
//! pages of other programs too.

use super::contestant::{Contestant, Kind, Room, rounds};
use super::ground::{Ground, ROW};
use super::tree::{self, ABSENT, NAME};
use crate::smoke::grid::Grid;
use crate::smoke::report::Report;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use terrace_bench::failure::Outcome;
use terrace_fuse::Transport;

/// tmpfs shows the time of a program alone.
const KINDS: [Kind; 5] = [
    Kind::Terrace(Transport::Uring),
    Kind::Terrace(Transport::Classic),
    Kind::Before,
    Kind::Ext4,
    Kind::Tmpfs,
];
/// The tree itself, two copies, the objects of two repositories, and as much again.
const TREES: u64 = 8;
const LEAST_BYTES: u64 = 256 << 20;

/// A program that works in the directory of a contestant.
struct Step {
    name: &'static str,
    /// The words of the commands, in order; `TAR` and `URL` are replaced.
    commands: &'static [&'static [&'static str]],
    /// The exit status of a success.
    status: i32,
}

/// In order: a step uses the files of the steps before.
const STEPS: [Step; 7] = [
    Step { name: "untar", commands: &[&["tar", "-xf", "TAR"]], status: 0 },
    Step { name: "cp -r", commands: &[&["cp", "-r", NAME, "copy"]], status: 0 },
    // 1: no file has the text.
    Step { name: "grep -r", commands: &[&["grep", "-rF", ABSENT, NAME]], status: 1 },
    Step { name: "rm -r", commands: &[&["rm", "-r", "copy"]], status: 0 },
    Step {
        name: "git init, add, commit",
        commands: &[
            &["git", "-c", "init.defaultBranch=main", "init", "-q", NAME],
            &["git", "-C", NAME, "add", "."],
            &[
                "git",
                "-C",
                NAME,
                "-c",
                "user.name=bench",
                "-c",
                "user.email=bench@localhost",
                "-c",
                // Packing in the background would disturb the next steps.
                "gc.auto=0",
                "commit",
                "-qm",
                "tree",
            ],
        ],
        status: 0,
    },
    Step { name: "git status", commands: &[&["git", "-C", NAME, "status"]], status: 0 },
    Step { name: "git clone", commands: &[&["git", "clone", "-q", "URL", "clone"]], status: 0 },
];

pub(super) fn run(ground: &Ground<'_>, report: &mut Report) -> Outcome<()> {
    let files = ground.args.files();
    let bytes = (tree::bytes_of(files) * TREES).max(LEAST_BYTES);
    ground.scratch.need(bytes + 2 * tree::bytes_of(files), 3 * bytes)?;
    let (tar, _held) = tree::make(ground, files)?;
    let kinds = Kind::present(ground, &KINDS);
    let columns: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let lines = STEPS.each_ref().map(|step| step.name);
    let (mut alone, mut synced) = (Grid::new(&lines, &columns), Grid::new(&lines, &columns));
    let room = Room { pm: bytes, disk: 2 * bytes };
    rounds(ground, report, "trees", (&kinds, room), |column, contestant| {
        sync(&contestant.root)?;
        for (line, step) in STEPS.iter().enumerate() {
            let (program, all) = timed(ground, contestant, step, &tar)?;
            alone.push(line, column, program);
            synced.push(line, column, all);
        }
        Ok(())
    })?;
    for (title, grid) in [("", &alone), (" with sync -f", &synced)] {
        report.grid(ROW, &format!("trees, {files} files{title}"), "ms", grid);
        let ratios = grid.divided_by(Kind::Ext4.name());
        report.grid(ROW, &format!("trees, {files} files{title}, ÷ ext4"), "×", &ratios);
    }
    Ok(())
}

/// Milliseconds of a step, and with the sync after it.
fn timed(ground: &Ground<'_>, contestant: &Contestant, step: &Step, tar: &Path) -> Outcome<(f64, f64)> {
    let now = || ground.scratch.now_ns();
    let begin = now();
    for words in step.commands {
        execute(ground, &contestant.root, words, tar, step.status)?;
    }
    let ended = now();
    sync(&contestant.root)?;
    let since = |end: u64| (end - begin) as f64 / 1e6;
    Ok((since(ended), since(now())))
}

fn execute(ground: &Ground<'_>, root: &Path, words: &[&str], tar: &Path, status: i32) -> Outcome<()> {
    let mut command = Command::new(words[0]);
    for word in &words[1..] {
        match *word {
            "TAR" => command.arg(tar),
            "URL" => command.arg(format!("file://{}", root.join(NAME).display())),
            word => command.arg(word),
        };
    }
    let log = ground.scratch.disk.join("program.log");
    let found = command
        .current_dir(root)
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?)
        .status()
        .map_err(|error| format!("{}: {error}", words[0]))?;
    if found.code() == Some(status) {
        return Ok(());
    }
    let complaint = std::fs::read_to_string(&log).unwrap_or_default();
    Err(format!("{}: {found}: {}", words.join(" "), complaint.trim()).into())
}

/// As `sync -f`: writes out the file system of a directory.
fn sync(directory: &Path) -> Outcome<()> {
    Ok(rustix::fs::syncfs(File::open(directory)?)?)
}
