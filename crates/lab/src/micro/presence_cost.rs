//! DRAM and time of presence: the blocks of files in memory, beside a block table as file map.

use std::hint::black_box;
use terrace_bench::failure::Outcome;
use terrace_bench::machine::status_kib;
use terrace_blocks::Presence;
use terrace_format::{FileBlock, Ino};
use terrace_runtime::{Clock, SystemClock};

const BLOCKS: u64 = 1 << 20;

/// The key of the block with a number, for each kind of files.
type Key = fn(u64) -> (Ino, FileBlock);

pub(super) fn run(_: &[String]) -> Outcome<()> {
    let kinds: [(&str, Key); 6] = [
        ("files of a block", |number| (Ino(number + 1), FileBlock(0))),
        ("files of 2 neighbours", |number| (Ino(number / 2 + 1), FileBlock(number % 2))),
        ("files of 2 far blocks", |number| (Ino(number / 2 + 1), FileBlock(number % 2 * 1000))),
        ("files of 16 blocks", |number| (Ino(number / 16 + 1), FileBlock(number % 16))),
        ("a file, in order", |number| (Ino(1), FileBlock(number))),
        ("a file, in any order", |number| (Ino(1), FileBlock(number * 0x9e37_79b1 % BLOCKS))),
    ];
    let clock = SystemClock::default();
    let timed = |key: Key, call: &dyn Fn(Ino, FileBlock)| {
        let start = clock.monotonic_ns();
        (0..BLOCKS).map(key).for_each(|(ino, block)| call(ino, block));
        (clock.monotonic_ns() - start) as f64 / BLOCKS as f64
    };
    // Freed memory would serve the next kind.
    let mut kept = Vec::new();
    for (name, key) in kinds {
        let before = anonymous_bytes()?;
        let presence = Presence::default();
        let insert =
            timed(key, &|ino, block| assert!(presence.insert(ino, block), "{block} of {ino} is new"));
        let bytes = anonymous_bytes()?.saturating_sub(before) as f64 / BLOCKS as f64;
        let contains = timed(key, &|ino, block| _ = black_box(presence.contains(ino, block)));
        println!("{name:<22} {bytes:>6.2} bytes a block; insert {insert:.0}, contains {contains:.0} ns");
        kept.push((name, key, presence));
    }
    for (name, key, presence) in &kept {
        let remove =
            timed(*key, &|ino, block| assert!(presence.remove(ino, block), "{block} of {ino} is there"));
        println!("{name:<22} remove {remove:.0} ns");
    }
    Ok(())
}

/// Anonymous memory of this process.
fn anonymous_bytes() -> Outcome<u64> {
    Ok(status_kib(&std::fs::read_to_string("/proc/self/status")?, "RssAnon"))
}
