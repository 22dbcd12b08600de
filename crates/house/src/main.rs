//! `cargo run -p terrace-house`: the figures that the tests judge, and lists to mend them by.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::{Path, PathBuf};
use terrace_house::sources;
use terrace_house::words::{Vague, Wording};

/// Prints the figures that the tests of this crate judge.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the vague sentences in comments and pages at or below PATH.
    Words {
        /// A file or a folder.
        path: PathBuf,
    },
}

fn main() {
    let report = match Arguments::parse().command {
        Command::Words { path } => words_report(&path),
    };
    // A reader such as `head` may close the pipe early.
    let _ = std::io::stdout().write_all(report.as_bytes());
}

fn words_report(path: &Path) -> String {
    let mut wording = Wording::default();
    sources::read(path, &["rs", "md"]).iter().for_each(|source| wording.add(source));
    let mut report: String = wording.vague.iter().map(|(path, vague)| vague_entry(path, vague)).collect();
    for (path, vague) in &wording.openings {
        report += &format!("{path}:{}: begins with a vague word\n    {}\n", vague.line, vague.sentence);
    }
    let (vague, clauses, openings) = (wording.vague.len(), wording.clauses, wording.openings.len());
    let (vague_percent, words_percent) = (wording.vague_percent(), wording.words_percent());
    report += &format!("{vague} of {clauses} clauses of 9 words or more are vague: {vague_percent:.1} %\n");
    report += &format!("indefinite words among all words: {words_percent:.1} %\n");
    report + &format!("comments that begin with what, who, those or one: {openings}\n")
}

/// Place, share and list of the indefinite words; the sentence; the clause, when the sentence has several.
fn vague_entry(path: &str, vague: &Vague) -> String {
    let (percent, words) = (vague.percent(), vague.words);
    let indefinite = vague.indefinite.join(", ");
    let mut entry = format!("{path}:{}: {percent:.0} % of {words} words: {indefinite}\n", vague.line);
    entry += &format!("    {}\n", vague.sentence);
    if vague.clause != vague.sentence {
        entry += &format!("    here: {}\n", vague.clause);
    }
    entry
}
