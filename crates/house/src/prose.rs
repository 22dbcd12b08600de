//! Sentences of a comment or of a page, with the line each begins at.

use crate::comments::Text;
use regex_lite::Regex;
use std::sync::LazyLock;

static SENTENCE_END: LazyLock<Regex> = LazyLock::new(|| expression(r#"[.!?][")»”*_]*\s+"#));
static CLAUSE_END: LazyLock<Regex> = LazyLock::new(|| expression(r"[;:]\s+"));
/// A new list item, heading or quotation begins a paragraph.
static BLOCK_START: LazyLock<Regex> = LazyLock::new(|| expression(r"^(?:[-*+] |\d+[.)] |#+ |> )"));
static LINK: LazyLock<Regex> = LazyLock::new(|| expression(r"\]\([^)\s]*\)"));

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("the expression is constant")
}

/// Text between two full stops.
#[derive(Clone, Debug)]
pub struct Sentence {
    /// Line of the file that the sentence begins at.
    pub line: usize,
    /// On one line.
    pub text: String,
}

impl Sentence {
    /// The parts between semicolons and colons: each is judged by itself.
    pub fn clauses(&self) -> Vec<&str> {
        split(&self.text, &CLAUSE_END).into_iter().map(|(_, text)| text).collect()
    }
}

/// Sentences of a comment. Code blocks are left out.
pub fn sentences(text: &Text) -> Vec<Sentence> {
    paragraphs(&text.lines).iter().flat_map(sentences_of).collect()
}

/// Sentences of a Markdown page. Code blocks are left out; a cell of a table is a paragraph.
pub fn sentences_of_page(page: &str) -> Vec<Sentence> {
    let lines =
        page.lines().enumerate().map(|(i, line)| (i + 1, LINK.replace_all(line, "]").into_owned())).collect();
    sentences(&Text { lines })
}

/// Lines that belong together, each with its number.
type Paragraph = Vec<(usize, String)>;

fn paragraphs(lines: &[(usize, String)]) -> Vec<Paragraph> {
    let mut paragraphs = vec![Paragraph::new()];
    let mut is_code = false;
    for (number, line) in lines {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_fence || is_code || line.is_empty() {
            paragraphs.push(Paragraph::new());
        } else if line.starts_with('|') {
            paragraphs.extend(line.split('|').map(|cell| vec![(*number, cell.trim().to_owned())]));
            paragraphs.push(Paragraph::new());
        } else {
            if BLOCK_START.is_match(line) {
                paragraphs.push(Paragraph::new());
            }
            let text = BLOCK_START.replace(line, "").into_owned();
            paragraphs.last_mut().expect("it begins with one").push((*number, text));
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

fn sentences_of(paragraph: &Paragraph) -> Vec<Sentence> {
    let mut text = String::new();
    // Where in `text` each line begins.
    let mut starts = Vec::new();
    for (number, line) in paragraph {
        starts.push((text.len(), *number));
        text.push_str(line);
        text.push(' ');
    }
    let line_at = |at| starts.iter().rfind(|(start, _)| *start <= at).map_or(0, |(_, number)| *number);
    let sentence = |(at, text): (usize, &str)| Sentence { line: line_at(at), text: text.to_owned() };
    split(&text, &SENTENCE_END).into_iter().map(sentence).collect()
}

/// Parts of `text` with the places they begin at; each keeps the mark that ends it.
fn split<'a>(text: &'a str, end: &Regex) -> Vec<(usize, &'a str)> {
    let mut parts = Vec::new();
    let mut start = 0;
    for end in end.find_iter(text).map(|found| found.end()).chain([text.len()]) {
        parts.push((start, text[start..end].trim()));
        start = end;
    }
    parts.retain(|(_, text)| !text.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<(usize, String)> {
        sentences_of_page(page).into_iter().map(|sentence| (sentence.line, sentence.text)).collect()
    }

    fn expect(page: &str, expected: &[(usize, &str)]) {
        let found = found(page);
        let found: Vec<(usize, &str)> = found.iter().map(|(line, text)| (*line, text.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn sentences_run_over_lines() {
        expect("A block\nmoves. It is\nfree.", &[(1, "A block moves."), (2, "It is free.")]);
    }

    #[test]
    fn items_and_cells_are_paragraphs() {
        expect("- one\n- two\n  more\n\n| a | b |\n", &[(1, "one"), (2, "two more"), (5, "a"), (5, "b")]);
    }

    #[test]
    fn code_blocks_are_left_out() {
        expect("before\n```\nlet x = 1;\n```\nafter [x](https://y.z)", &[(1, "before"), (5, "after [x]")]);
    }

    #[test]
    fn clauses_end_at_semicolons_and_colons() {
        let sentence = &sentences_of_page("A file: it grows; a::b stays.")[0];
        assert_eq!(sentence.clauses(), ["A file:", "it grows;", "a::b stays."]);
    }
}
