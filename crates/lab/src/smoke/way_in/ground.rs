//! The place of the row: scratch directories, and the kernel's parameter for FUSE by io_uring, on during the row and put
//! back afterwards.

use crate::smoke::args::Args;
use std::fs;
use std::sync::Arc;
use terrace_bench::scratch::Scratch;
use terrace_bench::site::teardown::{Held, Resource, Teardown};

/// The name of the row.
pub(super) const ROW: &str = "way-in";
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The means of the parts of the row.
pub(super) struct Ground<'a> {
    pub args: &'a Args,
    pub scratch: &'a Scratch,
    pub teardown: Arc<Teardown>,
    /// The kernel's parameter while it is changed, or the reason why io_uring cannot be had.
    pub uring: Result<Option<Held>, String>,
}

impl Ground<'_> {
    pub fn new<'a>(args: &'a Args, scratch: &'a Scratch, teardown: Arc<Teardown>) -> Ground<'a> {
        let uring = switch_on(&teardown);
        Ground { args, scratch, teardown, uring }
    }

    /// `full`, or `short` with `--quick`.
    pub fn either<T>(&self, full: T, short: T) -> T {
        if self.args.quick { short } else { full }
    }
}

/// Lets the kernel offer io_uring to new mounts, until the result is dropped.
fn switch_on(teardown: &Arc<Teardown>) -> Result<Option<Held>, String> {
    let before = fs::read_to_string(PARAMETER).map_err(|error| format!("{PARAMETER}: {error}"))?;
    if before.trim() == "Y" {
        return Ok(None);
    }
    let held =
        teardown.hold(Resource::Setting(PARAMETER.into(), before)).map_err(|error| error.to_string())?;
    fs::write(PARAMETER, "Y").map_err(|error| format!("{PARAMETER}: {error}"))?;
    Ok(Some(held))
}
