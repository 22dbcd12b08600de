//! Violations: panics inside a run, kept as text.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<u32> = const { Cell::new(0) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a closure whose panics are findings: answers their text instead of printing it.
///
/// # Errors
/// The text and the place of the panic.
pub fn caught<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() == 0 {
                return before(info);
            }
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_string()));
            let place = info.location().map_or(String::new(), |at| format!(" ({}:{})", at.file(), at.line()));
            LAST.set(text.unwrap_or_default() + &place);
        }));
    });
    QUIET.set(QUIET.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(QUIET.get() - 1);
    result.map_err(|_| LAST.take())
}
