//! The run of a comparison: the site is set up, the plan is measured, the result is judged and written.

use super::measure;
use super::options::Options;
use super::outcome::Result;
use super::plan::{Plan, Scale};
use super::row::Row;
use crate::affinity;
use crate::failure::{Outcome, say};
use crate::site::Site;
use crate::trace::Recorder;
use rustix::thread::CpuSet;
use std::sync::Arc;

/// Data of a quick run.
const QUICK_BYTES: u64 = 8 << 20;

/// The size of a run by its options.
pub fn scale(options: &Options) -> Scale {
    let quick = options.quick;
    let seconds = if quick { options.seconds.min(0.5) } else { options.seconds };
    let dataset_bytes = if quick { QUICK_BYTES } else { options.dataset_bytes };
    Scale { dataset_bytes, limit_ns: (seconds * 1e9) as u64, quick, fio: options.fio }
}

/// With `--one-core`: ties this thread to a core before the first thread and child start, because threads and
/// children inherit the core. Gives the cores for emulated devices.
pub fn pin(options: &Options) -> Outcome<Option<CpuSet>> {
    if !options.one_core {
        return Ok(None);
    }
    let cores = affinity::all()?;
    affinity::pin_self(&affinity::last(&cores))?;
    Ok(affinity::without_last(&cores))
}

/// Measures a plan, writes and prints the result.
///
/// # Errors
/// When the site cannot be set up, or when no figure could be measured.
pub fn run_plan(options: &Options, row: &Row, plan: Plan, scale: &Scale) -> Outcome<()> {
    let device_cores = pin(options)?;
    let mut site = Site::new(&options.site, plan.page_cache_bytes, plan.class)?;
    site.device_cores = device_cores;
    site.writes_whole = plan.writes_whole;
    let (mut memory, mut disk) = plan.needs();
    if options.site.device_memory {
        (memory, disk) = (memory + disk, 0);
    }
    // A quick run is small, and must run with little free memory and disk too.
    if !options.quick {
        site.scratch.need(memory, disk)?;
    }
    let recorder = match &options.record {
        Some(path) => Some(Arc::new(Recorder::create(path, site.scratch.clock.clone())?)),
        None => None,
    };
    eprintln!("row {}: {}", row.id, row.sentence);
    let mut result = Result::new(row, options, &plan, &site, scale.dataset_bytes);
    measure::run(&plan, &site, options.rounds, !options.quick, recorder.as_ref(), &mut result)?;
    if let Some(recorder) = recorder {
        eprintln!("  {} operations recorded", recorder.finish()?);
    }
    result.judge(&plan);
    let written = match options.output.directory.as_os_str().is_empty() {
        true => None,
        false => Some(result.write(&options.output.directory)?),
    };
    if options.output.json {
        say(serde_json::to_string_pretty(&result)?)?;
    } else {
        say(result.table())?;
    }
    if let Some(path) = written {
        eprintln!("  {} and .svg written", path.display());
    }
    match result.figures.iter().any(|figure| figure.median.is_some()) {
        true => Ok(()),
        false => Err(format!("row {}: nothing could be measured", row.id).into()),
    }
}
