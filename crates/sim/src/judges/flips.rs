//! Flipped bits and lost lines in the structures of PM, between mounts and after a loss of power. The mount
//! is refused, or each answer equals the sound pool's or is an error, also after the pool was used
//! (docs/semantics.md "What damage shows", I8).
//!
//! The damage is done to copies. The history itself judges the sound media. A page whose checksum word is
//! open after recovery has no protection; damage there may give wrong answers, but no panic.

use crate::media::Media;
use crate::world::World;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use terrace_engine::{Caller, Engine, FsResult, Seek, Simulation, Wait, WriteFlags, read_superblock};
use terrace_format::checkpoint::Checkpoint;
use terrace_format::checksum::crc32c;
use terrace_format::geometry::{CHECKPOINT_COPIES, LANES_BLOCK, ROOTS_BLOCK};
use terrace_format::page_checksum::ChecksumWord;
use terrace_format::table::{DataChecksum, Entry, Owner, PageKind};
use terrace_format::{BLOCK_SIZE, Geometry, Ino, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_runtime::Clock;

const W: Wait = Wait::Allowed;
const ROOT: Ino = Ino(1);
const ROOT_USER: Caller = Caller { uid: 0, gid: 0 };
/// Damages done at one moment.
const FLIPS: usize = 3;
/// Blocks read of a file at most.
const MOST_BLOCKS: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Structure {
    Superblock,
    Checkpoint,
    Roots,
    Lanes,
    BlockTable,
    ChecksumWords,
    MapTable,
    InodePages,
    RadixNodes,
    CatalogPages,
    /// Blocks of files, if they have checksums.
    Data,
}

/// The PM blocks of each structure.
type Places = BTreeMap<Structure, Vec<PmBlock>>;

/// The line that a user sees of each path; `None` for an error.
type Tree = BTreeMap<String, Option<String>>;

/// The undamaged copy of the media: its images, and the tree that it shows.
struct Sound {
    geometry: Geometry,
    places: Places,
    /// Blocks that a checksum covers after recovery has ended.
    covered: BTreeSet<PmBlock>,
    shows: Tree,
    records_replayed: u64,
}

impl World {
    /// Damages copies of these media, and judges the trees that they show.
    pub(crate) fn flip(&mut self, media: &Media, seed: u64) {
        if !self.config.trouble.flips {
            return;
        }
        let mut random = SmallRng::seed_from_u64(seed);
        let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
        let sound = self.sound(&copy(media), superblock.geometry());
        for _ in 0..FLIPS {
            let structures: Vec<Structure> = sound.places.keys().copied().collect();
            let structure = *structures.choose(&mut random).unwrap();
            let block = *sound.places[&structure].choose(&mut random).unwrap();
            // A lost line in the last record would be a torn record.
            let line = structure != Structure::Lanes && random.random_ratio(1, 3);
            let damaged = copy(media);
            let at = match structure {
                Structure::Lanes => live(&damaged, &sound.geometry, &superblock.uuid, block, &mut random),
                _ => block.offset().plus(random.random_range(0..BLOCK_SIZE)),
            };
            if damage(&*damaged.pm, at, line.then_some(64), random.random_range(0..8)) {
                let how = if line { "a line is lost" } else { "a bit flips" };
                self.note(format!("  {how} at {at} in {structure:?}"));
                self.counts.trouble.flips += 1;
                let text = format!("{how} at {at} in {structure:?}");
                self.judge_damaged(&damaged, &sound, (structure, block), &text);
            }
        }
    }

    fn sound(&self, media: &Media, geometry: Geometry) -> Sound {
        let fs = self.pool.mount(media);
        let places = places(&*media.pm, &geometry);
        let word =
            |page: &PmBlock| ChecksumWord::decode(media.pm.load_u64(geometry.checksum_word(*page)).unwrap());
        let pages = places.iter().filter(|(structure, _)| has_word(**structure)).flat_map(|(_, pages)| pages);
        let whole = |block: &&PmBlock| {
            checksum(&*media.pm, &geometry, **block).is_some_and(|c| c.covered() as u64 == BLOCK_SIZE)
        };
        let data = places.get(&Structure::Data).into_iter().flatten().filter(whole);
        let pages = pages.filter(|page| matches!(word(page), ChecksumWord::Covers(_)));
        let covered = pages.chain(data).copied().collect();
        let shows = tree(&fs);
        assert!(
            self.pool.faulty() || shows.values().all(Option::is_some),
            "the sound pool gives errors: {shows:?}"
        );
        let records_replayed = fs.status().unwrap().recovery.records_replayed;
        Sound { geometry, places, covered, shows, records_replayed }
    }

    fn judge_damaged(&mut self, media: &Media, sound: &Sound, place: (Structure, PmBlock), text: &str) {
        let (structure, block) = place;
        let covered = sound.covered.contains(&block);
        let mut judged = covered || !has_word(structure);
        let seen = !media.check().findings.is_empty();
        assert!(seen || !covered, "{text}: check does not see it");
        for again in [false, true] {
            let clock: Arc<dyn Clock> = self.pool.clock.clone();
            let fs = read_superblock(&*media.pm, true).map_err(|_| ()).and_then(|(superblock, _)| {
                Engine::mount(media.pool(), superblock, self.pool.mount_options(), clock).map_err(|_| ())
            });
            let Ok(fs) = fs else {
                assert!(!judged || seen, "{text}: refused, and check finds nothing");
                self.counts.trouble.flips_told += u64::from(!again);
                return;
            };
            let shown = tree(&fs);
            let error = shown.values().any(Option::is_none);
            // A flipped bit in the last record makes recovery cut it off, with a warning of the mount (C5); in the data that
            // the last record names, without (docs/semantics.md "What damage shows").
            let is_cut = fs.status().is_ok_and(|status| {
                let recovery = status.recovery;
                !recovery.warnings.is_empty()
                    || structure == Structure::Data
                        && !again
                        && recovery.records_replayed < sound.records_replayed
            });
            judged &= !matches!(structure, Structure::Lanes | Structure::Data) || !is_cut;
            if judged {
                let when = if again { "after use" } else { "after the mount" };
                let wrong = wrong(&sound.shows, &shown, again);
                assert!(wrong.is_none(), "{text}, {when}: {}", wrong.unwrap_or_default());
                let degraded = fs.status().is_ok_and(|status| !status.healthy);
                assert!(!error || degraded, "{text}, {when}: errors, and status calls the pool healthy");
            }
            // Counts a damage once, no matter what the second mount shows.
            self.counts.trouble.flips_told += u64::from(error && !again);
            if !again {
                use_it(&fs);
            }
            // Pages that cannot be written back report it themselves.
            let _ = fs.unmount();
        }
    }
}

fn copy(media: &Media) -> Media {
    Media::from_images(media.tier0_content(), media.device_images(), media.setup())
}

fn has_word(structure: Structure) -> bool {
    use Structure::{BlockTable, CatalogPages, InodePages, MapTable, RadixNodes, Roots};
    matches!(structure, Roots | BlockTable | MapTable | InodePages | RadixNodes | CatalogPages)
}

fn places(pm: &dyn PmMedium, geometry: &Geometry) -> Places {
    let mut places = Places::new();
    for block in (0..geometry.block_count()).map(PmBlock) {
        let owner = pm.load_u64(geometry.table_entry(block)).ok().and_then(Owner::decode);
        let structure = match owner {
            _ if block.0 < 4 => Structure::Superblock,
            _ if CHECKPOINT_COPIES.contains(&block) => Structure::Checkpoint,
            _ if block == ROOTS_BLOCK => Structure::Roots,
            _ if block < LANES_BLOCK => continue,
            _ if block.offset() < geometry.table_offset() => Structure::Lanes,
            _ if geometry.is_table(block) => Structure::BlockTable,
            _ if geometry.is_map_area(block) => Structure::MapTable,
            _ if block < geometry.first_pool_block() => Structure::ChecksumWords,
            Some(Owner::Page { kind: PageKind::InodePage, .. }) => Structure::InodePages,
            Some(Owner::Page { kind: PageKind::CatalogPage, .. }) => Structure::CatalogPages,
            Some(Owner::Page { .. }) => Structure::RadixNodes,
            _ if checksum(pm, geometry, block).is_some() => Structure::Data,
            _ => continue,
        };
        places.entry(structure).or_default().push(block);
    }
    places
}

/// The checksum of a data block in its block table entry.
fn checksum(pm: &dyn PmMedium, geometry: &Geometry, block: PmBlock) -> Option<DataChecksum> {
    let at = geometry.table_entry(block);
    let words = [pm.load_u64(at).ok()?, pm.load_u64(at.plus(8)).ok()?];
    Entry::decode(words)?.checksum
}

/// An offset in a lane: mostly behind the tail, where recovery replays records.
fn live(
    media: &Media,
    geometry: &Geometry,
    uuid: &[u8; 16],
    block: PmBlock,
    random: &mut SmallRng,
) -> PmOffset {
    let mut bytes = [0; BLOCK_SIZE as usize];
    let points = CHECKPOINT_COPIES.iter().filter_map(|place| {
        media.pm.read(place.offset(), &mut bytes).ok()?;
        Checkpoint::decode(&bytes, uuid, geometry.lane_count).ok()
    });
    let newest = points.max_by_key(|point| point.sequence);
    let lane = random.random_range(0..geometry.lane_count);
    match newest.and_then(|point| point.tails.get(lane as usize).copied()) {
        Some(tail) if random.random_ratio(3, 4) => {
            let position = tail + random.random_range(0..geometry.lane_size / 4);
            geometry.lane_offset(lane).plus(position % geometry.lane_size)
        }
        _ => block.offset().plus(random.random_range(0..BLOCK_SIZE)),
    }
}

/// Flips a bit, or clears a line; false if the bytes stay the same.
fn damage(pm: &dyn PmMedium, at: PmOffset, line: Option<u64>, bit: u32) -> bool {
    let (start, length) = line.map_or((at.0, 1), |line| (at.0 / line * line, line as usize));
    let mut old = vec![0; length];
    pm.read(PmOffset(start), &mut old).unwrap();
    let new = if line.is_some() { vec![0; length] } else { vec![old[0] ^ 1 << bit] };
    pm.write(PmOffset(start), &new).unwrap();
    pm.persist().unwrap();
    new != old
}

/// Uses the pool: new files, their removal, background work. Errors are allowed.
fn use_it(fs: &Arc<Engine>) {
    for index in 0..6u8 {
        let name = format!("flip{index}");
        if let Ok(made) = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, ROOT_USER, W) {
            let _ = fs.write(made.ino, 0, &[index | 0x80; 9000], WriteFlags::default(), W);
            fs.forget(made.ino, 1);
        }
    }
    fs.run_background(100);
    for index in 0..6 {
        let _ = fs.unlink(ROOT, format!("flip{index}").as_bytes(), W);
    }
    fs.run_background(100);
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
    // Bounded, because a damaged image may show endless trees.
    let listed = if is_directory && depth < 20 {
        fs.readdir(ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.insert(entry.name.clone());
            }
            names.len() < 1000
        })
    } else {
        Ok(())
    };
    found.insert(path.clone(), shown.ok().filter(|_| listed.is_ok()));
    for name in names {
        let below = format!("{path}{}/", name.escape_ascii());
        match fs.lookup(ino, &name) {
            Ok(child) => {
                walk(fs, child.ino, below, found, depth + 1);
                fs.forget(child.ino, 1);
            }
            Err(_) => _ = found.insert(below, None),
        }
    }
}

