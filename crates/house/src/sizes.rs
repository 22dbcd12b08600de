//! Sizes of product code: functions, files, structs, and the methods of a type over all files.

use crate::facts::Module;
use crate::figure::{Figure, Offender};
use crate::house::{File, House};
use crate::modules::Modules;
use std::collections::BTreeMap;

const MAX_FUNCTION_LINES: usize = 70;
const MAX_FILE_LINES: usize = 400;
const MAX_FIELDS: usize = 20;
const MAX_METHODS: usize = 60;

/// A size with its place.
struct Sized {
    path: String,
    line: usize,
    what: String,
    size: usize,
}

/// Figures `functions`, `files`, `structs`, `types`: the number above the limit of each kind; and the largest struct
/// and type.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let structs = above(MAX_FIELDS, structs(house));
    let types = above(MAX_METHODS, types(house));
    vec![
        count("functions", &above(MAX_FUNCTION_LINES, functions(house)), "lines"),
        count("files", &above(MAX_FILE_LINES, files(house)), "lines without tests"),
        count("structs", &structs, "fields"),
        largest("largest_struct", &structs, "fields"),
        count("types", &types, "methods"),
        largest("largest_type", &types, "methods"),
    ]
}

fn above(limit: usize, mut sizes: Vec<Sized>) -> Vec<Sized> {
    sizes.retain(|found| found.size > limit);
    sizes.sort_by_key(|found| std::cmp::Reverse(found.size));
    sizes
}

fn count(name: &str, sizes: &[Sized], unit: &str) -> Figure {
    Figure::count(name, offenders(sizes, unit))
}

fn largest(name: &str, sizes: &[Sized], unit: &str) -> Figure {
    let size = sizes.first().map_or(0, |found| found.size);
    Figure::at_most(name, size as f64, offenders(&sizes[..sizes.len().min(1)], unit))
}

fn offenders(sizes: &[Sized], unit: &str) -> Vec<Offender> {
    let offender = |found: &Sized| {
        Offender::new(&found.path, found.line, format!("{}: {} {unit}", found.what, found.size))
    };
    sizes.iter().map(offender).collect()
}

fn functions(house: &House) -> Vec<Sized> {
    let sized = |file: &File| {
        let path = file.source.path.clone();
        let function = move |(name, line, size): (String, usize, usize)| Sized {
            path: path.clone(),
            line,
            what: name,
            size,
        };
        let functions: Vec<_> =
            file.facts.functions.iter().map(|f| (f.name.clone(), f.line, f.lines)).collect();
        functions.into_iter().map(function)
    };
    house.product_files().flat_map(sized).collect()
}

fn structs(house: &House) -> Vec<Sized> {
    let mut sizes = Vec::new();
    for file in house.product_files() {
        for found in &file.facts.structs {
            let path = file.source.path.clone();
            sizes.push(Sized { path, line: found.line, what: found.name.clone(), size: found.fields });
        }
    }
    sizes
}

fn files(house: &House) -> Vec<Sized> {
    let sized = |file: &File| {
        let (path, size) = (file.source.path.clone(), file.facts.product_lines());
        Sized { path, line: 1, what: "file".to_owned(), size }
    };
    house.product_files().map(sized).collect()
}

/// Types with the methods of all their inherent impls. Types of one name in different files are different.
fn types(house: &House) -> Vec<Sized> {
    let mut types = Vec::new();
    for (name, files) in house.crates() {
        let module_paths: Vec<Module> = files.iter().map(|file| file.source.module()).collect();
        let modules = Modules::new(name, &files, &module_paths);
        let mut counts: BTreeMap<(usize, &str), usize> = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            for method in &file.facts.methods {
                let home = modules.file_of_type(&method.module, &method.of).unwrap_or(index);
                *counts.entry((home, method.of.last().map_or("", String::as_str))).or_default() += 1;
            }
        }
        for ((home, of), size) in counts {
            types.push(Sized { path: files[home].source.path.clone(), line: 1, what: of.to_owned(), size });
        }
    }
    types
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(files: &[(&str, &str)]) -> BTreeMap<String, f64> {
        figures(&House::fixture(files, "")).into_iter().map(|figure| (figure.name, figure.value)).collect()
    }

    #[test]
    fn a_long_function_and_a_long_file_are_counted() {
        let long = format!("fn long() {{\n{}}}\n", "    f();\n".repeat(69));
        let text = format!("{long}{}#[cfg(test)]\nmod tests {{\n{long}}}\n", "\n".repeat(330));
        let values = values(&[("crates/a/src/lib.rs", &text)]);
        assert_eq!((values["functions"], values["files"]), (1.0, 1.0));
    }

    #[test]
    fn tests_make_no_file_long() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(500));
        assert_eq!(values(&[("crates/a/src/lib.rs", &tests)])["files"], 0.0);
    }

    #[test]
    fn methods_of_all_files_are_added_up() {
        let methods = |first: usize, count: usize| -> String {
            (first..first + count).map(|n| format!("fn f{n}(&self) {{}} ")).collect()
        };
        let first = format!("pub struct Hall {{ {} }} impl Hall {{ {} }}", fields(21), methods(0, 40));
        let second = format!("use crate::b::Hall; impl Hall {{ {} }}", methods(40, 25));
        let other = format!("struct Hall; impl Hall {{ {} }}", methods(0, 5));
        let values = values(&[
            ("crates/a/src/b.rs", &first),
            ("crates/a/src/c.rs", &second),
            ("crates/a/src/d.rs", &other),
        ]);
        assert_eq!((values["types"], values["largest_type"]), (1.0, 65.0));
        assert_eq!((values["structs"], values["largest_struct"]), (1.0, 21.0));
    }

    fn fields(count: usize) -> String {
        (0..count).map(|n| format!("a{n}: u8, ")).collect()
    }
}
