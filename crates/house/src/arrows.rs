//! Arrows between the files of a crate: imports, paths and calls of methods in product code.
//!
//! An import alone does not show a method that is called through `self.`; so a call counts as an arrow to the file of
//! the only inherent impl in the crate that has a method of this name. Re-exports (`pub use`) and `mod` count as none.

use crate::facts::{Call, Module, PathUse};
use crate::house::{File, House};
use crate::modules::Modules;
use std::collections::{HashMap, HashSet};

/// A use of one file by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrow {
    /// Index into the files of the crate.
    pub from: usize,
    pub to: usize,
    pub line: usize,
    /// The path or the method.
    pub by: String,
    pub is_call: bool,
}

/// A crate with its files and the arrows between them.
pub(crate) struct Plan<'a> {
    pub name: &'a str,
    pub files: Vec<&'a File>,
    pub arrows: Vec<Arrow>,
}

/// The plans of all crates.
pub(crate) fn plans(house: &House) -> Vec<Plan<'_>> {
    let plan = |(name, files): (_, Vec<_>)| Plan { name, arrows: arrows(house, name, &files), files };
    house.crates().into_iter().map(plan).collect()
}

fn arrows(house: &House, name: &str, files: &[&File]) -> Vec<Arrow> {
    let module_paths: Vec<Module> = files.iter().map(|file| file.source.module()).collect();
    let modules = Modules::new(name, files, &module_paths);
    let methods = Methods::new(house, name, files);
    let mut arrows = Vec::new();
    for (from, file) in files.iter().enumerate() {
        let mut add = |to: Option<usize>, line, by: String, is_call| {
            let to = to.filter(|to| *to != from);
            arrows.extend(to.map(|to| Arrow { from, to, line, by, is_call }));
        };
        for import in file.facts.imports.iter().filter(|import| !import.is_reexport) {
            let mut path = import.segments.clone();
            if import.name == "*" {
                path.push("*".to_owned());
            }
            add(modules.file_of(&import.module, &import.segments), import.line, path.join("::"), false);
        }
        for path in &file.facts.paths {
            add(modules.file_of(&path.module, &path.segments), path.line, path.segments.join("::"), false);
            add(methods.file_of_path(path), path.line, path.segments.join("::"), true);
        }
        for call in &file.facts.calls {
            add(methods.file_of_call(call), call.line, format!(".{}()", call.name), true);
        }
    }
    arrows
}

/// Methods of inherent impls, each with the files that define one of the name.
struct Methods<'a> {
    by_name: HashMap<&'a str, HashSet<usize>>,
    by_type: HashMap<(&'a str, &'a str), HashSet<usize>>,
    /// Names that a receiver other than `self` may have from a trait or from a lower crate.
    ambiguous: HashSet<&'a str>,
}

impl<'a> Methods<'a> {
    fn new(house: &'a House, name: &str, files: &[&'a File]) -> Self {
        let mut methods =
            Self { by_name: HashMap::new(), by_type: HashMap::new(), ambiguous: HashSet::new() };
        for (index, file) in files.iter().enumerate() {
            for method in &file.facts.methods {
                let of = method.of.last().map_or("", String::as_str);
                methods.by_name.entry(&method.name).or_default().insert(index);
                methods.by_type.entry((of, &method.name)).or_default().insert(index);
            }
        }
        let below = house.dependencies.get(name).map_or(&[][..], Vec::as_slice);
        let is_below = |file: &&File| below.iter().any(|name| name == file.source.crate_name());
        for file in house.product_files().filter(is_below) {
            methods.ambiguous.extend(file.facts.methods.iter().map(|method| method.name.as_str()));
            methods.ambiguous.extend(file.facts.trait_methods.iter().map(String::as_str));
        }
        let of_traits = files.iter().flat_map(|file| &file.facts.trait_methods);
        methods.ambiguous.extend(of_traits.map(String::as_str));
        methods.ambiguous.extend(house.rooms.common_methods.iter().map(String::as_str));
        methods
    }

    fn file_of_call(&self, call: &Call) -> Option<usize> {
        let is_certain = call.on_self || !self.ambiguous.contains(call.name.as_str());
        self.by_name.get(call.name.as_str()).filter(|_| is_certain).and_then(only)
    }

    /// The file of `Type::method` or `Self::method`.
    fn file_of_path(&self, path: &PathUse) -> Option<usize> {
        let [.., of, name] = path.segments.as_slice() else { return None };
        match of.as_str() {
            "Self" => self.by_name.get(name.as_str()).and_then(only),
            of => self.by_type.get(&(of, name.as_str())).and_then(only),
        }
    }
}

fn only(files: &HashSet<usize>) -> Option<usize> {
    files.iter().next().filter(|_| files.len() == 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], rooms: &str) -> Vec<String> {
        let house = House::fixture(files, rooms);
        let plan = &plans(&house)[0];
        let module = |file: usize| plan.files[file].source.module().join("/");
        plan.arrows
            .iter()
            .map(|arrow| format!("{} {} {}", module(arrow.from), arrow.by, module(arrow.to)))
            .collect()
    }

    #[test]
    fn imports_and_paths_are_arrows_unlike_reexports() {
        let files = [
            ("crates/a/src/lib.rs", "pub mod b; pub mod c; pub use b::B;"),
            ("crates/a/src/b.rs", "use crate::c::C; pub struct B; fn f() { super::c::g(); }"),
            ("crates/a/src/c.rs", "pub struct C; pub fn g() {} #[cfg(test)] mod tests { use crate::b::B; }"),
        ];
        assert_eq!(found(&files, ""), ["b crate::c::C c", "b super::c::g c"]);
    }

    #[test]
    fn a_method_with_one_home_is_an_arrow() {
        let files = [
            ("crates/a/src/b.rs", "impl B { fn settle(&self) {} fn get(&self) {} fn twice(&self) {} }"),
            (
                "crates/a/src/c.rs",
                "impl C { fn f(&self) { self.settle(); b.get(); self.twice(); B::settle(b); } }",
            ),
            ("crates/a/src/d.rs", "impl D { fn twice(&self) {} }"),
        ];
        assert_eq!(found(&files, "common_methods = [\"get\"]"), ["c B::settle b", "c .settle() b"]);
    }

    #[test]
    fn a_method_of_a_lower_crate_is_no_arrow() {
        let files = [
            ("crates/a/Cargo.toml", "[dependencies]\nterrace-z.workspace = true"),
            ("crates/a/src/b.rs", "impl B { fn settle(&self) {} }"),
            ("crates/a/src/c.rs", "fn f(x: Z) { x.settle(); }"),
            ("crates/z/src/lib.rs", "impl Z { pub fn settle(&self) {} }"),
        ];
        assert!(found(&files, "").is_empty());
    }
}
