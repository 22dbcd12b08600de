//! Words of metadata in PM: finding the owner of a block, and changing or losing what it says.

use super::helpers::W;
use terrace_engine::{Engine, FsResult, WriteFlags, read_superblock};
use terrace_format::geometry::Geometry;
use terrace_format::inode::{SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_testkit::{CALLER, ROOT, SimulatedPool};

pub fn filled(fs: &Engine, name: &str, blocks: u64) -> FsResult<Ino> {
    let ino = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino;
    for block in 0..blocks {
        fs.write(ino, block * 4096, &[block as u8; 4096], WriteFlags::default(), W)?;
    }
    Ok(ino)
}

pub fn geometry(pool: &SimulatedPool) -> Geometry {
    let Ok((superblock, _)) = read_superblock(&*pool.pm, false) else { panic!("the superblock is sound") };
    superblock.geometry()
}

/// The owners of all PM blocks.
pub fn owners(pool: &SimulatedPool) -> Vec<(PmBlock, Owner)> {
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    let owner = |block| Owner::decode(pool.pm.load_u64(geometry.table_entry(block)).unwrap()).unwrap();
    (0..geometry.block_count()).map(|block| (PmBlock(block), owner(PmBlock(block)))).collect()
}

/// The first block with an owner in the block table.
pub fn first_owned(pool: &SimulatedPool, owner: Owner) -> PmBlock {
    let geometry = geometry(pool);
    let blocks = geometry.first_pool_block().0..geometry.block_count();
    let found = blocks.map(PmBlock).find(|block| {
        pool.pm.load_u64(geometry.table_entry(*block)).is_ok_and(|word| word == owner.encode())
    });
    found.unwrap_or_else(|| panic!("{owner:?} owns nothing"))
}

/// The PM offset of the slot of an inode.
pub fn slot(pool: &SimulatedPool, ino: Ino) -> PmOffset {
    let page = Owner::Page { kind: PageKind::InodePage, datum: (ino.0 / SLOTS_PER_PAGE) as u32 };
    first_owned(pool, page).offset().plus(ino.0 % SLOTS_PER_PAGE * SLOT_SIZE)
}

pub fn poke(pool: &SimulatedPool, offset: PmOffset, word: u64) -> FsResult<()> {
    Ok(pool.pm.write(offset, &word.to_le_bytes())?)
}

/// Makes the map node with a block of a file unreadable.
pub fn poison_map_node(pool: &SimulatedPool, ino: Ino, block: FileBlock) {
    let owners = owners(pool);
    let data = Owner::File { ino, block, unwritten: false };
    let (data, _) = *owners.iter().find(|(_, owner)| *owner == data).unwrap();
    let names = |node: PmBlock| {
        let mut bytes = [0; BLOCK_SIZE as usize];
        pool.pm.read(node.offset(), &mut bytes).unwrap();
        bytes.as_chunks::<8>().0.iter().any(|word| u64::from_le_bytes(*word) & 0xffff_ffff == data.0)
    };
    let node = |owner| matches!(owner, Owner::Page { kind: PageKind::MapNode, .. });
    let (node, _) = *owners.iter().find(|(at, owner)| node(*owner) && names(*at)).unwrap();
    pool.pm.poison(node.offset().0..node.offset().0 + BLOCK_SIZE);
}
