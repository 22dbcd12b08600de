//! Superblock: identity, geometry and devices of a pool, in two copies.

use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::geometry::Geometry;
use crate::map_kind::MapKind;
use crate::moved::decode_moved;
use crate::seal::SealKey;
use crate::version::{
    DATA_CHECKSUMS, FORMAT_VERSION, INCOMPATIBLE, KEYED_SEALS, METADATA_BELOW, PAGE_CHECKSUMS,
    PARTIAL_SHADOWS, READ_ONLY_COMPATIBLE, REPAIRING, known,
};
use std::mem::offset_of;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Ids of policies: 1 to this. `placement` has their table.
pub const POLICY_IDS: u8 = 4;

/// First bytes of PM.
pub const MAGIC: [u8; 8] = *b"TERRACE0";
/// Rows of the device table.
pub const MAX_DEVICES: usize = 24;
/// Longest device path kept as a hint.
pub const MAX_PATH: usize = 255;

/// A device of a lower tier. `tier` 0 means the row is empty.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceRow {
    /// Tier number, 1 the fastest.
    pub tier: u8,
    /// 1 ssd, 2 hdd.
    pub class: u8,
    /// Class of its speed: the number of a device class, 255 for figures of its own, 0 where nothing is known.
    pub speed_class: u8,
    /// With 255 its figures, see [`RowSpeed`].
    pub speed: [u8; 4],
    /// Bytes of the path.
    pub path_length: u8,
    /// The device's own UUID, as in its header.
    pub uuid: [u8; 16],
    /// Blocks, header included.
    pub blocks: U64,
    /// Absolute path at mkfs: where mount looks first.
    pub path: [u8; 256],
}

/// Feature bits of a pool (docs/format.md "Features").
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Features {
    /// Features that may be ignored.
    pub compatible: U64,
    /// Features that a writer must know.
    pub read_only_compatible: U64,
    /// Features that a reader must know.
    pub incompatible: U64,
}

/// The layout of PM as stored; see [`Geometry`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PmLayout {
    /// Bytes of PM.
    pub pm_size: U64,
    /// Bytes of a lane.
    pub lane_size: U64,
    /// Lanes.
    pub lane_count: U32,
    /// Shards of the catalog.
    pub catalog_shards: U32,
    /// Blocks of a chunk.
    pub chunk_blocks: U32,
}

/// The journal of a repair while it is applied (docs/format.md "Repair journal"), else zeros.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalPlace {
    /// First block of the journal.
    pub block: U64,
    /// Bytes of its content.
    pub bytes: U64,
    /// CRC32C of its content.
    pub crc: U32,
    /// Zero.
    pub spare: U32,
}

/// The superblock as stored, 8 KiB, CRC in the last word.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: U32,
    /// Zero.
    pub spare0: U32,
    /// See [`Features`].
    pub features: Features,
    /// Identity of the pool.
    pub uuid: [u8; 16],
    /// Key of the directory hash (design C2).
    pub hash_key: [u8; 16],
    /// Label, UTF-8, padded with zeros.
    pub label: [u8; 64],
    /// See [`PmLayout`].
    pub layout: PmLayout,
    /// See [`MapKind`].
    pub map: u8,
    /// 1 static, 2 anticache, 3 predictive, 4 write-only.
    pub policy: u8,
    /// 1 atomic, 2 ordered.
    pub data_mode: u8,
    /// Rows used in `devices`.
    pub device_count: u8,
    /// Creation time, nanoseconds since the epoch.
    pub created_ns: U64,
    /// Lower-tier devices; the index is the [`crate::DeviceId`].
    pub devices: [DeviceRow; MAX_DEVICES],
    /// See [`JournalPlace`].
    pub journal: JournalPlace,
    /// With the feature `keyed-seals` its secret, else zero.
    pub seal_secret: [u8; 16],
    /// Zero.
    pub spare1: [u8; SPARE],
    /// Zero.
    pub spare2: U32,
    /// CRC32C of all bytes before it.
    pub crc: U32,
}

