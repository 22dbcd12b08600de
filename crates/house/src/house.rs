//! The whole project, read and parsed once.

use crate::facts::parse::parse;
use crate::facts::{Facts, Module};
use crate::limits::Limits;
use crate::rooms::Rooms;
use crate::sources::{self, Kind, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A Rust file with its facts.
pub(crate) struct File {
    pub source: Source,
    pub facts: Facts,
}

/// Sources, facts, plan and limits: everything that a check asks.
pub struct House {
    pub(crate) files: Vec<File>,
    /// Pages and scripts.
    pub(crate) texts: Vec<Source>,
    /// Crates that the manifest of a crate names under `[dependencies]`.
    pub(crate) dependencies: BTreeMap<String, Vec<String>>,
    pub(crate) rooms: Rooms,
    pub(crate) limits: Limits,
}

impl House {
    /// Reads the workspace with `rooms.toml` and `limits.toml` of this crate.
    ///
    /// # Errors
    /// A file that `syn` does not understand, or a manifest, plan or limits file that is no such TOML.
    pub fn read() -> Result<Self, String> {
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let rooms = read(sources::root().join("crates/house/rooms.toml"))?;
        Self::of(sources::project(), &rooms, &read(limits_path())?)
    }

    /// The house of these sources.
    ///
    /// # Errors
    /// As [`House::read`].
    pub fn of(sources: Vec<Source>, rooms: &str, limits: &str) -> Result<Self, String> {
        let rooms = Rooms::parse(rooms)?;
        let limits = Limits::parse(limits)?;
        let (rust, texts): (Vec<Source>, Vec<Source>) = sources.into_iter().partition(Source::is_rust);
        let manifests =
            texts.iter().filter(|text| text.path.ends_with("/Cargo.toml") && !text.crate_name().is_empty());
        let dependencies = manifests.map(dependencies).collect::<Result<_, _>>()?;
        let mut files = Vec::new();
        for source in rust {
            let facts = parse(&source).ok_or_else(|| format!("{}: syn cannot parse it", source.path))?;
            files.push(File { source, facts });
        }
        mark_test_modules(&mut files);
        Ok(Self { files, texts, dependencies, rooms, limits })
    }

    /// Files below `src` that the product compiles, those of one crate together.
    pub(crate) fn crates(&self) -> BTreeMap<&str, Vec<&File>> {
        let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
        for file in self.product_files() {
            crates.entry(file.source.crate_name()).or_default().push(file);
        }
        crates
    }

    /// Files below `src` of a crate that are no test modules.
    pub(crate) fn product_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.source.kind() == Kind::Source && !file.facts.is_test)
    }

    /// The group that wording is counted in: `engine`, `tools`, `tests` or `docs`.
    pub(crate) fn group(&self, source: &Source) -> &'static str {
        match source.kind() {
            Kind::Page => "docs",
            Kind::Source if self.rooms.engine.iter().any(|name| name == source.crate_name()) => "engine",
            Kind::Source => "tools",
            Kind::Test | Kind::Other => "tests",
        }
    }
}

#[cfg(test)]
impl House {
    /// A house of these files, without limits.
    pub(crate) fn fixture(files: &[(&str, &str)], rooms: &str) -> Self {
        let source =
            |(path, text): &(&str, &str)| Source { path: (*path).to_owned(), text: (*text).to_owned() };
        Self::of(files.iter().map(source).collect(), rooms, "").expect("the fixture is sound")
    }
}

/// The limits of this project.
pub fn limits_path() -> PathBuf {
    sources::root().join("crates/house/limits.toml")
}

/// The crate of a manifest, and the crates of this workspace that its product code uses.
fn dependencies(manifest: &Source) -> Result<(String, Vec<String>), String> {
    let table: toml::Table = manifest.text.parse().map_err(|error| format!("{}: {error}", manifest.path))?;
    let names = table.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten();
    let crates = names.filter_map(|(name, _)| name.strip_prefix("terrace-")).map(str::to_owned).collect();
    Ok((manifest.crate_name().to_owned(), crates))
}

/// Takes the facts of product code from files that only tests compile, because their declaration
/// has `#[cfg(test)]` or because their name ends with `tests`.
fn mark_test_modules(files: &mut [File]) {
    let mut declared: BTreeSet<(String, Module)> = BTreeSet::new();
    // A test target has modules of its own, of any name.
    for file in files.iter().filter(|file| file.source.kind() == Kind::Source) {
        let children = file.facts.children.iter().filter(|(_, is_test)| *is_test);
        declared.extend(children.map(|(module, _)| (file.source.crate_name().to_owned(), module.clone())));
    }
    for File { source, facts } in files {
        let (name, module) = (source.crate_name().to_owned(), source.module());
        let prefixes = (1..=module.len()).map(|length| (name.clone(), module[..length].to_vec()));
        let is_declared = prefixes.into_iter().any(|prefix| declared.contains(&prefix));
        if is_declared || module.last().is_some_and(|last| last.ends_with("tests")) {
            facts.become_test();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_declared_for_tests_are_no_product_files() {
        let files = [
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod model;\nmod b;"),
            ("crates/a/src/model.rs", "fn f() { assert!(true) }"),
            ("crates/a/src/model/deeper.rs", ""),
            ("crates/a/src/b.rs", ""),
            ("crates/a/src/b_tests.rs", ""),
            ("crates/a/tests/c.rs", "mod b;"),
        ];
        let house = House::fixture(&files, "");
        let product: Vec<&str> = house.product_files().map(|file| file.source.path.as_str()).collect();
        assert_eq!(product, ["crates/a/src/lib.rs", "crates/a/src/b.rs"]);
    }

    #[test]
    fn manifests_name_the_crates_below() {
        let manifest =
            "[dependencies]\nterrace-b.workspace = true\nlibc = \"1\"\n[dev-dependencies]\nterrace-c = {}";
        let house = House::fixture(&[("crates/a/Cargo.toml", manifest)], "");
        assert_eq!(house.dependencies["a"], ["b"]);
    }
}
