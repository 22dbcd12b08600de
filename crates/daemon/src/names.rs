//! Watches the names and sizes of a mounted pool's files: a file without its name or size is missing at the
//! next mount.
//!
//! A removed file still works while it is open, and its content is lost when the mount ends. A thread of its
//! own looks, because the file system of a tier's file may hang; it never looks through a mount, which may be
//! the daemon's own.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::thread::spawn;

/// Time between two looks, unless a caller asks for one.
const INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait of a caller for a look.
const PATIENCE: Duration = Duration::from_secs(1);

/// A file of the pool, and the directory in which it was found.
pub struct PoolFile {
    /// The path as status shows it.
    shown: String,
    path: PathBuf,
    file: OwnedFd,
    size: u64,
    was_shortened: AtomicBool,
    directory: OwnedFd,
    name: OsString,
}

impl PoolFile {
    /// The file at a path. `None` for a device: its content does not depend on a name.
    pub fn new(path: &Path, file: &File) -> Option<PoolFile> {
        let found = fstat(file).ok()?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return None;
        }
        let canonical = std::fs::canonicalize(path).ok()?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Some(PoolFile {
            shown: path.display().to_string(),
            size: found.st_size as u64,
            was_shortened: AtomicBool::new(false),
            // A second reference to the file, without its lock.
            file: open(format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty()).ok()?,
            directory: open(canonical.parent()?, flags, Mode::empty()).ok()?,
            name: canonical.file_name()?.to_os_string(),
            path: canonical,
        })
    }

    /// The reason why the next mount will not find the file, as a word and as a sentence.
    fn trouble(&self) -> Option<(&'static str, String)> {
        let ours = fstat(&self.file).ok()?;
        if ours.st_nlink == 0 {
            let text = "the file was removed while mounted: all that it holds is lost when the mount ends; copy it out before";
            return Some(("removed", text.to_string()));
        }
        // A shortened file stays damaged even if its old size comes back.
        if (ours.st_size as u64) < self.size || self.was_shortened.load(Ordering::Relaxed) {
            self.was_shortened.store(true, Ordering::Relaxed);
            let text = "the file was shortened while mounted: what lay behind its end is lost; give it its size again after the unmount, then 'terrace check --data' says what is lost";
            return Some(("shortened", text.to_string()));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let text = match openat2(&self.directory, &self.name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
            Ok(found) => {
                let found = fstat(found).ok()?;
                if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino) {
                    return None;
                }
                "another file has its name now; give the file its name back before the next mount"
            }
            Err(Errno::NOENT) => "the file was renamed while mounted; the next mount needs its name",
            // The directory cannot be read, so the file is not judged.
            Err(_) => return None,
        };
        Some(("moved", text.to_string()))
    }
}

/// The result of the last look.
#[derive(Default)]
struct Seen {
    /// The trouble of each file.
    troubles: Vec<Option<(&'static str, String)>>,
    /// Looks so far, and the number of the look for which a caller waits.
    looks: u64,
    wanted: u64,
}

/// Watches the names of a pool's files.
pub struct Names {
    files: Vec<PoolFile>,
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Names {
    /// Starts the thread that looks.
    ///
    /// # Errors
    /// The operating system's, when no thread can be made.
    pub fn start(files: Vec<PoolFile>) -> std::io::Result<Arc<Names>> {
        let troubles = files.iter().map(|_| None).collect();
        let seen = Mutex::new(Seen { troubles, ..Seen::default() });
        let names = Arc::new(Names { files, seen, changed: Condvar::new() });
        let looker = Arc::clone(&names);
        spawn("terrace-names", move || looker.run())?;
        Ok(names)
    }

    fn run(&self) {
        loop {
            let troubles: Vec<_> = self.files.iter().map(PoolFile::trouble).collect();
            let mut seen = self.seen.lock();
            for ((file, before), now) in self.files.iter().zip(&seen.troubles).zip(&troubles) {
                let path = file.path.display();
                match now {
                    Some((_, text)) if before != now => tracing::error!("{path}: {text}"),
                    None if before.is_some() => {
                        tracing::info!("{path}: the file has its name again")
                    }
                    _ => {}
                }
            }
            seen.troubles = troubles;
            seen.looks += 1;
            self.changed.notify_all();
            if seen.wanted <= seen.looks {
                self.changed.wait_for(&mut seen, INTERVAL);
            }
        }
    }

    /// The present troubles, each with its file. If a file system does not answer, the troubles of the last
    /// look.
    fn troubles(&self) -> Vec<(&PoolFile, &'static str, String)> {
        let mut seen = self.seen.lock();
        // A look under way may have passed the file before this call, so the look after it counts.
        let wanted = seen.looks + 2;
        seen.wanted = seen.wanted.max(wanted);
        self.changed.notify_all();
        while seen.looks < wanted && !self.changed.wait_for(&mut seen, PATIENCE).timed_out() {}
        let troubles = self.files.iter().zip(&seen.troubles);
        troubles
            .filter_map(|(file, trouble)| trouble.as_ref().map(|(word, text)| (file, *word, text.clone())))
            .collect()
    }

    /// A line for each file that the next mount will not find.
    pub fn lost(&self) -> Vec<String> {
        let line = |(file, _, text): (&PoolFile, &str, String)| format!("{}: {text}", file.path.display());
        self.troubles().into_iter().map(line).collect()
    }

    /// Adds the troubles to a status.
    pub fn tell(&self, status: &mut serde_json::Value) {
        for (file, word, text) in self.troubles() {
            let tiers = status["tiers"].as_array_mut().into_iter().flatten();
            let devices = tiers.filter_map(|tier| tier["devices"].as_array_mut()).flatten();
            for device in devices.filter(|device| device["path"] == file.shown) {
                let before =
                    device["reason"].as_str().map(|reason| format!("; {reason}")).unwrap_or_default();
                device["reason"] = format!("{text}{before}").into();
                device["health"] = word.into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool whose file was removed while mounted was once shown as healthy until its end, and then it was
    /// gone.
    #[test]
    fn a_file_without_its_name_is_told() -> Result<(), Box<dyn std::error::Error>> {
        let directory = std::env::temp_dir().join(format!("terrace-names-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let at = |name: &str| directory.join(name);
        std::fs::write(at("pool"), "content")?;
        let file = File::open(at("pool"))?;
        let names = Names::start(PoolFile::new(&at("pool"), &file).into_iter().collect())?;
        let seen = || names.troubles().into_iter().map(|(_, word, text)| (word, text)).next();
        let word = || seen().map(|(word, _)| word);
        assert_eq!(word(), None);
        std::fs::rename(at("pool"), at("other"))?;
        assert_eq!(word(), Some("moved"));
        std::fs::write(at("pool"), "content")?;
        assert!(seen().is_some_and(|(word, text)| word == "moved" && text.contains("another file")));
        std::fs::rename(at("other"), at("pool"))?;
        assert_eq!(word(), None, "it has its name again");
        std::fs::hard_link(at("pool"), at("second"))?;
        std::fs::remove_file(at("second"))?;
        assert_eq!(word(), None, "another name is not needed");
        std::fs::remove_file(at("pool"))?;
        assert_eq!(word(), Some("removed"));
        let path = at("pool").display().to_string();
        let mut status = serde_json::json!({ "tiers": [{ "devices": [{ "path": path, "health": "ok", "reason": null }] }] });
        names.tell(&mut status);
        assert_eq!(status["tiers"][0]["devices"][0]["health"], "removed");
        assert!(names.lost()[0].starts_with(&path));
        Ok(std::fs::remove_dir_all(&directory)?)
    }
}
