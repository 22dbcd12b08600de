//! Damage in every structure of a pool: a flipped bit, a lost line or a lost page. The pool is mounted, read,
//! used, and read again after another mount. Each answer is right or an error, except where docs/semantics.md
//! "What damage shows" says otherwise (I8, I11). Prints a table of the damage that check and the mount
//! noticed.
//!
//! Found: of 700 pools with one damaged structure some 80 were mounted and gave wrong answers, and a pool
//! with a zeroed page of the block table damaged other files when it was used.
//!
//! `TERRACE_FLIPS=10000 cargo test --release -p terrace-engine --test flips -- --nocapture` makes as many
//! flips as the issue asks for; `TERRACE_SEED` is where they begin.
#![allow(clippy::unwrap_used)]

#[path = "golden/make.rs"]
mod make;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Atime, Engine, FsResult, MountOptions, PoolMedia, Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_format::checksum::crc32c;
use terrace_format::geometry::{LANES_BLOCK, ROOTS_BLOCK};
use terrace_format::page_checksum::ChecksumWord;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Ino, PmBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage};
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;
use terrace_testkit::{CALLER, ROOT, SimulatedPool};

const W: Wait = Wait::Allowed;

#[allow(clippy::disallowed_methods)]
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Structure {
    Superblock,
    Checkpoint,
    Roots,
    Lanes,
    BlockTable,
    ChecksumWords,
    /// The table of all files that is the map: cuckoo, clustered.
    MapTable,
    InodePages,
    RadixNodes,
    CatalogPages,
    DataInPm,
    FreeInPm,
    DeviceHeader,
    Device,
}

/// Structures whose pages have checksum words.
const COVERED: [Structure; 6] = [
    Structure::Roots,
    Structure::BlockTable,
    Structure::MapTable,
    Structure::InodePages,
    Structure::RadixNodes,
    Structure::CatalogPages,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    Bit,
    Line,
    Page,
}

/// A cleanly unmounted pool, and the content that it shows.
struct Base {
    pm: PmImage,
    device: DeviceImage,
    shows: Tree,
    places: BTreeMap<Structure, Vec<u64>>,
}

/// Path → what a user sees of the file, as one line; `None` where reading it gave an error.
type Tree = BTreeMap<String, Option<String>>;

impl Base {
    fn new(name: &str) -> Base {
        let recipe = make::RECIPES.iter().find(|(found, ..)| *found == name).unwrap();
        let pool = (recipe.2)().unwrap();
        let (pm, device) = (pool.pm.visible_image(), pool.device.visible_image());
        let mut base = Base { pm, device, shows: Tree::new(), places: BTreeMap::new() };
        let pool = base.pool();
        // Before the mount: the mount fetches metadata pages into blocks that are free in the image.
        base.places = places(&pool.pm, pool.device.blocks());
        let fs = mount(&pool).unwrap();
        base.shows = tree(&fs);
        assert!(base.shows.len() > 130 && base.shows.values().all(Option::is_some));
        base
    }

    fn pool(&self) -> SimulatedPool {
        let later = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
        SimulatedPool::from_images(self.pm.clone(), self.device.clone()).with_clock(later)
    }
}

