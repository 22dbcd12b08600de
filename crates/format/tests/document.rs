//! docs/format.md and the registry of versions and features (crates/format/src/version.rs) say the same.

use terrace_format::version::{COMPATIBLE, FORMAT_VERSION, INCOMPATIBLE, READ_ONLY_COMPATIBLE, VERSIONS};

/// The rows of the tables of the section "Versions and features".
fn documented() -> Vec<Vec<String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let section = text.split("\n## ").find(|section| section.starts_with("Versions and features\n"));
    let section = section.unwrap_or_else(|| panic!("docs/format.md has no section on versions"));
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
    rows.map(cells).collect()
}

#[test]
fn the_document_lists_exactly_the_versions() {
    let rows = documented();
    let versions: Vec<_> = rows.iter().filter(|row| row.len() == 2 && row[0] != "version").collect();
    let expected: Vec<_> =
        VERSIONS.iter().map(|row| vec![row.version.to_string(), row.sentence.to_string()]).collect();
    assert!(versions.into_iter().eq(&expected), "docs/format.md should have {expected:?}");
    assert!(VERSIONS.windows(2).all(|pair| pair[0].version < pair[1].version), "versions rise");
    assert_eq!(VERSIONS.last().map(|row| row.version), Some(FORMAT_VERSION));
}

#[test]
fn the_document_lists_exactly_the_features() {
    let rows = documented();
    let mut bits = 0u64;
    for (field, table) in [
        ("incompatible", INCOMPATIBLE),
        ("read_only_compatible", READ_ONLY_COMPATIBLE),
        ("compatible", COMPATIBLE),
    ] {
        let found: Vec<Vec<&str>> = rows
            .iter()
            .filter(|row| row.len() == 5 && row[0] == field && !row[1].is_empty())
            .map(|row| row[1..4].iter().map(String::as_str).collect())
            .collect();
        let numbers: Vec<String> = table.iter().map(|row| row.bit.to_string()).collect();
        let expected: Vec<Vec<&str>> =
            table.iter().zip(&numbers).map(|(row, bit)| vec![bit.as_str(), row.name, row.sentence]).collect();
        assert_eq!(found, expected, "docs/format.md, {field}");
        assert!(rows.iter().any(|row| row[0] == field), "docs/format.md says nothing of {field}");
        for row in table {
            assert!(row.bit.is_power_of_two(), "{} is one bit", row.name);
            bits |= row.bit;
        }
    }
    assert_ne!(bits, 0, "there is a feature");
}
