//! Circles: files of a crate from which arrows lead out and back. A file in a circle cannot be read alone.

use crate::arrows::{Arrow, Plan, plans};
use crate::figure::{Figure, Offender};
use crate::house::House;
use crate::rooms::module_name;
use std::collections::BTreeMap;

/// Four figures for each crate: circles of imports with the size of the largest, and the same with calls.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    plans(house).iter().flat_map(figures_of).collect()
}

fn figures_of(plan: &Plan<'_>) -> Vec<Figure> {
    let figures = |kind: &str, with_calls: bool| {
        let arrows: Vec<&Arrow> = plan.arrows.iter().filter(|arrow| with_calls || !arrow.is_call).collect();
        let circles = circles(plan.files.len(), &arrows);
        let largest = circles.iter().map(Vec::len).max().unwrap_or(0);
        let first = circles.first().map_or(Vec::new(), |circle| links(plan, &arrows, circle));
        let each = circles.iter().map(|circle| summary(plan, &arrows, circle)).collect();
        let name = format!("{}_{kind}", plan.name);
        [Figure::count(&name, each), Figure::at_most(format!("{name}_largest"), largest as f64, first)]
    };
    [figures("imports", false), figures("calls", true)].concat()
}

/// Sets of two files or more with mutual arrows, direct or through further files; the largest first.
fn circles(files: usize, arrows: &[&Arrow]) -> Vec<Vec<usize>> {
    let mut next = vec![Vec::new(); files];
    arrows.iter().for_each(|arrow| next[arrow.from].push(arrow.to));
    let reached: Vec<Vec<bool>> = (0..files).map(|from| reached(from, &next)).collect();
    let are_mutual = |one: usize, other: usize| reached[one][other] && reached[other][one];
    let circle = |file: usize| (0..files).filter(|other| are_mutual(file, *other)).collect();
    let mut circles: Vec<Vec<usize>> = (0..files).map(circle).collect();
    circles.retain(|circle| circle.len() > 1);
    circles.sort();
    circles.dedup();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// The files that arrows lead to from a file, directly or through others.
fn reached(from: usize, next: &[Vec<usize>]) -> Vec<bool> {
    let mut reached = vec![false; next.len()];
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for to in &next[file] {
            if !std::mem::replace(&mut reached[*to], true) {
                open.push(*to);
            }
        }
    }
    reached
}

/// The files of a circle, at the place of the pair with the fewest arrows.
fn summary(plan: &Plan<'_>, arrows: &[&Arrow], circle: &[usize]) -> Offender {
    let modules: Vec<String> =
        circle.iter().map(|file| module_name(&plan.files[*file].source.module())).collect();
    let weakest = links(plan, arrows, circle).swap_remove(0);
    let text = format!("{} files in a circle: {}; cut {}", circle.len(), modules.join(", "), weakest.text);
    Offender { place: weakest.place, text }
}

/// The arrows inside a circle, one entry for each pair of files. Pairs with few arrows are the cheapest to cut, and
/// come first.
fn links(plan: &Plan<'_>, arrows: &[&Arrow], circle: &[usize]) -> Vec<Offender> {
    let mut pairs: BTreeMap<(usize, usize), Vec<&Arrow>> = BTreeMap::new();
    for arrow in arrows {
        if circle.contains(&arrow.from) && circle.contains(&arrow.to) {
            pairs.entry((arrow.from, arrow.to)).or_default().push(arrow);
        }
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by_key(|(_, arrows)| arrows.len());
    let offender = |((from, to), arrows): &((usize, usize), Vec<&Arrow>)| {
        let to = &plan.files[*to].source.path;
        let text = format!("-> {to} by {} ({} arrows)", arrows[0].by, arrows.len());
        Offender::new(&plan.files[*from].source.path, arrows[0].line, text)
    };
    pairs.iter().map(offender).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(files: &[(&str, &str)]) -> Vec<f64> {
        figures(&House::fixture(files, "")).iter().map(|figure| figure.value).collect()
    }

    #[test]
    fn mutual_imports_are_a_circle() {
        let files = [
            ("crates/a/src/b.rs", "use crate::c::C;"),
            ("crates/a/src/c.rs", "use crate::d::D;"),
            ("crates/a/src/d.rs", "use crate::b::B;"),
            ("crates/a/src/e.rs", "use crate::b::B;"),
        ];
        assert_eq!(values(&files), [1.0, 3.0, 1.0, 3.0]);
    }

    #[test]
    fn a_call_closes_a_circle_without_imports() {
        let files = [
            ("crates/a/src/b.rs", "use crate::c::C; impl B { pub fn ring(&self) {} }"),
            ("crates/a/src/c.rs", "pub struct C; fn f() { b.ring(); }"),
        ];
        assert_eq!(values(&files), [0.0, 0.0, 1.0, 2.0]);
    }
}
