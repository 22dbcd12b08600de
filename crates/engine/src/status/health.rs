//! Health of PM in words.

use crate::engine::Engine;

pub fn health(ok: bool) -> &'static str {
    if ok { "ok" } else { "degraded" }
}

/// The trouble of PM in words; `None` when PM is healthy.
pub(crate) fn pm_trouble(engine: &Engine) -> Option<String> {
    if engine.store.persistent.wal().is_stopped() {
        return Some("takes no more changes after an error".to_string());
    }
    let (errors, damaged) =
        (engine.store.persistent.pm().error_count(), engine.store.persistent.wal().checksums().damaged());
    let mut reasons = Vec::new();
    if errors > 0 {
        reasons.push(format!("errors of persistent memory since mount: {errors}"));
    }
    if damaged > 0 {
        reasons.push(format!("metadata pages that do not match their checksums: {damaged}"));
    }
    let damaged = engine.store.persistent.damaged_data();
    if damaged > 0 {
        reasons.push(format!("uses of data that does not match its checksum: {damaged}"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
