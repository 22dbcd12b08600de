//! Cited rules exist: T, S, M, L, P, I, J, "design C1" and "design 4.5" in docs/design.md, bare C rules in
//! docs/semantics.md, "decision 0016" in docs/decisions. And each rule of the design is cited somewhere.

use crate::comments::texts;
use crate::figure::{Figure, Offender};
use crate::house::House;
use crate::sources::Source;
use regex_lite::{Captures, Regex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

const DESIGN: &str = "docs/design.md";
const SEMANTICS: &str = "docs/semantics.md";
/// The fixtures of this crate cite rules that do not exist.
const OWN: &str = "crates/house/";

static CITATION: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r"(?x)
        \b[Dd]esign\s+ (?: (?<design_c>C\d{1,2}) | (?<section>\d{1,2}(?:\.\d{1,2})?) )\b
      | \b[Dd]ecisions?[/\s]+ (?<decision>\d{4})\b
      | \((?<number>00\d\d)\)
      | \b(?<rule>[TSMLPIJ]\d{1,2})\b
      | \b(?<semantics>C\d{1,2})\b",
    )
});
static DESIGN_RULE: LazyLock<Regex> = LazyLock::new(|| expression(r"(?m)^- \*\*([A-Z]\d{1,2})\.\*\*"));
static SECTION: LazyLock<Regex> = LazyLock::new(|| expression(r"(?m)^#+ (\d+(?:\.\d+)?)\.? "));
static SEMANTICS_RULE: LazyLock<Regex> = LazyLock::new(|| expression(r"(?m)^- \*{0,2}(C\d{1,2})\."));
static DECISION: LazyLock<Regex> = LazyLock::new(|| expression(r"^docs/decisions/(\d{4})-"));

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("the expression is constant")
}

/// Everything that can be cited.
struct Law {
    design: BTreeMap<String, usize>,
    sections: BTreeSet<String>,
    semantics: BTreeSet<String>,
    decisions: BTreeSet<String>,
}

/// Figures `unknown` (citations of nothing) and `uncited` (rules of the design that nothing cites).
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let law = Law::of(house);
    let mut unknown = Vec::new();
    let mut cited = BTreeSet::new();
    let sources = house.files.iter().map(|file| &file.source).chain(&house.texts);
    for source in sources.filter(|source| !source.path.starts_with(OWN)) {
        for (line, text) in lines_with_citations(source) {
            for citation in CITATION.captures_iter(&text) {
                let word = &citation[0];
                if !law.allows(&citation) && !house.limits.not_rules.contains_key(word) {
                    unknown.push(Offender::new(&source.path, line, format!("{word} does not exist")));
                }
                let rule = citation.name("rule").or(citation.name("design_c"));
                cited.extend(rule.filter(|_| source.path != DESIGN).map(|rule| rule.as_str().to_owned()));
            }
        }
    }
    let uncited = law.design.iter().filter(|(rule, _)| !cited.contains(*rule));
    let uncited = uncited.map(|(rule, line)| Offender::new(DESIGN, *line, format!("nothing cites {rule}")));
    vec![Figure::count("unknown", unknown), Figure::count("uncited", uncited.collect())]
}

/// Comments and string literals of a Rust file, all lines of others. The lines that define the rules of the design
/// cite nothing.
fn lines_with_citations(source: &Source) -> Vec<(usize, String)> {
    if source.is_rust() {
        let texts = texts(&source.text);
        return texts.comments.into_iter().chain(texts.strings).flat_map(|text| text.lines).collect();
    }
    let lines = source.text.lines().enumerate().map(|(index, line)| (index + 1, line.to_owned()));
    lines.filter(|(_, line)| !DESIGN_RULE.is_match(line)).collect()
}

impl Law {
    fn of(house: &House) -> Self {
        let page = |path: &str| {
            house.texts.iter().find(|text| text.path == path).map_or("", |page| page.text.as_str())
        };
        let all = |expression: &Regex, text: &str| {
            expression.captures_iter(text).map(|found| found[1].to_owned()).collect()
        };
        let rules =
            |(index, line): (usize, &str)| Some((DESIGN_RULE.captures(line)?[1].to_owned(), index + 1));
        let decisions = house.texts.iter().filter_map(|text| DECISION.captures(&text.path));
        Self {
            design: page(DESIGN).lines().enumerate().filter_map(rules).collect(),
            sections: all(&SECTION, page(DESIGN)),
            semantics: all(&SEMANTICS_RULE, page(SEMANTICS)),
            decisions: decisions.map(|found| found[1].to_owned()).collect(),
        }
    }

    fn allows(&self, citation: &Captures<'_>) -> bool {
        let group = |name| citation.name(name).map(|found| found.as_str());
        let is_rule = |rule: &str| self.design.contains_key(rule);
        let is_decision = |number: &str| self.decisions.contains(number);
        group("rule").or(group("design_c")).is_none_or(is_rule)
            && group("section").is_none_or(|section| self.sections.contains(section))
            && group("decision").or(group("number")).is_none_or(is_decision)
            && group("semantics").is_none_or(|rule| self.semantics.contains(rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: [(&str, &str); 3] = [
        (
            DESIGN,
            "## 4. Layout\n### 4.5 Cold map\n- **T1.** A record.\n- **C1.** A location.\n- **M1.** A flush, as T1.\n",
        ),
        (SEMANTICS, "- C7. Synced.\n"),
        ("docs/decisions/0016-write-back.md", "Rejected.\n"),
    ];

    fn found(text: &str) -> (Vec<String>, Vec<String>) {
        let files = [&PAGES[..], &[("crates/a/src/b.rs", text)]].concat();
        let texts = |figure: &Figure| figure.worst.iter().map(|offender| offender.text.clone()).collect();
        let figures = figures(&House::fixture(&files, ""));
        (texts(&figures[0]), texts(&figures[1]))
    }

    #[test]
    fn known_rules_may_be_cited() {
        let (unknown, uncited) =
            found("//! T1, M1 (design 4.5, design C1), C7; decision 0016, docs/decisions/0016-write-back.md");
        assert_eq!((unknown.len(), uncited.len()), (0, 0), "{unknown:?} {uncited:?}");
    }

    #[test]
    fn unknown_rules_are_found_and_code_is_no_citation() {
        let text =
            "// T9\nuse x::I64;\n/// design 4.6, design C3, C8\nfn f() { g(\"decision 0017 (0018)\") }";
        let expected = ["T9", "design 4.6", "design C3", "C8", "decision 0017", "(0018)"];
        assert_eq!(found(text).0, expected.map(|word| format!("{word} does not exist")));
    }

    #[test]
    fn a_rule_cited_by_the_design_alone_is_found() {
        assert_eq!(found("// T1, C1").1, ["nothing cites C1", "nothing cites M1"]);
    }

    #[test]
    fn allowed_words_are_no_rules() {
        let files = [&PAGES[..], &[("README.md", "The L2 cache.")]].concat();
        let mut house = House::fixture(&files, "");
        assert_eq!(figures(&house)[0].worst.len(), 1);
        house.limits = crate::limits::Limits::parse("[not_rules]\nL2 = \"a cache\"").expect("it is sound");
        assert!(figures(&house)[0].worst.is_empty());
    }
}
