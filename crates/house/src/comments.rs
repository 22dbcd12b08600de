//! Comments and string literals of Rust text. `syn` drops ordinary comments, so a small lexer finds them.

use regex_lite::Regex;
use std::sync::LazyLock;

/// Literals must be matched too: `"//"` opens no comment, and `'"'` opens no string.
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    let token = r##"(?xs)
        (?<comment> //[^\n]* | /\*.*?\*/ )
      | (?<string> \bb?r"[^"]*" | \bb?r\#".*?"\# | \bb?r\#\#".*?"\#\# | "(?:[^"\\]|\\.)*" )
      | '(?: \\x.. | \\u\{[^}]*\} | \\. | [^\\'] )' "##;
    Regex::new(token).expect("the expression is constant")
});

/// Consecutive lines of one comment, or one string literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Line of the file and text of the line, without comment marks or quotes.
    pub lines: Vec<(usize, String)>,
}

/// All comments and literals of a file, as [`texts`] returns them.
#[derive(Default)]
pub struct Texts {
    /// Comments and doc comments. Consecutive lines with the same mark form a single comment.
    pub comments: Vec<Text>,
    /// String literals with their escapes as they are written.
    pub strings: Vec<Text>,
}

/// Finds comments and string literals.
pub fn texts(source: &str) -> Texts {
    let mut found = Texts::default();
    let mut counted_to = 0;
    let mut line = 1;
    // Mark and last line of a comment that the next line may continue.
    let mut open = None;
    for token in TOKEN.captures_iter(source) {
        let start = token.get(0).map_or(counted_to, |all| all.start());
        line += source[counted_to..start].matches('\n').count();
        counted_to = start;
        if let Some(comment) = token.name("comment") {
            let before = &source[source[..start].rfind('\n').map_or(0, |end| end + 1)..start];
            let mark = mark(comment.as_str());
            let lines = stripped(comment.as_str(), mark, line);
            let is_alone = before.trim().is_empty() && mark != "/*";
            match found.comments.last_mut() {
                Some(last) if is_alone && open == Some((mark, line - 1)) => last.lines.extend(lines),
                _ => found.comments.push(Text { lines }),
            }
            open = is_alone.then_some((mark, line));
        } else if let Some(string) = token.name("string") {
            let text =
                string.as_str().trim_start_matches(['b', 'r', '#']).trim_end_matches('#').trim_matches('"');
            found.strings.push(Text { lines: numbered(text, line) });
        }
    }
    found
}

fn mark(comment: &str) -> &'static str {
    let marks = ["///", "//!", "//", "/*"];
    marks.into_iter().find(|mark| comment.starts_with(mark)).unwrap_or("//")
}

fn stripped(comment: &str, mark: &str, line: usize) -> Vec<(usize, String)> {
    match mark {
        "/*" => numbered(comment.trim_start_matches("/*").trim_end_matches("*/"), line),
        _ => vec![(line, comment[mark.len()..].to_owned())],
    }
}

fn numbered(text: &str, first: usize) -> Vec<(usize, String)> {
    text.lines().enumerate().map(|(i, text)| (first + i, text.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comments(source: &str) -> Vec<Vec<(usize, String)>> {
        texts(source).comments.into_iter().map(|comment| comment.lines).collect()
    }

    #[test]
    fn lines_with_the_same_mark_are_one_comment() {
        let found = comments("//! A\n//! b\n\n// c\n/// d\n/// e\nfn f() {} // g\n// h\n");
        let line = |line, text: &str| (line, text.to_owned());
        let expected =
            [vec![line(1, " A"), line(2, " b")], vec![line(4, " c")], vec![line(5, " d"), line(6, " e")]];
        assert_eq!(found[..3], expected);
        assert_eq!(found[3..], [vec![line(7, " g")], vec![line(8, " h")]]);
    }

    #[test]
    fn literals_hide_comment_marks() {
        let source = "let a = \"// \\\" no\"; let b = r#\"\n// no \" \"#; let c = '\"'; fn f<'a>(x: &'a str) {} // yes";
        assert_eq!(comments(source), [[(2, " yes".to_owned())]]);
        assert_eq!(texts(source).strings.len(), 2);
        assert_eq!(texts(source).strings[1].lines[1], (2, "// no \" ".to_owned()));
    }
}
