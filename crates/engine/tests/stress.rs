//! Threads that write, truncate, rename and remove files with verifiable content while migration runs on real
//! media: no byte is lost, no block leaks, the pool is clean afterwards.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Allocate, Engine, FsResult, MountOptions, PoolMedia, SetAttributes, Wait, WriteFlags, format,
    read_superblock,
};
use terrace_format::Ino;
use terrace_media::block::FileDevice;
use terrace_media::pm::RamPm;
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::SystemClock;
use terrace_testkit::{CALLER, ROOT, format_options};

const W: Wait = Wait::Allowed;
const THREADS: u64 = 16;
/// Rounds of each thread, unless TERRACE_ROUNDS gives another number (sanitizers are slow).
const ROUNDS: usize = 1500;
const MAX_SIZE: u64 = 4 << 20;

fn rounds() -> usize {
    std::env::var("TERRACE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

struct File {
    ino: Ino,
    content: Vec<u8>,
}

fn change(fs: &Engine, rng: &mut StdRng, file: &mut File) -> FsResult<()> {
    match rng.random_range(0..10) {
        0..6 => {
            let offset = rng.random_range(0..MAX_SIZE);
            let length = *[1, 100, 4096, 5000, 65_536].get(rng.random_range(0..5)).unwrap_or(&1);
            let byte: u8 = rng.random();
            let data: Vec<u8> = (0..length).map(|i: usize| byte.wrapping_add(i as u8)).collect();
            fs.write(file.ino, offset, &data, WriteFlags::default(), W)?;
            let end = offset as usize + length;
            if file.content.len() < end {
                file.content.resize(end, 0);
            }
            file.content[offset as usize..end].copy_from_slice(&data);
        }
        6 => {
            let size = rng.random_range(0..MAX_SIZE);
            fs.setattr(file.ino, &SetAttributes { size: Some(size), ..Default::default() }, W)?;
            file.content.resize(size as usize, 0);
        }
        7 => {
            let offset = rng.random_range(0..MAX_SIZE);
            let length = rng.random_range(1..200_000);
            fs.fallocate(file.ino, offset, length, Allocate::PunchHole, W)?;
            let end = ((offset + length) as usize).min(file.content.len());
            if (offset as usize) < end {
                file.content[offset as usize..end].fill(0);
            }
        }
        _ => {
            let offset = rng.random_range(0..MAX_SIZE) as usize;
            let mut data = vec![0; 100_000];
            let count = fs.read(file.ino, offset as u64, &mut data, W)?;
            let expected = file.content.get(offset..).unwrap_or(&[]);
            let expected = &expected[..expected.len().min(100_000)];
            assert!(data[..count] == *expected, "inode {} at {offset}", file.ino);
        }
    }
    Ok(())
}

fn worker(fs: &Engine, seed: u64) -> FsResult<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let directory = fs.mkdir(ROOT, format!("thread{seed}").as_bytes(), 0o755, CALLER, W)?.ino;
    let mut files: BTreeMap<String, File> = BTreeMap::new();
    let rounds =
        std::env::var("TERRACE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    for round in 0..rounds {
        let pick = files.keys().nth(rng.random_range(0..files.len().max(1))).cloned();
        match (rng.random_range(0..100), pick) {
            (0..4, _) if files.len() < 8 => {
                let name = format!("file{round}");
                let ino = fs.mknod(directory, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino;
                files.insert(name, File { ino, content: Vec::new() });
            }
            (4..6, Some(name)) => {
                if let Some(file) = files.remove(&name) {
                    fs.unlink(directory, name.as_bytes(), W)?;
                    fs.forget(file.ino, 1);
                }
            }
            (6..9, Some(name)) => {
                if let Some(file) = files.remove(&name) {
                    let new = format!("moved{round}");
                    fs.rename(directory, name.as_bytes(), directory, new.as_bytes(), false, W)?;
                    files.insert(new, file);
                }
            }
            (_, Some(name)) => {
                if let Some(file) = files.get_mut(&name) {
                    change(fs, &mut rng, file)?;
                }
            }
            _ => {}
        }
    }
    for file in files.values() {
        let mut data = vec![0; file.content.len()];
        assert_eq!(fs.read(file.ino, 0, &mut data, W)?, data.len());
        assert!(data == file.content, "inode {} at the end", file.ino);
    }
    Ok(())
}

#[test]
fn threads_beside_migration_leave_a_sound_pool() -> Result<(), Box<dyn std::error::Error>> {
    let seed: u64 = std::env::var("TERRACE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("TERRACE_SEED={seed} cargo test -p terrace-engine --test stress");
    let shm = tempfile::tempdir_in("/dev/shm")?;
    let disk = tempfile::tempdir()?;
    // 16 threads fragment their cold extents: the catalog alone takes up to 7 MiB.
    let pm: Arc<dyn PmMedium> = Arc::new(RamPm::create(shm.path().join("pm"), 8 << 20)?);
    let device: Arc<dyn BlockMedium> = Arc::new(FileDevice::create(disk.path().join("tier"), 1 << 30)?);
    let media = || PoolMedia { pm: Arc::clone(&pm), block: vec![Arc::clone(&device)] };
    format(&media(), &format_options(1))?;
    let (superblock, _) = read_superblock(&*pm, true)?;
    let fs = Engine::mount(media(), superblock, MountOptions::default(), Arc::new(SystemClock::default()))?;
    let background = fs.start_background()?;
    let mut threads = Vec::new();
    for index in 0..THREADS {
        let fs = Arc::clone(&fs);
        let (tell, result) = std::sync::mpsc::channel();
        let body = move || {
            let _ = tell.send(worker(&fs, seed * 1000 + index).map_err(|error| error.to_string()));
        };
        threads.push((terrace_runtime::thread::spawn("stress", body)?, result));
    }
    for (thread, result) in threads {
        let ended = thread.join();
        assert!(ended.is_ok(), "a thread panicked");
        result.recv()??;
    }
    let migration = fs.status()?.migration;
    println!("{migration:?}");
    assert!(migration.demoted_bytes > rounds() as u64 * 4096);
    drop(background);
    fs.unmount()?;
    drop(fs);
    let report =
        check(&PoolView::new(pm, vec![Some(device)]), &Options { read_cold: true, ..Default::default() });
    assert!(report.is_clean(), "{:#?}", report.findings);
    Ok(())
}
