//! Lines of prose in pages that are too long to read in a terminal or in a difference.

use crate::figure::{Figure, Offender};
use crate::house::House;
use crate::sources::{Kind, Source};

/// Characters of a line of prose.
const MAX_WIDTH: usize = 130;
/// Generated tables and their prose.
const LEFT_OUT: &str = "docs/evaluation.md";

/// The figure `docs`.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let pages = house.texts.iter().filter(|text| text.kind() == Kind::Page && text.path != LEFT_OUT);
    let mut wide: Vec<(usize, Offender)> = pages.flat_map(wide_lines).collect();
    wide.sort_by_key(|(width, _)| std::cmp::Reverse(*width));
    vec![Figure::count("docs", wide.into_iter().map(|(_, offender)| offender).collect())]
}

/// Long lines outside tables and code, each with its width.
fn wide_lines(page: &Source) -> Vec<(usize, Offender)> {
    let mut is_code = false;
    let mut wide = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        let width = line.chars().count();
        if width > MAX_WIDTH && !is_code && !line.trim_start().starts_with('|') {
            wide.push((width, Offender::new(&page.path, index + 1, format!("{width} characters"))));
        }
    }
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_code_may_be_wide() {
        let wide = "x".repeat(131);
        let page = format!("{wide}\n| {wide} |\n```\n{wide}\n```\nshort\n");
        let figures = figures(&House::fixture(&[("docs/a.md", &page), (LEFT_OUT, &wide)], ""));
        assert_eq!(figures[0].worst, [Offender::new("docs/a.md", 1, "131 characters")]);
    }
}