/// The blocks of each structure: of PM, or of the device.
fn places(pm: &RecordedPm, device_blocks: u64) -> BTreeMap<Structure, Vec<u64>> {
    let geometry = read_superblock(pm, false).unwrap().0.geometry();
    let mut places: BTreeMap<Structure, Vec<u64>> = BTreeMap::new();
    for block in (0..geometry.block_count()).map(PmBlock) {
        let owner = Owner::decode(pm.load_u64(geometry.table_entry(block)).unwrap()).unwrap();
        let structure = match owner {
            _ if block.0 < 4 => Structure::Superblock,
            _ if block < ROOTS_BLOCK => Structure::Checkpoint,
            _ if block == ROOTS_BLOCK => Structure::Roots,
            _ if block < LANES_BLOCK => continue,
            _ if block.offset() < geometry.table_offset() => Structure::Lanes,
            _ if geometry.is_table(block) => Structure::BlockTable,
            _ if geometry.is_map_area(block) => Structure::MapTable,
            _ if block < geometry.first_pool_block() => Structure::ChecksumWords,
            Owner::Page { kind: PageKind::InodePage, .. } => Structure::InodePages,
            Owner::Page { kind: PageKind::CatalogPage, .. } => Structure::CatalogPages,
            Owner::Page { .. } => Structure::RadixNodes,
            Owner::File { .. } => Structure::DataInPm,
            Owner::Free => Structure::FreeInPm,
        };
        places.entry(structure).or_default().push(block.0);
    }
    places.insert(Structure::DeviceHeader, vec![0]);
    places.insert(Structure::Device, (1..device_blocks).collect());
    places
}

fn mount(pool: &SimulatedPool) -> FsResult<Arc<Engine>> {
    let refused = |_| terrace_engine::FsError::NotFound;
    let (superblock, _) = read_superblock(&*pool.pm, true).map_err(refused)?;
    let media = PoolMedia { pm: pool.pm.clone(), block: vec![pool.device.clone() as Arc<dyn BlockMedium>] };
    let options = MountOptions { atime: Atime::Never, ..Default::default() };
    Engine::mount(media, superblock, options, pool.clock.clone())
}

fn line(fs: &Engine, ino: Ino) -> FsResult<String> {
    let a = fs.getattr(ino)?;
    let mut content = Vec::new();
    match a.mode & 0o170000 {
        // A damaged size may be huge; such a file is not read.
        0o100000 if a.size <= 128 << 20 => {
            content = vec![0; a.size as usize];
            let count = fs.read(ino, 0, &mut content, W)?;
            content.truncate(count);
        }
        0o120000 => content = fs.readlink(ino)?,
        _ => {}
    }
    let mut line = format!("{ino}.{} {:o} {} {}:{} ", a.generation, a.mode, a.nlink, a.uid, a.gid);
    let _ = write!(line, "{} {} {} {} {:08x}", a.rdev, a.size, a.mtime_ns, a.ctime_ns, crc32c(&content));
    let names = fs.listxattr(ino)?;
    let names: BTreeSet<&[u8]> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    for name in names {
        let value = fs.getxattr(ino, name)?;
        let _ = write!(line, " {}={:08x}", String::from_utf8_lossy(name), crc32c(&value));
    }
    Ok(line)
}

fn tree(fs: &Engine) -> Tree {
    let mut found = Tree::new();
    walk(fs, ROOT, "/".into(), &mut found, 0);
    found
}

fn walk(fs: &Engine, ino: Ino, path: String, found: &mut Tree, depth: usize) {
    let shown = line(fs, ino);
    let is_directory = fs.getattr(ino).is_ok_and(|a| a.mode & 0o170000 == 0o040000);
    let mut names = BTreeSet::new();
    // The walk ends even if the damaged image describes a circle.
    let listed = if is_directory && depth < 8 {
        fs.readdir(ino, 0, &mut |entry| {
            if entry.cookie > 2 {
                names.insert(entry.name.clone());
            }
            names.len() < 1000
        })
    } else {
        Ok(())
    };
    found.insert(path.clone(), shown.ok().filter(|_| listed.is_ok()));
    for name in names {
        let below = format!("{path}{}/", String::from_utf8_lossy(&name));
        match fs.lookup(ino, &name) {
            Ok(child) => {
                walk(fs, child.ino, below, found, depth + 1);
                fs.forget(child.ino, 1);
            }
            Err(_) => _ = found.insert(below, None),
        }
    }
}

