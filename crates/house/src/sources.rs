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

impl Source {
    /// Whether the file holds Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// The root of the workspace that this crate was built in.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// All files at or below `path` that have one of the `extensions`, in the order of their paths. Build output is
/// left out. A file that cannot be read as UTF-8 is left out too.
pub fn read(path: &Path, extensions: &[&str]) -> Vec<Source> {
    let root = root();
    let is_output = |entry: &walkdir::DirEntry| entry.depth() > 0 && entry.file_name() == "target";
    let entries = WalkDir::new(path).sort_by_file_name().into_iter().filter_entry(|entry| !is_output(entry));
    let has_extension =
        |path: &Path| extensions.iter().any(|wanted| path.extension().is_some_and(|e| e == *wanted));
    let files = entries.flatten().map(walkdir::DirEntry::into_path).filter(|path| has_extension(path));
    let source = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).ok()?;
        let shown = path.strip_prefix(&root).unwrap_or(&path);
        Some(Source { path: shown.to_string_lossy().into_owned(), text })
    };
    files.filter_map(source).collect()
}
