//! The predictions for a file (`terrace where`).

use crate::engine::Engine;
use terrace_placement::temperature;
use terrace_store::inode::slot::wall_now;
use terrace_store::types::Predictions;
use terrace_store::types::inode::Inode;

/// The predictions for a file, and the average times of its (written, read) blocks in PM.
pub fn predictions(
    engine: &Engine,
    inode: &Inode,
    written: temperature::Times,
    read: temperature::Times,
) -> Predictions {
    let now = engine.store.steering.tick();
    let wall = |times: temperature::Times| {
        let age_ns = u64::from(now.saturating_sub(times.average())) * 10_000_000;
        (times.blocks > 0).then(|| (wall_now(&engine.store) as f64 - age_ns as f64) / 1e9)
    };
    let known = engine.store.steering.file_histories().get(inode.ino, inode.slot.generation.get());
    let steers = engine.store.steering.policy().steers_writes();
    Predictions {
        sync_predicted: steers.then(|| {
            known.is_none_or(|file| file.judged(engine.store.steering.directory_history()).is_synchronous())
        }),
        large_predicted: steers
            .then(|| known.is_some_and(|file| file.run().0.is_large(engine.store.steering.parameters()))),
        read_dominated: engine.store.steering.policy().follows_reads().then(|| {
            known.is_some_and(|file| {
                file.reads().is_dominated(inode.size(), engine.store.steering.parameters().read_times)
            })
        }),
        average_mtime: wall(written),
        average_rtime: wall(read),
        temperature: (written.blocks > 0).then(|| {
            temperature::word(
                (now, engine.store.steering.parameters().whole_after()),
                written.newest,
                read.newest,
            )
        }),
    }
}
