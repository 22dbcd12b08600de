//! Row way-in: how long a call takes from a program into the daemon and back, by io_uring and by the FUSE device
//! (classic), beside a null server with both, ext4, XFS and tmpfs. Parts: single calls, clients side by side, and
//! programs on a tree of files.
//!
//! A contestant is set up anew in every round and taken down before the next begins, so servers do not compete for
//! cores. Rounds begin with different contestants. Resources are held by a [`Teardown`]: a signal releases
//! them too, and with them the kernel's parameter `enable_uring`.

mod calls;
mod client;
mod clients;
mod contestant;
mod disk;
mod ground;
mod tree;
mod trees;

use super::args::Args;
use super::report::Report;
use ground::Ground;
use terrace_bench::failure::Outcome;
use terrace_bench::scratch::Scratch;
use terrace_bench::site::teardown::{Resource, Teardown};

type Part = fn(&Ground<'_>, &mut Report) -> Outcome<()>;

const PARTS: [(&str, Part); 3] = [("calls", calls::run), ("clients", clients::run), ("trees", trees::run)];

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    let teardown = Teardown::catching_signals()?;
    let mut held = Vec::new();
    for directory in [&scratch.disk, &scratch.memory] {
        held.push(teardown.hold(Resource::Directory(directory.clone()))?);
    }
    let ground = Ground::new(args, scratch, teardown.clone());
    if let Err(reason) = &ground.uring {
        report.skip(ground::ROW, format!("io_uring: {reason}"));
    }
    for (name, part) in PARTS {
        if args.wants_part(name)
            && let Err(error) = part(&ground, report)
        {
            report.skip(ground::ROW, format!("{name}: {error}"));
        }
    }
    drop(ground);
    // The scratch directories stay for the remaining rows.
    held.into_iter().for_each(|directory| directory.gone());
    teardown.go_on()
}
