//! `terrace migrate`: a file or a directory with all below it to one tier.

use super::moves::{self, Asked};
use crate::args::Migrate;
use terrace_daemon::failure::Outcome;

pub fn run(args: &Migrate) -> Outcome<u8> {
    let asked = Asked {
        path: &args.path,
        action: "migrate",
        tier: Some(&args.to),
        wait: args.wait,
        dry_run: args.dry_run,
        json: args.json,
    };
    moves::run(&asked)
}
