//! Vague sentences: clauses of nine words or more in which three of ten words name no thing.
//!
//! The list is calibrated on figures that an independent script measured on the `src` folders of commit 01880eb and of
//! redb: the share of indefinite words among all words of comments, and the share of vague clauses among all clauses
//! of nine words or more.
//!
//! | | independent script | this file |
//! |---|---|---|
//! | engine (format runtime media wal blocks map cache placement catalog fs fuse check) | 13.3 %, 7.3 % | 13.3 %, 7.2 % |
//! | `fs` alone | 14.6 %, 8.3 % | 14.6 %, 8.2 % |
//! | redb (4.6.0 here) | 8.2 %, 0.8 % | 8.8 %, 0.9 % |

use crate::comments::{Text, texts};
use crate::figure::{Figure, Offender};
use crate::house::House;
use crate::prose::{Sentence, sentences, sentences_of_page};
use crate::sources::{Kind, Source};
use regex_lite::Regex;
use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

/// Words that stand where a noun of the glossary could. Left out although related: `such`, `same` and `itself`,
/// without which the figures agree best.
const INDEFINITE: &str = "
    what who whom whose which that
    it its this these those they them their
    one ones other others another
    some any all none nothing something anything everything both each
    so there here else how few many more much";
/// Words that no comment should begin with.
pub const OPENINGS: [&str; 4] = ["what", "who", "those", "one"];
/// Shorter clauses are not judged.
const LEAST_WORDS: usize = 9;
/// A clause with this share of indefinite words is vague.
const VAGUE_PERCENT: usize = 30;