fn line(fs: &Engine, ino: Ino) -> FsResult<String> {
    let a = fs.getattr(ino)?;
    let mut line = format!("{ino}.{} {:o} {} {}:{} ", a.generation, a.mode, a.nlink, a.uid, a.gid);
    let _ = write!(line, "{} {} {} {}", a.rdev, a.size, a.mtime_ns, a.ctime_ns);
    match a.mode & 0o170000 {
        0o100000 => content(fs, ino, a.size, &mut line)?,
        0o120000 => _ = write!(line, " {:08x}", crc32c(&fs.readlink(ino)?)),
        _ => {}
    }
    let names = fs.listxattr(ino)?;
    let names: BTreeSet<&[u8]> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    for name in names {
        let value = fs.getxattr(ino, name)?;
        let _ = write!(line, " {}={:08x}", name.escape_ascii(), crc32c(&value));
    }
    Ok(line)
}

/// Adds a checksum of the file's non-zero blocks to the line.
fn content(fs: &Engine, ino: Ino, size: u64, line: &mut String) -> FsResult<()> {
    let (mut at, mut sum) = (0, 0);
    for _ in 0..MOST_BLOCKS {
        at = match fs.seek(ino, at, Seek::Data) {
            Ok(data) => data / BLOCK_SIZE * BLOCK_SIZE,
            Err(error) if error.errno() == libc::ENXIO => break,
            Err(error) => return Err(error),
        };
        let mut block = [0; BLOCK_SIZE as usize];
        let count = fs.read(ino, at, &mut block, W)?;
        if block[..count].iter().any(|byte| *byte != 0) {
            sum = crc32c(&[&block[..count], &at.to_le_bytes(), &u32::to_le_bytes(sum)].concat());
        }
        at += BLOCK_SIZE;
        if at >= size {
            break;
        }
    }
    let _ = write!(line, " {sum:08x}");
    Ok(())
}

/// An answer that is neither right nor an error. Use changes the root directory, so its line is not judged
/// then.
fn wrong(expected: &Tree, found: &Tree, used: bool) -> Option<String> {
    let failed_above = |path: &str| {
        path.match_indices('/').any(|(at, _)| found.get(&path[..=at]).is_some_and(Option::is_none))
    };
    let judged = expected.iter().filter(|(path, _)| !used || path.as_str() != "/");
    let differs = judged.filter(|(_, line)| line.is_some()).find_map(|(path, line)| match found.get(path) {
        Some(None) => None,
        Some(shown) if shown == line => None,
        Some(shown) => Some(format!("{path}: {shown:?} instead of {line:?}")),
        None if failed_above(path) => None,
        None => Some(format!("{path} is not there")),
    });
    let made_up = || found.keys().find(|path| !expected.contains_key(*path) && !path.starts_with("/flip"));
    differs.or_else(|| made_up().map(|path| format!("{path} was never made")))
}
