//! Asserts per 1,000 lines of product code, for the folders that the limits name. The figure may only rise.

use crate::figure::{Figure, Offender};
use crate::house::{File, House};

/// A figure for each folder under `[asserts]` of the limits.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let folders = house.limits.checks.get("asserts").into_iter().flatten();
    folders.map(|(folder, _)| density(house, folder)).collect()
}

/// The offenders are files without an assert, the longest first.
fn density(house: &House, folder: &str) -> Figure {
    let files: Vec<&File> =
        house.product_files().filter(|file| file.source.path.starts_with(&format!("{folder}/"))).collect();
    let lines: usize = files.iter().map(|file| file.facts.product_lines()).sum();
    let asserts: usize = files.iter().map(|file| file.facts.asserts.len()).sum();
    let mut bare: Vec<&File> = files.into_iter().filter(|file| file.facts.asserts.is_empty()).collect();
    bare.sort_by_key(|file| std::cmp::Reverse(file.facts.product_lines()));
    let offender = |file: &File| {
        let text = format!("{} lines, no assert", file.facts.product_lines());
        Offender::new(&file.source.path, 1, text)
    };
    let per_1000 = asserts as f64 * 1000.0 / lines.max(1) as f64;
    Figure::at_least(folder, per_1000, bare.into_iter().map(offender).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn asserts_of_product_code_are_counted() {
        let text = "fn f() {\n    assert!(a);\n    debug_assert!(b);\n    assert_eq!(c, d);\n}\n\n\n\n\n\n#[cfg(test)]\nmod tests {\n    fn g() { assert!(a) }\n}\n";
        let mut house = House::fixture(&[("crates/a/src/b.rs", text), ("crates/a/src/c.rs", "\n")], "");
        house.limits = Limits::parse("[asserts]\n\"crates/a/src\" = 200").expect("it is sound");
        let figures = figures(&house);
        // 2 asserts in 11 lines.
        assert_eq!(figures[0].value, 181.8);
        assert_eq!(figures[0].worst.len(), 1);
    }
}
