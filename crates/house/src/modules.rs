//! Modules of a crate: the file that a path of Rust leads to. Re-exports are followed to the file that defines the item.

use crate::facts::{Import, Module};
use crate::house::File;
use std::collections::{HashMap, HashSet};

/// Re-exports of re-exports are followed this far.
const MAX_DEPTH: usize = 8;

/// The modules of one crate.
pub(crate) struct Modules<'a> {
    nodes: HashMap<&'a [String], Node<'a>>,
    /// The name by which the binary of a crate calls the library.
    library: String,
}

#[derive(Default)]
struct Node<'a> {
    /// Index into the files of the crate.
    file: usize,
    items: HashSet<&'a str>,
    imports: Vec<&'a Import>,
}

impl Node<'_> {
    fn has(&self, name: &str) -> bool {
        self.items.contains(name) || self.imports.iter().any(|import| import.name == name)
    }
}

impl<'a> Modules<'a> {
    /// The modules of `files`, the product files of the crate `name`.
    pub fn new(name: &str, files: &[&'a File], module_paths: &'a [Module]) -> Self {
        let mut nodes: HashMap<&'a [String], Node<'a>> = HashMap::new();
        // The library's root comes before the binary's, and stays.
        for (index, module) in module_paths.iter().enumerate() {
            nodes.entry(module).or_insert(Node { file: index, ..Node::default() });
        }
        for (file, found) in files.iter().enumerate() {
            let node = |file| move || Node { file, ..Node::default() };
            for (module, item) in &found.facts.items {
                nodes.entry(module).or_insert_with(node(file)).items.insert(item);
            }
            for import in &found.facts.imports {
                nodes.entry(&import.module).or_insert_with(node(file)).imports.push(import);
            }
        }
        Self { nodes, library: format!("terrace_{name}") }
    }

    /// The file that a path in the module `from` leads to, when the path begins inside the crate by `crate`, `self`,
    /// `super`, the library's name or a child module.
    pub fn file_of(&self, from: &[String], path: &[String]) -> Option<usize> {
        let (module, rest) = self.absolute(from, path)?;
        self.walk(module, &rest, MAX_DEPTH)
    }

    /// As [`Self::file_of`], for a path that may also begin with an item or an imported name of `from`.
    pub fn file_of_type(&self, from: &[String], path: &[String]) -> Option<usize> {
        self.file_of(from, path).or_else(|| self.walk(from.to_vec(), path, MAX_DEPTH))
    }

    fn absolute(&self, from: &[String], path: &[String]) -> Option<(Module, Vec<String>)> {
        let first = path.first()?;
        let mut module = from.to_vec();
        let mut rest = path;
        match first.as_str() {
            "crate" => (module, rest) = (Module::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            library if library == self.library => (module, rest) = (Module::new(), &path[1..]),
            child => {
                module.push(child.to_owned());
                let is_child = self.nodes.contains_key(module.as_slice());
                return is_child.then(|| (module, path[1..].to_vec()));
            }
        }
        Some((module, rest.to_vec()))
    }

    fn walk(&self, mut module: Module, path: &[String], depth: usize) -> Option<usize> {
        for (index, segment) in path.iter().enumerate() {
            module.push(segment.clone());
            if !self.nodes.contains_key(module.as_slice()) {
                module.pop();
                return self.item(&module, segment, &path[index + 1..], depth);
            }
        }
        self.nodes.get(module.as_slice()).map(|node| node.file)
    }

    /// The file of the item `name` of a module, which may be a re-export; `rest` follows the name in the path.
    fn item(&self, module: &[String], name: &str, rest: &[String], depth: usize) -> Option<usize> {
        let node = self.nodes.get(module)?;
        if node.items.contains(name) || depth == 0 {
            return Some(node.file);
        }
        let follow = |import: &Import, tail: &[String]| {
            let (module, mut path) = self.absolute(&import.module, &import.segments)?;
            path.extend_from_slice(tail);
            self.walk(module, &path, depth - 1)
        };
        if let Some(import) = node.imports.iter().find(|import| import.name == name) {
            return follow(import, rest);
        }
        let globs = node.imports.iter().filter(|import| import.name == "*");
        let from_glob = |import: &&Import| {
            let (mut module, path) = self.absolute(&import.module, &import.segments)?;
            module.extend(path);
            self.nodes.get(module.as_slice()).filter(|node| node.has(name))?;
            self.item(&module, name, rest, depth - 1)
        };
        // Macros define items too: without an import, the module itself defines the name.
        globs.copied().find_map(|import| from_glob(&import)).or(Some(node.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::House;

    #[test]
    fn paths_lead_through_reexports() {
        let house = House::fixture(
            &[
                ("crates/a/src/lib.rs", "mod b; mod c; pub use b::Deep as D; pub use c::*;"),
                ("crates/a/src/b/mod.rs", "mod d; pub use self::d::Deep; pub struct Shallow;"),
                ("crates/a/src/b/d.rs", "pub struct Deep;"),
                ("crates/a/src/c.rs", "use crate::b::Shallow; pub fn f() {} mod inner { pub struct In; }"),
            ],
            "",
        );
        let files: Vec<&File> = house.product_files().collect();
        let paths: Vec<Module> = files.iter().map(|file| file.source.module()).collect();
        let modules = Modules::new("a", &files, &paths);
        let file = |from: &[&str], path: &str| {
            let from: Vec<String> = from.iter().map(|part| (*part).to_owned()).collect();
            let path: Vec<String> = path.split("::").map(str::to_owned).collect();
            let found = modules.file_of(&from, &path).or_else(|| modules.file_of_type(&from, &path))?;
            Some(files[found].source.path.trim_start_matches("crates/a/src/"))
        };
        assert_eq!(file(&["c"], "crate::D"), Some("b/d.rs"));
        assert_eq!(file(&["c"], "terrace_a::f"), Some("c.rs"));
        assert_eq!(file(&["c"], "Shallow"), Some("b/mod.rs"));
        assert_eq!(file(&["b", "d"], "super::Shallow"), Some("b/mod.rs"));
        assert_eq!(file(&["b"], "d::Deep::new"), Some("b/d.rs"));
        assert_eq!(file(&[], "c::inner::In"), Some("c.rs"));
        let outside = ["std", "sync"].map(str::to_owned);
        assert_eq!(modules.file_of(&["c".to_owned()], &outside), None);
        assert_eq!(file(&["c"], "made_by_a_macro"), Some("c.rs"));
    }
}
