//! Printing that survives a closed pipe, and sizes for people and from people.

use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// Version of the `--json` output; rises when a field changes its meaning or goes away.
pub const OUTPUT_VERSION: u32 = 1;

/// Writes a line to standard output. Nobody reading it is not an error.
pub fn print(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout().lock(), "{}", text.as_ref());
}

/// Writes a line to standard error.
pub fn warn(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr().lock(), "terrace: {}", text.as_ref());
}

/// A path for people and for JSON: bytes that are not UTF-8 become U+FFFD.
pub fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(text),
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
    }
}
