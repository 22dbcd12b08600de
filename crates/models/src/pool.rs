//! Pools with a lower tier, for models of the whole engine.

use crate::UUID;
use std::sync::Arc;
use terrace_engine::{
    Caller, DeviceClass, Engine, FormatOptions, FsResult, NewDevice, PolicyKind, PoolMedia, Wait, format,
};
use terrace_format::Ino;
use terrace_format::address::ROOT_INO;
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::RecordedPm;

/// The media of a pool with one device.
pub fn media(pm: &Arc<RecordedPm>, device: &Arc<SimulatedDevice>) -> PoolMedia {
    PoolMedia { pm: Arc::clone(pm) as _, block: vec![Arc::clone(device) as _] }
}

/// Makes a pool on media of zeros.
///
/// # Panics
/// When the media are too small.
pub fn make_pool(media: &PoolMedia) {
    let options = FormatOptions {
        map: Default::default(),
        label: String::new(),
        uuid: UUID,
        hash_key: [9; 16],
        seal_secret: Some([9; 16]),
        policy: PolicyKind::PREDICTIVE,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks: 8,
        created_ns: 1,
        root: Default::default(),
        devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [2; 16], path: "/tier".into() }],
    };
    format(media, &options).unwrap_or_else(|error| panic!("{error}"));
}

/// Makes an empty file in the root.
///
/// # Errors
/// Errors are the engine's.
pub fn make_file(fs: &Engine, name: &str) -> FsResult<Ino> {
    let caller = Caller { uid: 0, gid: 0 };
    Ok(fs.mknod(ROOT_INO, name.as_bytes(), 0o100644, 0, caller, Wait::Allowed)?.ino)
}