/// The first answer that is neither right nor an error.
fn wrong(expected: &Tree, found: &Tree) -> Option<String> {
    let failed_above = |path: &str| {
        path.match_indices('/').any(|(at, _)| found.get(&path[..=at]).is_some_and(Option::is_none))
    };
    let differs = expected.iter().find_map(|(path, line)| match found.get(path) {
        Some(None) => None,
        Some(shown) if shown == line => None,
        Some(shown) => Some(format!("{path}: {shown:?} instead of {line:?}")),
        None if failed_above(path) => None,
        None => Some(format!("{path} is not there")),
    });
    // The test itself makes files in the root directory, so the root may differ.
    let ours = |path: &str| path == "/" || path.starts_with("/new");
    let made_up = || found.keys().find(|path| !expected.contains_key(*path) && !ours(path));
    differs.or_else(|| made_up().map(|path| format!("{path} was never made")))
}

#[derive(Default, Clone, Copy)]
struct Counts {
    damages: u64,
    seen_by_check: u64,
    refused: u64,
    errors: u64,
    wrong: u64,
}

fn damage(pool: &SimulatedPool, structure: Structure, block: u64, kind: Damage, random: &mut StdRng) {
    let at = random.random_range(0..BLOCK_SIZE);
    let (start, length) = match kind {
        Damage::Bit => (at, 1),
        Damage::Line => (at & !63, 64),
        Damage::Page => (0, BLOCK_SIZE),
    };
    let change = |bytes: &mut [u8]| match kind {
        Damage::Bit => bytes[0] ^= 1 << (at % 8),
        _ => bytes.fill(0),
    };
    if matches!(structure, Structure::DeviceHeader | Structure::Device) {
        let mut content = [AlignedBlock::zeroed()];
        pool.device.read(DeviceBlock(block), &mut content).unwrap();
        change(&mut content[0].0[start as usize..][..length as usize]);
        pool.device.write(DeviceBlock(block), &content).unwrap();
        return;
    }
    let place = PmOffset(block * BLOCK_SIZE + start);
    let mut bytes = vec![0; length as usize];
    pool.pm.read(place, &mut bytes).unwrap();
    change(&mut bytes);
    pool.pm.write(place, &bytes).unwrap();
}

/// Uses the pool: new files, an overwrite, a removal, metadata of all kinds. Each call may succeed or give an
/// error.
fn use_it(fs: &Arc<Engine>) {
    for index in 0..12u8 {
        let name = format!("new{index}");
        if let Ok(made) = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W) {
            let _ = fs.write(made.ino, 0, &vec![index | 0x80; 9000], WriteFlags::default(), W);
            fs.forget(made.ino, 1);
        }
    }
    fs.run_background(500);
    for index in 0..12 {
        let _ = fs.unlink(ROOT, format!("new{index}").as_bytes(), W);
    }
    fs.run_background(500);
}

/// Mounts, reads, uses, mounts again, reads again.
fn judge(base: &Base, pool: &SimulatedPool, counts: &mut Counts) -> Option<String> {
    counts.damages += 1;
    let view = PoolView::new(pool.pm.clone(), vec![Some(pool.device.clone())]);
    let report = check(&view, &Options { read_cold: true, ..Default::default() });
    counts.seen_by_check += u64::from(!report.findings.is_empty());
    let mut errors = false;
    for again in [false, true] {
        let Ok(fs) = mount(pool) else {
            counts.refused += u64::from(!again);
            errors |= again;
            break;
        };
        let shown = tree(&fs);
        errors |= shown.values().any(Option::is_none);
        let expected = base.shows.iter().filter(|(path, _)| !again || path.as_str() != "/");
        let expected: Tree = expected.map(|(path, line)| (path.clone(), line.clone())).collect();
        if let Some(what) = wrong(&expected, &shown) {
            counts.wrong += 1;
            return Some(format!("{}{what}", if again { "after use: " } else { "" }));
        }
        if !again {
            use_it(&fs);
        }
        let _ = fs.unmount();
    }
    counts.errors += u64::from(errors);
    None
}