const SPARE: usize = 8192 - 176 - MAX_DEVICES * 288 - 24 - 16 - 8;
const _: () = assert!(size_of::<DeviceRow>() == 288);
const _: () = assert!(size_of::<Superblock>() == 8192);
// The parts stand where format.md says; a change would be a change of the format.
const _: () = assert!(offset_of!(Superblock, features) == 16 && size_of::<Features>() == 24);
const _: () = assert!(offset_of!(Superblock, layout) == 136 && size_of::<PmLayout>() == 28);
const _: () = assert!(offset_of!(Superblock, map) == 164 && offset_of!(Superblock, devices) == 176);
const _: () = assert!(offset_of!(Superblock, journal) == 7088 && size_of::<JournalPlace>() == 24);

/// Why a superblock is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No magic number: not a pool at all.
    #[error("no Terrace pool")]
    NotAPool,
    /// Written by a newer program.
    #[error(
        "pool format version {0} is not known to this program (it knows {FORMAT_VERSION}); use a newer terrace"
    )]
    Version(u32),
    /// Uses features that this program does not know.
    #[error("pool uses unknown incompatible features {0:#x}; use a newer terrace")]
    Features(u64),
    /// May be read but not written.
    #[error(
        "pool uses unknown features {0:#x} that forbid writing; mount it with -o ro or use a newer terrace"
    )]
    ReadOnlyFeatures(u64),
    /// Half repaired.
    #[error("a repair of this pool was interrupted; run 'terrace check --repair' on it")]
    Repairing,
    /// Taken over by the journal at this path.
    #[error(
        "the journal {0} has taken over this tier 0, which is no pool any more; name the journal instead"
    )]
    Moved(String),
    /// Damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

impl Superblock {
    /// A superblock of zeros with magic and version, to be filled in by mkfs.
    pub fn new(geometry: &Geometry) -> Superblock {
        let mut superblock = Superblock::new_zeroed();
        superblock.magic = MAGIC;
        superblock.version = FORMAT_VERSION.into();
        let checksums = if geometry.checksummed { PAGE_CHECKSUMS } else { 0 };
        superblock.features.incompatible = (geometry.map.feature() | PARTIAL_SHADOWS | checksums).into();
        superblock.map = geometry.map.id();
        superblock.layout.pm_size = geometry.pm_size.into();
        superblock.layout.lane_size = geometry.lane_size.into();
        superblock.layout.lane_count = geometry.lane_count.into();
        superblock.layout.catalog_shards = geometry.catalog_shards.into();
        superblock.layout.chunk_blocks = geometry.chunk_blocks.into();
        superblock
    }

    /// Computes the CRC; call last.
    pub fn seal(&mut self) {
        let crc = crc32c(self.as_bytes().split_at(8188).0);
        self.crc = crc.into();
    }

    /// Accepts a copy read from the medium: magic, then version and features, then CRC, then every
    /// field, so that a newer pool is called newer and not damaged.
    ///
    /// # Errors
    /// [`Refused`]; `ReadOnlyFeatures` only when `write`.
    pub fn verify(bytes: &[u8], write: bool) -> Result<Superblock, Refused> {
        let superblock = Superblock::verify_repairing(bytes, write)?;
        if superblock.is_repairing() { Err(Refused::Repairing) } else { Ok(superblock) }
    }

    /// Set while a repair changes the pool: nothing but check may use it then.
    pub fn is_repairing(&self) -> bool {
        self.features.incompatible.get() & REPAIRING != 0
    }

    /// Whether its PM blocks may hold some lines only of a cold block.
    pub fn has_partial_shadows(&self) -> bool {
        self.features.incompatible.get() & PARTIAL_SHADOWS != 0
    }

