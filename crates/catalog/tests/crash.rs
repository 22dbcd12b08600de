//! A crash at every persistence event of puts, removes, splits, shrinks: after recovery each operation
//! is there as a whole or not at all, and the block table agrees with the trees.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{apply, format, geometry, mount};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_catalog::Catalog;
use terrace_format::keys::Key;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{Ino, PmBlock};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;

type Model = BTreeMap<Key, Vec<u8>>;

fn contents(catalog: &Catalog) -> Model {
    let mut all = Model::new();
    for ino in 1..=2u32 {
        let read = catalog.read(catalog.shard_of(ino.into()));
        let from = Key(ino.to_be_bytes().to_vec());
        read.reader()
            .scan(&from, &from.0, |key, value| {
                all.insert(Key(key.to_vec()), value.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    all
}

/// Every owned catalog page is reachable and every reachable page owned (I6).
fn check_pages(catalog: &Catalog) {
    let geometry = geometry(catalog.wal().pm().size());
    let mut reachable = BTreeSet::new();
    for shard in 0..geometry.catalog_shards {
        let root = catalog.wal().pm().load_u64(geometry.shard_root(shard)).unwrap();
        let mut queue = vec![root];
        while let Some(block) = queue.pop().filter(|block| *block != 0) {
            assert!(reachable.insert((block, shard)), "page {block} twice");
            let mut page = terrace_format::page::Page::new(0);
            catalog.wal().pm().read(PmBlock(block).offset(), page.0.as_mut_slice()).unwrap();
            page.verify_header("page").unwrap();
            let cell_bytes = |index| {
                let (key, value) = page.cell(index).unwrap();
                key.len() + value.len() + 4
            };
            let live: usize = (0..page.count()).map(cell_bytes).sum();
            assert_eq!(page.heap() + live + page.dead(), 4096, "dead bytes of page {block}");
            if page.level() > 0 {
                for index in 0..page.count() {
                    let (_, value) = page.cell(index).unwrap();
                    queue.push(u64::from_le_bytes(value.try_into().unwrap()));
                }
            }
        }
    }
    let mut owned = BTreeSet::new();
    for block in catalog.blocks().first_block().0..catalog.blocks().end_block().0 {
        match catalog.blocks().owner(PmBlock(block)).unwrap() {
            Owner::Free => {}
            Owner::Page { kind: PageKind::CatalogPage, datum } => drop(owned.insert((block, datum))),
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(reachable, owned);
}

fn one_operation(rng: &mut StdRng, catalog: &Catalog, model: &mut Model) {
    let ino = Ino(rng.random_range(1..3));
    let key = Key::dentry(ino, rng.random_range(1..400u64) << 20);
    let shard = catalog.shard_of(ino.0);
    let length = rng.random_range(1..200);
    match rng.random_range(0..8) {
        0..5 => {
            let value = vec![rng.random(); length];
            apply(catalog, &[shard], |guard, tx| guard.put(tx, &key, &value)).unwrap();
            model.insert(key, value);
        }
        5 | 6 => {
            // A run of removes in one transaction empties leaves.
            let victims: Vec<Key> = model
                .range(key..)
                .take_while(|(k, _)| catalog.shard_of_key(&k.0) == shard)
                .take(12)
                .map(|(k, _)| k.clone())
                .collect();
            apply(catalog, &[shard], |guard, tx| {
                for victim in &victims {
                    guard.remove(tx, victim)?;
                }
                Ok(())
            })
            .unwrap();
            victims.iter().for_each(|victim| drop(model.remove(victim)));
        }
        _ => drop(catalog.shrink(&key, Purpose::Reclaim).unwrap()),
    }
}

fn run(seed: u64, warm: u32, traced: u32) {
    println!("seed {seed}: cargo test -p terrace-catalog --test crash");
    let mut rng = StdRng::seed_from_u64(seed);
    let recorded = Arc::new(RecordedPm::new(2 << 20));
    let pm: Arc<dyn PmMedium> = recorded.clone();
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let mut model = Model::new();
    for _ in 0..warm {
        one_operation(&mut rng, &catalog, &mut model);
    }
    for _ in 0..traced {
        let (before, start) = (model.clone(), recorded.event_count());
        // The events of the operation are photographed as they come.
        let shots = Arc::new(terrace_runtime::sync::Mutex::new(Vec::new()));
        let (weak, into) = (Arc::downgrade(&recorded), Arc::clone(&shots));
        recorded.clock().on_event(Some(Box::new(move |event| {
            if let Some(pm) = weak.upgrade() {
                into.lock().push((event.number, pm.snapshot()));
            }
        })));
        one_operation(&mut rng, &catalog, &mut model);
        recorded.clock().on_event(None);
        for (number, snapshot) in shots.lock().drain(..) {
            let images = [
                snapshot.image_oldest(),
                snapshot.image_newest(),
                snapshot.image_random(number),
                snapshot.image_random(!number),
            ];
            for image in images {
                let after: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(image));
                let recovered = mount(&after).unwrap();
                let found = contents(&recovered);
                assert!(
                    found == before || found == model,
                    "seed {seed}, event {number} (operation from {start})"
                );
                check_pages(&recovered);
            }
        }
    }
    assert_eq!(contents(&catalog), model);
    check_pages(&catalog);
}

#[test]
fn a_crash_at_any_event_leaves_small_trees_whole() {
    run(1, 0, 60);
}

#[test]
fn a_crash_at_any_event_leaves_grown_trees_whole() {
    run(2, 300, 60);
    run(3, 700, 60);
}
