//! A small number for each thread: it spreads threads over lanes and shards.

#[cfg(not(feature = "shuttle"))]
mod number {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT_INDEX: AtomicUsize = AtomicUsize::new(0);
    const NO_INDEX: usize = usize::MAX;
    thread_local! {
        static INDEX: Cell<usize> = const { Cell::new(NO_INDEX) };
    }

    /// A small number that identifies the calling thread; used to spread threads over lanes.
    #[inline]
    pub fn index() -> usize {
        match INDEX.get() {
            NO_INDEX => first_index(),
            index => index,
        }
    }

    /// Gives the calling thread an index, and with it its lane.
    #[cfg(feature = "simulation")]
    pub fn set_index(index: usize) {
        INDEX.set(index);
    }

    #[cold]
    fn first_index() -> usize {
        let index = NEXT_INDEX.fetch_add(1, Ordering::Relaxed);
        INDEX.set(index);
        index
    }
}

#[cfg(feature = "shuttle")]
mod number {
    /// A small number that identifies the calling thread, the same in every run of a schedule.
    pub fn index() -> usize {
        shuttle::current::me().into()
    }
}

pub use number::*;