    /// Whether metadata pages may lie on lower tiers.
    pub fn has_metadata_below(&self) -> bool {
        self.features.incompatible.get() & METADATA_BELOW != 0
    }

    /// Whether data of files in PM has checksums.
    pub fn has_data_checksums(&self) -> bool {
        self.features.incompatible.get() & DATA_CHECKSUMS != 0
    }

    /// The key that seals metadata pages and group summaries on lower tiers.
    pub fn seal_key(&self) -> SealKey {
        let is_keyed = self.features.incompatible.get() & KEYED_SEALS != 0;
        SealKey::new(self.uuid, is_keyed.then_some(self.seal_secret))
    }

    /// Gives a new pool a secret for its seals.
    pub fn set_seal_secret(&mut self, secret: [u8; 16]) {
        self.seal_secret = secret;
        self.features.incompatible |= KEYED_SEALS;
    }

    /// As [`Self::verify`], for check: a repair that was interrupted is no reason to refuse.
    ///
    /// # Errors
    /// [`Refused`]; `ReadOnlyFeatures` only when `write`.
    pub fn verify_repairing(bytes: &[u8], write: bool) -> Result<Superblock, Refused> {
        let superblock = Superblock::read_from_bytes(bytes).map_err(|_| Refused::NotAPool)?;
        if superblock.magic != MAGIC {
            let moved = decode_moved(bytes).map(|path| String::from_utf8_lossy(&path).into_owned());
            return Err(moved.map_or(Refused::NotAPool, Refused::Moved));
        }
        let crc = crc32c(superblock.as_bytes().split_at(8188).0);
        let sound = crc == superblock.crc.get();
        if sound && superblock.version.get() != FORMAT_VERSION {
            return Err(Refused::Version(superblock.version.get()));
        }
        if !sound {
            let found = format!("{:#x}", superblock.crc.get());
            return Err(Corrupt::new("superblock", format!("CRC {crc:#x}"), found).into());
        }
        let unknown = superblock.features.incompatible.get() & !known(INCOMPATIBLE);
        if unknown != 0 {
            return Err(Refused::Features(unknown));
        }
        let unknown = superblock.features.read_only_compatible.get() & !known(READ_ONLY_COMPATIBLE);
        if unknown != 0 && write {
            return Err(Refused::ReadOnlyFeatures(unknown));
        }
        superblock.verify_map()?;
        superblock.geometry().verify()?;
        let choice = |field: &str, value: u8, max: u8| match value {
            v if v >= 1 && v <= max => Ok(()),
            v => Err(Corrupt::new(format!("superblock {field}"), format!("1 to {max}"), v.to_string())),
        };
        choice("policy", superblock.policy, POLICY_IDS)?;
        choice("data mode", superblock.data_mode, 2)?;
        if usize::from(superblock.device_count) > MAX_DEVICES {
            let found = superblock.device_count.to_string();
            return Err(Corrupt::new("superblock device count", "at most 24", found).into());
        }
        superblock.verify_identities()?;
        Ok(superblock)
    }

    /// The map is known, and its feature is the only feature of a map.
    fn verify_map(&self) -> Result<(), Corrupt> {
        let Some(kind) = MapKind::from_id(self.map) else {
            let numbers: Vec<String> = MapKind::ALL.iter().map(|kind| kind.id().to_string()).collect();
            let expected = numbers.join(", ");
            return Err(Corrupt::new("superblock map", expected, self.map.to_string()));
        };
        let found = self.features.incompatible.get() & MapKind::features();
        if found != kind.feature() {
            let expected = format!("{:#x}, as for map {}", kind.feature(), kind.id());
            return Err(Corrupt::new("superblock features of the map", expected, format!("{found:#x}")));
        }
        Ok(())
    }