/// Found: a metadata page left open by a crash stayed open after an unmount that came before the scan of the
/// block table had met it.
#[test]
fn a_clean_unmount_leaves_no_metadata_page_open() {
    for (name, _, recipe) in make::RECIPES.iter().filter(|(name, ..)| *name != "killed") {
        let pm = recipe().unwrap().pm;
        let geometry = read_superblock(&*pm, false).unwrap().0.geometry();
        let mut pages = 0;
        let places = places(&pm, 1);
        for (structure, blocks) in places.iter().filter(|(structure, _)| COVERED.contains(structure)) {
            for block in blocks {
                let word = pm.load_u64(geometry.checksum_word(PmBlock(*block))).unwrap();
                let word = ChecksumWord::decode(word);
                assert!(matches!(word, ChecksumWord::Covers(_)), "{name}, {structure:?} {block}: {word:?}");
                pages += 1;
            }
        }
        assert!(pages >= 10, "{name}: {pages} pages");
    }
}

#[test]
fn damaged_structures_give_the_right_answer_or_an_error() {
    let (flips, seed) = (number("TERRACE_FLIPS", 300), number("TERRACE_SEED", 20_261_124));
    let mut table: BTreeMap<(Structure, Damage), Counts> = BTreeMap::new();
    let mut unexpected = Vec::new();
    let mut flips_of_tables = BTreeMap::new();
    for (base_number, name) in ["checksummed", "keyed", "cuckoo", "clustered"].into_iter().enumerate() {
        let base = Base::new(name);
        let mut structures: Vec<Structure> = base.places.keys().copied().collect();
        if base.places.contains_key(&Structure::MapTable) {
            // The pools without a table show the rest.
            structures.resize(2 * structures.len(), Structure::MapTable);
        }
        for round in 0..flips / 4 {
            let seed = seed + round * 4 + base_number as u64;
            let mut random = StdRng::seed_from_u64(seed);
            let structure = structures[random.random_range(0..structures.len())];
            let kind = [Damage::Bit, Damage::Bit, Damage::Line, Damage::Page][random.random_range(0..4)];
            let blocks = &base.places[&structure];
            let block = blocks[random.random_range(0..blocks.len())];
            let pool = base.pool();
            damage(&pool, structure, block, kind, &mut random);
            *flips_of_tables.entry(name).or_insert(0) += u32::from(structure == Structure::MapTable);
            let counts = table.entry((structure, kind)).or_default();
            if let Some(what) = judge(&base, &pool, counts)
                && structure != Structure::DataInPm
            {
                unexpected
                    .push(format!("{name}, seed {seed}: {kind:?} of {structure:?}, block {block}: {what}"));
            }
        }
    }
    println!("| structure | damage | times | seen by check | mount refused | errors | wrong |");
    for ((structure, kind), c) in &table {
        println!(
            "| {structure:?} | {kind:?} | {} | {} | {} | {} | {} |",
            c.damages, c.seen_by_check, c.refused, c.errors, c.wrong
        );
    }
    assert!(unexpected.is_empty(), "{} wrong:\n{}", unexpected.len(), unexpected.join("\n"));
    // Only a page without a checksum word can hide damage: a clean unmount covers these structures, so every
    // flipped bit in them is noticed.
    for structure in COVERED {
        let c = table.get(&(structure, Damage::Bit)).copied().unwrap_or_default();
        assert_eq!(c.seen_by_check, c.damages, "flips in {structure:?} that check does not see");
    }
    let all =
        |kind| table.iter().filter(|((_, found), _)| *found == kind).map(|(_, c)| c.damages).sum::<u64>();
    assert!(all(Damage::Bit) > 0 && all(Damage::Line) > 0 && all(Damage::Page) > 0);
    assert!(["cuckoo", "clustered"].iter().all(|name| flips_of_tables[name] > 0), "{flips_of_tables:?}");
}
