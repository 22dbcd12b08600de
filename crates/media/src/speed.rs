//! The speed of devices: the registry of device classes, and the measure of similarity.
//!
//! The figures of the named classes are those of [TPFS] table 1; `ssd` and `hdd`, the kinds that mkfs has always
//! known, stand for the slowest of their kind. Used by emulated media, by mkfs to form tiers, and by status.

use std::fmt;

/// Latency and bandwidth of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Speed {
    /// Of a small read, in nanoseconds.
    pub read_latency_ns: u64,
    /// Of a small write, in nanoseconds.
    pub write_latency_ns: u64,
    /// Of large reads, bytes per second; never 0.
    pub read_bytes_per_s: u64,
    /// Of large writes, bytes per second; never 0.
    pub write_bytes_per_s: u64,
}

/// A row of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassRow {
    /// Stable: stored in superblocks.
    pub number: u8,
    /// Its name in options and status.
    pub name: &'static str,
    /// Its figures.
    pub speed: Speed,
    /// The devices it stands for, as a sentence for the user.
    pub sentence: &'static str,
}

const fn speed(read_ns: u64, write_ns: u64, read_mb_per_s: u64, write_mb_per_s: u64) -> Speed {
    Speed {
        read_latency_ns: read_ns,
        write_latency_ns: write_ns,
        read_bytes_per_s: read_mb_per_s * 1_000_000,
        write_bytes_per_s: write_mb_per_s * 1_000_000,
    }
}

/// The kind of a solid state device: its number among [`CLASSES`], and in superblocks.
pub const SSD: u8 = 1;
/// The kind of a hard disk: its number among [`CLASSES`], and in superblocks.
pub const HDD: u8 = 2;

/// The device classes. A new class is a row here.
pub const CLASSES: &[ClassRow] = &[
    ClassRow {
        number: SSD,
        name: "ssd",
        speed: speed(80_000, 85_000, 500, 500),
        sentence: "solid state, not known more closely: taken as sata",
    },
    ClassRow {
        number: HDD,
        name: "hdd",
        speed: speed(10_000_000, 10_000_000, 100, 100),
        sentence: "hard disk: taken as disk",
    },
    ClassRow { number: 3, name: "pm", speed: speed(300, 100, 40_000, 15_000), sentence: "persistent memory" },
    ClassRow {
        number: 4,
        name: "optane",
        speed: speed(10_000, 10_000, 2_500, 2_000),
        sentence: "Optane SSD",
    },
    ClassRow { number: 5, name: "nvme", speed: speed(120_000, 30_000, 2_000, 500), sentence: "NVMe SSD" },
    ClassRow { number: 6, name: "sata", speed: speed(80_000, 85_000, 500, 500), sentence: "SATA SSD" },
    ClassRow {
        number: 7,
        name: "disk",
        speed: speed(10_000_000, 10_000_000, 100, 100),
        sentence: "hard disk",
    },
];

/// Number of a speed that was measured, or given in figures.
pub const FIGURES: u8 = 255;

/// Names of the classes, for messages.
pub fn names() -> String {
    CLASSES.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
}

/// A class by its name.
pub fn named(name: &str) -> Option<&'static ClassRow> {
    CLASSES.iter().find(|row| row.name == name)
}

/// A class by its number.
pub fn numbered(number: u8) -> Option<&'static ClassRow> {
    CLASSES.iter().find(|row| row.number == number)
}

/// A speed with the number of its class, or [`FIGURES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClassedSpeed {
    /// Of [`CLASSES`], or [`FIGURES`].
    pub number: u8,
    /// The figures.
    pub speed: Speed,
}

impl ClassedSpeed {
    /// A class by its name, or `READ_NS:WRITE_NS:READ_BYTES_PER_S:WRITE_BYTES_PER_S`; rates may end in K, M or G
    /// (base 1024).
    ///
    /// # Errors
    /// The mistake in the text, in words for a user.
    pub fn parse(text: &str) -> Result<ClassedSpeed, String> {
        if let Some(row) = named(text) {
            return Ok(ClassedSpeed { number: row.number, speed: row.speed });
        }
        let wrong = || {
            format!(
                "'{text}' is no device class; use {}, or READ_NS:WRITE_NS:READ_BYTES_PER_S:WRITE_BYTES_PER_S",
                names()
            )
        };
        let words: Vec<&str> = text.split(':').collect();
        let &[read_ns, write_ns, read_rate, write_rate] = words.as_slice() else { return Err(wrong()) };
        let speed = Speed {
            read_latency_ns: latency(read_ns).ok_or_else(wrong)?,
            write_latency_ns: latency(write_ns).ok_or_else(wrong)?,
            read_bytes_per_s: rate(read_rate).ok_or_else(wrong)?,
            write_bytes_per_s: rate(write_rate).ok_or_else(wrong)?,
        };
        Ok(ClassedSpeed { number: FIGURES, speed })
    }

    /// Its name; `None` for one of figures.
    pub fn name(&self) -> Option<&'static str> {
        numbered(self.number).map(|row| row.name)
    }
}

/// Longest latency that can be asked for: a second.
const MAX_LATENCY_NS: u64 = 1_000_000_000;

/// Nanoseconds, at most a second.
pub(crate) fn latency(text: &str) -> Option<u64> {
    text.parse().ok().filter(|ns| *ns <= MAX_LATENCY_NS)
}

