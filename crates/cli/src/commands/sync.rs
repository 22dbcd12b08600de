//! `terrace sync`

use crate::args::Sync;
use crate::control::{Located, Request, locate};
use crate::failure::{Failure, Outcome};
use indicatif::{ProgressBar, ProgressStyle};
use terrace_format::BLOCK_SIZE;

pub fn run(args: &Sync) -> Outcome<u8> {
    let daemon = match locate(&args.dir)? {
        Located::Mounted(daemon) => daemon,
        Located::Dead => {
            return Err(Failure::at(&args.dir, "the daemon was killed; unmount and mount it again"));
        }
        Located::NotMounted => return Err(Failure::at(&args.dir, "not a mounted pool")),
    };
    let request = match &args.to {
        Some(tier) => Request::SyncTo { tier: tier.clone() },
        None => Request::Sync,
    };
    let bar = bar();
    let result = daemon.ask(&request, |left| show(&bar, left));
    bar.finish_and_clear();
    result.map_err(|failure| Failure::at(&args.dir, failure.text))?;
    Ok(0)
}

/// Nothing off a terminal: indicatif draws on terminals only.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, left_blocks: u64) {
    let left = left_blocks * BLOCK_SIZE;
    // New writes are not waited for, but the first figure may not be the largest.
    let length = bar.length().unwrap_or(0).max(bar.position() + left);
    bar.set_length(length);
    bar.set_position(length - left);
}
