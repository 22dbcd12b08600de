//! The pass over the syntax tree that collects [`Facts`].

use super::attributes::{forbids_unsafe, is_test, is_test_function, of_item};
use super::{Call, Facts, Function, Import, Method, Module, PathUse, Struct, Unsafe};
use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Collects the facts of a file that is the module `module`.
pub fn collect(file: &syn::File, lines: usize, module: Module, is_test: bool) -> Facts {
    let facts = Facts { lines, is_test, forbids_unsafe: forbids_unsafe(&file.attrs), ..Facts::default() };
    let mut visitor = Visitor { facts, module, is_test, statement: 0 };
    visitor.visit_file(file);
    visitor.facts
}

struct Visitor {
    facts: Facts,
    /// Where the pass is: the module of the file and the inline modules around.
    module: Module,
    /// The pass is in code that only tests compile.
    is_test: bool,
    /// First line of the item or statement that the pass is in.
    statement: usize,
}

fn line(span: Span) -> usize {
    span.start().line
}

fn last_line(span: Span) -> usize {
    span.end().line
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

impl Visitor {
    /// Visits a part with the attributes `attributes`, as test code if they say so.
    fn enter(&mut self, attributes: &[syn::Attribute], span: Span, visit: impl FnOnce(&mut Self)) {
        let (was_test, before) = (self.is_test, self.statement);
        self.is_test |= is_test(attributes);
        self.statement = line(span);
        if self.is_test && !was_test {
            self.facts.test_lines.push(line(span)..=last_line(span));
        }
        visit(self);
        (self.is_test, self.statement) = (was_test, before);
    }

    fn function(
        &mut self,
        attributes: &[syn::Attribute],
        signature: &syn::Signature,
        body: Option<&syn::Block>,
    ) {
        let name = signature.ident.to_string();
        let first = line(signature.span());
        if let Some(word) = &signature.unsafety {
            self.note_unsafe(word.span);
        }
        if is_test_function(attributes) {
            self.facts.tests.push((line(signature.ident.span()), name.clone()));
        }
        if let (Some(body), false) = (body, self.is_test) {
            let lines = last_line(body.brace_token.span.close()) + 1 - first;
            self.facts.functions.push(Function { name, line: first, lines });
        }
    }

    fn note_unsafe(&mut self, word: Span) {
        self.facts.unsafes.push(Unsafe { line: line(word), start: self.statement });
    }

    fn note_item(&mut self, item: &syn::Item) {
        let name = match item {
            syn::Item::Const(item) => &item.ident,
            syn::Item::Enum(item) => &item.ident,
            syn::Item::Fn(item) => &item.sig.ident,
            syn::Item::Static(item) => &item.ident,
            syn::Item::Struct(item) => &item.ident,
            syn::Item::Trait(item) => &item.ident,
            syn::Item::Type(item) => &item.ident,
            syn::Item::Union(item) => &item.ident,
            _ => return,
        };
        self.facts.items.push((self.module.clone(), name.to_string()));
    }

    fn note_methods(&mut self, item: &syn::ItemImpl) {
        let methods = item.items.iter().filter_map(|item| match item {
            syn::ImplItem::Fn(method) if !is_test(&method.attrs) => Some(method.sig.ident.to_string()),
            _ => None,
        });
        match (&*item.self_ty, &item.trait_) {
            (_, Some(_)) => self.facts.trait_methods.extend(methods),
            (syn::Type::Path(of), None) => {
                let (module, of) = (self.module.clone(), segments(&of.path));
                let method = |name| Method { module: module.clone(), of: of.clone(), name };
                self.facts.methods.extend(methods.map(method));
            }
            _ => {}
        }
    }

    fn note_imports(&mut self, tree: &syn::UseTree, mut segments: Vec<String>, is_reexport: bool) {
        let span = tree.span();
        let name = match tree {
            syn::UseTree::Path(path) => {
                segments.push(path.ident.to_string());
                return self.note_imports(&path.tree, segments, is_reexport);
            }
            syn::UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|tree| self.note_imports(tree, segments.clone(), is_reexport));
            }
            syn::UseTree::Glob(_) => "*".to_owned(),
            syn::UseTree::Name(name) if name.ident == "self" => segments.last().cloned().unwrap_or_default(),
            syn::UseTree::Name(name) => {
                segments.push(name.ident.to_string());
                name.ident.to_string()
            }
            syn::UseTree::Rename(rename) => {
                segments.push(rename.ident.to_string());
                rename.rename.to_string()
            }
        };
        let module = self.module.clone();
        self.facts.imports.push(Import { module, segments, name, is_reexport, line: line(span) });
    }
}

impl Visit<'_> for Visitor {
    fn visit_item(&mut self, item: &syn::Item) {
        self.enter(of_item(item), item.span(), |visitor| {
            if !visitor.is_test {
                visitor.note_item(item);
            }
            visit::visit_item(visitor, item);
        });
    }

    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        self.module.push(item.ident.to_string());
        if item.content.is_none() {
            self.facts.children.push((self.module.clone(), self.is_test));
        }
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        if !self.is_test {
            self.note_imports(&item.tree, Vec::new(), !matches!(item.vis, syn::Visibility::Inherited));
        }
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        self.function(&item.attrs, &item.sig, Some(&item.block));
        visit::visit_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        if let (syn::Fields::Named(fields), false) = (&item.fields, self.is_test) {
            let (name, fields) = (item.ident.to_string(), fields.named.len());
            self.facts.structs.push(Struct { name, line: line(item.ident.span()), fields });
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_trait(&mut self, item: &syn::ItemTrait) {
        if let Some(word) = &item.unsafety {
            self.note_unsafe(word.span);
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &syn::TraitItemFn) {
        if !self.is_test {
            self.facts.trait_methods.push(item.sig.ident.to_string());
        }
        self.enter(&item.attrs, item.span(), |visitor| {
            visitor.function(&item.attrs, &item.sig, item.default.as_ref());
            visit::visit_trait_item_fn(visitor, item);
        });
    }

    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        if let Some(word) = &item.unsafety {
            self.note_unsafe(word.span);
        }
        if !self.is_test {
            self.note_methods(item);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        self.enter(&item.attrs, item.span(), |visitor| {
            visitor.function(&item.attrs, &item.sig, Some(&item.block));
            visit::visit_impl_item_fn(visitor, item);
        });
    }

    fn visit_stmt(&mut self, statement: &syn::Stmt) {
        self.enter(&[], statement.span(), |visitor| visit::visit_stmt(visitor, statement));
    }

    fn visit_expr_unsafe(&mut self, block: &syn::ExprUnsafe) {
        self.note_unsafe(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.segments.len() > 1 && !self.is_test {
            let (module, segments) = (self.module.clone(), segments(path));
            self.facts.paths.push(PathUse { module, segments, line: line(path.span()) });
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        if !self.is_test {
            let on_self = matches!(&*call.receiver, syn::Expr::Path(path) if path.path.is_ident("self"));
            let (name, line) = (call.method.to_string(), line(call.method.span()));
            self.facts.calls.push(Call { name, on_self, line });
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        let asserts = ["assert", "assert_eq", "assert_ne"];
        if !self.is_test && asserts.iter().any(|name| call.path.is_ident(name)) {
            self.facts.asserts.push(line(call.path.span()));
        }
        let arguments = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        if let Ok(arguments) = call.parse_body_with(arguments) {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
        visit::visit_macro(self, call);
    }
}
