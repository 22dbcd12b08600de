//! Arrows point down: between crates, and between the rooms of a crate.

use crate::arrows::{Arrow, Plan, plans};
use crate::figure::{Figure, Offender};
use crate::house::House;
use crate::rooms::{Floors, floor_of, module_name, room_of};
use std::collections::BTreeMap;

/// The figure `crates`, and a figure for each crate with rooms.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let rooms = |plan: &Plan<'_>| {
        let floors = house.rooms.rooms.get(plan.name)?;
        Some(Figure::count(plan.name, upward(plan, floors)))
    };
    let plans = plans(house);
    let mut figures = vec![Figure::count("crates", wrong_dependencies(house))];
    figures.extend(plans.iter().filter_map(rooms));
    figures
}

/// Dependencies upward or inside a floor, and crates without a floor.
fn wrong_dependencies(house: &House) -> Vec<Offender> {
    let floors = &house.rooms.floors;
    let mut wrong = Vec::new();
    for (name, below) in &house.dependencies {
        let mut add = |text: String| wrong.push(Offender::new(&format!("crates/{name}/Cargo.toml"), 1, text));
        let Some(floor) = floor_of(floors, name) else {
            add("the crate has no floor in rooms.toml".to_owned());
            continue;
        };
        for lower in below {
            if floor_of(floors, lower).is_some_and(|lower| lower <= floor) {
                add(format!("terrace-{name} may not depend on terrace-{lower}"));
            }
        }
    }
    wrong
}

/// Arrows between two rooms that do not point down.
fn upward(plan: &Plan<'_>, floors: &Floors) -> Vec<Offender> {
    let offender = |arrow: &Arrow| {
        let (from, to) = rooms(plan, floors, arrow)?;
        let is_upward = from != to && floor_of(floors, to) <= floor_of(floors, from);
        let place = &plan.files[arrow.from].source.path;
        is_upward.then(|| Offender::new(place, arrow.line, format!("{from} -> {to}: {}", arrow.by)))
    };
    plan.arrows.iter().filter_map(offender).collect()
}

fn rooms<'a>(plan: &Plan<'_>, floors: &'a Floors, arrow: &Arrow) -> Option<(&'a str, &'a str)> {
    let room = |file: usize| room_of(floors, &plan.files[file].source.module());
    Some((room(arrow.from)?, room(arrow.to)?))
}

/// The arrows of a crate between its rooms; between its files, when the plan has no rooms for the crate.
pub fn arrows_report(house: &House, name: &str) -> String {
    let plans = plans(house);
    let Some(plan) = plans.iter().find(|plan| plan.name == name) else { return format!("no crate {name}\n") };
    let floors = house.rooms.rooms.get(name);
    let mut pairs: BTreeMap<(String, String), Vec<&Arrow>> = BTreeMap::new();
    for arrow in &plan.arrows {
        let file = |file: usize| module_name(&plan.files[file].source.module());
        let rooms = floors.and_then(|floors| rooms(plan, floors, arrow));
        let (from, to) = match rooms {
            Some((from, to)) => (from.to_owned(), to.to_owned()),
            None => (file(arrow.from), file(arrow.to)),
        };
        if from != to {
            pairs.entry((from, to)).or_default().push(arrow);
        }
    }
    let mut report = String::new();
    for ((from, to), arrows) in pairs {
        let floor = |room: &str| floors.and_then(|floors| floor_of(floors, room));
        let is_upward = floors.is_some() && floor(&to) <= floor(&from);
        let calls = arrows.iter().filter(|arrow| arrow.is_call).count();
        let mark = if is_upward { "UP" } else { "  " };
        report +=
            &format!("{mark} {from} -> {to}: {} imports and paths, {calls} calls\n", arrows.len() - calls);
        let shown = arrows.iter().take(if is_upward { usize::MAX } else { 1 });
        for arrow in shown {
            report += &format!("       {}:{} {}\n", plan.files[arrow.from].source.path, arrow.line, arrow.by);
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "floors = [[\"top\"], [\"left\", \"right\"]]\n[rooms]\nleft = [[\"high\"], [\"low\"]]";

    fn texts(files: &[(&str, &str)], figure: &str) -> Vec<String> {
        let figures = figures(&House::fixture(files, PLAN));
        let figure = figures.into_iter().find(|found| found.name == figure).expect("the figure exists");
        figure.worst.into_iter().map(|offender| format!("{} {}", offender.place, offender.text)).collect()
    }

    #[test]
    fn a_dependency_upward_or_aside_is_found() {
        let manifests = [
            ("crates/top/Cargo.toml", "[dependencies]\nterrace-left.workspace = true"),
            ("crates/left/Cargo.toml", "[dependencies]\nterrace-top.workspace = true"),
            ("crates/right/Cargo.toml", "[dependencies]\nterrace-left.workspace = true"),
            ("crates/new/Cargo.toml", ""),
        ];
        let expected = [
            "crates/left/Cargo.toml:1 terrace-left may not depend on terrace-top",
            "crates/new/Cargo.toml:1 the crate has no floor in rooms.toml",
            "crates/right/Cargo.toml:1 terrace-right may not depend on terrace-left",
        ];
        assert_eq!(texts(&manifests, "crates"), expected);
    }

    #[test]
    fn an_arrow_to_a_higher_room_is_found() {
        let files = [
            ("crates/left/src/high/a.rs", "use crate::low::L; impl H { pub fn ring(&self) {} }"),
            ("crates/left/src/low.rs", "pub struct L;\nimpl L { fn f(&self) {\n self.h.ring() } }"),
        ];
        assert_eq!(texts(&files, "left"), ["crates/left/src/low.rs:3 low -> high: .ring()"]);
        let report = arrows_report(&House::fixture(&files, PLAN), "left");
        assert!(report.contains("UP low -> high: 0 imports and paths, 1 calls"), "{report}");
        assert!(report.contains("   high -> low: 1 imports and paths, 0 calls"), "{report}");
    }
}
