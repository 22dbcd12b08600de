//! `unsafe` lies in the places of rooms.toml only, each explained; all other crates forbid it.

use crate::facts::Unsafe;
use crate::figure::{Figure, Offender};
use crate::house::{File, House};
use crate::sources::Kind;

/// Figures `misplaced`, `unexplained` and `unforbidden`.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let uses =
        || house.files.iter().flat_map(|file| file.facts.unsafes.iter().map(move |found| (file, found)));
    let offenders = |text: &str, is_wrong: &dyn Fn(&File, &Unsafe) -> bool| {
        let wrong = uses().filter(|(file, found)| is_wrong(file, found));
        wrong.map(|(file, found)| Offender::new(&file.source.path, found.line, text)).collect()
    };
    let misplaced =
        offenders("rooms.toml allows no unsafe here", &|file, _| !is_allowed(house, &file.source.path));
    let unexplained = offenders("no SAFETY comment above", &|file, found| !is_explained(file, found));
    vec![
        Figure::count("misplaced", misplaced),
        Figure::count("unexplained", unexplained),
        Figure::count("unforbidden", unforbidden(house)),
    ]
}

fn is_allowed(house: &House, path: &str) -> bool {
    let is_inside = |place: &String| {
        path.strip_prefix(place.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    house.rooms.unsafe_in.keys().any(is_inside)
}

/// Whether the comment above the line, or above its statement, has the word.
fn is_explained(file: &File, found: &Unsafe) -> bool {
    let lines: Vec<&str> = file.source.text.lines().map(str::trim).collect();
    let is_above = |line: usize| {
        let above = lines[..line - 1].iter().rev();
        let mut comment = above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
        comment.any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
    };
    is_above(found.line) || is_above(found.start)
}

/// Roots of crates without `unsafe` that do not forbid it.
fn unforbidden(house: &House) -> Vec<Offender> {
    let is_root = |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    let may_hold_unsafe =
        |name: &str| house.rooms.unsafe_in.keys().any(|place| place.split('/').nth(1) == Some(name));
    let roots =
        house.files.iter().filter(|file| file.source.kind() == Kind::Source && is_root(&file.source.path));
    let wrong = roots.filter(|file| !file.facts.forbids_unsafe && !may_hold_unsafe(file.source.crate_name()));
    wrong.map(|file| Offender::new(&file.source.path, 1, "#![forbid(unsafe_code)] is missing")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "[unsafe_in]\n\"crates/media\" = \"PM\"\n\"crates/fuse/src/s.rs\" = \"one line\"";

    fn values(path: &str, text: &str) -> Vec<f64> {
        figures(&House::fixture(&[(path, text)], PLAN)).iter().map(|figure| figure.value).collect()
    }

    #[test]
    fn unsafe_in_another_crate_is_misplaced() {
        let block = "fn f() {\n    // SAFETY: none is needed.\n    unsafe { g() }\n}";
        assert_eq!(values("crates/wal/src/a.rs", block), [1.0, 0.0, 0.0]);
        assert_eq!(values("crates/media/src/a.rs", block), [0.0, 0.0, 0.0]);
        assert_eq!(values("crates/fuse/src/s.rs", block), [0.0, 0.0, 0.0]);
        assert_eq!(values("crates/fuse/src/other.rs", block), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_comment_explains_the_statement_below_it() {
        let path = "crates/media/src/a.rs";
        assert_eq!(values(path, "fn f() {\n    // fine\n    unsafe { g() }\n}"), [0.0, 1.0, 0.0]);
        let statement = "fn f() {\n    // SAFETY: g\n    let x = h(\n        unsafe { g() },\n    );\n}";
        assert_eq!(values(path, statement), [0.0, 0.0, 0.0]);
        let method =
            "impl A {\n    /// # Safety\n    /// The block is owned.\n    #[inline]\n    unsafe fn f() {}\n}";
        assert_eq!(values(path, method), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_root_must_forbid_unsafe() {
        assert_eq!(values("crates/wal/src/lib.rs", "mod a;"), [0.0, 0.0, 1.0]);
        assert_eq!(values("crates/wal/src/lib.rs", "#![forbid(unsafe_code)]\nmod a;"), [0.0, 0.0, 0.0]);
        assert_eq!(values("crates/media/src/lib.rs", "mod a;"), [0.0, 0.0, 0.0]);
    }
}
