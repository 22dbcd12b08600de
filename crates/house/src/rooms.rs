//! The plan of the house, `rooms.toml`: crates and rooms from top to bottom.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Names that stand side by side, top first.
pub type Floors = Vec<Vec<String>>;

/// The content of `rooms.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rooms {
    /// Crates. A crate depends on crates of lower floors only.
    pub floors: Floors,
    /// Crates whose wording is counted as `engine`; the others are `tools`.
    pub engine: Vec<String>,
    /// Rooms of a crate: files or folders below `src`, `lib` for the root, `*` for all that have no other room.
    pub rooms: BTreeMap<String, Floors>,
    /// Names of methods of the standard library: a call of such a name tells no file.
    pub common_methods: Vec<String>,
    /// Files or folders that may hold `unsafe`, with the reason.
    pub unsafe_in: BTreeMap<String, String>,
}

impl Rooms {
    /// Parses the plan.
    ///
    /// # Errors
    /// Text that is no such TOML.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| format!("rooms.toml: {error}"))
    }
}

/// The floor of `name`, counted from the top.
pub fn floor_of(floors: &Floors, name: &str) -> Option<usize> {
    floors.iter().position(|floor| floor.iter().any(|other| other == name))
}

/// A module as the plan writes it: `lib` for the root of a crate.
pub fn module_name(module: &[String]) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}

/// The room of the module `module`: the longest name that is the module or a folder around it, else `*`.
pub fn room_of<'a>(floors: &'a Floors, module: &[String]) -> Option<&'a str> {
    let path = module_name(module);
    let rooms = floors.iter().flatten().map(String::as_str);
    let is_around = |room: &&str| {
        let rest = path.strip_prefix(room);
        *room == "*" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // `*` is the shortest name, and so the last choice.
    rooms.filter(is_around).max_by_key(|room| if *room == "*" { 0 } else { room.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_room_wins() {
        let plan = Rooms::parse("[rooms]\na = [[\"lib\"], [\"b/c\", \"*\"], [\"b\"]]").expect("it is sound");
        let room = |module: &str| {
            let module: Vec<String> =
                module.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
            room_of(&plan.rooms["a"], &module)
        };
        assert_eq!(room("b/c/d"), Some("b/c"));
        assert_eq!(room("b/d"), Some("b"));
        assert_eq!(room("bc"), Some("*"));
        assert_eq!(room(""), Some("lib"));
        assert_eq!(floor_of(&plan.rooms["a"], "b"), Some(2));
    }

    #[test]
    fn an_unknown_key_is_refused() {
        assert!(Rooms::parse("cellars = []").is_err());
    }
}
