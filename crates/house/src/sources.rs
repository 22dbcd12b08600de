//! The files of the workspace: Rust sources and pages.

use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// A text file with its path as messages show it.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the root of the workspace, when the file lies below it.
    pub path: String,
    /// The whole content.
    pub text: String,
}

/// The part of the project that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Below `src` of a crate.
    Source,
    /// Integration tests, examples and fuzz targets.
    Test,
    /// A Markdown page.
    Page,
    /// Scripts.
    Other,
}

impl Source {
    /// Whether the file holds Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The part of the project, by the path.
    pub fn kind(&self) -> Kind {
        if self.path.ends_with(".md") {
            Kind::Page
        } else if !self.is_rust() {
            Kind::Other
        } else if self.path.starts_with("crates/") && self.path.split('/').nth(2) == Some("src") {
            Kind::Source
        } else {
            Kind::Test
        }
    }

    /// The folder of the crate below `crates`; empty for files outside.
    pub fn crate_name(&self) -> &str {
        let inside = self.path.strip_prefix("crates/").and_then(|path| path.split_once('/'));
        inside.map_or("", |(name, _)| name)
    }

    /// The module that the file is in its crate: `crates/fs/src/migration/mod.rs` is `migration`.
    pub fn module(&self) -> Vec<String> {
        let Some((_, inside)) = self.path.split_once("/src/") else { return Vec::new() };
        let inside = inside.trim_end_matches(".rs");
        let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
        if inside == "lib" || inside == "main" || inside.ends_with("/mod") {
            module.pop();
        }
        module
    }
}

/// The root of the workspace that this crate was built in.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// All text files of the project that a check may ask about.
pub fn project() -> Vec<Source> {
    let parts = ["crates", "docs", "fuzz", "scripts", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];
    let extensions = ["rs", "md", "toml", "sh", ""];
    parts.iter().flat_map(|part| read(&root().join(part), &extensions)).collect()
}

/// All files at or below `path` that have one of the `extensions`, in the order of their paths. Build output is
/// left out, and so is a file that is no UTF-8.
pub fn read(path: &Path, extensions: &[&str]) -> Vec<Source> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let root = root();
    let is_output = |entry: &walkdir::DirEntry| entry.depth() > 0 && entry.file_name() == "target";
    let entries = WalkDir::new(path).sort_by_file_name().into_iter().filter_entry(|entry| !is_output(entry));
    let extension =
        |path: &Path| path.extension().map_or("", |found| found.to_str().unwrap_or("?")).to_owned();
    let files =
        entries.flatten().filter(|entry| entry.file_type().is_file()).map(walkdir::DirEntry::into_path);
    let source = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).ok()?;
        let shown = path.strip_prefix(&root).unwrap_or(&path);
        Some(Source { path: shown.to_string_lossy().into_owned(), text })
    };
    files.filter(|path| extensions.contains(&extension(path).as_str())).filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str) -> Source {
        Source { path: path.to_owned(), text: String::new() }
    }

    #[test]
    fn a_path_tells_crate_module_and_kind() {
        let file = source("crates/fs/src/migration/copy.rs");
        assert_eq!((file.crate_name(), file.kind()), ("fs", Kind::Source));
        assert_eq!(file.module(), ["migration", "copy"]);
        assert_eq!(source("crates/fs/src/migration/mod.rs").module(), ["migration"]);
        assert!(source("crates/fs/src/lib.rs").module().is_empty());
        assert_eq!(source("crates/fs/tests/src/x.rs").kind(), Kind::Test);
        assert_eq!(source("fuzz/src/lib.rs").kind(), Kind::Test);
        assert_eq!(source("docs/x.md").kind(), Kind::Page);
    }
}
