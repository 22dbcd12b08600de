//! Widths that a simulator reduces, so that rare events of a product, such as a collision of hashes, become
//! frequent. A reduced width counts for the calling thread alone, and exists only with the feature
//! `simulation`.

/// Bits of the hash of names in a product.
const NAME_HASH_BITS: u32 = 55;

#[cfg(feature = "simulation")]
mod set {
    use std::cell::Cell;

    thread_local! {
        static BITS: Cell<u32> = const { Cell::new(super::NAME_HASH_BITS) };
    }

    /// Gives the hash of names so many bits in pools that the calling thread mounts from now on.
    pub fn set_name_hash_bits(bits: u32) {
        BITS.set(bits.min(super::NAME_HASH_BITS));
    }

    /// Bits of the hash of names.
    pub fn name_hash_bits() -> u32 {
        BITS.get()
    }
}

#[cfg(feature = "simulation")]
pub use set::{name_hash_bits, set_name_hash_bits};

/// Bits of the hash of names.
#[cfg(not(feature = "simulation"))]
pub const fn name_hash_bits() -> u32 {
    NAME_HASH_BITS
}
