//! Printing that survives a closed pipe, and sizes for people and from people.

use crate::failure::plain;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;

/// Version of the `--json` output; rises when a field changes its meaning or goes away.
pub const OUTPUT_VERSION: u32 = 1;

/// The first error of standard output.
static BROKEN: OnceLock<io::Error> = OnceLock::new();

/// Writes a line to standard output, with control characters escaped.
pub fn print(text: impl AsRef<str>) {
    print_raw(escaped(text.as_ref()));
}

/// Writes lines to standard output unchanged. An error is kept for the end of the command.
pub fn print_raw(text: impl AsRef<str>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{}", text.as_ref()) {
        let _ = BROKEN.set(error);
    }
}

/// Shows control characters as escapes of Rust: names and labels may come from an attacker.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for letter in text.chars() {
        match letter.is_control() {
            true => shown.extend(letter.escape_debug()),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// "1 name", "2 names".
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Whether all that was printed could be written.
pub fn is_whole() -> bool {
    BROKEN.get().is_none()
}

/// The error of standard output. A closed pipe is no error.
pub fn trouble() -> Option<String> {
    let error = BROKEN.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)?;
    Some(format!("standard output: {}", plain(error)))
}

/// Writes a line to standard error, with control characters escaped.
pub fn warn(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "terrace: {}", escaped(text.as_ref()));
}

/// A path for people and for JSON: bytes that are not UTF-8 become U+FFFD.
pub fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print_raw(text),
        Err(error) => warn(format!("output: {error}")),
    }
}

/// A size for people: "1.5 GiB".
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let text = if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Sizes for people, with different texts for different sizes: "33.6 MiB" and "32 MiB", else bytes.
pub fn distinct<const N: usize>(sizes: [u64; N]) -> [String; N] {
    let texts = sizes.map(human);
    let alike =
        (0..N).any(|one| (0..one).any(|other| sizes[one] != sizes[other] && texts[one] == texts[other]));
    if alike { sizes.map(|size| format!("{size} bytes")) } else { texts }
}

/// A size from people: a number with K, M, G or T, base 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write a number with K, M, G or T");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let (number, unit) = (digits, &text[digits.len()..]);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number * (1u64 << shift) as f64;
    if !bytes.is_finite() || bytes < 0.0 || bytes >= u64::MAX as f64 {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1.5g"), Ok(3 << 29));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("2MiB"), Ok(2 << 20));
        for bad in ["", "M", "-1", "1X", "1e400", "99999999T", "1 M"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(human(1 << 30), "1 GiB");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(17), "17 B");
        assert_eq!(human((1 << 30) - 4096), "1 GiB");
        assert_eq!([0, 1, 2].map(|number| count(number, "name", "names")), ["0 names", "1 name", "2 names"]);
    }

    /// mkfs once said that a tier of 32 MiB is below 32 MiB.
    #[test]
    fn different_sizes_are_shown_as_different() {
        assert_eq!(distinct([33 << 20, 32 << 20]), ["33 MiB", "32 MiB"]);
        assert_eq!(distinct([32 << 20, (32 << 20) + 4096]), ["33554432 bytes", "33558528 bytes"]);
        assert_eq!(distinct([7, 7]), ["7 B", "7 B"]);
    }

    /// A file name could once clear the screen of a user of `terrace where`.
    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(escaped("a\u{1b}[2J\n\u{9b}1mb\u{7f}"), r"a\u{1b}[2J\n\u{9b}1mb\u{7f}");
        for plain in ["", "mnt/ä b\\x", "· log2"] {
            assert_eq!(escaped(plain), plain);
        }
    }
}
