//! CRC32C, the only checksum of the format (Castagnoli polynomial, iSCSI parameters).

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC32C of bytes that follow others whose CRC32C is `crc`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Seed of a lane record's CRC: binds it to pool, lane, ring position and mount epoch (design T3),
/// so that nothing left over in the ring and no user data that looks like a record can count.
#[inline]
pub fn record_seed(pool_uuid: &[u8; 16], lane: u32, position: u64, epoch: u64) -> u32 {
    // Mixed by multiplication: called on every commit, and the CRC over the record follows anyway.
    let mut low = [0u8; 8];
    let mut high = [0u8; 8];
    low.copy_from_slice(pool_uuid.first_chunk::<8>().unwrap_or(&[0; 8]));
    high.copy_from_slice(pool_uuid.last_chunk::<8>().unwrap_or(&[0; 8]));
    let mut mix = u64::from_le_bytes(low) ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ u64::from_le_bytes(high);
    mix = (mix ^ epoch.wrapping_mul(0xa076_1d64_78bd_642f)).rotate_left(29) ^ u64::from(lane) << 40;
    mix = (mix ^ (mix >> 31)).wrapping_mul(0xe703_7ed1_a0b4_28db);
    (mix ^ (mix >> 32)) as u32
}
