//! `terrace pin` and `terrace unpin`: a file or directory with all below it is kept on a tier, or no more.

use super::moves::{self, Asked};
use crate::args::{Pin, Unpin};
use terrace_daemon::failure::Outcome;

pub fn pin(args: &Pin) -> Outcome<u8> {
    let asked = Asked {
        path: &args.path,
        action: "pin",
        tier: Some(&args.tier),
        wait: args.wait,
        dry_run: args.dry_run,
        json: args.json,
    };
    moves::run(&asked)
}

pub fn unpin(args: &Unpin) -> Outcome<u8> {
    let asked = Asked {
        path: &args.path,
        action: "unpin",
        tier: None,
        // An unpin moves no bytes, so it ends at once.
        wait: true,
        dry_run: args.dry_run,
        json: args.json,
    };
    moves::run(&asked)
}
