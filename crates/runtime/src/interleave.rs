//! Points at which a simulator may run something else on the same thread: places where the engine holds no lock and
//! waits, or could have to wait, for a device or for others. What runs there runs to its end (or to a `WouldBlock`)
//! before the interrupted work goes on, so one thread shows the interleavings of many and a seed repeats them.
//!
//! Without the feature `simulation` a point is nothing.

#[cfg(feature = "simulation")]
mod hook {
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Called with the name of the point.
    pub type Hook = Rc<dyn Fn(&'static str)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Sets what the calling thread runs at points.
    pub fn set_hook(hook: Option<Hook>) {
        HOOK.set(hook);
    }

    /// Whether something may run at points of the calling thread. Who would wait for another thread must then pass a
    /// point instead.
    pub fn active() -> bool {
        HOOK.with_borrow(Option::is_some)
    }

    /// A place where others may run.
    pub fn point(name: &'static str) {
        let hook = HOOK.with_borrow(Option::clone);
        if let Some(hook) = hook {
            hook(name);
        }
    }
}

#[cfg(feature = "simulation")]
pub use hook::{Hook, active, point, set_hook};

/// A place where others may run: never, without the feature.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub const fn point(_name: &'static str) {}

/// Whether something may run at points of the calling thread: never, without the feature.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub const fn active() -> bool {
    false
}
