//! Asking the processor to load a cache line before it is needed.
//!
//! A prefetch is a hint without visible effect. It stands in this crate because the instruction has no safe
//! form.

/// Asks for the cache line where `target` begins. Nothing on processors other than x86-64.
#[inline]
pub fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads no memory that a program can see and faults at no address; this one is that of a
        // reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
