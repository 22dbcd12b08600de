//! Facts of a Rust file: the syntax that the checks ask about, collected in a single pass.
//!
//! Code that only tests compile (`#[cfg(test)]` items, files of `tests/`) contributes names of tests and `unsafe`,
//! and nothing else.

mod attributes;
pub mod parse;
mod visitor;

use std::ops::RangeInclusive;

/// Path of a module below the root of its crate; empty for the root.
pub type Module = Vec<String>;

/// Facts of one file. Lines count from 1.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Lines of the file.
    pub lines: usize,
    /// Lines of items that only tests compile, attributes included.
    pub test_lines: Vec<RangeInclusive<usize>>,
    /// Functions with a body, methods included.
    pub functions: Vec<Function>,
    /// Structs with named fields.
    pub structs: Vec<Struct>,
    /// Methods and associated functions of inherent impls.
    pub methods: Vec<Method>,
    /// Names of the methods of traits and of their impls.
    pub trait_methods: Vec<String>,
    /// Items, by the module that they lie in.
    pub items: Vec<(Module, String)>,
    /// Declared modules without a body (`mod x;`), and whether only tests compile them.
    pub children: Vec<(Module, bool)>,
    /// Names that `use` brings into a module.
    pub imports: Vec<Import>,
    /// Paths with two segments or more.
    pub paths: Vec<PathUse>,
    /// Calls with the method syntax.
    pub calls: Vec<Call>,
    /// Lines of `assert!`, `assert_eq!`, `assert_ne!`.
    pub asserts: Vec<usize>,
    /// Each use of the word `unsafe`.
    pub unsafes: Vec<Unsafe>,
    /// Functions with `#[test]`, by line and name.
    pub tests: Vec<(usize, String)>,
    /// Only tests compile the file.
    pub is_test: bool,
    /// The file has `#![forbid(unsafe_code)]`.
    pub forbids_unsafe: bool,
}

/// A function with its first line and the number of its lines, attributes and comments above it left out.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// A struct and the number of its named fields.
#[derive(Clone, Debug)]
pub struct Struct {
    pub name: String,
    pub line: usize,
    pub fields: usize,
}

/// A method, with the path that its impl gives the type.
#[derive(Clone, Debug)]
pub struct Method {
    pub module: Module,
    pub of: Vec<String>,
    pub name: String,
}

/// A leaf of a `use` item.
#[derive(Clone, Debug)]
pub struct Import {
    pub module: Module,
    pub segments: Vec<String>,
    /// The name in the importing module; `*` for all.
    pub name: String,
    /// `pub use` of any visibility.
    pub is_reexport: bool,
    pub line: usize,
}

/// A path in code.
#[derive(Clone, Debug)]
pub struct PathUse {
    pub module: Module,
    pub segments: Vec<String>,
    pub line: usize,
}

/// A call `receiver.name(…)`.
#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    /// The receiver is `self`.
    pub on_self: bool,
    pub line: usize,
}

/// A block, function, impl or trait that is `unsafe`.
#[derive(Clone, Debug)]
pub struct Unsafe {
    /// Line of the word `unsafe`.
    pub line: usize,
    /// First line of the statement or item around it.
    pub start: usize,
}

impl Facts {
    /// Drops the facts of product code.
    pub fn become_test(&mut self) {
        let old = std::mem::take(self);
        let (lines, tests, unsafes) = (old.lines, old.tests, old.unsafes);
        *self = Self {
            lines,
            tests,
            unsafes,
            is_test: true,
            forbids_unsafe: old.forbids_unsafe,
            ..Self::default()
        };
    }

    /// Lines outside items that only tests compile.
    pub fn product_lines(&self) -> usize {
        self.lines - self.test_lines.iter().map(|lines| lines.end() + 1 - lines.start()).sum::<usize>()
    }
}
