//! Properties of `ram` alone: files, locks, missing pages, huge pages.

#![allow(unsafe_code)] // a test faults on purpose

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use terrace_format::PmOffset;
use terrace_media::pm::RamPm;
use terrace_media::{Found, MediaError, OpenError, PmMedium, Promise};

const MIB: u64 = 1 << 20;

fn shm() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

#[test]
fn content_survives_reopening_and_the_lock_excludes_everybody() {
    let directory = shm();
    let path = directory.path().join("pm");
    let pm = RamPm::create(&path, MIB).unwrap();
    pm.write(PmOffset(100), b"kept").unwrap();
    pm.persist().unwrap();
    for read_only in [false, true] {
        let refused = RamPm::open(&path, read_only).err().unwrap();
        assert!(refused.is_busy(), "{refused}");
    }
    assert!(RamPm::remake(&Found::at(&path).unwrap(), MIB).err().unwrap().is_busy());
    drop(pm);

    let pm = RamPm::open(&path, true).unwrap();
    assert!(RamPm::open(&path, true).err().unwrap().is_busy());
    let mut back = [0; 4];
    pm.read(PmOffset(100), &mut back).unwrap();
    assert_eq!(&back, b"kept");
    pm.prepare(PmOffset(0), MIB);
    // a read-only medium answers stores with an error, it does not die of them
    assert!(pm.write(PmOffset(0), b"x").is_err());
    assert!(pm.write_streaming(PmOffset(0), &[0; 64]).is_err());
    drop(pm);

    let error = RamPm::create(&path, 2 * MIB).err().unwrap();
    assert!(error.to_string().contains("exists"), "{error}");
    let pm = RamPm::remake(&Found::at(&path).unwrap(), 2 * MIB).unwrap();
    assert_eq!(pm.load_u64(PmOffset(96)).unwrap(), 0, "remake empties");
    assert_eq!(pm.promise(), Promise::ProcessCrash);
    assert_eq!(pm.battery_backed(true).promise(), Promise::PowerFail);
}

