//! The pools of the golden images: some of every structure of the format, with contents that take little
//! text.

use std::sync::Arc;
use terrace_engine::{
    Allocate, Engine, FormatOptions, FsResult, MetadataMoves, MountOptions, Movements, SetAttributes,
    Simulation, Wait, WriteFlags, XattrMode,
};
use terrace_format::Ino;
use terrace_format::map_kind::MapKind;
use terrace_testkit::{CALLER, ROOT, SimulatedPool, format_options};

const W: Wait = Wait::Allowed;
const PM_BYTES: u64 = 2 << 20;
const DEVICE_BLOCKS: u64 = 1025;

/// Name and description of a golden image, and the function that makes its pool.
pub type Recipe = (&'static str, &'static str, fn() -> FsResult<SimulatedPool>);

/// All golden images.
pub const RECIPES: &[Recipe] = &[
    ("clean", "A small pool, unmounted in order; a crash before left an orphan and an intent.", clean),
    (
        "killed",
        "The same pool, mounted again, changed and killed: records in the lanes, no clean mark.",
        killed,
    ),
    (
        "shadows",
        "The clean pool with the feature partial-shadows and some of them over cold blocks, unmounted in order.",
        shadows,
    ),
    (
        "keyed",
        "The clean pool with the features metadata-below and keyed-seals, metadata pages and group summaries below.",
        keyed,
    ),
    (
        "checksummed",
        "The clean pool with the feature page-checksums, partial shadows over cold blocks, unmounted in order.",
        shadows,
    ),
    (
        "data-checksums",
        "As checksummed, with the feature data-checksums: data in PM has checksums in the block table.",
        || shadows_over(clean_as(&FormatOptions { data_checksums: true, ..format_options(1) })?),
    ),
    ("extents", "As checksummed, with the feature extent-map; a file has a tree of extents.", || {
        extents_over(shadows_over(clean_as(&FormatOptions { map: MapKind::Extent, ..format_options(1) })?)?)
    }),
    ("cuckoo", "As checksummed, with the feature cuckoo-map: a table of all files is the file map.", || {
        shadows_over(clean_as(&FormatOptions { map: MapKind::Cuckoo, ..format_options(1) })?)
    }),
    (
        "hashfs-linear",
        "As checksummed, with the feature hashfs-linear-map: the block table is the file map.",
        || shadows_over(clean_as(&FormatOptions { map: MapKind::HashfsLinear, ..format_options(1) })?),
    ),
    (
        "hashfs",
        "As checksummed, with the feature hashfs-map: the block table is the file map, in groups.",
        || shadows_over(clean_as(&FormatOptions { map: MapKind::Hashfs, ..format_options(1) })?),
    ),
    (
        "clustered",
        "As checksummed, with the feature clustered-map: a table with a line for 16 blocks is the file map.",
        || shadows_over(clean_as(&FormatOptions { map: MapKind::Clustered, ..format_options(1) })?),
    ),
];

