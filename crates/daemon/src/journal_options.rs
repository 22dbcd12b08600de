//! The mount options of a journaled tier 0.

use crate::output::parse_size;
use terrace_media::pm::DurableWay;
use terrace_media::pm::JournalOptions;

/// Takes `journal_ms=`, `journal_buffer=` or `durable=`.
///
/// # Errors
/// A value out of range.
pub(crate) fn take(options: &mut JournalOptions, name: &str, value: &str) -> Result<(), String> {
    if name == "journal_ms" {
        options.journal_ms = match value.parse() {
            Ok(time @ 10..=60_000) => time,
            _ => return Err("must be milliseconds, from 10 to 60000".to_string()),
        };
        return Ok(());
    }
    if name == "durable" {
        options.durable = match value {
            "auto" => DurableWay::Quicker,
            "dsync" => DurableWay::Dsync,
            "flush" => DurableWay::Flush,
            _ => return Err("must be auto, dsync or flush".to_string()),
        };
        return Ok(());
    }
    options.ring_bytes = match parse_size(value)? {
        bytes if (8 << 20..=1 << 30).contains(&bytes) && bytes.is_multiple_of(4096) => bytes,
        _ => return Err("must be from 8M to 1G, a multiple of 4096".to_string()),
    };
    Ok(())
}
