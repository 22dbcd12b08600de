//! The content of used media: pages of an older life of the same pool (inode pages, catalog pages, map nodes,
//! former data) in every free block. A block that gets an owner before its new content is durable then shows
//! believable bytes instead of zeros.

use std::sync::{Arc, OnceLock};
use terrace_engine::{
    Caller, DeviceClass, Engine, FormatOptions, MountOptions, Movements, NewDevice, PolicyKind, PoolMedia,
    Wait, WriteFlags, XattrMode, format,
};
use terrace_format::inode::{InodeSlot, SLOT_SIZE};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Geometry, Ino};
use terrace_media::block::{AlignedBlock, DeviceImage, SimulatedDevice};
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_runtime::ManualClock;
use zerocopy::IntoBytes;

type Block = [u8; BLOCK_SIZE as usize];

/// Blocks of an older life of the pool.
struct Old {
    pm: Vec<Block>,
    device: Vec<Block>,
}

/// Fills the blocks that a new pool does not use: PM behind the root directory's pages, devices behind the
/// header.
pub fn fill(geometry: &Geometry, pm: &mut PmImage, devices: &mut [DeviceImage]) {
    static OLD: OnceLock<Old> = OnceLock::new();
    let old = OLD.get_or_init(older_life);
    let inode_page = inode_page();
    for block in geometry.first_pool_block().0 + 2..geometry.block_count() {
        let content = match block % 4 {
            // Each inode slot of the page is in use.
            0 => inode_page,
            // Pointers to the first blocks of the pool.
            1 => node(geometry.first_pool_block().0 + block % 7),
            _ => old.pm[block as usize % old.pm.len()],
        };
        assert!(pm.write(block * BLOCK_SIZE, &content));
    }
    for device in devices {
        for block in 1..device.blocks() {
            let content = AlignedBlock(old.device[block as usize % old.device.len()]);
            device.set_block(DeviceBlock(block), content);
        }
    }
}

fn inode_page() -> Block {
    let mut slot = InodeSlot::zeroed();
    slot.mode = 0o100644.into();
    slot.nlink = 1.into();
    slot.generation = 3.into();
    slot.size = 5000.into();
    let mut page = [0; BLOCK_SIZE as usize];
    page.chunks_mut(SLOT_SIZE as usize).for_each(|place| place.copy_from_slice(slot.as_bytes()));
    page
}

fn node(child: u64) -> Block {
    let mut page = [0; BLOCK_SIZE as usize];
    page.chunks_mut(8).for_each(|word| word.copy_from_slice(&child.to_le_bytes()));
    page
}

/// Uses a pool of the same identity for a while.
fn older_life() -> Old {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    let device = Arc::new(SimulatedDevice::new(1025));
    let media = || PoolMedia { pm: pm.clone(), block: vec![device.clone()] };
    let options = FormatOptions {
        map: Default::default(),
        label: "crash".into(),
        uuid: [7; 16],
        hash_key: [9; 16],
        seal_secret: Some([9; 16]),
        policy: PolicyKind::PREDICTIVE,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks: 16,
        created_ns: 1,
        root: Default::default(),
        devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [1; 16], path: "/tier0".into() }],
    };
    let superblock = format(&media(), &options).unwrap();
    let clock = Arc::new(ManualClock::new(1));
    let fs = Engine::mount(media(), superblock, MountOptions::default(), clock).unwrap();
    let (root, caller) = (Ino(1), Caller { uid: 0, gid: 0 });
    for index in 0..100u8 {
        let name = format!("{index:03}-an-older-file-{}", "x".repeat(usize::from(index)));
        let ino = fs.mknod(root, name.as_bytes(), 0o100600, 0, caller, Wait::Allowed).unwrap().ino;
        let data = vec![index | 0x80; 4000];
        for block in 0..2 {
            fs.write(ino, block * 40_960, &data, WriteFlags::default(), Wait::Allowed).unwrap();
        }
        fs.setxattr(ino, b"user.old", &data[..500], XattrMode::Any, Wait::Allowed).unwrap();
        if index == 60 {
            fs.sync_to(1, &mut |_| {}).unwrap();
        }
    }
    let image = pm.visible_image().to_vec();
    let first = superblock.geometry().first_pool_block().0 as usize + 2;
    let used =
        |blocks: &[Block]| blocks.iter().filter(|block| block.iter().any(|b| *b != 0)).copied().collect();
    let pm = used(&image.as_chunks::<{ BLOCK_SIZE as usize }>().0[first..]);
    let image = device.visible_image();
    let device = used(&(1..1025).map(|block| image.block(DeviceBlock(block)).0).collect::<Vec<_>>());
    Old { pm, device }
}
