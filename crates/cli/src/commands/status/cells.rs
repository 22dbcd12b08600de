//! Values of a status as words.

use serde_json::Value;
use terrace_daemon::output::human;

/// A value; `-` where there is none.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_string(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(real) if number.as_u64().is_none() => format!("{real:.3}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// Bytes with a unit.
pub(super) fn size(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_string(), human)
}
