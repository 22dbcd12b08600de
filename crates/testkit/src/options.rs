//! Options of mkfs and of mounts that most tests use.

use terrace_engine::{BufferOptions, DeviceClass, FormatOptions, MAPS, MountOptions, NewDevice, PolicyKind};
use terrace_format::map_kind::MapKind;
use terrace_placement::Home;

/// The time at which the clocks of all fixtures start, in nanoseconds since 1970.
pub const START_NS: u64 = 1_700_000_000_000_000_000;

/// The file map of test pools: radix, or the map with the name in the variable TERRACE_MAP.
///
/// # Panics
/// For a name that is none of a map.
pub fn map_under_test() -> MapKind {
    let Ok(name) = std::env::var("TERRACE_MAP") else { return MapKind::default() };
    let row = MAPS.iter().find(|row| row.name == name);
    row.unwrap_or_else(|| panic!("TERRACE_MAP={name}: no such map")).kind
}

/// Whether test pools have another file map than radix: tests of its words end then at once.
pub fn has_other_map() -> bool {
    map_under_test() != MapKind::Radix
}

/// Whether the block table of test pools is their file map: tests end at once that damage it and go on with the map.
pub fn is_table_map() -> bool {
    map_under_test().is_table()
}

/// Whether files of test pools share a table as map: a file has no words and no pages of a map.
pub fn has_shared_map() -> bool {
    map_under_test().is_shared()
}

/// Blocks of the largest atomic write in a pool of 2 MiB (C13).
pub fn atomic_blocks() -> usize {
    match map_under_test() {
        MapKind::Radix => 56,
        MapKind::HashfsLinear | MapKind::Hashfs => 74,
        MapKind::Extent => 45,
        MapKind::Cuckoo => 43,
        MapKind::Clustered => 61,
    }
}

/// Options of mkfs for a pool with `devices` devices in tier 1 and chunks of 64 KiB.
pub fn format_options(devices: usize) -> FormatOptions {
    FormatOptions {
        map: map_under_test(),
        label: "test".into(),
        uuid: [7; 16],
        hash_key: [9; 16],
        seal_secret: Some([9; 16]),
        policy: PolicyKind::PREDICTIVE,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks: 16,
        created_ns: START_NS as i64,
        root: Default::default(),
        devices: (0..devices).map(|index| lower_device(1, index as u8)).collect(),
    }
}

/// A device of a lower tier. Devices of one pool have different numbers.
pub fn lower_device(tier: u8, number: u8) -> NewDevice {
    let class = if tier == 1 { DeviceClass::Ssd } else { DeviceClass::Hdd };
    NewDevice { tier, class, uuid: [number + 1; 16], path: format!("/tier{number}").into() }
}

/// Options under which each write without O_SYNC has its home in DRAM, with a buffer of `buffer_bytes`.
pub fn buffered(buffer_bytes: u64) -> MountOptions {
    MountOptions { home: Some(Home::Block), buffer: BufferOptions::of(buffer_bytes), ..Default::default() }
}
