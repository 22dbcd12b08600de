//! Lists to mend the wording by: vague sentences and vague names of tests.

use crate::facts::parse::parse;
use crate::names::Names;
use crate::sources;
use crate::words::{Vague, Wording, percent};
use std::path::Path;

/// Vague clauses in comments and pages at or below `path`, each with its place, its share and its sentence.
pub fn words(path: &Path) -> String {
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

/// Names of tests at or below `path` that have an indefinite word.
pub fn names(path: &Path) -> String {
    let mut names = Names::default();
    for source in sources::read(path, &["rs"]) {
        names.add(&source.path, &parse(&source).unwrap_or_default());
    }
    let mut report: String =
        names.vague.iter().map(|vague| format!("{}: {}\n", vague.place, vague.text)).collect();
    let (vague, all) = (names.vague.len(), names.all);
    report += &format!("{vague} of {all} names are vague: {:.1} %\n", percent(vague, all));
    report + &format!("names that begin with what, who, those or one: {}\n", names.openings.len())
}