    /// A UUID of zeros names whatever has zeros in its place, a secret of zeros is none.
    fn verify_identities(&self) -> Result<(), Corrupt> {
        let nil = |field: &str| Err(Corrupt::new(format!("superblock {field}"), "a random one", "zeros"));
        if self.uuid == [0; 16] {
            return nil("pool UUID");
        }
        if self.device_rows().iter().any(|row| row.uuid == [0; 16]) {
            return nil("device UUID");
        }
        if self.seal_key().secret == Some([0; 16]) {
            return nil("secret of the seals");
        }
        Ok(())
    }

    /// The file map of the pool; that of new pools in a superblock whose map is not known.
    pub fn map_kind(&self) -> MapKind {
        MapKind::from_id(self.map).unwrap_or_default()
    }

    /// The layout of PM.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            pm_size: self.layout.pm_size.get(),
            lane_count: self.layout.lane_count.get(),
            lane_size: self.layout.lane_size.get(),
            catalog_shards: self.layout.catalog_shards.get(),
            chunk_blocks: self.layout.chunk_blocks.get(),
            checksummed: self.features.incompatible.get() & PAGE_CHECKSUMS != 0,
            map: self.map_kind(),
        }
    }

    /// The used rows of the device table.
    pub fn device_rows(&self) -> &[DeviceRow] {
        self.devices.get(..usize::from(self.device_count)).unwrap_or(&[])
    }
}

/// Latencies and bandwidths of a device as a row keeps them: v stands for 10^(v/16), so they are exact to 8 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpeed {
    /// Nanoseconds.
    pub read_latency_ns: u64,
    /// Nanoseconds.
    pub write_latency_ns: u64,
    /// Bytes per second.
    pub read_bytes_per_s: u64,
    /// Bytes per second.
    pub write_bytes_per_s: u64,
}

impl RowSpeed {
    /// As stored.
    pub fn encode(&self) -> [u8; 4] {
        let code = |value: u64| ((value.max(1) as f64).log10() * 16.0).round() as u8;
        [
            code(self.read_latency_ns),
            code(self.write_latency_ns),
            code(self.read_bytes_per_s),
            code(self.write_bytes_per_s),
        ]
    }
    /// Decodes the stored bytes; every value is valid.
    pub fn decode(bytes: [u8; 4]) -> RowSpeed {
        let [read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s] =
            bytes.map(|code| 10f64.powf(f64::from(code) / 16.0).round() as u64);
        RowSpeed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s }
    }
}

