//! Check of a damaged pool ends, and what it finds clean mounts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{Engine, MountOptions, PoolMedia, read_superblock};
use terrace_fuzz::{ROOT, damaged};
use terrace_runtime::ManualClock;

fuzz_target!(|input: &[u8]| {
    let (pm, device) = damaged(input);
    let view = PoolView::new(Arc::clone(&pm), vec![Some(Arc::clone(&device))]);
    if !check(&view, &Options { read_cold: true, progress: None, given: &[] }).is_clean() {
        return;
    }
    let (superblock, _) = read_superblock(&*pm, true).expect("a clean pool has a superblock");
    let media = PoolMedia { pm, block: vec![device] };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let fs = Engine::mount(media, superblock, MountOptions::default(), clock).expect("a clean pool mounts");
    fs.readdir(ROOT, 0, &mut |_| true).expect("and lists");
});