fn create(fs: &Engine, parent: Ino, name: &str) -> FsResult<Ino> {
    let ino = fs.mknod(parent, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

/// Writes blocks that each hold one repeated byte.
fn fill(fs: &Engine, ino: Ino, first: u64, blocks: u64) -> FsResult<()> {
    for block in first..first + blocks {
        fs.write(ino, block * 4096, &[block as u8 + 1; 4096], WriteFlags::default(), W)?;
    }
    Ok(())
}

fn set_size(fs: &Engine, ino: Ino, size: u64) -> FsResult<()> {
    fs.setattr(ino, &SetAttributes { size: Some(size), ..Default::default() }, W)?;
    Ok(())
}

fn names(fs: &Engine) -> FsResult<()> {
    let many = fs.mkdir(ROOT, b"many", 0o755, CALLER, W)?.ino;
    let linked = create(fs, many, "linked")?;
    for index in 0..120 {
        fs.link(linked, many, format!("entry-{index:03}").as_bytes(), W)?;
    }
    let nested = fs.mkdir(many, b"nested", 0o700, CALLER, W)?.ino;
    fs.symlink(nested, b"short", b"../linked", CALLER, W)?;
    fs.symlink(nested, b"long", &[b'l'; 1500], CALLER, W)?;
    fs.mknod(nested, b"fifo", 0o010600, 0, CALLER, W)?;
    fs.mknod(nested, b"null", 0o020666, 0x103, CALLER, W)?;
    fs.rename(nested, b"fifo", ROOT, b"pipe", false, W)
}

fn files(fs: &Engine) -> FsResult<()> {
    let direct = create(fs, ROOT, "direct")?;
    fs.write(direct, 0, b"a few bytes", WriteFlags::default(), W)?;
    fs.link(direct, ROOT, b"hard", W)?;
    let tree = create(fs, ROOT, "tree")?;
    fill(fs, tree, 0, 24)?;
    let sparse = create(fs, ROOT, "sparse")?;
    for block in [3, 100, 5000] {
        fill(fs, sparse, block, 1)?;
    }
    set_size(fs, sparse, 64 << 20)?;
    let allocated = create(fs, ROOT, "allocated")?;
    fs.fallocate(allocated, 0, 10 * 4096, Allocate::Extend, W)?;
    fs.fallocate(allocated, 12 * 4096, 4096, Allocate::KeepSize, W)?;
    fill(fs, allocated, 2, 1)?;
    let attributes = create(fs, ROOT, "attributes")?;
    fs.setxattr(attributes, b"user.small", b"value", XattrMode::Any, W)?;
    fs.setxattr(attributes, b"user.large", &[b'x'; 1800], XattrMode::Any, W)?;
    let owner = SetAttributes { uid: Some(1000), gid: Some(100), mode: Some(0o4750), ..Default::default() };
    fs.setattr(attributes, &owner, W)?;
    Ok(())
}

/// Cold blocks: shadowed, partly punched, and a whole file.
fn cold(fs: &Arc<Engine>) -> FsResult<()> {
    let cold = create(fs, ROOT, "cold")?;
    fill(fs, cold, 0, 40)?;
    let shadowed = create(fs, ROOT, "shadowed")?;
    fill(fs, shadowed, 0, 20)?;
    fs.sync_to(1, &mut |_| {})?;
    for block in [2, 3, 9] {
        fs.write(shadowed, block * 4096 + 100, &[0xee; 200], WriteFlags::default(), W)?;
    }
    fs.fallocate(cold, 10 * 4096, 5 * 4096, Allocate::PunchHole, W)
}

fn populate(fs: &Arc<Engine>) -> FsResult<()> {
    cold(fs)?;
    names(fs)?;
    files(fs)?;
    fs.run_background(1000);
    // The content of an orphan is left for the next mount to remove.
    let orphan = create(fs, ROOT, "orphan")?;
    fill(fs, orphan, 0, 12)?;
    fs.lookup(ROOT, b"orphan")?;
    fs.unlink(ROOT, b"orphan", W)
}

fn killed_now(pool: SimulatedPool) -> SimulatedPool {
    pool.copied()
}

/// The daemon dies while a truncation removes blocks, so the image has an intent.
fn clean() -> FsResult<SimulatedPool> {
    clean_as(&format_options(1))
}

fn clean_as(options: &FormatOptions) -> FsResult<SimulatedPool> {
    let pool = killed_now(SimulatedPool::formatted(PM_BYTES, DEVICE_BLOCKS, options));
    let fs = pool.mount();
    populate(&fs)?;
    let cut = create(&fs, ROOT, "cut")?;
    fill(&fs, cut, 0, 120)?;
    pool.pm.set_crash_at(Some(pool.pm.event_count() + 60));
    set_size(&fs, cut, 5000)?;
    let (Some(pm), Some(device)) = (pool.pm.take_snapshot(), pool.device.take_snapshot()) else {
        panic!("the truncation ended before the crash");
    };
    let pool = SimulatedPool::from_images(pm.image_newest(), device.image_all()).with_clock(pool.clock);
    pool.mount().unmount()?;
    Ok(pool)
}

fn killed() -> FsResult<SimulatedPool> {
    let pool = clean()?;
    let fs = pool.mount();
    let late = create(&fs, ROOT, "late")?;
    for index in 0..10 {
        fs.write(late, index * 3000, &[index as u8 + 100; 3000], WriteFlags::default(), W)?;
    }
    fs.rename(ROOT, b"late", ROOT, b"latest", false, W)?;
    fs.unlink(ROOT, b"hard", W)?;
    fs.setxattr(late, b"user.late", b"yes", XattrMode::Any, W)?;
    let tree = fs.lookup(ROOT, b"tree")?.ino;
    fs.write(tree, 4096 * 5 + 10, b"changed", WriteFlags::default(), W)?;
    Ok(killed_now(pool))
}

fn shadows() -> FsResult<SimulatedPool> {
    shadows_over(clean()?)
}

/// Partial shadows: lines of one write, of several, and at both ends of a block.
fn shadows_over(pool: SimulatedPool) -> FsResult<SimulatedPool> {
    let fs = pool.mount();
    let (cold, shadowed) = (fs.lookup(ROOT, b"cold")?.ino, fs.lookup(ROOT, b"shadowed")?.ino);
    for (ino, block, at, length) in
        [(cold, 0, 512, 512), (cold, 5, 0, 64), (cold, 5, 192, 128), (shadowed, 12, 4032, 64)]
    {
        fs.write(ino, block * 4096 + at, &vec![0xdd; length], WriteFlags::default(), W)?;
    }
    fs.unmount()?;
    Ok(pool)
}

/// A file whose extents have no neighbours: they need a tree.
fn extents_over(pool: SimulatedPool) -> FsResult<SimulatedPool> {
    let fs = pool.mount();
    let apart = create(&fs, ROOT, "apart")?;
    (0..20).try_for_each(|index| fill(&fs, apart, 3 * index, 1))?;
    fs.unmount()?;
    Ok(pool)
}

/// Demoted metadata pages beside the group summaries of earlier demotions.
fn keyed() -> FsResult<SimulatedPool> {
    let pool = clean()?;
    let fs = pool.mount_with(MountOptions { metadata_moves: MetadataMoves::Always, ..Default::default() });
    fs.lower_metadata_now()?;
    fs.unmount()?;
    Ok(pool)
}