#[test]
fn bad_sizes_kinds_and_want_of_space_are_told_apart() {
    let directory = shm();
    let path = directory.path().join("pm");
    for size in [0, 1, 4097] {
        let error = RamPm::create(&path, size).err().unwrap();
        assert!(matches!(error, OpenError::InvalidSize { .. }), "{error}");
    }
    let error = RamPm::create(&path, 1 << 50).err().unwrap();
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    assert!(!path.exists(), "a failed create leaves nothing");
    let error = RamPm::open("/dev/null", false).err().unwrap();
    assert!(matches!(error, OpenError::Unsupported { .. }), "{error}");
    let error = RamPm::open(&path, false).err().unwrap();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[test]
fn a_missing_page_is_an_error_for_its_range_only() {
    let directory = shm();
    let path = directory.path().join("pm");
    let pm = RamPm::create(&path, 4 * MIB).unwrap();
    pm.prepare(PmOffset(0), 4 * MIB);
    pm.write(PmOffset(0), &[5; 4096]).unwrap();
    pm.persist().unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(MIB).unwrap();

    let mut page = [0; 4096];
    let lost = 3 * MIB + 4096;
    for _ in 0..2 {
        let error = pm.read(PmOffset(lost), &mut page).unwrap_err();
        assert!(matches!(error, MediaError::Pm { offset, length: 4096 } if offset.0 == lost));
    }
    assert!(pm.load_u64(PmOffset(lost + 8)).is_err());
    assert!(pm.write(PmOffset(2 * MIB), &[1; 64]).is_err());
    assert!(pm.write_streaming(PmOffset(2 * MIB + 8192), &[1; 64]).is_err());
    pm.write_back(PmOffset(2 * MIB + 65536), 64);
    pm.persist().unwrap();
    // the pages that are left stay readable and writable
    pm.read(PmOffset(0), &mut page).unwrap();
    assert_eq!(page, [5; 4096]);
    pm.write(PmOffset(MIB - 64), &[6; 64]).unwrap();
    let ranges = pm.poisoned_ranges();
    assert!(ranges.contains(&(lost..lost + 4096)), "{ranges:?}");
    assert!(ranges.contains(&(2 * MIB..2 * MIB + 4096)), "{ranges:?}");
    assert!(ranges.iter().all(|r| r.start >= MIB), "{ranges:?}");

    // more missing pages than can be remembered: every access is an error, but the process lives
    for page_number in 0..400 {
        let offset = PmOffset(2 * MIB + page_number * 4096);
        assert!(pm.read(offset, &mut page).is_err());
    }
    assert!(pm.read(PmOffset(0), &mut page).is_err());
    drop(pm);

    // a later mapping in the same slot starts clean
    let pm = RamPm::open(&path, false).unwrap();
    assert!(pm.poisoned_ranges().is_empty());
    pm.read(PmOffset(0), &mut page).unwrap();
}

#[test]
fn opening_is_quick_and_prepare_maps_the_range() {
    let directory = shm();
    let path = directory.path().join("pm");
    drop(RamPm::create(&path, 16 * MIB).unwrap());
    let pm = RamPm::open(&path, false).unwrap();
    assert!(pm.describe().contains(" 0 % mapped"), "{}", pm.describe());
    pm.prepare(PmOffset(0), 16 * MIB);
    assert!(pm.describe().contains("100 % mapped"), "{}", pm.describe());
    assert!(pm.describe().starts_with("ram (tmpfs)"), "{}", pm.describe());
}

/// Pages too few for a huge one are mapped as well.
#[test]
fn prepare_maps_small_pages() {
    let directory = shm();
    let path = directory.path().join("pm");
    drop(RamPm::create(&path, MIB).unwrap());
    for read_only in [false, true] {
        let pm = RamPm::open(&path, read_only).unwrap();
        pm.prepare(PmOffset(0), MIB);
        assert!(pm.describe().contains("100 % mapped"), "{}", pm.describe());
    }
}

/// A SIGBUS outside every registered mapping still ends the process, in the way it would without us. Runs
/// itself again as the process that dies.
#[test]
fn a_foreign_sigbus_goes_to_the_previous_handler() {
    const VARIABLE: &str = "TERRACE_TEST_DIE_OF_SIGBUS";
    if std::env::var_os(VARIABLE).is_some() {
        let directory = shm();
        let pm = RamPm::create(directory.path().join("pm"), MIB).unwrap();
        let other = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(directory.path().join("other"))
            .unwrap();
        other.set_len(MIB).unwrap();
        let mapped = std::ptr::null_mut();
        // SAFETY: a fresh shared mapping, read once after its file was emptied; the fault is the test.
        unsafe {
            let (fd, length) = (other.as_raw_fd(), MIB as usize);
            let mapped = libc::mmap(mapped, length, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            other.set_len(0).unwrap();
            pm.persist().unwrap();
            drop(directory);
            mapped.cast::<u8>().read_volatile();
        }
        std::process::exit(0);
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_foreign_sigbus_goes_to_the_previous_handler"])
        .env(VARIABLE, "1")
        .output()
        .unwrap()
        .status;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(libc::SIGBUS), "{status:?}");
}

/// A page that the log left half changed is not read until the file is opened anew.
#[test]
fn a_condemned_page_is_not_read() {
    let directory = shm();
    let path = directory.path().join("pm");
    let pm = RamPm::create(&path, MIB).unwrap();
    pm.write(PmOffset(8192), &[5; 8]).unwrap();
    assert_eq!(pm.error_count(), 0);
    pm.condemn(PmOffset(8192 + 40), 8);
    pm.condemn(PmOffset(8192 + 80), 8);
    assert!(pm.load_u64(PmOffset(8192 + 40)).is_err());
    assert!(pm.poisoned_ranges().iter().eq([&(8192..12288)]), "{:?}", pm.poisoned_ranges());
    assert_eq!(pm.error_count(), 1);
    assert!(pm.load_u64(PmOffset(12288)).is_ok());
    drop(pm);
    let pm = RamPm::open(&path, false).unwrap();
    assert!(pm.load_u64(PmOffset(8192)).is_ok());
}

/// A sparse file with a size of 1 TiB used to make mount and check take memory for 1 TiB, however little it
/// held.
#[test]
fn a_huge_sparse_pm_file_is_refused() {
    let dir = tempfile::Builder::new().prefix("terrace-hollow").tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("hollow");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 46).unwrap();
    for read_only in [false, true] {
        let refused = RamPm::open(&path, read_only).map(|_| ()).unwrap_err();
        assert!(matches!(refused, OpenError::NoSpace { .. }), "{refused}");
        assert!(refused.to_string().contains("sparse"), "{refused}");
    }
    // A sparse file that fits is opened: a copy of a PM file may leave its zeros out.
    file.set_len(1 << 20).unwrap();
    assert!(RamPm::open(&path, false).is_ok());
}

#[test]
fn sparse_memory_is_given_at_the_first_touch_and_its_lines_leave_the_caches_unchanged() {
    use std::os::unix::fs::MetadataExt;
    let directory = shm();
    let path = directory.path().join("pm");
    let pm = RamPm::create_sparse(&path, 64 << 20).unwrap();
    pm.prepare(PmOffset(0), pm.size());
    pm.write(PmOffset(32 << 20), b"kept").unwrap();
    pm.drop_from_caches(PmOffset((32 << 20) - 1), 66);
    pm.drop_from_caches(PmOffset(64 << 20), 1);
    let mut back = [0; 4];
    pm.read(PmOffset(32 << 20), &mut back).unwrap();
    assert_eq!(&back, b"kept");
    let allocated = std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!((4096..=4 * MIB).contains(&allocated), "{allocated} bytes of memory");
    assert!(RamPm::create_sparse(&path, MIB).is_err(), "there is a file");
}
