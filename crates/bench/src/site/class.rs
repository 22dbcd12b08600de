//! The class of the device of a site.

use terrace_media::speed::ClassedSpeed;

/// The behaviour of the file that serves as device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// The disk of this machine, not emulated.
    Host,
    /// A class of `terrace bench device`, with `+N` behind it if a flush takes N microseconds.
    Emulated(String),
}

/// The longest flush that `terrace bench device` emulates.
const MAX_FLUSH_US: u32 = 10_000_000;

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

    /// # Errors
    /// A sentence about a class that `terrace bench device` does not know.
    pub fn check(&self) -> Result<(), String> {
        let Class::Emulated(name) = self else { return Ok(()) };
        let (speed, flush_us) = parts(name);
        ClassedSpeed::parse(speed)?;
        match flush_us.map(str::parse::<u32>) {
            None | Some(Ok(1..=MAX_FLUSH_US)) => Ok(()),
            _ => Err(format!("'{name}': behind + the microseconds of a flush, from 1 to {MAX_FLUSH_US}")),
        }
    }
}

/// Class and microseconds of a flush in the name of an emulated class.
pub(crate) fn parts(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once('+') {
        Some((class, flush_us)) => (class, Some(flush_us)),
        None => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_class_may_end_with_the_time_of_a_flush() {
        assert_eq!(parts("ssd+1000"), ("ssd", Some("1000")));
        assert_eq!(parts("1000:1000:1G:1G"), ("1000:1000:1G:1G", None));
        assert_eq!(Class::parse("ssd+1000").name(), "ssd+1000");
        for (name, is_known) in
            [("host", true), ("ssd+1000", true), ("ssd+0", false), ("ssd+", false), ("foo+1", false)]
        {
            assert_eq!(Class::parse(name).check().is_ok(), is_known, "{name}");
        }
    }
}
