//! The class of the device of a site.

/// The behaviour of the file that serves as device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// The disk of this machine, not emulated.
    Host,
    /// A class of `terrace bench device`.
    Emulated(String),
}

impl Class {
    /// The class of a name.
    pub fn parse(text: &str) -> Class {
        match text {
            "host" | "none" => Class::Host,
            other => Class::Emulated(other.to_string()),
        }
    }
    /// The name of the class.
    pub fn name(&self) -> &str {
        match self {
            Class::Host => "host",
            Class::Emulated(name) => name,
        }
    }
}