static INDEFINITE_WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| INDEFINITE.split_whitespace().collect());
/// A word, or code as one word. The `'s` of a genitive is no word.
static WORD: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`[^`]*`|[A-Za-z][A-Za-z_]*").expect("the expression is constant"));

/// A clause with too many indefinite words, or a comment with a wrong first word.
#[derive(Clone, Debug)]
pub struct Vague {
    /// Line of the file.
    pub line: usize,
    /// The whole sentence.
    pub sentence: String,
    /// The clause that is meant.
    pub clause: String,
    /// The indefinite words in it.
    pub indefinite: Vec<String>,
    /// Number of all words in it.
    pub words: usize,
}

impl Vague {
    /// Share of the indefinite words.
    pub fn percent(&self) -> f64 {
        percent(self.indefinite.len(), self.words)
    }
}

/// Counts over some files.
#[derive(Clone, Debug, Default)]
pub struct Wording {
    /// All words.
    pub words: usize,
    /// Indefinite words.
    pub indefinite: usize,
    /// Clauses that are long enough to be judged.
    pub clauses: usize,
    /// Vague clauses, each with the path of its file.
    pub vague: Vec<(String, Vague)>,
    /// Comments with a wrong first word.
    pub openings: Vec<(String, Vague)>,
}

impl Wording {
    /// Share of indefinite words among all words.
    pub fn words_percent(&self) -> f64 {
        percent(self.indefinite, self.words)
    }

    /// Share of vague clauses among the long ones.
    pub fn vague_percent(&self) -> f64 {
        percent(self.vague.len(), self.clauses)
    }

    fn into_figures(mut self, group: &str) -> [Figure; 3] {
        self.vague.sort_by(|(_, one), (_, other)| other.percent().total_cmp(&one.percent()));
        let vague = self.vague.iter().map(|(path, vague)| {
            let text = format!("{:.0} % of {} words: {}", vague.percent(), vague.words, vague.clause);
            Offender::new(path, vague.line, text)
        });
        let openings =
            self.openings.iter().map(|(path, vague)| Offender::new(path, vague.line, &vague.sentence));
        [
            Figure::at_most(format!("{group}_vague_percent"), self.vague_percent(), vague.collect()),
            Figure::at_most(format!("{group}_indefinite_percent"), self.words_percent(), Vec::new()),
            Figure::count(format!("{group}_openings"), openings.collect()),
        ]
    }

    /// Counts the comments of a Rust file, or a page.
    pub fn add(&mut self, source: &Source) {
        if source.is_rust() {
            self.add_comments(&source.path, &texts(&source.text).comments);
        } else {
            sentences_of_page(&source.text)
                .iter()
                .for_each(|sentence| self.add_sentence(&source.path, sentence));
        }
    }

    /// Counts comments of the file `path`.
    pub fn add_comments(&mut self, path: &str, comments: &[Text]) {
        for comment in comments {
            let sentences = sentences(comment);
            self.openings
                .extend(sentences.first().and_then(wrong_opening).map(|vague| (path.to_owned(), vague)));
            sentences.iter().for_each(|sentence| self.add_sentence(path, sentence));
        }
    }

    fn add_sentence(&mut self, path: &str, sentence: &Sentence) {
        for clause in sentence.clauses() {
            let clause = judge(sentence, clause);
            self.words += clause.words;
            self.indefinite += clause.indefinite.len();
            if clause.words >= LEAST_WORDS {
                self.clauses += 1;
                if clause.indefinite.len() * 100 >= clause.words * VAGUE_PERCENT {
                    self.vague.push((path.to_owned(), clause));
                }
            }
        }
    }
}

/// Left out: generated pages, and doc comments that clap prints as `--help`, whose text may not change.
const LEFT_OUT: [&str; 2] = ["docs/evaluation", "crates/cli/src/args/"];

/// For each group the share of vague clauses, the share of indefinite words and the number of wrong openings.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let mut groups: BTreeMap<&str, Wording> = BTreeMap::new();
    let texts = house.texts.iter().filter(|text| text.kind() == Kind::Page);
    let sources = house.files.iter().map(|file| &file.source).chain(texts);
    let is_left_out = |source: &&Source| LEFT_OUT.iter().any(|path| source.path.starts_with(path));
    for source in sources.filter(|source| !is_left_out(source)) {
        groups.entry(house.group(source)).or_default().add(source);
    }
    groups.into_iter().flat_map(|(group, wording)| wording.into_figures(group)).collect()
}

/// Whether `word`, in small letters, is in the list.
pub fn is_indefinite(word: &str) -> bool {
    INDEFINITE_WORDS.contains(word)
}

fn judge(sentence: &Sentence, clause: &str) -> Vague {
    let words = words(clause);
    let indefinite = words.iter().filter(|word| is_indefinite(word)).cloned().collect();
    let (line, sentence) = (sentence.line, sentence.text.clone());
    Vague { line, sentence, clause: clause.to_owned(), indefinite, words: words.len() }
}

fn words(clause: &str) -> Vec<String> {
    let clause = clause.replace("'s ", " ");
    WORD.find_iter(&clause).map(|word| word.as_str().to_lowercase()).collect()
}

fn wrong_opening(sentence: &Sentence) -> Option<Vague> {
    let first = words(&sentence.text).into_iter().next()?;
    OPENINGS.contains(&first.as_str()).then(|| judge(sentence, &sentence.text))
}

/// Share of a part.
pub fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wording(comment: &str) -> Wording {
        let mut wording = Wording::default();
        wording.add(&Source { path: "x.rs".to_owned(), text: comment.to_owned() });
        wording
    }

    #[test]
    fn a_riddle_is_vague_and_its_translation_is_not() {
        let riddle = wording("// What is kept there is all that others have of it, or one of them.");
        assert_eq!((riddle.clauses, riddle.vague.len(), riddle.openings.len()), (1, 1, 1));
        assert_eq!(
            riddle.vague[0].1.indefinite,
            ["what", "there", "all", "that", "others", "it", "one", "them"]
        );
        let plain =
            wording("// Blocks that stay in the page cache are the only copy of the file's dirty bytes.");
        assert_eq!((plain.clauses, plain.vague.len(), plain.openings.len()), (1, 0, 0));
    }

    #[test]
    fn short_clauses_are_not_judged() {
        let short = wording("// What it is: all of it, that is.");
        assert_eq!((short.clauses, short.vague.len()), (0, 0));
        assert_eq!((short.words, short.indefinite), (8, 5));
    }

    #[test]
    fn code_is_one_word_and_a_genitive_is_no_word() {
        assert_eq!(words("`it.all()` is the file's `x y`"), ["`it.all()`", "is", "the", "file", "`x y`"]);
    }
}
