//! Paths out of an image were opened blindly: a FIFO hung check, status and mount until somebody opened its other end.
//! A file to be made took over one that another user had laid there, or had linked elsewhere.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use terrace_media::block::FileDevice;
use terrace_media::found::open_to_read;
use terrace_media::pm::RamPm;
use terrace_media::{Found, OpenError};

fn refused(error: Option<OpenError>, what: &str) {
    let error = error.unwrap();
    assert!(matches!(error, OpenError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

/// An opening that waits fails the test instead of hanging it.
fn soon<T: Send + 'static>(open: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = mpsc::channel();
    terrace_runtime::thread::spawn("open", move || drop(done.send(open()))).unwrap();
    answer.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn a_fifo_is_refused_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let at = path.clone();
    refused(soon(move || open_to_read(at).err()), "a FIFO");
    let at = path.clone();
    refused(soon(move || FileDevice::open(at, true, true).err()), "a FIFO");
    let at = path.clone();
    refused(soon(move || RamPm::open(at, true).err()), "a FIFO");
}

#[test]
fn only_files_and_block_devices_are_opened() {
    let directory = tempfile::tempdir().unwrap();
    refused(open_to_read(directory.path()).err(), "a directory");
    refused(open_to_read("/dev/null").err(), "a character device");
    refused(open_to_read("/proc/uptime").err(), "made by the kernel");
    refused(open_to_read("/sys/kernel/mm/transparent_hugepage/enabled").err(), "made by the kernel");
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(open_to_read(&socket).err(), "a socket");
}

/// The path may name something else when the file is opened.
#[test]
fn open_opens_the_inspected_file_after_a_rename() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    std::fs::write(&path, "looked at").unwrap();
    let found = Found::at(&path).unwrap();
    std::fs::rename(&path, directory.path().join("moved")).unwrap();
    std::fs::write(&path, "laid there").unwrap();
    let file = found.open(true, rustix::fs::OFlags::empty()).unwrap();
    assert_eq!(std::io::read_to_string(&file).unwrap(), "looked at");
    // A file that does not wait would have io_uring answer EAGAIN.
    let flags = rustix::fs::fcntl_getfl(&file).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
}

#[test]
fn creation_replaces_no_file_and_follows_no_link() {
    let directory = tempfile::tempdir().unwrap();
    let (there, link, nowhere) =
        (directory.path().join("there"), directory.path().join("link"), directory.path().join("nowhere"));
    std::fs::write(&there, "somebody's").unwrap();
    symlink(&nowhere, &link).unwrap();
    let exists = |error: Option<OpenError>| {
        let error = error.unwrap();
        assert!(
            matches!(&error, OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists),
            "{error}"
        );
    };
    for path in [&there, &link] {
        exists(RamPm::create(path, 1 << 20).err());
        exists(FileDevice::create(path, 1 << 20).err());
    }
    assert_eq!(std::fs::read(&there).unwrap(), b"somebody's");
    assert!(!nowhere.exists());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let (pm, disk) = (directory.path().join("pm"), directory.path().join("disk"));
    drop(RamPm::create(&pm, 1 << 20).unwrap());
    drop(FileDevice::create(&disk, 1 << 20).unwrap());
    assert_eq!((mode(&pm), mode(&disk)), (0o600, 0o600));
}

#[test]
fn owner_and_permissions_are_judged_as_swapon_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    std::fs::write(&path, "x").unwrap();
    for (mode, write, read) in [
        (0o600, false, false),
        (0o640, false, true),
        (0o604, false, true),
        (0o620, true, false),
        (0o602, true, false),
    ] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let access = Found::at(&path).unwrap().access();
        assert_eq!((access.others_may_write(), access.others_may_read()), (write, read), "{mode:o}");
        let disk = terrace_media::Access { block_device: true, mode: 0o660, ..access };
        assert!(!disk.others_may_write() && !disk.others_may_read(), "the group of disks");
    }
    let access = terrace_media::Access { uid: 1000, mode: 0o600, block_device: false };
    assert_eq!((access.foreign_owner(1000), access.foreign_owner(0)), (None, Some(1000)));
    assert_eq!(terrace_media::Access { uid: 0, ..access }.foreign_owner(1000), None);
}