/// Bytes per second, at least 4096: K, M and G are base 1024.
pub(crate) fn rate(text: &str) -> Option<u64> {
    let (number, shift) = match text.char_indices().next_back()? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| (4096..=1 << 50).contains(bytes))
}

/// The size of a typical request. It weighs latency against bandwidth.
const TYPICAL_BYTES: u64 = 128 << 10;
/// Figures that differ by more than this factor are not similar.
const SIMILAR_FACTOR: u64 = 2;

impl Speed {
    /// Nanoseconds that a read and a write of 128 KiB take together. Devices are ranked by this figure.
    pub fn cost_ns(&self) -> u64 {
        let transfer = |rate: u64| transfer_ns(TYPICAL_BYTES, rate);
        self.read_latency_ns
            + self.write_latency_ns
            + transfer(self.read_bytes_per_s)
            + transfer(self.write_bytes_per_s)
    }

    /// Within a factor of two in every figure.
    pub fn is_similar(&self, other: &Speed) -> bool {
        let near = |a: u64, b: u64| a.max(b) <= a.min(b).saturating_mul(SIMILAR_FACTOR);
        near(self.read_latency_ns, other.read_latency_ns)
            && near(self.write_latency_ns, other.write_latency_ns)
            && near(self.read_bytes_per_s, other.read_bytes_per_s)
            && near(self.write_bytes_per_s, other.write_bytes_per_s)
    }
}

/// Time of a transfer, rounded up, in nanoseconds.
pub(crate) fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Tier numbers of devices by speed: devices of similar speed share a tier, faster tiers have smaller numbers, from
/// 1. In the order of `speeds`.
pub fn tiers(speeds: &[Speed]) -> Vec<u8> {
    let mut order: Vec<usize> = (0..speeds.len()).collect();
    order.sort_by_key(|&index| (speeds[index].cost_ns(), index));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in order {
        // A device joins a tier only if it is similar to each member: else a chain of small steps would be
        // one tier.
        let fits =
            |group: &&mut Vec<usize>| group.iter().all(|&other| speeds[other].is_similar(&speeds[index]));
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    let mut tiers = vec![0; speeds.len()];
    for (group, number) in groups.iter().zip(1..) {
        group.iter().for_each(|&index| tiers[index] = number);
    }
    tiers
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ns: u64| match ns {
            0..1_000 => format!("{ns} ns"),
            1_000..1_000_000 => format!("{} µs", short(ns as f64 / 1e3)),
            _ => format!("{} ms", short(ns as f64 / 1e6)),
        };
        let rate = |bytes: u64| match bytes {
            0..1_000_000_000 => format!("{} MB/s", short(bytes as f64 / 1e6)),
            _ => format!("{} GB/s", short(bytes as f64 / 1e9)),
        };
        write!(
            f,
            "read {} {}, write {} {}",
            time(self.read_latency_ns),
            rate(self.read_bytes_per_s),
            time(self.write_latency_ns),
            rate(self.write_bytes_per_s)
        )
    }
}

/// Two digits that count, without zeros behind the point.
fn short(value: f64) -> String {
    let text = if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    text.strip_suffix(".0").unwrap_or(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Speed {
        named(name).map(|row| row.speed).unwrap_or_else(|| unreachable!("{name}"))
    }

    #[test]
    fn device_classes_have_distinct_numbers_and_names() {
        for (index, row) in CLASSES.iter().enumerate() {
            assert!(row.number != 0 && row.number != FIGURES);
            assert!(
                CLASSES[..index].iter().all(|other| other.number != row.number && other.name != row.name)
            );
            assert_eq!(numbered(row.number), Some(row));
            assert_eq!(ClassedSpeed::parse(row.name).ok().and_then(|speed| speed.name()), Some(row.name));
        }
        assert_eq!(of("nvme").to_string(), "read 120 µs 2 GB/s, write 30 µs 500 MB/s");
    }

    #[test]
    fn figures_are_read_and_nonsense_is_refused() {
        let found = ClassedSpeed::parse("120000:30000:2G:512M");
        let speed = Speed {
            read_latency_ns: 120_000,
            write_latency_ns: 30_000,
            read_bytes_per_s: 2 << 30,
            write_bytes_per_s: 512 << 20,
        };
        assert_eq!(found, Ok(ClassedSpeed { number: FIGURES, speed }));
        let bad =
            ["", "fast", "1:2:3", "1:2:0:1M", "1:2:1M:1M:1", "-1:2:1M:1M", "2000000000:1:1M:1M", "1:1:é:1M"];
        for text in bad {
            assert!(ClassedSpeed::parse(text).is_err(), "{text}");
        }
        assert_eq!(rate("99999999999G"), None);
    }

    #[test]
    fn similar_devices_share_a_tier_and_faster_ones_come_first() {
        let speeds = [of("disk"), of("nvme"), of("sata"), of("optane"), of("ssd"), of("hdd")];
        assert_eq!(tiers(&speeds), [4, 2, 3, 1, 3, 4]);
        assert_eq!(tiers(&[of("sata")]), [1]);
        assert_eq!(tiers(&[]), []);
    }

    #[test]
    fn small_steps_do_not_make_one_tier() {
        let steps = [100, 180, 320, 560].map(|latency| speed(latency * 1000, latency * 1000, 500, 500));
        assert_eq!(tiers(&steps), [1, 1, 2, 2]);
        // Similar in latency alone is not similar.
        assert_eq!(tiers(&[speed(1000, 1000, 100, 500), speed(1000, 1000, 500, 500)]), [2, 1]);
    }
}
