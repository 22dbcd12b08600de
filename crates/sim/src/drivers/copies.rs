//! A damaged copy of the superblock is mended, or a device gets another tier, and power fails meanwhile. One
//! copy is sound at every instant, and both are after the mend has returned (C5). The order of tiers is the
//! old one or the new one, and the new one after the change has returned.

use crate::config::{Config, Tier0};
use crate::drivers::acts::SMALL;
use crate::drivers::run::Wrong;
use crate::drivers::systematic::{Effort, Explored, judged};
use crate::media::{Media, Setup};
use crate::subsets::{all_subsets, some_subsets};
use crate::world::World;
use terrace_engine::{mend_superblock, read_superblock, set_device_tier};
use terrace_format::geometry::SUPERBLOCK_COPIES;

/// Explores the mend of each copy.
pub fn explore(effort: Effort, persist_only: bool, wrong: Wrong) -> Explored {
    let setup = Setup { tier0: Tier0::of_mode(persist_only), change: wrong.ordering, ..Setup::default() };
    judged(|explored| {
        let world = World::new(Config { device_blocks: 0, ..SMALL }, 1, Setup::default());
        world.borrow_mut().leave_a_file();
        let pm = world.borrow().pool.media.tier0_content().to_vec();
        for (index, copy) in SUPERBLOCK_COPIES.into_iter().enumerate() {
            let mut damaged = pm.clone();
            damaged[copy.offset().0 as usize + 200] ^= 1;
            let media = Media::from_images(damaged, None, &setup);
            mend(&media, index, effort, explored);
        }
    })
}

/// Explores a change of the order of tiers, on a sound pool and with each copy damaged.
pub fn explore_order(effort: Effort, persist_only: bool, wrong: Wrong) -> Explored {
    let setup = Setup { tier0: Tier0::of_mode(persist_only), change: wrong.ordering, ..Setup::default() };
    judged(|explored| {
        let world = World::new(SMALL, 1, Setup::default());
        world.borrow_mut().leave_a_file();
        let pm = world.borrow().pool.media.tier0_content().to_vec();
        for damaged in [None, Some(SUPERBLOCK_COPIES[0]), Some(SUPERBLOCK_COPIES[1])] {
            let mut pm = pm.clone();
            if let Some(copy) = damaged {
                pm[copy.offset().0 as usize + 200] ^= 1;
            }
            let media = Media::from_images(pm, None, &setup);
            order(&media, effort, explored);
        }
    })
}

fn order(media: &Media, effort: Effort, explored: &mut Explored) {
    const NEW: u8 = 7;
    let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
    let old = superblock.device_rows()[0].tier;
    let change = || set_device_tier(&*media.pm, &superblock, 0, NEW);
    let (moments, changed) = media.camera().film(change);
    changed.unwrap();
    explored.events += moments.len() as u64;
    explored.points.extend(media.clock.ordering().points());
    explored.passed = explored.points.clone();
    for (index, moment) in moments.iter().enumerate() {
        let done = index + 1 == moments.len();
        for epoch in [0, u64::MAX] {
            let pm = moment.pm.in_epoch(epoch);
            let choices = all_subsets(&pm, effort.lines)
                .unwrap_or_else(|| some_subsets(&pm, effort.samples, index as u64));
            for choice in choices {
                explored.states += 1;
                let media = Media::from_images(pm.image_here(&|line| choice[line]), None, &Setup::default());
                let what = format!("a device gets another tier, crash before event {index}");
                let read = read_superblock(&*media.pm, true);
                let (read, warning) = read.unwrap_or_else(|refused| panic!("{what}: {refused}"));
                let tier = read.device_rows()[0].tier;
                assert!(tier == NEW || (tier == old && !done), "{what}: tier {tier}");
                assert!(!done || warning.is_none(), "{what}: {warning:?}");
            }
        }
    }
}

fn mend(media: &Media, copy: usize, effort: Effort, explored: &mut Explored) {
    let (superblock, warning) = read_superblock(&*media.pm, true).unwrap();
    assert!(warning.is_some(), "copy {copy} is damaged");
    let (moments, mended) = media.camera().film(|| mend_superblock(&*media.pm, &superblock));
    assert!(mended.unwrap(), "copy {copy} is mended");
    explored.events += moments.len() as u64;
    explored.points.extend(media.clock.ordering().points());
    explored.passed = explored.points.clone();
    for (index, moment) in moments.iter().enumerate() {
        let done = index + 1 == moments.len();
        for epoch in [0, u64::MAX] {
            let pm = moment.pm.in_epoch(epoch);
            let choices = all_subsets(&pm, effort.lines)
                .unwrap_or_else(|| some_subsets(&pm, effort.samples, index as u64));
            for choice in choices {
                explored.states += 1;
                let media = Media::from_images(pm.image_here(&|line| choice[line]), None, &Setup::default());
                let what = format!("copy {copy} mended, crash before event {index}");
                let read = read_superblock(&*media.pm, true);
                let (_, warning) = read.unwrap_or_else(|refused| panic!("{what}: {refused}"));
                assert!(!done || warning.is_none(), "{what}: {warning:?}");
            }
        }
    }
}
