//! Attributes that tell test code from product code.

use syn::{Attribute, Item, Meta};

/// The attributes of an item.
pub fn of_item(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether the item is compiled for tests alone: `#[cfg(test)]`, `#[cfg(all(test, …))]` or `#[test]`.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| has_name(attribute, "test") || is_test_configuration(attribute))
}

/// Whether one of the attributes is `#[test]`.
pub fn is_test_function(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| has_name(attribute, "test"))
}

/// Whether the file has `#![forbid(unsafe_code)]`.
pub fn forbids_unsafe(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| has_name(attribute, "forbid") && list(attribute).contains("unsafe_code"))
}

fn is_test_configuration(attribute: &Attribute) -> bool {
    let list = list(attribute);
    has_name(attribute, "cfg") && (list == "test" || list.starts_with("all") && list.contains("(test,"))
}

fn has_name(attribute: &Attribute, name: &str) -> bool {
    attribute.path().segments.last().is_some_and(|segment| segment.ident == name)
}

/// The words between the parentheses, without spaces.
fn list(attribute: &Attribute) -> String {
    match &attribute.meta {
        Meta::List(list) => list.tokens.to_string().replace(' ', ""),
        _ => String::new(),
    }
}
