//! Repair of random damage to a pool that the engine made (I11): it never panics and always ends, its report
//! names the findings left, the pool mounts, a second repair writes no byte, and a file loses only parts that
//! were themselves destroyed.
//!
//! "Destroyed" is, for damage to
//! - the block table, map nodes, the inode file's tree, inner catalog pages, roots, one copy of superblock or
//!   checkpoint (one kind at a time): no part of a file, because each of them is known twice;
//! - an inode page: the attributes, size and content of inodes whose slot was hit;
//! - a catalog leaf: every key in it, so names, attributes and cold blocks of the inodes it speaks of;
//! - a mixture of all kinds: each part of each file.
//!
//! A failing round prints its seed; repeat it with `TERRACE_SEED=<seed> cargo test -p terrace-repair --test
//! random`; `TERRACE_DAMAGE_ROUNDS` sets the number of rounds.

#[path = "../../sim/src/old_content.rs"]
#[allow(dead_code)]
mod old_content;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrace_check::{Code, Options, Report};
use terrace_engine::{Engine, MountOptions, Movements, Wait, WriteFlags, XattrMode, read_superblock};
use terrace_format::geometry::{CHECKPOINT_COPIES, ROOTS_BLOCK, SUPERBLOCK_COPIES};
use terrace_format::inode::{SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::page_checksum::ChecksumWord;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{Geometry, Ino, PmBlock};
use terrace_media::PmMedium;
use terrace_media::block::DeviceImage;
use terrace_repair::{Repair, repair};
use terrace_testkit::{CALLER, ROOT, SimulatedPool};

const W: Wait = Wait::Allowed;
const OPTIONS: Options<'static> = Options { read_cold: true, progress: None, given: &[] };
/// Inode numbers that the tests look at.
const INODES: u64 = 160;

fn pool_of(base: &Base) -> SimulatedPool {
    SimulatedPool::from_images(base.pm.clone(), base.device.clone())
}

fn repair_pool(pool: &SimulatedPool) -> Repair {
    repair(&pool.repair_media(), &OPTIONS)
}

fn mount(pool: &SimulatedPool) -> Arc<Engine> {
    pool.mount_with(MountOptions { atime: terrace_engine::Atime::Never, ..MountOptions::default() })
}

fn hash(pool: &SimulatedPool) -> (Vec<u8>, u64) {
    (pool.pm.visible_image().to_vec(), pool.device.visible_image().hash())
}

/// A pool with each kind of structure that the engine makes, and the owner of each block.
struct Base {
    pm: Vec<u8>,
    device: DeviceImage,
    geometry: Geometry,
    /// The inodes as a mount of the sound pool shows them.
    expected: BTreeMap<u64, Inode>,
    /// Owned pool blocks.
    blocks: Vec<(u64, Owner)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Inode {
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    size: u64,
    blocks: u64,
    times: (i64, i64),
    content: Result<Vec<u8>, String>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Inode {
    /// The inode without its content, and the blocks of the content that are zeros.
    fn brief(&self) -> (Inode, Vec<usize>) {
        let content = self.content.as_deref().unwrap_or_default();
        let blocks = content.chunks(4096).enumerate();
        let zeros = blocks.filter(|(_, block)| block.iter().all(|byte| *byte == 0)).map(|(at, _)| at);
        (Inode { content: self.content.clone().map(|_| Vec::new()), ..self.clone() }, zeros.collect())
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|at| (at as u64 * 31 + (at as u64 >> 8) + seed * 97) as u8 | 1).collect()
}

fn fresh_pool() -> SimulatedPool {
    let pool = SimulatedPool::new(4 << 20, 1025);
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    // Free blocks hold old pages and data, and a repair must not bring any of these back.
    let (mut pm, mut device) = (pool.pm.visible_image(), pool.device.visible_image());
    old_content::fill(&superblock.geometry(), &mut pm, std::slice::from_mut(&mut device));
    SimulatedPool::from_images(pm, device)
}

fn populate(fs: &Arc<Engine>) {
    let mut directories = vec![ROOT];
    for index in 0..5u64 {
        let parent = directories[index as usize / 2];
        let made = fs.mkdir(parent, format!("directory{index}").as_bytes(), 0o755, CALLER, W).unwrap();
        directories.push(made.ino);
    }
    for index in 0..90u64 {
        let parent = directories[index as usize % directories.len()];
        let name = format!("file-{index}-{}", "n".repeat(index as usize));
        let ino = fs.mknod(parent, name.as_bytes(), 0o100640, 0, CALLER, W).unwrap().ino;
        let length = [0, 100, 5000, 9000, 40_000, 60_000][index as usize % 6];
        fs.write(ino, 0, &pattern(length, index), WriteFlags::default(), W).unwrap();
        if index % 9 == 0 {
            fs.write(ino, 3_000_000 * (1 + index % 3), &pattern(6000, index), WriteFlags::default(), W)
                .unwrap();
        }
        if index % 4 == 0 {
            let value = pattern(20 + index as usize * 13, index);
            fs.setxattr(ino, b"user.test", &value, XattrMode::Any, W).unwrap();
        }
        if index % 11 == 0 {
            fs.link(ino, directories[1], format!("link{index}").as_bytes(), W).unwrap();
        }
        if index == 50 {
            fs.sync_to(1, &mut |_| {}).unwrap();
        }
        if index > 50 && index % 5 == 0 {
            let old = Ino(10 + index % 30);
            if fs.getattr(old).is_ok_and(|a| a.mode >> 12 == 0o10 && a.size > 6000) {
                fs.write(old, 4096, &pattern(3000, index), WriteFlags::default(), W).unwrap();
            }
        }
        fs.forget(ino, 1);
    }
    for length in [5usize, 1024, 2500] {
        let name = format!("symlink{length}");
        fs.symlink(directories[2], name.as_bytes(), &vec![b't'; length], CALLER, W).unwrap();
    }
}

impl Base {
    /// `clean`: unmounted in order; else cut off, with records in the lanes.
    fn new(clean: bool) -> Base {
        let pool = fresh_pool();
        let fs = mount(&pool);
        populate(&fs);
        if clean {
            fs.unmount().unwrap();
        }
        let (pm, device) = (pool.pm.visible_image().to_vec(), pool.device.visible_image());
        drop(fs);
        assert_eq!(pool.check().findings, []);
        assert!(pool.check().summary.cold_blocks > 50);
        let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
        let geometry = superblock.geometry();
        let word = |block: u64| {
            let at = geometry.table_entry(PmBlock(block)).0 as usize;
            u64::from_le_bytes(pm[at..at + 8].try_into().unwrap())
        };
        let blocks = geometry.first_pool_block().0..geometry.block_count();
        let owned = blocks.map(|block| (block, Owner::decode(word(block)).unwrap()));
        let blocks = owned.filter(|(_, owner)| *owner != Owner::Free).collect();
        let again = SimulatedPool::from_images(pm.clone(), device.clone());
        let expected = dump(&mount(&again));
        Base { pm, device, geometry, expected, blocks }
    }

    fn pages(&self, wanted: impl Fn(&Owner) -> bool) -> Vec<u64> {
        self.blocks.iter().filter(|(_, owner)| wanted(owner)).map(|(block, _)| *block).collect()
    }

    fn page(&self, block: u64) -> Page {
        let at = block as usize * 4096;
        Page(Box::new(self.pm[at..at + 4096].try_into().unwrap()))
    }

    /// Inodes that the keys of a leaf speak of.
    fn spoken_of(&self, leaf: u64) -> BTreeSet<u64> {
        let page = self.page(leaf);
        let mut inodes = BTreeSet::new();
        for index in 0..page.count() {
            let (key, value) = page.cell(index).unwrap();
            let (ino, kind, _) = Key::split(key).unwrap();
            if kind != 6 {
                inodes.insert(ino);
            }
            if kind == 1 {
                inodes.insert(u32::from_le_bytes(value[..4].try_into().unwrap()).into());
            }
        }
        inodes
    }
}

fn dump(fs: &Engine) -> BTreeMap<u64, Inode> {
    let mut inodes = BTreeMap::new();
    for ino in 1..INODES {
        let Ok(a) = fs.getattr(Ino(ino)) else {
            continue;
        };
        let mut content = Ok(Vec::new());
        if a.mode >> 12 == 0o10 {
            let mut bytes = vec![0; a.size.min(16 << 20) as usize];
            let mut done = 0;
            while done < bytes.len() {
                match fs.read(Ino(ino), done as u64, &mut bytes[done..], W) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(error) => {
                        content = Err(error.to_string());
                        break;
                    }
                }
            }
            content = content.map(|_: Vec<u8>| bytes);
        } else if a.mode >> 12 == 0o12 {
            content = fs.readlink(Ino(ino)).map_err(|error| error.to_string());
        }
        let names = fs.listxattr(Ino(ino)).unwrap_or_default();
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let xattrs =
            names.map(|name| (name.to_vec(), fs.getxattr(Ino(ino), name).unwrap_or_default())).collect();
        let times = (a.mtime_ns, a.ctime_ns);
        let owner = (a.uid, a.gid);
        let (mode, nlink, size, blocks) = (a.mode, a.nlink, a.size, a.blocks);
        inodes.insert(ino, Inode { mode, nlink, owner, size, blocks, times, content, xattrs });
    }
    inodes
}

/// The structure that a round damages. It decides which inodes may lose content.
#[derive(Clone, Copy, Debug)]
enum Target {
    Table,
    MapTable,
    MapNodes,
    InodeTree,
    InnerPages,
    Roots,
    Copies,
    InodePages,
    Leaves,
    Everything,
}

const TARGETS: [Target; 10] = [
    Target::Table,
    Target::MapTable,
    Target::MapNodes,
    Target::InodeTree,
    Target::InnerPages,
    Target::Roots,
    Target::Copies,
    Target::InodePages,
    Target::Leaves,
    Target::Everything,
];

impl Target {
    /// The blocks that may be hit.
    fn blocks(self, base: &Base) -> Vec<u64> {
        let kind = |wanted: PageKind| {
            base.pages(move |owner| matches!(owner, Owner::Page { kind, .. } if *kind == wanted))
        };
        let leaf = |block: &u64| base.page(*block).level() == 0;
        match self {
            Target::Table => {
                let table = base.geometry.table_offset().0 / 4096;
                (table..base.geometry.map_offset().block().0).collect()
            }
            // The table of all files.
            Target::MapTable => {
                (base.geometry.map_offset().block().0..base.geometry.first_pool_block().0).collect()
            }
            Target::MapNodes => kind(PageKind::MapNode),
            Target::InodeTree => kind(PageKind::InodeNode),
            Target::InnerPages => {
                kind(PageKind::CatalogPage).into_iter().filter(|block| !leaf(block)).collect()
            }
            Target::Roots => vec![ROOTS_BLOCK.0],
            Target::Copies => {
                vec![SUPERBLOCK_COPIES[1].0, SUPERBLOCK_COPIES[1].0 + 1, CHECKPOINT_COPIES[0].0]
            }
            Target::InodePages => kind(PageKind::InodePage),
            Target::Leaves => kind(PageKind::CatalogPage).into_iter().filter(leaf).collect(),
            Target::Everything => {
                // Mostly where metadata lies.
                let mut all = base.pages(|owner| matches!(owner, Owner::Page { .. }));
                all.extend(0..base.geometry.first_pool_block().0);
                all
            }
        }
    }

    fn destroyed(self, base: &Base, hit: &[(u64, u64)]) -> BTreeSet<u64> {
        match self {
            Target::Everything => (0..INODES).collect(),
            Target::InodePages => hit
                .iter()
                .flat_map(|(at, length)| {
                    let owner = base.blocks.iter().find(|(block, _)| *block == at / 4096).unwrap().1;
                    let Owner::Page { datum, .. } = owner else { unreachable!() };
                    let first = u64::from(datum) * 32 + at % 4096 / 128;
                    first..=first + length.div_ceil(128)
                })
                .collect(),
            // The only witness of the blocks of files.
            Target::Table if terrace_testkit::is_table_map() => {
                let start = base.geometry.table_offset().0;
                let entries = hit.iter().filter_map(|(at, length)| {
                    let from = at.checked_sub(start)? / 16;
                    Some(from..=(at + length - 1 - start) / 16)
                });
                let entries: Vec<_> = entries.collect();
                let owners =
                    base.blocks.iter().filter(|(block, _)| entries.iter().any(|hit| hit.contains(block)));
                owners
                    .filter_map(|(_, owner)| match owner {
                        Owner::File { ino, .. } => Some(ino.0),
                        _ => None,
                    })
                    .collect()
            }
            // A damaged line mask over a cold copy is that of a partial shadow (docs/decisions/0008).
            Target::Table => hit
                .iter()
                .filter(|(at, length)| at % 16 >= 8 && *length <= 8)
                .filter_map(|(at, _)| {
                    let start = base.geometry.table_offset().0;
                    let entry = at.checked_sub(start)? / 16;
                    let owner = base.blocks.iter().find(|(block, _)| *block == entry)?.1;
                    let Owner::File { ino, .. } = owner else { return None };
                    Some(ino.0)
                })
                .collect(),
            Target::Leaves => hit.iter().flat_map(|(at, _)| base.spoken_of(at / 4096)).collect(),
            _ => BTreeSet::new(),
        }
    }
}

/// Damages a block; gives offset and length.
fn hit(random: &mut SmallRng, pool: &SimulatedPool, block: u64) -> (u64, u64) {
    let start = block * 4096;
    let (at, bytes) = match random.random_range(0..8) {
        0 | 1 => (start + random.random_range(0..4096), vec![random.random::<u8>()]),
        2 | 3 => {
            let word = match random.random_range(0..4) {
                0 => 0,
                1 => u64::MAX >> random.random_range(0..64),
                2 => random.random_range(0..1024),
                _ => random.random(),
            };
            (start + random.random_range(0..512) * 8, word.to_le_bytes().to_vec())
        }
        4 => (start + random.random_range(0..64) * 64, vec![0; 64]),
        5 => (start + random.random_range(0..64) * 64, (0..64).map(|_| random.random()).collect()),
        6 => (start, vec![0; 4096]),
        _ => (start, (0..4096).map(|_| random.random()).collect()),
    };
    pool.pm.write(terrace_format::PmOffset(at), &bytes).unwrap();
    (at, bytes.len() as u64)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Damages and repairs a pool once; returns whether the check found errors and whether the repair mended all
/// of them.
fn round(base: &Base, target: Target, seed: u64, poison: bool) -> (bool, bool) {
    let site = format!("{target:?}, poison {poison}, TERRACE_SEED={seed} TERRACE_DAMAGE_ROUNDS=1");
    let mut random = SmallRng::seed_from_u64(seed);
    let pool = pool_of(base);
    let blocks = target.blocks(base);
    let mut hits = Vec::new();
    let most = if matches!(target, Target::Everything) { 40 } else { 4 };
    for _ in 0..random.random_range(1..most) {
        let block = blocks[random.random_range(0..blocks.len())];
        if poison {
            let at = block * 4096 + random.random_range(0..64) * 64;
            pool.pm.poison(at..at + 64);
            hits.push((at, 64));
            if matches!(target, Target::InodePages) {
                hits.push((block * 4096, 4096)); // a page is read whole
            }
        } else {
            hits.push(hit(&mut random, &pool, block));
        }
    }
    let found = pool.check().exit_status() & 4 != 0;
    let result = repair_pool(&pool);
    // Damage to an extent's checksum looks like damage to its data: the repair leaves such blocks, and reads
    // give EIO.
    let leaf = matches!(target, Target::Leaves | Target::Everything);
    let sound = |report: &Report| {
        report.is_clean() || leaf && report.findings.iter().all(|finding| finding.code == Code::ColdChecksum)
    };
    let (is_sound, sound) = (sound, sound(&result.left) && result.failure.is_none());
    if !matches!(target, Target::Everything) {
        assert!(sound, "{site}: {:#?} {:?} {:#?}", result.left.findings, result.failure, result.actions);
    }
    assert_eq!(result.left.exit_status(), pool.check().exit_status(), "{site}");
    let after = if poison { None } else { Some(hash(&pool)) };
    let again = repair_pool(&pool);
    assert!(
        !again.written,
        "{site}: written again {:#?} {:#?} {:#?} {:?}",
        result.left.findings, result.failure, again.actions, again.failure
    );
    assert!(after.is_none_or(|after| after == hash(&pool)), "{site}: changed again");
    if !sound {
        let why: BTreeSet<Code> = result.left.findings.iter().map(|finding| finding.code).collect();
        println!("{site}: left: {why:?} {:?}", result.failure);
    }
    if sound {
        let fs = mount(&pool);
        let now = dump(&fs);
        let destroyed = target.destroyed(base, &hits);
        for (ino, expected) in base.expected.iter().filter(|(ino, _)| !destroyed.contains(ino)) {
            let got = now.get(ino);
            // A directory loses entries with the inodes in it, and gains lost+found.
            let directory = expected.mode >> 12 == 0o04;
            let same = got.is_some_and(|got| {
                got == expected
                    || directory
                        && (got.mode, got.owner, got.times) == (expected.mode, expected.owner, expected.times)
                    || !directory
                        && !destroyed.is_empty()
                        && (&got.content, &got.xattrs, got.mode)
                            == (&expected.content, &expected.xattrs, expected.mode)
            });
            let short = |inode: &Inode| Inode { content: Ok(Vec::new()), ..inode.clone() };
            assert!(
                same,
                "{site}: hits {hits:?}, inode {ino}: {:?} instead of {:?} {:#?} {:#?}",
                got.map(short),
                short(expected),
                result.found.findings,
                result.actions
            );
        }
        fs.unmount().unwrap();
        drop(fs);
        let after = pool.check();
        assert!(is_sound(&after), "{site}: after the mount: {:#?}", after.findings);
    }
    (found, sound)
}

#[test]
fn repair_of_random_damage_ends_and_loses_only_damaged_parts() {
    let seed = number("TERRACE_SEED", 20_261_121);
    let rounds = number("TERRACE_DAMAGE_ROUNDS", 30);
    for (name, base) in [("unmounted", Base::new(true)), ("cut off", Base::new(false))] {
        for target in TARGETS {
            if target.blocks(&base).is_empty() {
                continue;
            }
            let (mut found, mut sound) = (0, 0);
            for round_seed in seed..seed + rounds {
                let result = round(&base, target, round_seed, false);
                found += u64::from(result.0);
                sound += u64::from(result.1);
            }
            println!("{name}, {target:?}: {rounds} rounds, damage found in {found}, sound after {sound}");
        }
    }
}

/// Lines of metadata that cannot be read: the page is lost, its block is left alone.
#[test]
fn repair_of_random_unreadable_lines_ends_and_loses_only_damaged_pages() {
    let seed = number("TERRACE_SEED", 20_261_121);
    let base = Base::new(true);
    for target in
        [Target::MapNodes, Target::InodeTree, Target::InnerPages, Target::InodePages, Target::Leaves]
    {
        for round_seed in seed..seed + number("TERRACE_DAMAGE_ROUNDS", 25) {
            if !target.blocks(&base).is_empty() {
                round(&base, target, round_seed, true);
            }
        }
    }
}

/// All leaves with cold extents are lost: each block rebuilt from group summaries has the file's content, and
/// each lost block reads as zeros and is reported.
#[test]
fn a_lost_cold_map_is_rebuilt() {
    let base = Base::new(true);
    let pool = pool_of(&base);
    let leaves = Target::Leaves.blocks(&base);
    let is_cold = |leaf: &u64| {
        let page = base.page(*leaf);
        (0..page.count()).any(|index| Key::split(page.cell(index).unwrap().0).unwrap().1 == 4)
    };
    for leaf in leaves.into_iter().filter(is_cold) {
        pool.pm.write(PmBlock(leaf).offset(), &[0x5a; 4096]).unwrap();
    }
    let cold_before = {
        let intact = pool_of(&base);
        intact.check().summary.cold_blocks
    };
    let result = repair_pool(&pool);
    assert_eq!(result.exit_status() & !4, 1, "{:#?} {:?}", result.left.findings, result.failure);
    let cold_after = result.left.summary.cold_blocks;
    assert_eq!(result.exit_status() & 4 != 0, cold_after < cold_before, "{:#?}", result.lost);
    println!("{cold_after} of {cold_before} cold blocks came back");
    assert!(cold_after * 2 > cold_before, "{cold_after} of {cold_before} cold blocks came back");
    let now = dump(&mount(&pool));
    for (ino, expected) in base.expected.iter().filter(|(_, inode)| inode.mode >> 12 == 0o10) {
        let got = &now[ino];
        assert_eq!((got.size, got.mode), (expected.size, expected.mode), "inode {ino}");
        let (got_bytes, bytes) = (got.content.as_ref().unwrap(), expected.content.as_ref().unwrap());
        let mut lost = 0;
        for (at, (got, expected)) in got_bytes.chunks(4096).zip(bytes.chunks(4096)).enumerate() {
            let zeros = got.iter().all(|byte| *byte == 0);
            assert!(got == expected || zeros, "inode {ino}, block {at}: content from elsewhere");
            lost += u64::from(got != expected);
        }
        let told = result
            .actions
            .iter()
            .any(|action| action.starts_with(&format!("inode {ino}: ")) && action.contains("reads as zeros"));
        assert!(lost == 0 || told, "inode {ino}: {lost} blocks lost and not told: {:#?}", result.actions);
    }
}

/// Without room for journal and new pages, or with a fixed structure that can neither be read nor written,
/// the repair reports the reason and changes no byte.
#[test]
fn an_impossible_repair_changes_no_byte() {
    let base = Base::new(true);
    let free_from = base.blocks.last().unwrap().0 + 1;
    let full = pool_of(&base);
    let node = Target::InodeTree.blocks(&base)[0];
    full.pm.write(PmBlock(node).offset(), &[0xff; 64]).unwrap();
    let owned: BTreeSet<u64> = base.blocks.iter().map(|(block, _)| *block).collect();
    for block in
        (base.geometry.first_pool_block().0..base.geometry.block_count()).filter(|b| !owned.contains(b))
    {
        full.pm.poison(block * 4096..block * 4096 + 4096);
    }
    let roots = pool_of(&base);
    roots.pm.poison(ROOTS_BLOCK.0 * 4096..ROOTS_BLOCK.0 * 4096 + 64);
    let in_use: Vec<u64> = (0..base.geometry.first_pool_block().0).chain(owned).collect();
    // Only used blocks are compared: new pages and journal go to free blocks.
    let content = |pool: &SimulatedPool| -> Vec<u8> {
        let (image, mut block) = (pool.pm.visible_image(), [0; 4096]);
        let mut bytes = Vec::new();
        for number in &in_use {
            assert!(image.read(number * 4096, &mut block));
            bytes.extend_from_slice(&block);
        }
        bytes
    };
    for (pool, why) in [(full, "too few free blocks"), (roots, "can neither be read nor written")] {
        let before = content(&pool);
        let result = repair_pool(&pool);
        let failure = result.failure.clone().unwrap_or_default();
        assert!(failure.contains(why), "{failure} after block {free_from}");
        assert!(!result.written && result.exit_status() & 8 != 0, "{:?}", result.exit_status());
        assert!(before == content(&pool), "{why}: changed");
    }
}

/// The names in each directory.
fn names(fs: &Engine) -> BTreeMap<(u64, Vec<u8>), u64> {
    let mut names = BTreeMap::new();
    for directory in (1..INODES).map(Ino) {
        if fs.getattr(directory).is_ok_and(|found| found.mode >> 12 == 0o04) {
            let listed = fs.readdir(directory, 0, &mut |entry| {
                names.insert((directory.0, entry.name.clone()), entry.ino.0);
                true
            });
            assert!(listed.is_ok());
        }
    }
    names
}

/// Damage to a page: bits of the same page, or all bytes of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Bits(u32),
    Line,
}

/// Repair mended a structure first, and found no fault in its page afterwards: a name with a flipped bit stayed, and was named to
/// nobody. A wrong bit of a page with a checksum is turned back. Where more is wrong, a repair that names no loss has lost nothing.
#[test]
fn repair_of_a_page_with_a_checksum_names_each_loss_and_turns_a_wrong_bit_back() {
    let base = Base::new(true);
    let (expected, named) = {
        let fs = mount(&pool_of(&base));
        (dump(&fs), names(&fs))
    };
    let word = |page: u64| {
        let at = base.geometry.checksum_word(PmBlock(page)).0 as usize;
        u64::from_le_bytes(base.pm[at..at + 8].try_into().unwrap())
    };
    let is_covered = |page: &u64| matches!(ChecksumWord::decode(word(*page)), ChecksumWord::Covers(_));
    let fixed = (0..base.geometry.first_pool_block().0).filter(|page| {
        let page = PmBlock(*page);
        page == ROOTS_BLOCK || base.geometry.is_table(page) || base.geometry.is_map_area(page)
    });
    let of_kinds = [PageKind::InodePage, PageKind::CatalogPage, PageKind::MapNode, PageKind::InodeNode]
        .map(|wanted| base.pages(|owner| matches!(owner, Owner::Page { kind, .. } if *kind == wanted)));
    let kinds = of_kinds.into_iter().chain([fixed.collect()]);
    let kinds = kinds.map(|pages| pages.into_iter().filter(is_covered).collect::<Vec<u64>>());
    let kinds: Vec<Vec<u64>> = kinds.filter(|pages| !pages.is_empty()).collect();
    assert!(kinds.len() >= 3);
    let (seed, mut silent) = (number("TERRACE_SEED", 20_261_128), 0);
    for round in seed..seed + 8 * number("TERRACE_DAMAGE_ROUNDS", 25) {
        let mut random = SmallRng::seed_from_u64(round);
        let wrong = [Wrong::Bits(1), Wrong::Bits(2), Wrong::Line][round as usize % 3];
        let pages = &kinds[random.random_range(0..kinds.len())];
        let page = pages[random.random_range(0..pages.len())];
        let pool = pool_of(&base);
        let mut bytes: Vec<u8> = base.page(page).0.to_vec();
        match wrong {
            Wrong::Bits(count) => (0..count).for_each(|_| {
                // Near each other, and mostly in bytes that are in use.
                let used: Vec<usize> = (0..4096).filter(|at| bytes[*at] != 0).collect();
                let at = if used.is_empty() { 0 } else { used[random.random_range(0..used.len())] };
                bytes[at] ^= 1 << random.random_range(0..8);
            }),
            Wrong::Line => {
                let at = 64 * random.random_range(0..64);
                random.fill(&mut bytes[at..at + 64]);
            }
        }
        pool.pm.write(PmBlock(page).offset(), &bytes).unwrap();
        let result = repair_pool(&pool);
        let site = format!("{wrong:?}, page {page}, TERRACE_SEED={round} TERRACE_DAMAGE_ROUNDS=1");
        if result.failure.is_some() || !result.lost.is_empty() {
            assert!(
                wrong != Wrong::Bits(1),
                "{site}: {:?} {:#?} {:#?}",
                result.failure,
                result.lost,
                result.actions
            );
            continue;
        }
        silent += 1;
        let fs = mount(&pool);
        let now = dump(&fs);
        let differs = expected.iter().find(|(ino, inode)| now.get(ino) != Some(inode)).map(|(ino, _)| *ino);
        assert!(
            (differs, names(&fs) == named) == (None, true),
            "{site}: inode {differs:?} differs: {:?} {:#?} {:#?}",
            differs.map(|ino| [&expected, &now].map(|shown| shown.get(&ino).map(Inode::brief))),
            result.found.findings,
            result.actions
        );
    }
    println!("{silent} repairs without a loss");
    assert!(silent > 0);
}

/// A slot whose type cannot be became a file again, with the set-id bit of the damage.
#[test]
fn a_slot_with_a_damaged_type_keeps_no_set_id_bit() {
    let base = Base::new(true);
    let (ino, _) = base.expected.iter().find(|(_, inode)| inode.mode >> 12 == 0o10).unwrap();
    let number = (*ino / SLOTS_PER_PAGE) as u32;
    let page = base.pages(|owner| *owner == Owner::Page { kind: PageKind::InodePage, datum: number })[0];
    let at = PmBlock(page).offset().plus(*ino % SLOTS_PER_PAGE * SLOT_SIZE);
    let pool = pool_of(&base);
    let mode = base.expected[ino].mode | 0o4000 | 1 << 30;
    pool.pm.write(at, &mode.to_le_bytes()).unwrap();
    let result = repair_pool(&pool);
    let named = format!("(inode {ino})");
    assert!(result.lost.iter().any(|line| line.contains(&named)), "{:#?}", result.lost);
    assert_eq!(mount(&pool).getattr(Ino(*ino)).unwrap().mode, base.expected[ino].mode);
}