impl DeviceRow {
    /// The path's bytes.
    pub fn path(&self) -> &[u8] {
        self.path.get(..usize::from(self.path_length)).unwrap_or(&[])
    }
    /// Stores a path; false when it is too long.
    pub fn set_path(&mut self, path: &[u8]) -> bool {
        match self.path.get_mut(..path.len()) {
            Some(place) if path.len() <= MAX_PATH => {
                place.copy_from_slice(path);
                self.path_length = path.len() as u8;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_kept_to_eight_percent() {
        let speed = RowSpeed {
            read_latency_ns: 123_456,
            write_latency_ns: 1,
            read_bytes_per_s: 2_345_000_000,
            write_bytes_per_s: 98_000_000,
        };
        let kept = RowSpeed::decode(speed.encode());
        let near = |a: u64, b: u64| a.abs_diff(b) * 100 <= b * 8;
        assert!(near(kept.read_latency_ns, speed.read_latency_ns) && kept.write_latency_ns == 1);
        assert!(near(kept.read_bytes_per_s, speed.read_bytes_per_s));
        assert!(near(kept.write_bytes_per_s, speed.write_bytes_per_s));
        assert_eq!(RowSpeed::decode([255; 4]).encode(), [255; 4]);
    }

    #[test]
    fn a_sealed_superblock_verifies_and_a_changed_superblock_is_refused()
    -> Result<(), Box<dyn std::error::Error>> {
        let geometry = Geometry::choose(64 << 20, 4096)?;
        let mut superblock = Superblock::new(&geometry);
        (superblock.map, superblock.policy, superblock.data_mode) = (1, 2, 1);
        superblock.uuid = [7; 16];
        superblock.seal();
        assert_eq!(Superblock::verify(superblock.as_bytes(), true)?.geometry(), geometry);
        let mut newer = superblock;
        newer.version = 2.into();
        newer.seal();
        assert_eq!(Superblock::verify(newer.as_bytes(), true).err(), Some(Refused::Version(2)));
        let mut feature = superblock;
        feature.features.incompatible = (known(INCOMPATIBLE) | 1 << 40).into();
        feature.seal();
        assert_eq!(Superblock::verify(feature.as_bytes(), true).err(), Some(Refused::Features(1 << 40)));
        let mut half = superblock;
        half.features.incompatible = (MapKind::Radix.feature() | REPAIRING).into();
        half.seal();
        assert_eq!(Superblock::verify(half.as_bytes(), false).err(), Some(Refused::Repairing));
        assert!(Superblock::verify_repairing(half.as_bytes(), false)?.is_repairing());
        superblock.label[0] = 1;
        assert!(matches!(Superblock::verify(superblock.as_bytes(), true), Err(Refused::Corrupt(_))));
        Ok(())
    }

    #[test]
    fn map_and_feature_of_the_map_have_to_agree() -> Result<(), Box<dyn std::error::Error>> {
        let geometry = Geometry::choose(64 << 20, 4096)?;
        let mut sound = Superblock::new(&geometry);
        (sound.policy, sound.data_mode, sound.uuid) = (2, 1, [7; 16]);
        let refused = |map: u8, features: u64| {
            let mut superblock = sound;
            superblock.map = map;
            let rest = superblock.features.incompatible.get() & !MapKind::features();
            superblock.features.incompatible = (rest | features).into();
            superblock.seal();
            Superblock::verify(superblock.as_bytes(), false).err().map(|why| why.to_string())
        };
        for kind in MapKind::ALL {
            assert_eq!(refused(kind.id(), kind.feature()), None);
            for features in [0, MapKind::features() & !kind.feature(), MapKind::features()] {
                let expected = (features != kind.feature()).then_some("superblock features of the map");
                let found = refused(kind.id(), features);
                assert_eq!(found.is_some(), expected.is_some(), "{kind:?} with {features:#x}");
                assert!(expected.is_none_or(|site| found.is_some_and(|found| found.contains(site))));
            }
            for unknown in [0, 7, 255] {
                assert!(refused(unknown, kind.feature()).is_some_and(|why| why.contains("superblock map")));
            }
        }
        Ok(())
    }

    /// UUIDs of zeros were taken: every ext4 has zeros where a device header has its UUIDs, and a repair of an image that
    /// named such a device wrote over it.
    #[test]
    fn zeros_are_no_identity_and_no_secret() -> Result<(), Box<dyn std::error::Error>> {
        let mut sound = Superblock::new(&Geometry::choose(64 << 20, 4096)?);
        (sound.map, sound.policy, sound.data_mode, sound.device_count) = (1, 2, 1, 1);
        (sound.uuid, sound.devices[0].uuid) = ([7; 16], [8; 16]);
        sound.set_seal_secret([9; 16]);
        let refused = |change: fn(&mut Superblock)| {
            let mut superblock = sound;
            change(&mut superblock);
            superblock.seal();
            Superblock::verify(superblock.as_bytes(), false).err().map(|why| why.to_string())
        };
        assert_eq!(refused(|_| {}), None);
        type Change = (fn(&mut Superblock), &'static str);
        let changes: [Change; 3] = [
            (|superblock| superblock.uuid = [0; 16], "pool UUID"),
            (|superblock| superblock.devices[0].uuid = [0; 16], "device UUID"),
            (|superblock| superblock.seal_secret = [0; 16], "secret of the seals"),
        ];
        for (change, field) in changes {
            assert!(refused(change).is_some_and(|why| why.contains(field)), "{field}");
        }
        Ok(())
    }
}
