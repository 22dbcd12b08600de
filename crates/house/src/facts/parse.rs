//! Facts of a source file.

use super::{Facts, visitor};
use crate::sources::{Kind, Source};

/// Parses a file. `None` when it is no Rust that `syn` understands.
pub fn parse(source: &Source) -> Option<Facts> {
    let file = syn::parse_file(&source.text).ok()?;
    let is_test = source.kind() != Kind::Source;
    Some(visitor::collect(&file, source.text.lines().count(), source.module(), is_test))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(text: &str) -> Facts {
        let path = "crates/a/src/b/c.rs".to_owned();
        parse(&Source { path, text: text.to_owned() }).expect("the fixture is Rust")
    }

    #[test]
    fn test_code_yields_test_names_alone() {
        let found = facts(
            "fn f() {\n    crate::x::g();\n}\n#[cfg(test)]\nmod tests {\n    use crate::y;\n    #[test]\n    fn works() { assert!(true) }\n}\n",
        );
        assert_eq!(found.functions.len(), 1);
        assert_eq!((found.functions[0].line, found.functions[0].lines), (1, 3));
        assert_eq!(found.tests, [(8, "works".to_owned())]);
        assert_eq!(found.test_lines, [4..=9]);
        assert_eq!(found.product_lines(), 3);
        assert!(found.asserts.is_empty() && found.imports.is_empty());
        assert_eq!(found.paths[0].segments, ["crate", "x", "g"]);
    }

    #[test]
    fn imports_are_flattened() {
        let found = facts("pub use crate::a::{b, c as d, e::*, f::{self}};");
        let imports: Vec<(String, &str)> =
            found.imports.iter().map(|import| (import.segments.join("::"), import.name.as_str())).collect();
        let expected =
            [("crate::a::b", "b"), ("crate::a::c", "d"), ("crate::a::e", "*"), ("crate::a::f", "f")];
        assert_eq!(imports, expected.map(|(path, name)| (path.to_owned(), name)));
        assert!(found.imports.iter().all(|import| import.is_reexport && import.module == ["b", "c"]));
    }

    #[test]
    fn macros_hold_calls_and_asserts() {
        let found =
            facts("fn f(a: A) { assert_eq!(a.length(), crate::x::g(), \"no\"); debug_assert!(a.b); }");
        assert_eq!(found.asserts, [1]);
        assert_eq!(found.calls[0].name, "length");
        assert_eq!(found.paths[0].segments, ["crate", "x", "g"]);
    }

    #[test]
    fn a_method_has_the_type_of_its_impl() {
        let found = facts(
            "impl x::Y<'_> { fn m(&self) { self.n(); } }\nimpl Clone for Y { fn clone(&self) -> Y { Y } }",
        );
        assert_eq!(found.methods.len(), 1);
        assert_eq!(
            (found.methods[0].of.join("::"), found.methods[0].name.as_str()),
            ("x::Y".to_owned(), "m")
        );
        assert_eq!(found.trait_methods, ["clone"]);
        assert!(found.calls[0].on_self);
    }

    #[test]
    fn an_unsafe_block_knows_its_statement() {
        let found = facts("fn f() {\n    let x =\n        unsafe { g() };\n}\n#[inline]\nunsafe fn g() {}");
        let lines: Vec<(usize, usize)> =
            found.unsafes.iter().map(|found| (found.line, found.start)).collect();
        assert_eq!(lines, [(3, 2), (6, 5)]);
    }
}
