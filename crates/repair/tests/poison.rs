//! Lines of PM that cannot be read until they are written whole, as on media that heal: for each such line of
//! metadata the repair leaves a sound pool, and a second repair writes no byte.

#[path = "../../check/tests/common/mod.rs"]
mod common;

use common::healing::Healing;
use common::*;
use std::sync::Arc;
use terrace_check::Options;
use terrace_format::BLOCK_SIZE;
use terrace_repair::{Media, repair};

#[test]
fn every_unreadable_line_of_metadata_is_repaired() {
    let mut image = Image::full();
    // A record in a lane, so that the lines of the lane are read.
    let at = image.slot_place(CHILD).plus(terrace_format::inode::InodeSlot::MTIME);
    image.record(0, 0, 20, &[], &[(at, &7u64.to_le_bytes())]);
    let blocks = image.devices();
    let (mut found, mut tried) = (0, 0);
    for line in 0..image.next * BLOCK_SIZE / 64 {
        // The first lines of each page, then every seventh line.
        if line % 64 > 8 && line % 7 != 0 {
            continue;
        }
        tried += 1;
        let pm = Arc::new(Healing::new(&image.pm, line, false));
        let media = Media { pm: pm.clone(), block: blocks.clone() };
        let result = repair(&media, &Options::default());
        let site = format!("line {line}, block {}", line / 64);
        assert_eq!(result.failure, None, "{site}");
        assert_eq!(result.left.exit_status(), 0, "{site}: {:#?} {:#?}", result.left.findings, result.actions);
        found += usize::from(result.written);
        let bytes = pm.bytes.lock().clone();
        assert!(!repair(&media, &Options::default()).written && *pm.bytes.lock() == bytes, "{site}: again");
    }
    println!("{tried} lines, {found} repairs");
    assert!(found > 100, "{found} of {tried}");
}
