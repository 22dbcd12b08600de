//! The plan of a mount, and the plans that are refused before anything is mounted.

use crate::failure::{Failure, Outcome};
use crate::mounts::is_inside;
use crate::options::Options;
use crate::output;
use crate::pool::OpenPool;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The pool to mount, and its mount point; paths are absolute.
#[derive(Debug)]
pub struct Plan {
    /// Tier 0.
    pub pool: PathBuf,
    /// The directory.
    pub dir: PathBuf,
    /// Options.
    pub options: Options,
    /// Stay attached to the terminal.
    pub foreground: bool,
}

/// Writes warnings into the log, and to the user who mounts.
pub(crate) fn warn(plan: &Plan, warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("{warning}");
        if !plan.foreground {
            output::warn(warning);
        }
    }
}

/// Refuses a mount over files of the pool or over the log, which it would hide, and a log that is a file of
/// the pool.
pub(crate) fn refuse_inside(plan: &Plan, opened: &OpenPool) -> Outcome<()> {
    for (file, _) in &opened.files {
        if is_inside(file, &plan.dir) {
            let text = format!("lies inside the mount point {}; mount it elsewhere", plan.dir.display());
            return Err(Failure::at(file, text));
        }
    }
    let Some(log) = &plan.options.log else { return Ok(()) };
    if is_inside(log, &plan.dir) {
        let text = format!("log: lies inside the mount point {}, which hides it", plan.dir.display());
        return Err(Failure::at(log, text));
    }
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    if identity(log).is_some_and(|log| opened.files.iter().any(|(file, _)| identity(file) == Some(log))) {
        return Err(Failure::at(log, "log: a file of the pool"));
    }
    Ok(())
}
