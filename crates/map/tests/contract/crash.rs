//! Crashes: before every fence, and every fourth other event, three images of what may be left are recovered
//! and compared (I1, I2, I6). Where only persist is durable, any earlier committed state is accepted.

use crate::model::step;
use crate::modelled_map::{ModelledMap, image};
use crate::{MAPS, for_each_map};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_format::Geometry;
use terrace_media::crash::EventKind;
use terrace_media::pm::{CrashSnapshot, PmImage, RecordedPm};
use terrace_wal::Error;

const IMAGES_PER_EVENT: u64 = 3;

pub fn judge(
    image: PmImage,
    geometry: Geometry,
    row: usize,
    allowed: &[crate::modelled_map::Model],
    what: &str,
) {
    let pm = Arc::new(RecordedPm::from_image(image));
    let mut maps = ModelledMap::open(pm, geometry, &MAPS[row], 1);
    let content = maps.content().unwrap();
    assert!(
        allowed.contains(&content),
        "{what}: {} mappings, none of the {} allowed states",
        content.len(),
        allowed.len()
    );
    maps.check_table(&content);
    // the recovered map can be used
    maps.model = content;
    (0..1500).step_by(50).for_each(|first| maps.clear(1, first, 50, 1.0).unwrap());
    let put = maps.put(1, 1 << 18, 2, false);
    assert!(matches!(put, Ok(()) | Err(Error::NoSpace(_))), "{what}: {put:?}");
    assert_eq!(maps.content().unwrap(), maps.model, "{what}: after more work");
    maps.check_table(&maps.model);
}

fn explore(row: usize, seed: u64, persist_only: bool, steps: usize) -> u64 {
    // The pool has few free blocks, so freed blocks are soon used again.
    let (bytes, geometry) = image(MAPS[row].kind, 2 << 20, 90);
    let pm = Arc::new(RecordedPm::from_image(bytes));
    pm.set_persist_only(persist_only);
    let mut maps = ModelledMap::open(pm.clone(), geometry, &MAPS[row], seed);
    maps.keep_history = persist_only;
    let allowed = Arc::clone(&maps.allowed);
    let judged = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&judged);
    let weak = Arc::downgrade(&pm);
    pm.clock().on_event(Some(Box::new(move |event| {
        let Some(pm) = weak.upgrade() else { return };
        // streamed nodes make many events that differ little: judge every fence, sample the rest
        let fence = matches!(event.kind, EventKind::Order | EventKind::Persist);
        if event.number % 4 != 0 && !fence {
            return;
        }
        let snapshot: CrashSnapshot = pm.snapshot();
        let allowed = allowed.lock().clone();
        for number in 0..IMAGES_PER_EVENT {
            let image = match number {
                0 => snapshot.image_oldest(),
                1 => snapshot.image_newest(),
                _ => snapshot.image_random(seed << 32 | event.number << 4 | number),
            };
            let what = format!("seed {seed}, event {} ({:?}), image {number}", event.number, event.kind);
            judge(image, geometry, row, &allowed, &what);
            count.fetch_add(1, Ordering::Relaxed);
        }
    })));
    for _ in 0..steps {
        match step(&mut maps) {
            Ok(()) | Err(Error::NoSpace(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    pm.clock().on_event(None);
    judged.load(Ordering::Relaxed)
}

#[test]
fn every_crash_leaves_whole_transactions() {
    for_each_map(0..4, |row, seed| {
        let row = MAPS.iter().position(|r| r.name == row.name).unwrap();
        let judged = explore(row, seed, false, 60);
        assert!(judged > 300, "only {judged} images");
    });
}

#[test]
fn every_crash_leaves_whole_transactions_where_only_persist_is_durable() {
    for_each_map(10..13, |row, seed| {
        let row = MAPS.iter().position(|r| r.name == row.name).unwrap();
        explore(row, seed, true, 40);
    });
}
