//! Whether writes may wait in DRAM, and how many bytes of them.

use crate::parts::dram::lazy_writes::LazyOption;
use crate::store::Store;
use terrace_format::BLOCK_SIZE;

/// Whether a write with home PM may wait in DRAM.
#[inline]
pub fn has_lazy_writes(store: &Store) -> bool {
    store.dram.lazy_writes().is_on() && store.dram.write_back().limit_pages > 0 && !store.mode.read_only
}

/// Whether it may in this mount, now or once PM was measured.
pub fn may_have_lazy_writes(store: &Store) -> bool {
    let options = store.dram.lazy_writes().options();
    options.lazy != LazyOption::Off && options.has_page() && !store.mode.read_only
}

/// Whether a write may have another home than PM at all.
#[inline]
pub fn has_buffer(store: &Store) -> bool {
    store.dram.write_back().limit_pages > 0 && !store.devices.list().is_empty() && !store.mode.read_only
}

/// Most bytes of writes that wait in DRAM.
#[inline]
pub fn buffer_bytes(store: &Store) -> u64 {
    store.dram.write_back().limit_pages * BLOCK_SIZE
}
