//! How fast the devices of a pool are, as its superblock says.

use serde::Serialize;
use std::collections::BTreeSet;
use terrace_format::superblock::{DeviceRow, RowSpeed};
use terrace_media::speed::{FIGURES, HDD, Speed, numbered};

/// Figures of a device for status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SpeedStatus {
    /// Nanoseconds.
    pub read_latency_ns: u64,
    /// Nanoseconds.
    pub write_latency_ns: u64,
    /// Bytes per second.
    pub read_bytes_per_s: u64,
    /// Bytes per second.
    pub write_bytes_per_s: u64,
}

/// A speed as the superblock's row holds it.
pub fn row_speed(speed: &Speed) -> RowSpeed {
    let Speed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s } = *speed;
    RowSpeed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s }
}

/// The speed class of a device row, else the kind of device. TIER arguments accept this name, and status
/// shows it.
pub fn class_name(row: &DeviceRow) -> &'static str {
    match numbered(row.speed_class) {
        Some(class) => class.name,
        None if row.class == HDD => "hdd",
        None => "ssd",
    }
}

/// The speed that a device row names.
pub fn speed_of(row: &DeviceRow) -> Option<Speed> {
    if row.speed_class != FIGURES {
        return numbered(row.speed_class).map(|class| class.speed);
    }
    let RowSpeed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s } =
        RowSpeed::decode(row.speed);
    Some(Speed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s })
}

/// The same for status.
pub fn speed_status(row: &DeviceRow) -> Option<SpeedStatus> {
    let speed = speed_of(row)?;
    let Speed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s } = speed;
    Some(SpeedStatus { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s })
}

/// The lower tiers in use, fastest first.
pub fn tiers_of(rows: &[DeviceRow]) -> BTreeSet<u8> {
    rows.iter().map(|row| row.tier).collect()
}

/// The tier that serves a tier pin to tier `wanted`: `wanted` itself, or the next slower tier if no device of
/// it is left, else the slowest tier.
pub fn standing_in(wanted: u8, tiers: impl Iterator<Item = u8>) -> u8 {
    let mut slowest = None;
    for tier in tiers {
        if wanted == 0 || tier >= wanted {
            return if wanted == 0 { 0 } else { tier };
        }
        slowest = Some(tier);
    }
    slowest.unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::speed::ClassedSpeed;
    use terrace_media::speed::named;
    use zerocopy::FromZeros;

    #[test]
    fn rows_name_classes_kinds_and_figures() {
        let mut row = DeviceRow::new_zeroed();
        row.class = 2;
        assert_eq!((class_name(&row), speed_of(&row)), ("hdd", None));
        row.speed_class = 5;
        assert_eq!((class_name(&row), speed_of(&row)), ("nvme", named("nvme").map(|class| class.speed)));
        // A speed class that only a newer program knows.
        row.speed_class = 99;
        assert_eq!((class_name(&row), speed_of(&row)), ("hdd", None));
        let given =
            ClassedSpeed::parse("120000:30000:2G:512M").unwrap_or_else(|error| unreachable!("{error}"));
        (row.class, row.speed_class, row.speed) = (1, FIGURES, row_speed(&given.speed).encode());
        assert_eq!(class_name(&row), "ssd");
        assert!(speed_of(&row).is_some_and(|speed| speed.is_similar(&given.speed)));
    }
}
