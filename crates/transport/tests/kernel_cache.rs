//! The kernel's cache before a mounted pool: which files it caches, by the policy and by the reads of a file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrace_engine::{Engine, FsError, FsResult, MountOptions, PolicyKind, Wait, WriteFlags};
use terrace_format::Ino;
use terrace_placement::Home;
use terrace_testkit::{SimulatedPool, try_create};
use terrace_transport::{KernelCache, OpenMode};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;
/// Room for all files of the first test.
const BUDGET: u64 = 64 << 20;

fn write(fs: &Engine, ino: Ino, block: u64, blocks: u64) -> FsResult<()> {
    let data = vec![block as u8 ^ ino.0 as u8; (blocks * BLOCK) as usize];
    fs.write(ino, block * BLOCK, &data, WriteFlags::default(), W)?;
    Ok(())
}

fn read(fs: &Engine, ino: Ino, block: u64, blocks: u64) -> FsResult<()> {
    fs.read(ino, block * BLOCK, &mut vec![0; (blocks * BLOCK) as usize], W)?;
    Ok(())
}

/// A file in PM that was only read cost a request of the kernel for each read, however often it was read.
#[test]
fn a_file_only_read_is_cached_by_the_kernel() -> FsResult<()> {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs =
        pool.mount_with(MountOptions { policy: Some(PolicyKind::PREDICTIVE), ..MountOptions::default() });
    // A file that is open for writing is read through a mapping.
    let through = |cache: &KernelCache, ino, for_writing| -> FsResult<OpenMode> {
        let mode = cache.open(&fs, ino, false, for_writing, W)?;
        if for_writing {
            cache.fills_pages(&fs, ino);
        }
        cache.release(&fs, ino);
        Ok(mode)
    };
    let cache = KernelCache::new(BUDGET);
    let opened = |ino, for_writing| through(&cache, ino, for_writing);
    let (small, large) = (try_create(&fs, "small")?, try_create(&fs, "large")?);
    write(&fs, small, 0, 8)?;
    write(&fs, large, 0, 64)?;
    // Both kinds of files are cached from their first open, until a mapping has read them beside a writer.
    for ino in [small, large] {
        assert_eq!([opened(ino, false)?, opened(ino, true)?], [OpenMode::Cached, OpenMode::Direct]);
        assert_eq!(opened(ino, false)?, OpenMode::Direct);
    }
    // The direct open has let the kernel drop its pages.
    assert_eq!(opened(small, false)?, OpenMode::Cached);
    assert_eq!([opened(large, false)?, opened(large, true)?], [OpenMode::Cached, OpenMode::Direct]);
    // A kernel that drops its pages on request allows it to be cached again: one request for each time it was
    // direct.
    let dropped = Arc::new(AtomicU64::new(0));
    let (kernel, number, of) = (Arc::clone(&dropped), large.0, Arc::downgrade(&fs));
    let cache = Arc::new_cyclic(|cache: &Weak<KernelCache>| {
        let cache = Weak::clone(cache);
        KernelCache::new(BUDGET).with_drop_pages(move |ino| {
            assert_eq!(ino.0, number);
            // Meanwhile no other open of the file succeeds.
            let (cache, fs) = (cache.upgrade().unwrap(), of.upgrade().unwrap());
            let opened = [false, true].map(|to_write| cache.open(&fs, ino, false, to_write, Wait::Never));
            assert!(opened.iter().all(|opened| matches!(opened, Err(FsError::WouldBlock))));
            kernel.fetch_add(1, Ordering::Relaxed) != 1
        })
    });
    let opened = |ino, for_writing| through(&cache, ino, for_writing);
    assert!(matches!(cache.open(&fs, large, false, false, Wait::Never), Err(FsError::WouldBlock)));
    assert_eq!([opened(large, false)?, opened(large, false)?], [OpenMode::Cached; 2]);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    // For a small file pages are dropped when it has been read again and again.
    assert_eq!([opened(small, true)?, opened(small, false)?], [OpenMode::Direct; 2]);
    (0..3).try_for_each(|_| read(&fs, small, 0, 8))?;
    assert_eq!(opened(small, true)?, OpenMode::Direct);
    assert!(matches!(cache.open(&fs, small, false, false, Wait::Never), Err(FsError::WouldBlock)));
    // The kernel cannot drop the pages, so the file is opened as direct. An open for writing does not ask the
    // kernel.
    assert_eq!([opened(large, true)?, opened(large, false)?, opened(large, true)?], [OpenMode::Direct; 3]);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert_eq!(opened(large, false)?, OpenMode::Cached);
    assert_eq!(dropped.load(Ordering::Relaxed), 3);
    Ok(())
}

/// A file too large for the cache of the kernel was fetched again and again, at half the speed of one request
/// for each read.
#[test]
fn the_kernel_caches_fitting_files_under_a_read_aware_policy() -> FsResult<()> {
    for (policy, first) in [
        (PolicyKind::PREDICTIVE, OpenMode::Cached),
        (PolicyKind::WRITE_ONLY, OpenMode::Direct),
        (PolicyKind::STATIC, OpenMode::Direct),
    ] {
        let pool = SimulatedPool::new(8 << 20, 4096);
        let fs = pool.mount_with(MountOptions {
            policy: Some(policy),
            home: Some(Home::Pm),
            ..MountOptions::default()
        });
        let cache = KernelCache::new(1 << 20);
        let files = [try_create(&fs, "a")?, try_create(&fs, "b")?, try_create(&fs, "c")?];
        [150, 150, 100].iter().zip(files).try_for_each(|(blocks, ino)| write(&fs, ino, 0, *blocks))?;
        let open = |ino| cache.open(&fs, ino, false, false, W);
        assert_eq!([open(files[0])?, open(files[1])?, open(files[2])?], [first, OpenMode::Direct, first]);
        let is_kept = u64::from(first == OpenMode::Cached);
        assert_eq!(cache.kept_bytes(), (is_kept * 250 * BLOCK, 1 << 20));
        files.iter().for_each(|ino| cache.release(&fs, *ino));
        assert_eq!(cache.kept_bytes().0, 0);
    }
    Ok(())
}
